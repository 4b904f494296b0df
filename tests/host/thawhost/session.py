# SPDX-License-Identifier: Apache-2.0
"""Inside the test host: one command of one client.

A session is a single poll loop over the connection, the command's pipes (or pty) and its pidfd. All
of these are non-blocking and the streams have credit (wire.py), so no stalled stream stops signals
or heartbeats. The command has a session and a cgroup of its own. If it exits, its output is drained
first, then the exit is reported; what it left in the background lives on, as it would on any
machine. If the client goes away, the command gets SIGHUP and SIGTERM and, after a grace period, its
whole cgroup is killed.
"""

import contextlib
import errno
import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import wire
from .wire import ExitKind, Frame, Stream, WireError

RUN_CGROUP = Path("/sys/fs/cgroup/thaw-testhost")
DRAIN_IDLE_S = 1.0
DRAIN_TOTAL_S = 10.0
HANGUP_GRACE_S = 3.0


def reset_signals() -> None:
    """Python ignores SIGPIPE and handles SIGINT; a command must start with the defaults."""
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


@dataclass(frozen=True)
class Command:
    """The START frame, checked."""

    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: bytes
    pty: bool
    split_stderr: bool
    rows: int
    columns: int
    now_s: float

    @classmethod
    def parse(cls, payload: bytes) -> "Command":
        try:
            start: dict[str, Any] = json.loads(payload)
            argv = [wire.decode_text(text) for text in start["argv"]]
            env = {wire.decode_text(k): wire.decode_text(v) for k, v in start["env"].items()}
            command = cls(
                argv,
                env,
                wire.decode_text(start["cwd"]),
                bool(start["pty"]),
                bool(start["split_stderr"]),
                int(start["rows"]),
                int(start["columns"]),
                float(start["now"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WireError(f"START: {error!r}") from None
        if not argv or any(b"\0" in text for text in [*argv, command.cwd]):
            raise WireError("START: no command, or a NUL byte in it")
        return command


class Child:
    """A started command: its process, cgroup and our ends of its streams (-1: closed)."""

    def __init__(self, command: Command) -> None:
        self.stdin = self.stdout = self.stderr = -1
        # A background process may outlive a handler's pid: the time makes the name unique.
        self.cgroup = RUN_CGROUP / f"{os.getpid()}-{time.monotonic_ns()}"
        self.cgroup.mkdir()
        if command.pty:
            self.stdout, inner_in = pty.openpty()
            self.stdin = self.stdout
            inner_out = inner_err = inner_in
            self.resize(command.rows, command.columns)
        else:
            inner_in, self.stdin = os.pipe()
            self.stdout, inner_out = os.pipe()
        if not command.pty or command.split_stderr:
            self.stderr, inner_err = os.pipe()
        ends = (inner_in, inner_out, inner_err)
        if not command.pty:
            for fd in (self.stdin, self.stdout):
                with contextlib.suppress(OSError):
                    fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, wire.CHUNK_BYTES * 2)
        self.pid = os.fork()
        if self.pid == 0:
            self._exec(command, ends)
        for fd in set(ends):
            os.close(fd)
        for fd in {self.stdin, self.stdout, self.stderr} - {-1}:
            os.set_blocking(fd, False)
        self.pidfd = os.pidfd_open(self.pid)

    def _exec(self, command: Command, ends: tuple[int, int, int]) -> None:
        """In the child: becomes the command, or says why not and exits as a shell would."""
        status = 126
        subject = os.fsencode(self.cgroup)
        try:
            os.setsid()
            for target, fd in enumerate(ends):
                os.dup2(fd, target)
            if command.pty:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            reset_signals()
            (self.cgroup / "cgroup.procs").write_text("0")
            Path("/proc/self/oom_score_adj").write_text("0")
            subject = command.cwd
            os.chdir(command.cwd)
            subject = command.argv[0]
            os.execvpe(command.argv[0], command.argv, command.env)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR) and subject is command.argv[0]:
                status = 127
            os.write(2, b"run: %s: %s\n" % (subject, os.strerror(error.errno or 0).encode()))
        finally:
            os._exit(status)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.stdout, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send_signal(self, number: int) -> None:
        """As a terminal does, INT, QUIT, TERM and HUP go to the command's whole process group."""
        to_group = number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
        with contextlib.suppress(ProcessLookupError):
            if to_group:
                os.killpg(self.pid, number)
            else:
                signal.pidfd_send_signal(self.pidfd, number)

    def hang_up(self) -> None:
        """Ends the command and all that it started: a hint first, then the cgroup is killed."""
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT):
            self.send_signal(number)
        end_s = time.monotonic() + HANGUP_GRACE_S
        events = self.cgroup / "cgroup.events"
        while time.monotonic() < end_s and "populated 1" in events.read_text():
            # Nobody else reaps the command, and a zombie still counts as populated.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            time.sleep(0.05)
        (self.cgroup / "cgroup.kill").write_text("1")


