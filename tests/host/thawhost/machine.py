# SPDX-License-Identifier: Apache-2.0
"""Starts, finds and stops the emulated machine of this checkout.

One machine a checkout. Its runtime folder (config.runtime_dir, mode 0700) holds state.json (written
last: a folder without it is no running host), the token, the virtiofs sockets and the logs. Starts
and stops are serialised by a lock file beside the folder. QEMU and the two virtiofsd are daemons:
sessions of their own, no file of the caller open, known by pid and start time so that a reused pid
is never taken for them.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from . import config, emulator, image, statedisk, wire
from .config import HostError, Progress, note
from .emulator import Process
from .initramfs import make_initramfs

BOOT_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 30.0
READY_MARK = b"thaw-testhost: agent ready"


@dataclass(frozen=True)
class Host:
    """A started host, as state.json tells it."""

    port: int
    digest: str
    qemu: Process
    helpers: list[Process]

    @classmethod
    def load(cls) -> "Host | None":
        """The host that was started last and is still alive, or None."""
        folder = config.runtime_dir()
        try:
            config.check_private(folder)
            data = json.loads((folder / "state.json").read_text())
            host = cls(
                int(data["port"]),
                str(data["digest"]),
                Process(**data["qemu"]),
                [Process(**helper) for helper in data["helpers"]],
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return host if host.qemu.alive() else None

    def save(self) -> None:
        path = config.runtime_dir() / "state.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.rename(path)

    def connect(self, timeout_s: float | None = None) -> socket.socket:
        """An authenticated connection to the agent; raises OSError if it does not answer in time.

        The default for TIMEOUT_S is config.hang_s().
        """
        token = bytes.fromhex((config.runtime_dir() / "token").read_text())
        connection = socket.create_connection(
            ("127.0.0.1", self.port), config.hang_s() if timeout_s is None else timeout_s
        )
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greeting = receive_exactly(connection, len(wire.GREETING) + wire.NONCE_BYTES)
            if not greeting.startswith(wire.GREETING):
                raise ConnectionError(f"port {self.port}: not the test host's agent")
            connection.sendall(wire.prove(token, greeting[len(wire.GREETING) :]))
        except BaseException:
            connection.close()
            raise
        return connection

    def ask(self, kind: wire.Frame, timeout_s: float) -> bytes:
        """Sends a frame without payload and returns the answer's payload."""
        reader = wire.FrameReader()
        with self.connect(timeout_s) as connection:
            connection.sendall(wire.pack(kind))
            while data := connection.recv(wire.CHUNK_BYTES):
                for answer, payload in reader.feed(data):
                    if answer != kind:
                        raise ConnectionError(f"{kind.name}: {payload.decode(errors='replace')}")
                    return payload
        raise ConnectionError(f"{kind.name}: no answer")

    def busy(self) -> bool:
        """Whether commands run in it now, the asker not counted."""
        try:
            status = json.loads(self.ask(wire.Frame.STATUS, config.hang_s()))
        except (OSError, ValueError):
            return False
        return int(status["sessions"]) > 1


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the agent closed the connection")
        data += part
    return data


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Holds the start/stop lock of this checkout's host."""
    path = config.runtime_base() / f"thaw-testhost-{config.checkout_key()}.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        reason = f"{path}: {error.strerror}: run as root, or set XDG_RUNTIME_DIR"
        raise HostError(reason) from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("waiting for another start or stop")
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def make_runtime_dir() -> None:
    """An empty runtime folder; the last console log of a host that died is kept beside it."""
    folder = config.runtime_dir()
    previous = b""
    if folder.exists():
        config.check_private(folder)
        with contextlib.suppress(OSError):
            previous = (folder / "console.log").read_bytes()
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    if previous:
        (folder / "console.log.previous").write_bytes(previous)


def wait_for_agent(qemu: Process, progress: Progress) -> None:
    console = config.runtime_dir() / "console.log"
    start_s = time.monotonic()
    while True:
        with contextlib.suppress(OSError):
            if READY_MARK in console.read_bytes():
                return
        if not qemu.alive():
            raise HostError(f"the host died while it started\n{emulator.console_tail()}")
        if time.monotonic() - start_s > BOOT_TIMEOUT_S:
            raise HostError(f"no agent after {BOOT_TIMEOUT_S:.0f} s\n{emulator.console_tail()}")
        progress.update("")
        time.sleep(0.1)


