# SPDX-License-Identifier: Apache-2.0
"""PID 1 of the emulated test host: sets the system up, runs commands for clients, reaps.

In the host whose init is systemd it is a service, which has less to set up.

Theory of operation. The initramfs starts this file as init of the Debian 13 root. It mounts what a
Linux system has, loads KVM, mounts the two shared folders and the state disk, says "agent ready" on
the console and listens. Every accepted connection is served by a process of its own, a *handler*,
so a fault of one command's handler can't touch the others; PID 1 itself only accepts and reaps.

What a handler does for its command is thawhost/session.py.
"""

import contextlib
import ctypes
import hmac
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from thawhost import kvmkeys, wire
from thawhost.pulse import Pulse
from thawhost.session import RUN_CGROUP, Command, Session
from thawhost.wire import Frame, WireError

HOST_DIR = Path(__file__).resolve().parent
AUTH_TIMEOUT_S = 30.0
LINGER_S = 600.0
CLOCK_BEHIND_S = 2.0
CLOCK_AHEAD_S = 60.0
MS_NOATIME = 1 << 10
NOFILE_LIMITS = (1024, 1 << 19)
RB_POWER_OFF = 0x4321FEDC
MOUNTS = (
    ("proc", "/proc", "proc", ""),
    ("sys", "/sys", "sysfs", ""),
    ("dev", "/dev", "devtmpfs", ""),
    ("devpts", "/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666"),
    ("shm", "/dev/shm", "tmpfs", "mode=1777"),
    ("tmp", "/tmp", "tmpfs", "mode=1777"),
    ("cgroup2", "/sys/fs/cgroup", "cgroup2", ""),
    ("bpf", "/sys/fs/bpf", "bpf", "mode=700"),
    ("debugfs", "/sys/kernel/debug", "debugfs", ""),
    ("tracefs", "/sys/kernel/tracing", "tracefs", ""),
)


@dataclass(frozen=True)
class Settings:
    """What machine.py tells the agent through host.json in the initramfs."""

    token: str
    digest: str
    shares: list[list[str]]  # [virtiofs tag, path], outermost path first
    address: str
    state_disk: str
    state_dir: str
    init: str  # "agent" or "systemd"


def say(text: str) -> None:
    """A line on the host's console, which is console.log outside."""
    with open("/dev/console", "w") as console:
        console.write(f"thaw-testhost: {text}\n")


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, options: str = "", flags: int = 0) -> None:
    """mount(2); a mount command each would cost a second at boot, emulated as it is."""
    Path(target).mkdir(parents=True, exist_ok=True)
    arguments = [text.encode() for text in (source, target, kind)]
    if libc().mount(*arguments, ctypes.c_ulong(flags), options.encode()) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mount {kind} on {target}: {os.strerror(error)}")


