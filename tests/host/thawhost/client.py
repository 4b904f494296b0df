# SPDX-License-Identifier: Apache-2.0
"""Runs one command in the test host, with this process's streams, signals and terminal.

A single poll loop over the connection and the three standard streams. The caller's streams may be
shared with other processes, so they are never made non-blocking: a stream is written only when poll
says so, and then at most as much as a pipe takes for certain.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from . import config, emulator, machine, wire
from .config import HOST_FAILED, HostError
from .wire import ExitKind, Frame, Stream

PIPE_BUF = select.PIPE_BUF
FORWARDED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
FORWARDED_NAMES = {"CI", "CLICOLOR", "COLORTERM", "COLUMNS", "LANG", "LANGUAGE", "LINES"}
FORWARDED_NAMES |= {"MAKEFLAGS", "NO_COLOR", "SOURCE_DATE_EPOCH", "TERM", "TZ", "V"}
FORWARDED_PREFIXES = ("THAW_", "PYTEST_", "LC_", "ASAN_", "UBSAN_", "LSAN_", "TSAN_")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class HostLost(Exception):
    """The host died or hangs."""


def command_env() -> dict[str, str]:
    """The command's environment in the host: a chosen part of ours, and what is right there."""
    env = {
        "HOME": "/root",
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "XDG_CACHE_HOME": str(config.cache_base()),
        "PATH": f"{config.CHECKOUT / 'build/release'}:{PATH}",
    }
    for name, value in os.environ.items():
        if name.startswith("THAW_TEST_HOST"):
            continue
        if name in FORWARDED_NAMES or name.startswith(FORWARDED_PREFIXES):
            env[name] = value
    if "MAKEFLAGS" in env:
        # The job server's pipe stays outside.
        flags = env["MAKEFLAGS"].split()
        env["MAKEFLAGS"] = " ".join(flag for flag in flags if not flag.startswith("--jobserver"))
    return env


def command_cwd() -> str:
    """This process's folder if the host has it too, else the checkout."""
    try:
        here = str(Path.cwd())
    except OSError:
        return str(config.CHECKOUT)
    for _, path in emulator.shares():
        if os.path.commonpath([here, str(path)]) == str(path):
            return here
    return str(config.CHECKOUT)


def wants_pty() -> bool:
    """A terminal on both sides, and ours to read: a background job must not touch its modes."""
    try:
        return os.isatty(0) and os.isatty(1) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def window_size() -> tuple[int, int]:
    """Rows and columns of the terminal."""
    try:
        packed = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
    except OSError:
        return 24, 80
    rows, columns = struct.unpack("HHHH", packed)[:2]
    return rows or 24, columns or 80


class Output:
    """One of our output streams: what waits for it and what was passed on."""

    def __init__(self, stream: Stream, fd: int) -> None:
        self.stream = stream
        self.fd = fd
        self.waiting: deque[memoryview] = deque()
        self.passed_bytes = 0
        self.closed = False
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            mode = 0
            self.closed = True
        # poll always allows a write to a regular file, and such a write does not block.
        self.step_bytes = wire.CHUNK_BYTES if stat.S_ISREG(mode) else PIPE_BUF

    def write_step(self) -> None:
        """Writes once; on an error the stream counts as closed."""
        try:
            count = os.write(self.fd, self.waiting[0][: self.step_bytes])
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EBADF, errno.EIO, errno.ECONNRESET):
                config.note(f"writing to fd {self.fd}: {error.strerror}")
            self.close()
            return
        self.passed_bytes += count
        if count == len(self.waiting[0]):
            self.waiting.popleft()
        else:
            self.waiting[0] = self.waiting[0][count:]

    def close(self) -> None:
        self.closed = True
        self.waiting.clear()


