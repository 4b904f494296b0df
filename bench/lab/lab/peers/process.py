# SPDX-License-Identifier: Apache-2.0
"""A peer's machine while it runs: its process, and commands in its guest by the exec protocol.

The guest is thaw's own, so its PID 1 is thaw-shim and the first command is asked for exactly as
thaw asks: one SHIM_EXEC frame on a stream to vsock port 1024.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab.measure import Failed, spawn

sys.path.append(str(Path(__file__).resolve().parents[4] / "tests/vm"))
import shim

Dial = Callable[[float], socket.socket]  # seconds -> a stream to the shim

BOOT_PATIENCE_S = 120.0
BOOT_STEP_S = 0.010  # between two calls to a guest that does not answer yet
RESTORE_STEP_S = 0.002


def dial_unix(path: Path) -> Dial:
    """The "CONNECT port" protocol of Firecracker's and Cloud Hypervisor's vsock (and thaw's)."""
    return lambda timeout_s: shim.connect(path, timeout_s=timeout_s)


def dial_vsock(cid: int) -> Dial:
    """The host's own AF_VSOCK, for a guest behind vhost-vsock."""

    def dial(timeout_s: float) -> socket.socket:
        sock = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect((cid, shim.SHIM_PORT))
        except BaseException:
            sock.close()
            raise
        return sock

    return dial


def last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "said nothing"


class Process:
    """A peer's process, started as every client of the lab is; ended by SIGKILL, as thaw ends its
    own machines."""

    def __init__(self, argv: list[str], log: Path, dial: Dial) -> None:
        self.name = Path(argv[0]).name
        self.log = log
        self.dial = dial
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self.pid, self.pid_fd = spawn(argv, log_fd)
        finally:
            os.close(log_fd)
        self.ended = False

    def check_alive(self) -> None:
        """Failed with the last line that it said, when the process has ended."""
        poll = select.poll()
        poll.register(self.pid_fd, select.POLLIN)
        if poll.poll(0):
            raise Failed(f"{self.name} ended by itself: {last_line(self.log)}")

    def until(self, what: str, attempt: Callable[[], object], step_s: float) -> None:
        """Call @attempt() until it raises no OSError and no shim.Lost."""
        deadline = time.monotonic() + BOOT_PATIENCE_S
        while True:
            try:
                attempt()
                return
            except (OSError, shim.Lost) as error:
                self.check_alive()
                if time.monotonic() > deadline:
                    raise Failed(f"{self.name}: {what}: {error}") from error
            time.sleep(step_s)

    def _exec(self, argv: list[str]) -> shim.Result:
        with self.dial(BOOT_PATIENCE_S) as sock:
            sock.sendall(shim.frame(shim.EXEC, shim.exec_payload(argv)))
            return shim.collect(sock)

    def _ping(self) -> None:
        with self.dial(BOOT_PATIENCE_S) as sock:
            sock.sendall(shim.frame(shim.PING, b"lab"))
            kind, payload = next(shim.frames(sock))
            if (kind, payload) != (shim.PONG, b"lab"):
                raise Failed(f"{self.name}: the guest answers a ping with frame {kind}")

    def greet(self, step_s: float = RESTORE_STEP_S) -> None:
        """Until the guest answers a ping.

        After a restore these VMMs tell the guest to reset its streams, some instants after it
        runs. A ping that is lost then costs little; a command would have to run twice.
        """
        self.until("a ping of the guest", self._ping, step_s)

    def command(self, argv: list[str], step_s: float = RESTORE_STEP_S) -> None:
        """Run @argv in the guest; while nobody answers there, or the stream is reset, ask again
        every @step_s."""
        results: list[shim.Result] = []
        self.until(f"{argv[0]} in the guest", lambda: results.append(self._exec(argv)), step_s)
        result = results[0]
        if result.error is not None or result.kind != shim.EXIT_CODE or result.value != 0:
            why = result.error or f"status {result.value}"
            raise Failed(f"{self.name}: {argv[0]} in the guest: {why}")

    def kill(self) -> None:
        """End it and wait until it is gone, with all that it held."""
        if self.ended:
            return
        self.ended = True
        signal.pidfd_send_signal(self.pid_fd, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pid_fd)
