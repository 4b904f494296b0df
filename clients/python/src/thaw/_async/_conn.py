# SPDX-License-Identifier: Apache-2.0
"""One connection and the answers that come over it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from .. import _errors, _observe
from .._endpoint import Endpoint
from .._errors import ConnectionLost, ProtocolError, ThawError
from .._http import BodyReader, Head, HeadReader, request_head
from .._sse import EventReader, ServerEvent
from ._io import CHUNK_BYTES, Feeder, Source, Stream, monotonic

BODY_MAX_BYTES = 256 << 20  # of an answer that is read as a whole


class AsyncConnection:
    """A connection, for one request at a time."""

    def __init__(self, endpoint: Endpoint, stream: Stream) -> None:
        self._endpoint = endpoint
        self.stream = stream
        self.fresh = True  # nothing has been sent over it

    @classmethod
    async def open(cls, endpoint: Endpoint) -> AsyncConnection:
        return cls(endpoint, await Stream.connect(endpoint))

    async def request(
        self,
        method: str,
        target: str,
        headers: list[tuple[str, str]],
        body: bytes | None,
        source: Source | None,
        timeout: float | None,
    ) -> AsyncResponse:
        """Send a request and read the head of its answer within TIMEOUT seconds (of silence).

        BODY is sent as it is, SOURCE in chunks. Raises ConnectionLost, Timeout.
        """
        self.fresh = False
        lines = [("Host", self._endpoint.host_header), *headers]
        if self._endpoint.token is not None:
            lines.append(("Authorization", f"Bearer {self._endpoint.token}"))
        chunked = source is not None
        if chunked:
            lines.append(("Transfer-Encoding", "chunked"))
        elif body is not None:
            lines.append(("Content-Length", str(len(body))))
        if body is not None and len(body) > CHUNK_BYTES:
            body, source = None, body
        reader = HeadReader()
        try:
            await self.stream.send(request_head(method, target, lines) + (body or b""))
            early = await self._send_body(source, chunked) if source is not None else None
        except ConnectionLost:
            # thawd may have answered before it hung up on a body that it does not want.
            head = await self._read_head(reader, None, timeout)
            return AsyncResponse(self, method, target, head, reader.rest, usable=False)
        head = await self._read_head(reader, early, timeout)
        return AsyncResponse(self, method, target, head, reader.rest, usable=early is None)

    async def _send_body(self, source: Source, chunked: bool) -> bytes | None:
        """Returns what thawd said before all was sent: the rest is not sent then."""
        feeder = Feeder(source)
        try:
            while True:
                piece = await feeder.next()
                if chunked:
                    end = b"0\r\n\r\n"
                    piece = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else end
                if piece:
                    await self.stream.send(piece)
                if feeder.done:
                    return None
                early = await self.stream.receive_now()
                if early is not None:
                    return early
        finally:
            await feeder.aclose()

    async def _read_head(
        self, reader: HeadReader, early: bytes | None, timeout: float | None
    ) -> Head:
        end = None if timeout is None else monotonic() + timeout
        data = early
        while True:
            if data is None:
                data = await self.stream.receive(None if end is None else end - monotonic())
            if not data:
                raise ConnectionLost("thawd closed the connection without an answer")
            head = reader.feed(data)
            data = None
            if head is None:
                continue
            if head.status >= 200 or head.status == 101:
                return head
            data, reader.rest = reader.rest or None, b""
            reader.__init__()  # type: ignore[misc]

    async def aclose(self) -> None:
        await self.stream.aclose()


class AsyncResponse:
    """An answer; its body is read by iter_bytes(), read() or events(), or not at all."""

    def __init__(
        self,
        connection: AsyncConnection,
        method: str,
        target: str,
        head: Head,
        rest: bytes,
        usable: bool,
    ) -> None:
        self.connection = connection
        self.method, self.target = method, target
        self.status, self.headers = head.status, head.headers
        self._early = rest
        self._usable = usable and head.keep_alive
        self._body = BodyReader(method, head) if head.status != 101 else None

    @property
    def reusable(self) -> bool:
        """Its connection can take another request."""
        body = self._body
        return self._usable and body is not None and body.done and not body.rest

    async def iter_bytes(self, timeout: float | None = None) -> AsyncIterator[bytes]:
        """The body as it comes, to its end. TIMEOUT: seconds of silence that are accepted."""
        body = self._body
        assert body is not None
        data, self._early = self._early, b""
        while not body.done:
            if not data:
                data = await self.connection.stream.receive(timeout)
                if not data:
                    body.end()
                    return
            piece = body.feed(data)
            data = b""
            if piece:
                yield piece

    async def read(self, timeout: float | None = None) -> bytes:
        """The whole body. Raises ConnectionLost, Timeout; ProtocolError if it has no end."""
        parts = []
        size = 0
        async for piece in self.iter_bytes(timeout):
            parts.append(piece)
            size += len(piece)
            if size > BODY_MAX_BYTES:
                raise ProtocolError("the answer is too long")
        return b"".join(parts)

    async def events(self, timeout: float | None) -> AsyncIterator[ServerEvent]:
        """Server-sent events but for pings; an `error` is raised."""
        reader = EventReader()
        async for piece in self.iter_bytes(timeout):
            for event in reader.feed(piece):
                _observe.event(self.method, self.target, self.status, event.name, event.data)
                if event.name == "error":
                    raise _errors.from_body(self.status, parse_json(event.data.encode()))
                if event.name != "ping":
                    yield event

    async def error(self, timeout: float | None) -> ThawError:
        """What an answer with an error's status says."""
        body = await self.read(timeout)
        _observe.response(self.method, self.target, self.status, self.headers, body)
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        return _errors.from_body(self.status, value, self.headers.get("retry-after"))

    def upgraded(self) -> bytes:
        """After 101: what came of the new protocol already."""
        early, self._early = self._early, b""
        return early

    async def aclose(self) -> None:
        await self.connection.aclose()


def parse_json(body: bytes) -> Any:  # noqa: ANN401
    try:
        return json.loads(body)
    except ValueError as error:
        raise ProtocolError(f"the answer is not JSON: {body[:100]!r}") from error
