# SPDX-License-Identifier: Apache-2.0
"""Servers in a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from .. import _values
from .._errors import Timeout
from .._models import HttpAnswer, Json, Preview
from ._conn import AsyncConnection, AsyncResponse
from ._io import Source

if TYPE_CHECKING:
    from ._client import AsyncClient


def _port(port: int) -> int:
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port}: 1 to 65535 is expected")
    return port


class AsyncPortStream:
    """A TCP connection to a server in a sandbox; usable in a with statement."""

    def __init__(self, response: AsyncResponse) -> None:
        self._response = response
        self._stream = response.connection.stream
        self._early = response.upgraded()

    async def __aenter__(self) -> AsyncPortStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def receive(self, timeout: float | None = None) -> bytes:
        """The next bytes, b"" at the end. Raises Timeout after so many seconds of silence,
        ConnectionLost."""
        if self._early:
            data, self._early = self._early, b""
            return data
        return await self._stream.receive(timeout)

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """All that comes."""
        while True:
            data = await self.receive()
            if not data:
                return
            yield data

    async def send(self, data: bytes) -> None:
        """All of DATA. Raises ConnectionLost."""
        await self._stream.send(data)

    async def end_sending(self) -> None:
        """The server sees the end of what we send; receive() goes on. Not with https."""
        await self._stream.end_sending()

    async def aclose(self) -> None:
        """Ends the connection."""
        await self._response.aclose()


class AsyncPorts:
    """sandbox.ports: the servers that listen in a sandbox, on 127.0.0.1 or any address there."""

    def __init__(self, client: AsyncClient, path: str) -> None:
        self._client = client
        self._path = path

    async def open(self, port: int) -> AsyncPortStream:
        """A TCP connection. Raises PortClosed when nobody listens."""
        response = await self._client.stream(
            "GET", f"{self._path}/ports/{_port(port)}", upgrade="thaw-tcp/1"
        )
        return AsyncPortStream(response)

    async def wait(
        self,
        port: int,
        timeout: float = 30.0,
        *,
        http_path: str | None = None,
        status_min: int = 200,
        status_max: int = 399,
    ) -> float:
        """Wait until somebody listens, or with http_path until a GET of it has a status from
        status_min to status_max; how many seconds that took. timeout: seconds. Raises Timeout."""
        body: Json = {"timeout_ms": _values.millis(timeout, "timeout")}
        if http_path is not None:
            body["http"] = {
                "path": http_path,
                "status_min": status_min,
                "status_max": status_max,
            }
        target = f"{self._path}/ports/{_port(port)}/wait"
        limit = timeout + self._client.timeout
        value = await self._client.call("POST", target, body, timeout=limit)
        if not value["open"]:
            raise Timeout(f"port {port} is not open after {timeout} s")
        return float(value["waited_ms"]) / 1000

    async def request(
        self,
        port: int,
        method: str = "GET",
        path: str = "/",
        *,
        headers: Mapping[str, str] | None = None,
        body: Source | None = None,
    ) -> HttpAnswer:
        """An HTTP request to a server in the sandbox, and its answer, whatever its status.

        path: with its query, as the server is to see it. Raises PortClosed when nobody listens.
        What thawd itself has to say comes as an answer too, as JSON, but for that.
        """
        target = f"{self._path}/ports/{_port(port)}/{path.lstrip('/')}"
        connection = await AsyncConnection.open(self._client.endpoint)
        try:
            raw, source = (body, None) if isinstance(body, bytes) else (None, body)
            response = await connection.request(
                method, target, list((headers or {}).items()), raw, source, self._client.timeout
            )
            if (
                response.status == 502
                and response.headers.get("content-type") == "application/json"
            ):
                error = await response.error(self._client.timeout)
                if error.code in ("port_closed", "guest_lost"):
                    raise error
                return HttpAnswer(response.status, response.headers, error.message.encode())
            data = await response.read(self._client.timeout)
            return HttpAnswer(response.status, response.headers, data)
        finally:
            await connection.aclose()

    async def preview(self) -> Preview:
        """Where a browser reaches the servers; preview.url_of(8000) is a URL with its token."""
        value = await self._client.call("GET", f"{self._path}/preview")
        return Preview(value["domain"], value["token"], value["url"])