def check_call(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise OSError(f"{' '.join(command)}: {result.returncode}: {result.stderr.strip()}")


def mount_system() -> None:
    for source, target, kind, options in MOUNTS:
        mount(source, target, kind, options)
    # Without udev nobody else makes these links.
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        with contextlib.suppress(FileExistsError):
            Path("/dev", name).symlink_to(f"/proc/self/{target}")
    Path("/run/lock").mkdir(exist_ok=True)


def mount_shares(settings: Settings) -> None:
    # What is installed below systemd finds a fresh machine: no state of former ones.
    if settings.init == "agent":
        mount(settings.state_disk, settings.state_dir, "ext4", flags=MS_NOATIME)
    for tag, path in settings.shares:
        mount(tag, path, "virtiofs")


def start_network(settings: Settings) -> None:
    check_call("ip", "link", "set", "lo", "up")
    check_call("ip", "link", "set", "eth0", "up")
    check_call("ip", "address", "add", settings.address, "dev", "eth0")
    socket.sethostname("thaw-testhost")


def set_up_system(settings: Settings) -> None:
    if settings.init == "agent":
        mount_system()
    RUN_CGROUP.mkdir(exist_ok=True)
    check_call("modprobe", "-a", "virtio_net", "kvm_amd", "tun", "loop")
    mount_shares(settings)
    start_network(settings)


def step_clock(client_now_s: float) -> None:
    """The emulator's clock stands still while this machine sleeps: follow the client's.

    A START frame may be late, so that our clock seems ahead of the client's; only a difference that
    no delay explains is one.
    """
    behind_s = client_now_s - time.time()
    if behind_s > CLOCK_BEHIND_S or -behind_s > CLOCK_AHEAD_S:
        time.clock_settime(time.CLOCK_REALTIME, client_now_s)


def receive_first(connection: socket.socket, reader: wire.FrameReader) -> tuple[Frame, bytes]:
    """The client's first frame. It sends no other before it has an answer, but may at once."""
    while True:
        data = connection.recv(wire.WINDOW)
        if not data:
            raise ConnectionResetError("end of file")
        for frame in reader.feed(data):
            return frame


def authenticate(connection: socket.socket, token: bytes) -> None:
    nonce = os.urandom(wire.NONCE_BYTES)
    connection.sendall(wire.GREETING + nonce)
    proof = b""
    while len(proof) < wire.PROOF_BYTES:
        data = connection.recv(wire.PROOF_BYTES - len(proof))
        if not data:
            raise ConnectionResetError("end of file")
        proof += data
    if not hmac.compare_digest(proof, wire.prove(token, nonce)):
        raise PermissionError("wrong token")


def linger(connection: socket.socket) -> None:
    """Waits until the client closes.

    Closing first, with bytes of the client unread, would reset the connection, and a reset throws
    away what the client has not read yet: its last output and the exit status.
    """
    connection.settimeout(LINGER_S)
    while connection.recv(wire.CHUNK_BYTES):
        pass


def run_command(
    connection: socket.socket, reader: wire.FrameReader, command: Command, pulse: Pulse
) -> None:
    step_clock(command.now_s)
    connection.setblocking(False)
    session = Session(connection, reader, command, pulse.is_fresh)
    try:
        session.serve()
    except BaseException:
        session.child.hang_up()
        raise


class Agent:
    """PID 1's loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.handlers: set[int] = set()
        self.start_s = time.monotonic()
        self.pulse = Pulse()
        self.kvm_fds = kvmkeys.hold()
        # Not on every address: what thaw makes for its sandboxes shall not lead to the agent.
        address = settings.address.partition("/")[0]
        self.listener = socket.create_server((address, wire.AGENT_PORT), backlog=128)

    def serve(self) -> None:
        wake_in, wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.pulse.start()
        while True:
            ready, _, _ = select.select([self.listener, wake_in], [], [])
            if wake_in in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_in, 4096)
                self._reap()
            if self.listener in ready:
                self._accept()

    def _reap(self) -> None:
        """Handlers, and every orphan of the system: it is PID 1's duty."""
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                if pid in self.handlers:
                    self.handlers.discard(pid)
                    self._sweep()
                elif pid == self.pulse.pid:
                    self.pulse.start()

    def _sweep(self) -> None:
        """Removes the cgroups that have become empty; those with a background process stay.

        A live handler's cgroup may be empty because its command is only about to enter it.
        """
        for folder in RUN_CGROUP.iterdir():
            pid = folder.name.partition("-")[0]
            if pid.isdigit() and int(pid) not in self.handlers:
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _accept(self) -> None:
        """Starts a handler. Whatever fails here must not end PID 1: the client sees a close."""
        try:
            connection, _ = self.listener.accept()
        except OSError as error:
            say(f"accept: {error}")
            return
        try:
            pid = os.fork()
        except OSError as error:
            say(f"fork: {error}")
            pid = -1
        if pid:
            if pid > 0:
                self.handlers.add(pid)
            connection.close()
            return
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.listener.close()
            self._handle(connection)
            status = 0
        except (ConnectionError, TimeoutError, PermissionError):
            pass
        except BaseException:
            say(f"handler {os.getpid()}: {traceback.format_exc()}")
        finally:
            os._exit(status)

    def _handle(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(AUTH_TIMEOUT_S)
        authenticate(connection, bytes.fromhex(self.settings.token))
        reader = wire.FrameReader()
        kind, payload = receive_first(connection, reader)
        actions: dict[Frame, Callable[[], None]] = {
            Frame.START: lambda: run_command(
                connection, reader, Command.parse(payload), self.pulse
            ),
            Frame.STATUS: lambda: self._report_status(connection),
            Frame.POWEROFF: lambda: self._power_off(connection),
        }
        if kind not in actions:
            raise WireError(f"first frame {kind.name}")
        try:
            actions[kind]()
        except (OSError, WireError) as error:
            if isinstance(error, (ConnectionError, TimeoutError)):
                raise
            connection.settimeout(AUTH_TIMEOUT_S)
            connection.sendall(wire.pack(Frame.REFUSED, str(error).encode()))
        linger(connection)

    def _report_status(self, connection: socket.socket) -> None:
        status = {
            "sessions": len(self.handlers),
            "uptime_s": round(time.monotonic() - self.start_s, 3),
            "digest": self.settings.digest,
        }
        connection.sendall(wire.pack(Frame.STATUS, json.dumps(status).encode()))

    def _power_off(self, connection: socket.socket) -> None:
        """Ends everything but PID 1 and this handler, and leaves the disks clean."""
        kill_all_others(signal.SIGTERM, 2.0)
        kill_all_others(signal.SIGKILL, 5.0)
        os.sync()
        mounted = [path for _, path in reversed(self.settings.shares)]
        mounted += [self.settings.state_dir] if self.settings.init == "agent" else []
        for path in mounted:
            result = subprocess.run(["umount", "-R", path], capture_output=True, text=True)
            if result.returncode != 0:
                say(f"power off: {result.stderr.strip()}")
                subprocess.run(["mount", "-o", "remount,ro", path], capture_output=True)
        connection.sendall(wire.pack(Frame.POWEROFF))
        # Let the frame leave before the network card goes.
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.1)
        libc().reboot(RB_POWER_OFF)


def user_processes() -> list[int]:
    """Every process but PID 1, the caller, and those without a program: kernel threads, zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (1, os.getpid()):
            with contextlib.suppress(OSError):
                (entry / "exe").readlink()
                found.append(int(entry.name))
    return found


def kill_all_others(number: int, timeout_s: float) -> None:
    """Signals all of user_processes() and waits until none is left, or for the time given."""
    for pid in user_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    end_s = time.monotonic() + timeout_s
    while user_processes() and time.monotonic() < end_s:
        time.sleep(0.05)


def main() -> None:
    os.environ.clear()
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_NOFILE, NOFILE_LIMITS)
    settings = Settings(**json.loads((HOST_DIR / "host.json").read_text()))
    try:
        set_up_system(settings)
        agent = Agent(settings)
    except OSError as error:
        say(f"set-up failed: {error}")
        libc().reboot(RB_POWER_OFF)
        return
    # The kernel never picks PID 1 when memory runs out; its handlers inherit this, commands don't.
    Path("/proc/self/oom_score_adj").write_text("-1000")
    say(f"agent ready at {time.monotonic():.1f} s")
    agent.serve()


if __name__ == "__main__":
    main()