def write_initramfs(tree: Path) -> None:
    """Writes the initramfs and the token for the next start."""
    folder = config.runtime_dir()
    token = secrets.token_hex(32)
    (folder / "token").write_text(token)
    settings = {
        "token": token,
        "digest": config.host_digest(),
        "shares": [[tag, str(path)] for tag, path in emulator.shares()],
        "address": emulator.ADDRESS,
        "state_disk": "/dev/vdb",
        "state_dir": "/var/lib/thaw",
        "init": config.init(),
    }
    (folder / "initramfs").write_bytes(make_initramfs(tree, json.dumps(settings).encode()))


def start() -> Host:
    """Starts a host; the caller holds the lock and none is running."""
    image_dir = image.build()
    tree = image_dir / "tree"
    os.utime(image_dir)
    disk_lock = statedisk.lock()
    started: list[Process] = []
    try:
        statedisk.prepare(tree)
        progress = Progress()
        progress.begin("starting")
        make_runtime_dir()
        write_initramfs(tree)
        share_options = emulator.start_shares(tree, started)
        port = emulator.free_port()
        command = emulator.qemu_command(image_dir, port, share_options)
        log = config.runtime_dir() / "qemu.log"
        qemu = emulator.spawn_daemon(command, image.tool_env(tree), log, (disk_lock,))
        started.append(qemu)
        wait_for_agent(qemu, progress)
        host = Host(port, config.host_digest(), qemu, started[:-1])
        host.connect().close()
        host.save()
    except BaseException:
        for process in reversed(started):
            process.kill(signal.SIGKILL)
        raise
    finally:
        os.close(disk_lock)
    progress.done()
    return host


def end(host: Host, polite: bool) -> None:
    """Ends HOST: by its agent if POLITE, by force if that fails. The caller holds the lock."""
    if polite:
        try:
            host.ask(wire.Frame.POWEROFF, STOP_TIMEOUT_S)
        except OSError as error:
            note(f"the agent did not power off ({error}); killing the emulator")
        else:
            host.qemu.wait(STOP_TIMEOUT_S)
    for process in [host.qemu, *host.helpers]:
        process.kill(signal.SIGTERM if polite else signal.SIGKILL)
    for process in [host.qemu, *host.helpers]:
        if not process.wait(5):
            process.kill(signal.SIGKILL)
            process.wait(5)


def end_orphans() -> bool:
    """Ends the helpers of a host whose QEMU died, if there is one; the caller holds the lock."""
    try:
        data = json.loads((config.runtime_dir() / "state.json").read_text())
        helpers = [Process(**helper) for helper in data["helpers"]]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    for helper in helpers:
        helper.kill(signal.SIGKILL)
    return True


def mark_hung() -> None:
    """Lets the next ensure() replace the host: it does not answer."""
    with contextlib.suppress(OSError):
        (config.runtime_dir() / "hung").touch()


def usable(host: Host | None) -> bool:
    return (
        host is not None
        and host.digest == config.host_digest()
        and not (config.runtime_dir() / "hung").exists()
    )


def ensure() -> Host:
    """The running host of this checkout; started, or replaced if it is stale or hung."""
    host = Host.load()
    if host is not None and usable(host):
        return host
    with locked():
        host = Host.load()
        if host is not None and usable(host):
            return host
        if host is not None:
            hung = (config.runtime_dir() / "hung").exists()
            if not hung and host.busy():
                note("its files changed, but commands run in it: using it as it is for now")
                return host
            note("it does not answer: restarting" if hung else "its files changed: restarting")
            end(host, polite=not hung)
        if end_orphans() and host is None:
            note(f"it had died: starting anew; see {config.runtime_dir()}/console.log.previous")
        return start()


def stop() -> bool:
    """Stops the host of this checkout; False if none was running."""
    with locked():
        host = Host.load()
        if host is not None:
            end(host, polite=not (config.runtime_dir() / "hung").exists())
        end_orphans()
        if config.runtime_dir().is_dir():
            config.check_private(config.runtime_dir())
            shutil.rmtree(config.runtime_dir())
        return host is not None
