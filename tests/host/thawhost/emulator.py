# SPDX-License-Identifier: Apache-2.0
"""The emulated machine's processes: QEMU, a virtiofsd a shared folder, and how to start daemons."""

import contextlib
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from . import config, image, wire
from .config import HostError

# A network that nothing in the host will want for itself; there is no way out of it.
NETWORK = "192.0.2.0/24"
ADDRESS = "192.0.2.15/24"
CONSOLE_LINES = 40
KERNEL_LINE = (
    "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr nowatchdog tsc=reliable"
    " no_timer_check audit=0 apparmor=0 cryptomgr.notests random.trust_cpu=on"
    " initcall_blacklist=jent_mod_init"
)
INIT_LINES = {
    "agent": "",
    "systemd": " selinux=0 net.ifnames=0 systemd.show_status=no systemd.mask=getty.target"
    " systemd.mask=serial-getty@ttyS0.service systemd.mask=systemd-udev-trigger.service",
}
# The checkout must show every change made outside at once, so nothing of it is cached. The cache
# folder holds images under names that are never used again for other content: there, pages and
# names stay cached, or every open of an image would drop the pages that its users share.
SHARE_MODES = {"checkout": ["--cache=never", "--allow-mmap"], "cache": ["--cache=always"]}


@dataclass(frozen=True)
class Process:
    """A process by pid and start time (clock ticks after boot)."""

    pid: int
    start_ticks: int

    @classmethod
    def find(cls, pid: int) -> "Process | None":
        """The live process PID; a zombie is none."""
        try:
            # The name in parentheses may hold anything: count the fields from its end.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            return None
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    def alive(self) -> bool:
        return Process.find(self.pid) == self

    def kill(self, number: int) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> bool:
        end_s = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() > end_s:
                return False
            time.sleep(0.05)
        return True


def spawn_daemon(
    command: list[str], env: dict[str, str], log: Path, keep_fds: tuple[int, ...] = ()
) -> Process:
    """Starts COMMAND as a daemon: no parent, no terminal, none of the caller's files.

    It inherits KEEP_FDS alone.
    """
    report_in, report_out = os.pipe2(os.O_CLOEXEC)
    middle = os.fork()
    if middle == 0:
        try:
            os.setsid()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log.open("ab"),
                stderr=subprocess.STDOUT,
                env=env,
                cwd="/",
                start_new_session=True,
                pass_fds=keep_fds,
            )
            os.write(report_out, b"%d" % process.pid)
        except OSError as error:
            os.write(report_out, str(error).encode())
        finally:
            os._exit(0)
    os.close(report_out)
    os.waitpid(middle, 0)
    with os.fdopen(report_in) as report:
        text = report.read()
    process = Process.find(int(text)) if text.isdigit() else None
    if process is None:
        raise HostError(f"{command[0]} did not start: {text}\n{tail(log)}")
    return process


def tail(path: Path, lines: int = CONSOLE_LINES) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - (64 << 10)))
            text = file.read().decode(errors="replace").replace("\r", "")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def console_tail() -> str:
    """The end of what the host and its emulator said, for an error message."""
    folder = config.runtime_dir()
    parts = []
    for name in ("console.log", "qemu.log", "virtiofsd.log"):
        text = tail(folder / name)
        if text:
            parts.append(f"--- the last lines of {name}\n{text}")
    return "\n".join(parts)


def shares() -> list[tuple[str, Path]]:
    """The shared folders as (tag, path), the outer one first if one is inside the other."""
    both = [("checkout", config.CHECKOUT), ("cache", config.cache_dir())]
    return sorted(both, key=lambda share: len(share[1].parts))


def start_shares(tree: Path, started: list[Process]) -> list[str]:
    """Starts a virtiofsd for each share; returns QEMU's options for them."""
    folder = config.runtime_dir()
    options = []
    for tag, path in shares():
        socket_path = folder / f"{tag}.sock"
        if len(os.fsencode(socket_path)) > 107:
            raise HostError(f"{socket_path}: too long for a socket; set XDG_RUNTIME_DIR")
        command = image.tool_command(tree, "usr/libexec/virtiofsd")
        command += [f"--socket-path={socket_path}", f"--shared-dir={path}", "--xattr"]
        # File handles, where the file system has them: an open file for every name that the host
        # ever looked at would soon reach the limit of open files.
        command += ["--sandbox=chroot", "--inode-file-handles=prefer", "--log-level=error"]
        command += SHARE_MODES[tag]
        process = spawn_daemon(command, image.tool_env(tree), folder / "virtiofsd.log")
        started.append(process)
        end_s = time.monotonic() + 10
        while not socket_path.exists():
            if not process.alive() or time.monotonic() > end_s:
                raise HostError(f"virtiofsd did not start\n{tail(folder / 'virtiofsd.log')}")
            time.sleep(0.01)
        options += ["-chardev", f"socket,id={tag},path={option_path(socket_path)}"]
        options += ["-device", f"vhost-user-fs-pci,chardev={tag},tag={tag},queue-size=1024"]
    return options


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def option_path(path: Path) -> str:
    """A path inside a QEMU option, where a comma ends the value unless doubled."""
    return str(path).replace(",", ",,")


def qemu_command(image_dir: Path, port: int, share_options: list[str]) -> list[str]:
    folder = config.runtime_dir()
    tree = image_dir / "tree"
    memory_mb = config.memory_mb()
    disk = "if=virtio,format=raw,cache=unsafe"
    command = image.tool_command(tree, "usr/bin/qemu-system-x86_64")
    command += ["-L", str(tree / "usr/share/qemu"), "-L", str(tree / "usr/share/seabios")]
    command += ["-name", "thaw-testhost", "-nodefaults", "-no-user-config", "-no-reboot"]
    command += ["-M", "pc,memory-backend=ram", "-accel", "tcg,thread=multi"]
    command += ["-cpu", "max,+svm", "-smp", "2", "-m", str(memory_mb)]
    command += ["-object", f"memory-backend-memfd,id=ram,size={memory_mb}M,share=on"]
    command += ["-display", "none", "-monitor", "none", "-rtc", "base=utc"]
    command += ["-serial", f"file:{option_path(folder / 'console.log')}"]
    command += ["-kernel", str(image_dir / "kernel"), "-initrd", str(folder / "initramfs")]
    command += ["-append", KERNEL_LINE + INIT_LINES[config.init()]]
    root = option_path(image_dir / "root.ext4")
    command += ["-drive", f"file={root},{disk},snapshot=on"]
    state = option_path(config.state_disk())
    command += ["-drive", f"file={state},{disk},discard=unmap,detect-zeroes=unmap"]
    forward = f"hostfwd=tcp:127.0.0.1:{port}-:{wire.AGENT_PORT}"
    command += ["-netdev", f"user,id=net,net={NETWORK},ipv6=off,restrict=on,{forward}"]
    command += ["-device", "virtio-net-pci,netdev=net,romfile="]
    command += ["-device", "virtio-rng-pci"]
    return command + share_options