class Runner:
    """The poll loop of one command."""

    def __init__(self, connection: socket.socket, with_pty: bool) -> None:
        self.connection = connection
        self.with_pty = with_pty
        self.reader = wire.FrameReader()
        self.to_send = bytearray()
        self.outputs = {s: Output(s, fd) for s, fd in ((Stream.OUT, 1), (Stream.ERR, 2))}
        self.reported_closed: set[Stream] = set()
        self.input_open = True
        self.input_is_tty = os.isatty(0)
        self.input_credit = wire.WINDOW
        self.exit: tuple[ExitKind, int] | None = None
        self.silent_s = 0.0
        self.hang_s = config.hang_s()
        self.wake_in, self.wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def send(self, kind: Frame, payload: bytes = b"") -> None:
        self.to_send += wire.pack(kind, payload)

    def start(self, argv: list[str]) -> None:
        rows, columns = window_size()
        command = {
            "argv": [wire.encode_text(os.fsencode(text)) for text in argv],
            "env": {k: wire.encode_text(os.fsencode(v)) for k, v in command_env().items()},
            "cwd": wire.encode_text(os.fsencode(command_cwd())),
            "pty": self.with_pty,
            "split_stderr": not os.isatty(2),
            "rows": rows,
            "columns": columns,
            "now": time.time(),
        }
        payload = json.dumps(command).encode()
        if len(payload) > wire.MAX_PAYLOAD_BYTES:
            raise HostError("the command line is too long for the test host (1 MiB)")
        self.send(Frame.START, payload)

    def catch_signals(self) -> None:
        """From now on signals go to the command; the poll loop sends them."""
        signal.set_wakeup_fd(self.wake_out, warn_on_full_buffer=False)
        for number in (*FORWARDED_SIGNALS, signal.SIGWINCH):
            # What the caller ignores (nohup, a shell's background job), the command is spared too.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda caught, frame: None)

    def run(self) -> int:
        """Serves the command to its end; returns the exit status."""
        self.connection.setblocking(False)
        while self.exit is None or any(out.waiting for out in self.outputs.values()):
            self._poll()
            self._settle()
        kind, value = self.exit
        return 128 + value if kind == ExitKind.SIGNAL else value

    def _poll(self) -> None:
        poller = select.poll()
        poller.register(self.wake_in, select.POLLIN)
        if self.exit is None:
            events = select.POLLIN | (select.POLLOUT if self.to_send else 0)
            poller.register(self.connection, events)
        if self._may_read_input():
            poller.register(0, select.POLLIN)
        for out in self.outputs.values():
            if not out.closed:
                poller.register(out.fd, select.POLLOUT if out.waiting else 0)
        before_s = time.monotonic()
        ready = dict(poller.poll(1000))
        # A stopped client must not take its own sleep for the host's silence.
        self.silent_s += min(time.monotonic() - before_s, 2.0)
        if self.wake_in in ready:
            self._forward_signals()
        if self.connection.fileno() in ready:
            self._exchange(ready[self.connection.fileno()])
        elif self.silent_s > self.hang_s and self.exit is None:
            machine.mark_hung()
            raise HostLost(f"hung: silent for {self.hang_s:.0f} s")
        if 0 in ready and self.input_open:
            self._read_input(ready[0])
        for out in self.outputs.values():
            self._serve_output(out, ready.get(out.fd, 0))

    def _may_read_input(self) -> bool:
        """A background job that reads its terminal would be stopped."""
        if not self.input_open or self.input_credit == 0 or self.exit is not None:
            return False
        return not self.input_is_tty or os.tcgetpgrp(0) == os.getpgrp()

    @staticmethod
    def _serve_output(out: Output, events: int) -> None:
        if events & (select.POLLERR | select.POLLNVAL):
            out.close()
        elif events & select.POLLOUT and out.waiting:
            out.write_step()

    def _forward_signals(self) -> None:
        for number in os.read(self.wake_in, 4096):
            if number == signal.SIGWINCH:
                if self.with_pty:
                    self.send(Frame.RESIZE, wire.WINDOW_SIZE.pack(*window_size()))
            else:
                self.send(Frame.SIGNAL, wire.SIGNAL.pack(number))

    def _exchange(self, events: int) -> None:
        try:
            if events & select.POLLOUT:
                sent = self.connection.send(self.to_send)
                del self.to_send[:sent]
            if not events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                return
            data = self.connection.recv(wire.WINDOW)
        except BlockingIOError:
            return
        except OSError as error:
            raise HostLost(f"died: {error.strerror}") from None
        if not data:
            raise HostLost("died: it closed the connection")
        self.silent_s = 0.0
        for kind, payload in self.reader.feed(data):
            self._handle(kind, payload)

    def _handle(self, kind: Frame, payload: bytes) -> None:
        if kind in (Frame.DATA_OUT, Frame.DATA_ERR):
            out = self.outputs[Stream.OUT if kind == Frame.DATA_OUT else Stream.ERR]
            if out.closed:
                out.passed_bytes += len(payload)
            else:
                out.waiting.append(memoryview(payload))
        elif kind == Frame.GRANT:
            self.input_credit += wire.CREDIT.unpack(payload)[1]
        elif kind == Frame.CLOSED:
            self.input_open = False
        elif kind == Frame.EXIT:
            code, value = wire.EXIT.unpack(payload)
            self.exit = (ExitKind(code), value)
        elif kind == Frame.REFUSED:
            raise HostError(f"the agent refused: {payload.decode(errors='replace')}")
        elif kind != Frame.PING:
            raise wire.WireError(f"unexpected frame {kind.name}")

    def _read_input(self, events: int) -> None:
        if events & select.POLLNVAL:
            data = b""
        else:
            try:
                data = os.read(0, min(wire.CHUNK_BYTES, self.input_credit))
            except BlockingIOError:
                return
            except OSError:
                data = b""
        if data:
            self.input_credit -= len(data)
            self.send(Frame.DATA_IN, data)
        else:
            self.input_open = False
            self.send(Frame.EOF_IN)

    def _settle(self) -> None:
        """Grants credit for what was passed on, and reports the outputs that are gone."""
        if self.exit is not None:
            return
        for stream, out in self.outputs.items():
            if out.closed and stream not in self.reported_closed:
                self.reported_closed.add(stream)
                self.send(Frame.CLOSED, bytes([stream]))
            if out.passed_bytes >= wire.WINDOW // 4:
                self.send(Frame.GRANT, wire.CREDIT.pack(stream, out.passed_bytes))
                out.passed_bytes = 0


