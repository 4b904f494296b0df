# SPDX-License-Identifier: Apache-2.0
"""Stop-watches: a process from its start to its end, and the processor time of all that we start.

The clients of every arm are started the same way, by posix_spawn(3) without a shell, so that what
the lab's own Python costs is the same for all and small.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 300.0
CGROUPS = Path("/sys/fs/cgroup")


class Failed(Exception):
    """A start that did not end as it should; the message says what and how."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    wall_ms: float
    cpu_ms: float  # of it and of its children that it waited for
    status: int  # exit status; -n: killed by signal n
    output: str  # the end of stdout and stderr


def spawn(
    argv: Sequence[str], output_fd: int, env: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Start @argv with stdin from /dev/null; its pid, and a pidfd of it."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output_fd, 1),
        (os.POSIX_SPAWN_DUP2, output_fd, 2),
    ]
    environ = dict(os.environ) if env is None else dict(env)
    pid = os.posix_spawnp(argv[0], list(argv), environ, file_actions=actions)
    return pid, os.pidfd_open(pid)


def wait(pid: int, pid_fd: int, timeout_s: float) -> tuple[int, float]:
    """Wait until it ends, kill it when it takes too long; exit status and processor time in ms."""
    poll = select.poll()
    poll.register(pid_fd, select.POLLIN)
    late = not poll.poll(timeout_s * 1e3)
    if late:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    os.close(pid_fd)
    if late:
        raise Failed(f"killed after {timeout_s:.0f} s")
    return os.waitstatus_to_exitcode(status), (usage.ru_utime + usage.ru_stime) * 1e3


def run_timed(
    argv: Sequence[str], env: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
) -> Ended:
    """Run @argv to its end; Failed when it takes longer than @timeout_s."""
    output_fd = os.memfd_create("output", os.MFD_CLOEXEC)
    try:
        start = time.monotonic()
        pid, pid_fd = spawn(argv, output_fd, env)
        status, cpu_ms = wait(pid, pid_fd, timeout_s)
        wall_ms = (time.monotonic() - start) * 1e3
        size = os.fstat(output_fd).st_size
        output = os.pread(output_fd, 65536, max(0, size - 65536)).decode(errors="replace")
    finally:
        os.close(output_fd)
    return Ended(wall_ms, cpu_ms, status, output)


def run_good(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
    """run_timed(), and Failed with the last lines that it said unless its exit status is 0."""
    ended = run_timed(argv, env)
    if ended.status != 0:
        said = ended.output.strip().splitlines()
        why = "; ".join(said[-3:]) or "said nothing"
        raise Failed(f"{Path(argv[0]).name} ended with status {ended.status}: {why}")
    return ended


class CpuMeter:
    """Processor time of every process that this one starts, alive or not, by a cgroup of its own.

    Without cgroup2, or without the right to make one, there is none: used_ms() is None.
    """

    def __init__(self) -> None:
        self.folder: Path | None = CGROUPS / f"thaw-lab-{os.getpid()}"
        try:
            self.folder.mkdir()
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))
            self._usage_us()
        except (OSError, ValueError):
            self.close()

    def _usage_us(self) -> int:
        assert self.folder is not None
        text = (self.folder / "cpu.stat").read_text()
        return int(text.split("usage_usec", 1)[1].split()[0])

    def used_ms(self) -> float | None:
        """So far, without this process's own."""
        if self.folder is None:
            return None
        return self._usage_us() / 1e3 - time.process_time() * 1e3

    def close(self) -> None:
        """Back to the root cgroup. What still runs in ours keeps it."""
        if self.folder is None:
            return
        try:
            for line in (self.folder / "cgroup.procs").read_text().splitlines():
                (CGROUPS / "cgroup.procs").write_text(line)
            self.folder.rmdir()
        except OSError:
            pass
        self.folder = None
