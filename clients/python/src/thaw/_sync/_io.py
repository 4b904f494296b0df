# SPDX-License-Identifier: Apache-2.0
"""Input and output, the blocking way: one socket, waited for with poll(2)."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Lock as Lock
from typing import IO, Union

from .._endpoint import Endpoint
from .._errors import ConnectionLost, Timeout

CHUNK_BYTES = 65536
# What the peer may send while it does not take what we send: frames of one window and more.
EARLY_MAX_BYTES = 4 << 20

Source = Union[bytes, str, IO[bytes], Iterable[bytes]]

monotonic = time.monotonic
sleep = time.sleep


def call(function: Callable[..., object], *args: object) -> None:
    """A callback of the caller's."""
    function(*args)


class Stream:
    """A connection to thawd. Not for more than one thread at a time, but close()."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._early = bytearray()
        self._ended = False

    @classmethod
    def connect(cls, endpoint: Endpoint) -> Stream:
        """Raises ConnectionLost."""
        try:
            if endpoint.socket is not None:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    sock.settimeout(endpoint.connect_timeout)
                    sock.connect(endpoint.socket)
                except OSError:
                    sock.close()
                    raise
                return cls(sock)
            address = (endpoint.host, endpoint.port)
            sock = socket.create_connection(address, timeout=endpoint.connect_timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if endpoint.tls is not None:
                sock = endpoint.tls.wrap_socket(sock, server_hostname=endpoint.host)
            return cls(sock)
        except OSError as error:
            raise ConnectionLost(f"{endpoint}: {error}: does thawd run there?") from error

    def fileno(self) -> int:
        return self._sock.fileno()

    def _wait(self, events: int, timeout: float | None) -> int:
        """What of EVENTS is the case. Raises Timeout."""
        poll = select.poll()
        poll.register(self._sock, events)
        found = poll.poll(None if timeout is None else max(0, timeout) * 1000)
        if not found:
            raise Timeout("no answer in time")
        return found[0][1]

    def _recv(self, max_bytes: int) -> bytes | None:
        """What is there; None: nothing now; b"": the end."""
        try:
            return self._sock.recv(max_bytes)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLEOFError:
            return b""
        except OSError as error:
            raise ConnectionLost(f"the connection to thawd broke off: {error}") from error

    def receive(self, timeout: float | None = None) -> bytes:
        """The next bytes, b"" at the end. Raises Timeout, ConnectionLost."""
        if self._early:
            data = bytes(self._early)
            self._early.clear()
            return data
        end = None if timeout is None else monotonic() + timeout
        while not self._ended:
            data_now = self._recv(CHUNK_BYTES)
            if data_now is not None:
                self._ended = not data_now
                return data_now
            self._wait(select.POLLIN, None if end is None else end - monotonic())
        return b""

    def receive_now(self) -> bytes | None:
        """As receive(), but None when nothing is there."""
        if self._early:
            return self.receive()
        if self._ended:
            return b""
        data = self._recv(CHUNK_BYTES)
        self._ended = data == b""
        return data

    def receive_or(self, feeder: Feeder, timeout: float | None = None) -> bytes | None:
        """Bytes, or None when FEEDER has something; blocking feeders always have."""
        return self.receive_now()

    def send(self, data: bytes) -> None:
        """All of DATA. What the peer sends meanwhile is kept, so that it never waits for us while
        we wait for it. Raises ConnectionLost."""
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view) :]
                continue
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
            except OSError as error:
                raise ConnectionLost(f"the connection to thawd broke off: {error}") from error
            listen = not self._ended and len(self._early) < EARLY_MAX_BYTES
            found = self._wait(select.POLLOUT | (select.POLLIN if listen else 0), None)
            if listen and found & select.POLLIN:
                piece = self._recv(CHUNK_BYTES)
                self._ended = piece == b""
                self._early += piece or b""

    send_soon = send

    def end_sending(self) -> None:
        """The peer sees our end; we go on reading."""
        try:
            if isinstance(self._sock, ssl.SSLSocket):
                raise ConnectionLost("TLS has no half-closed connections")
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise ConnectionLost(f"the connection to thawd broke off: {error}") from error

    def is_stale(self) -> bool:
        """An idle connection that has ended, or says what nobody asked for."""
        return bool(self._early) or self._ended or self._recv(1) is not None

    def close(self) -> None:
        self._sock.close()


class Feeder:
    """Pieces of at most CHUNK_BYTES of what the caller gives to send."""

    def __init__(self, source: Source) -> None:
        self._pieces = _pieces(source)
        self._rest = b""
        self.done = False

    def take(self, max_bytes: int = CHUNK_BYTES) -> bytes | None:
        """The next piece; b"" at the end (then `done` is set)."""
        while not self._rest and not self.done:
            piece = next(self._pieces, None)
            if piece is None:
                self.done = True
            else:
                self._rest = piece
        max_bytes = min(max_bytes, CHUNK_BYTES)
        piece, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return piece

    next = take

    def close(self) -> None:
        pass


def _pieces(source: Source) -> Iterator[bytes]:
    if isinstance(source, str):
        yield source.encode()
    elif isinstance(source, (bytes, bytearray, memoryview)):
        view = memoryview(source).cast("B")
        for at in range(0, len(view), CHUNK_BYTES):
            yield bytes(view[at : at + CHUNK_BYTES])
    elif hasattr(source, "iter_bytes"):  # a stream of this package's, which has read() too
        yield from source.iter_bytes()
    elif hasattr(source, "read"):
        while piece := source.read(CHUNK_BYTES):
            if not isinstance(piece, bytes):
                raise TypeError("the file must be opened in binary mode")
            yield piece
    else:
        for piece in source:
            if not isinstance(piece, (bytes, bytearray, memoryview)):
                raise TypeError(f"pieces must be bytes, not {type(piece).__name__}")
            yield bytes(piece)