class Session:
    """The poll loop that serves one command to one client."""

    def __init__(
        self,
        connection: socket.socket,
        reader: wire.FrameReader,
        command: Command,
        may_ping: Callable[[], bool],
    ) -> None:
        self.connection = connection
        self.may_ping = may_ping
        self.reader = reader
        self.child = Child(command)
        self.poller = select.poll()
        self._registered: set[int] = set()
        self.to_send = bytearray()
        self.input: deque[bytes] = deque()
        self.input_ended = False
        self.input_done_bytes = 0
        self.credit = {Stream.OUT: wire.WINDOW, Stream.ERR: wire.WINDOW}
        self.exit_status: int | None = None
        self.idle_since_s = self.exited_at_s = 0.0
        self.next_ping_s = time.monotonic() + wire.PING_INTERVAL_S

    def send(self, kind: Frame, payload: bytes = b"") -> None:
        self.to_send += wire.pack(kind, payload)

    def serve(self) -> None:
        """Returns when the exit was reported; raises ConnectionError when the client is gone."""
        # Frames that came together with START wait in the reader.
        self._handle_all(b"")
        while True:
            self._register()
            for fd, events in self.poller.poll(self._timeout_ms()):
                self._dispatch(fd, events)
            if time.monotonic() >= self.next_ping_s:
                if self.may_ping():
                    self.send(Frame.PING)
                self.next_ping_s = time.monotonic() + wire.PING_INTERVAL_S
            if self.exit_status is not None and self._drained():
                self._report_exit()
                return

    def _timeout_ms(self) -> float:
        wait_s = self.next_ping_s - time.monotonic()
        if self.exit_status is not None:
            wait_s = min(wait_s, 0.05)
        return max(0.0, wait_s * 1000)

    def _register(self) -> None:
        """Tells the poller what can be done now; an fd without events still reports its end."""
        child = self.child
        wanted = {self.connection.fileno(): select.POLLIN}
        if self.to_send:
            wanted[self.connection.fileno()] |= select.POLLOUT
        if self.exit_status is None:
            wanted[child.pidfd] = select.POLLIN
        if child.stdin >= 0 and (self.input or child.stdin != child.stdout):
            wanted[child.stdin] = select.POLLOUT if self.input else 0
        for stream, fd in ((Stream.OUT, child.stdout), (Stream.ERR, child.stderr)):
            if fd >= 0 and self.credit[stream] > 0:
                wanted[fd] = wanted.get(fd, 0) | select.POLLIN
        for fd in self._registered - wanted.keys():
            self.poller.unregister(fd)
        for fd, events in wanted.items():
            self.poller.register(fd, events)
        self._registered = set(wanted)

    def _dispatch(self, fd: int, events: int) -> None:
        child = self.child
        if fd == self.connection.fileno():
            self._exchange(events)
        elif fd == child.pidfd:
            self._reap()
        else:
            if fd == child.stdin and events & (select.POLLOUT | select.POLLERR):
                self._write_input(events)
            for stream, out in ((Stream.OUT, child.stdout), (Stream.ERR, child.stderr)):
                if fd == out and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    self._read_output(stream, fd)

    def _exchange(self, events: int) -> None:
        if events & select.POLLOUT:
            with contextlib.suppress(BlockingIOError):
                sent = self.connection.send(self.to_send)
                del self.to_send[:sent]
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            try:
                data = self.connection.recv(wire.WINDOW)
            except BlockingIOError:
                return
            if not data:
                raise ConnectionResetError("end of file")
            self._handle_all(data)

    def _handle_all(self, data: bytes) -> None:
        for kind, payload in self.reader.feed(data):
            self._handle(kind, payload)

    def _handle(self, kind: Frame, payload: bytes) -> None:
        try:
            if kind == Frame.DATA_IN:
                self._accept_input(payload)
            elif kind == Frame.EOF_IN:
                self.input_ended = True
                self._finish_input()
            elif kind == Frame.GRANT:
                stream, count = wire.CREDIT.unpack(payload)
                self.credit[Stream(stream)] += count
            elif kind == Frame.CLOSED:
                self._close_output(Stream(payload[0]))
            elif kind == Frame.SIGNAL:
                self.child.send_signal(wire.SIGNAL.unpack(payload)[0])
            elif kind == Frame.RESIZE:
                self.child.resize(*wire.WINDOW_SIZE.unpack(payload))
            else:
                raise WireError(f"unexpected frame {kind.name}")
        except (struct.error, ValueError, KeyError, IndexError) as error:
            raise WireError(f"{kind.name}: {error!r}") from None

    def _accept_input(self, payload: bytes) -> None:
        if self.child.stdin < 0:
            return
        if sum(map(len, self.input)) + len(payload) > wire.WINDOW:
            raise WireError("more input than was granted")
        self.input.append(payload)
        self._write_input(select.POLLOUT)

    def _write_input(self, events: int) -> None:
        """Hands input on to the command, and grants the client as much again."""
        if events & select.POLLERR and not events & select.POLLOUT:
            self._close_input(reader_gone=True)
            return
        try:
            while self.input:
                count = os.write(self.child.stdin, self.input[0])
                self.input_done_bytes += count
                if count == len(self.input[0]):
                    self.input.popleft()
                else:
                    self.input[0] = self.input[0][count:]
        except BlockingIOError:
            pass
        except OSError:
            self._close_input(reader_gone=True)
            return
        if self.input_done_bytes >= wire.WINDOW // 4:
            self.send(Frame.GRANT, wire.CREDIT.pack(Stream.IN, self.input_done_bytes))
            self.input_done_bytes = 0
        self._finish_input()

    def _finish_input(self) -> None:
        if self.input_ended and not self.input:
            self._close_input(reader_gone=False)

    def _close_input(self, reader_gone: bool) -> None:
        self.input.clear()
        if self.child.stdin < 0:
            return
        if self.child.stdin != self.child.stdout:
            os.close(self.child.stdin)
        self.child.stdin = -1
        if reader_gone:
            self.send(Frame.CLOSED, bytes([Stream.IN]))

    def _read_output(self, stream: Stream, fd: int) -> None:
        try:
            data = os.read(fd, min(wire.CHUNK_BYTES, self.credit[stream]))
        except BlockingIOError:
            return
        except OSError:
            # A pty's master reads EIO when the last process that held it is gone.
            data = b""
        if not data:
            self._close_output(stream)
            return
        self.idle_since_s = time.monotonic()
        self.credit[stream] -= len(data)
        self.send(Frame.DATA_OUT if stream == Stream.OUT else Frame.DATA_ERR, data)

    def _close_output(self, stream: Stream) -> None:
        child = self.child
        fd = child.stdout if stream == Stream.OUT else child.stderr
        if fd < 0:
            return
        if fd == child.stdin:
            child.stdin = -1
        os.close(fd)
        if stream == Stream.OUT:
            child.stdout = -1
        else:
            child.stderr = -1

    def _reap(self) -> None:
        _, self.exit_status = os.waitpid(self.child.pid, 0)
        self.exited_at_s = self.idle_since_s = time.monotonic()
        self._close_input(reader_gone=True)

    def _drained(self) -> bool:
        """Whether all of the command's output is on its way to the client.

        A background process may hold the pipes: those are given up once they were silent for
        DRAIN_IDLE_S, or after DRAIN_TOTAL_S. A client that grants no credit is waited for.
        """
        open_streams = [
            stream
            for stream, fd in ((Stream.OUT, self.child.stdout), (Stream.ERR, self.child.stderr))
            if fd >= 0
        ]
        if not open_streams:
            return True
        if any(self.credit[stream] == 0 for stream in open_streams):
            self.idle_since_s = self.exited_at_s = time.monotonic()
            return False
        now_s = time.monotonic()
        idle_s = now_s - self.idle_since_s
        return idle_s >= DRAIN_IDLE_S or now_s - self.exited_at_s >= DRAIN_TOTAL_S

    def _report_exit(self) -> None:
        status = self.exit_status or 0
        if os.WIFSIGNALED(status):
            self.send(Frame.EXIT, wire.EXIT.pack(ExitKind.SIGNAL, os.WTERMSIG(status)))
        else:
            self.send(Frame.EXIT, wire.EXIT.pack(ExitKind.CODE, os.WEXITSTATUS(status)))
        self.connection.settimeout(60)
        self.connection.sendall(self.to_send)