@contextlib.contextmanager
def raw_terminal(wanted: bool) -> Iterator[None]:
    """The terminal in raw mode while the host's pty does the line editing."""
    if not wanted:
        yield
        return
    saved = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, saved)


def open_missing_streams() -> None:
    """A caller may have closed our standard streams; nothing else may get their numbers."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)


def connect() -> socket.socket:
    """A connection to the host. A host that just died or hangs is replaced, once."""
    for last_try in (False, True):
        host = machine.ensure()
        try:
            return host.connect()
        except TimeoutError:
            machine.mark_hung()
            if last_try:
                raise HostLost("hung: its agent does not answer") from None
        except OSError as error:
            if last_try:
                raise HostLost(f"died: {error}") from None
            host.qemu.wait(1)
    raise AssertionError("unreachable")


def explain_loss(reason: str) -> None:
    config.complain(f"test host {reason}\n{emulator.console_tail()}")


def run(argv: list[str]) -> int:
    """Runs ARGV in the test host; returns its exit status, or HOST_FAILED."""
    open_missing_streams()
    try:
        with connect() as connection:
            with_pty = wants_pty()
            runner = Runner(connection, with_pty)
            runner.start(argv)
            runner.catch_signals()
            with raw_terminal(with_pty):
                return runner.run()
    except HostLost as error:
        explain_loss(str(error))
    except (HostError, wire.WireError, OSError) as error:
        config.note(str(error))
    return HOST_FAILED
