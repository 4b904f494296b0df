# SPDX-License-Identifier: Apache-2.0
"""Input and output, the asyncio way."""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from asyncio import Lock as Lock
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import IO, Any, Union

from .._endpoint import Endpoint
from .._errors import ConnectionLost, Timeout

CHUNK_BYTES = 65536
LIMIT_BYTES = 262144

Source = Union[bytes, str, IO[bytes], Iterable[bytes], AsyncIterable[bytes]]

monotonic = time.monotonic
sleep = asyncio.sleep


async def call(function: Callable[..., object], *args: object) -> None:
    """A callback of the caller's, which may be a coroutine function."""
    result = function(*args)
    if inspect.isawaitable(result):
        await result


class Stream:
    """A connection to thawd. Not for more than one task at a time, but aclose()."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._reading: asyncio.Task[bytes] | None = None

    @classmethod
    async def connect(cls, endpoint: Endpoint) -> Stream:
        """Raises ConnectionLost."""
        try:
            return cls(
                *await asyncio.wait_for(_open_connection(endpoint), endpoint.connect_timeout)
            )
        except (OSError, asyncio.TimeoutError) as error:
            text = str(error) or "it did not answer in time"
            raise ConnectionLost(f"{endpoint}: {text}: does thawd run there?") from error

    def _start_reading(self) -> asyncio.Task[bytes]:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._reader.read(CHUNK_BYTES))
        return self._reading

    def _finish_reading(self) -> bytes:
        task, self._reading = self._reading, None
        assert task is not None
        try:
            return task.result()
        except OSError as error:
            raise ConnectionLost(f"the connection to thawd broke off: {error}") from error

    async def receive(self, timeout: float | None = None) -> bytes:
        """The next bytes, b"" at the end. Raises Timeout, ConnectionLost."""
        task = self._start_reading()
        done, _ = await asyncio.wait({task}, timeout=timeout)
        if not done:
            raise Timeout("no answer in time")
        return self._finish_reading()

    async def receive_now(self) -> bytes | None:
        """As receive(), but None when nothing is there."""
        task = self._start_reading()
        await asyncio.sleep(0)
        return self._finish_reading() if task.done() else None

    async def receive_or(self, feeder: Feeder, timeout: float | None = None) -> bytes | None:
        """Bytes, or None when FEEDER has something. Raises Timeout, ConnectionLost."""
        task = self._start_reading()
        waited: set[asyncio.Future[Any]] = {task, feeder.start()}
        done, _ = await asyncio.wait(waited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise Timeout("no answer in time")
        return self._finish_reading() if task in done else None

    async def send(self, data: bytes) -> None:
        """All of DATA. Raises ConnectionLost."""
        await self.send_soon(data)
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(f"the connection to thawd broke off: {error}") from error

    async def send_soon(self, data: bytes) -> None:
        """The same without waiting for the peer: for what is bounded otherwise, such as by a
        window. So the peer never waits for us while we wait for it."""
        if self._writer.is_closing():
            raise ConnectionLost("the connection to thawd broke off")
        self._writer.write(data)

    async def end_sending(self) -> None:
        """The peer sees our end; we go on reading."""
        if not self._writer.can_write_eof():
            raise ConnectionLost("TLS has no half-closed connections")
        try:
            await self._writer.drain()
            self._writer.write_eof()
        except OSError as error:
            raise ConnectionLost(f"the connection to thawd broke off: {error}") from error

    def is_stale(self) -> bool:
        """An idle connection that has ended, or says what nobody asked for."""
        reading = self._reading
        return (
            self._reader.at_eof() or self._writer.is_closing() or bool(reading and reading.done())
        )

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._writer.close()
        # Not waited for: with TLS that is up to the peer.


async def _open_connection(
    endpoint: Endpoint,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if endpoint.socket is not None:
        return await asyncio.open_unix_connection(endpoint.socket, limit=LIMIT_BYTES)
    reader, writer = await asyncio.open_connection(
        endpoint.host, endpoint.port, ssl=endpoint.tls, limit=LIMIT_BYTES
    )
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return reader, writer


class Feeder:
    """Pieces of at most CHUNK_BYTES of what the caller gives to send."""

    def __init__(self, source: Source) -> None:
        self._pieces = _pieces(source)
        self._task: asyncio.Task[bytes | None] | None = None
        self._rest = b""
        self.done = False

    def start(self) -> asyncio.Future[bytes | None]:
        """Done when take() has something to give."""
        if self._rest or self.done:
            ready: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
            ready.set_result(None)
            return ready
        if self._task is None:
            self._task = asyncio.ensure_future(_next(self._pieces))
        return self._task

    async def take(self, max_bytes: int = CHUNK_BYTES) -> bytes | None:
        """The next piece, None if there is none yet; b"" at the end (then `done` is set)."""
        if not self._rest and not self.done:
            self.start()
            task = self._task
            assert task is not None
            if not task.done():
                await asyncio.sleep(0)
            if not task.done():
                return None
            self._task = None
            piece = task.result()
            if piece is None:
                self.done = True
            else:
                self._rest = piece
        max_bytes = min(max_bytes, CHUNK_BYTES)
        piece, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return piece

    async def next(self) -> bytes:
        """As take(), but waits."""
        while True:
            await asyncio.wait({self.start()})
            piece = await self.take()
            if piece is not None:
                return piece

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    async for piece in pieces:
        if piece:
            return piece
    return None


async def _pieces(source: Source) -> AsyncIterator[bytes]:
    if isinstance(source, str):
        yield source.encode()
    elif isinstance(source, (bytes, bytearray, memoryview)):
        view = memoryview(source).cast("B")
        for at in range(0, len(view), CHUNK_BYTES):
            yield bytes(view[at : at + CHUNK_BYTES])
    elif hasattr(source, "iter_bytes"):  # a stream of this package's, which has read() too
        async for piece in source.iter_bytes():
            yield piece
    elif hasattr(source, "read"):
        while piece := source.read(CHUNK_BYTES):
            if not isinstance(piece, bytes):
                raise TypeError("the file must be opened in binary mode")
            yield piece
    elif hasattr(source, "__aiter__"):
        async for piece in source:
            yield _as_bytes(piece)
    else:
        for piece in source:
            yield _as_bytes(piece)


def _as_bytes(piece: object) -> bytes:
    if not isinstance(piece, (bytes, bytearray, memoryview)):
        raise TypeError(f"pieces must be bytes, not {type(piece).__name__}")
    return bytes(piece)
