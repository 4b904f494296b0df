# SPDX-License-Identifier: Apache-2.0
"""A thawd: calls, and what does not belong to one sandbox."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from .. import _endpoint, _observe, _values
from .._errors import ConnectionLost, GuestLost, InternalError, NotFound, ProtocolError, Timeout
from .._models import Event, Json, Pool, SandboxInfo, Snapshot, Template, parse_time
from ._conn import AsyncConnection, AsyncResponse, parse_json
from ._io import Lock, Source, monotonic, sleep

IDLE_MAX = 8
EVENTS_SILENCE = 45.0  # seconds; something comes every 15
RECONNECT_FIRST, RECONNECT_MOST = 0.05, 1.0  # seconds between tries


class AsyncClient:
    """Connections to one thawd.

    By default the Unix socket /run/thaw/thaw.sock. The environment: THAW_API_URL
    ("https://host:port", with THAW_API_TOKEN), else THAW_SOCKET (a path).

    socket: path of a Unix socket. url: instead, http or https. token: for a url. ssl_context: for
    https; the default trusts this system's authorities. timeout: seconds that an answer may take
    (calls that wait add their own). connect_timeout: seconds. reconnect_timeout: seconds within
    which thawd must be back when a connection breaks off during a command; 0: no second try.

    It connects when it has to, keeps connections for the next calls, and can be used by many
    threads (the blocking one) or tasks of one event loop. Usable in a with statement.
    """

    def __init__(
        self,
        *,
        socket: str | None = None,
        url: str | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout: float = 120.0,
        connect_timeout: float = 10.0,
        reconnect_timeout: float = 30.0,
    ) -> None:
        self.endpoint = _endpoint.find(socket, url, token, ssl_context, connect_timeout)
        self.timeout = timeout
        self.reconnect_timeout = reconnect_timeout
        self._idle: list[AsyncConnection] = []
        self._lock = Lock()
        self._closed = False

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the connections that are kept; later calls fail."""
        self._closed = True
        async with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            await connection.aclose()

    async def _connection(self) -> AsyncConnection:
        if self._closed:
            raise ConnectionLost("this client is closed")
        while True:
            async with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return await AsyncConnection.open(self.endpoint)
            if not connection.stream.is_stale():
                return connection
            await connection.aclose()

    async def _finish(self, response: AsyncResponse) -> None:
        """RESPONSE has been read: its connection is kept if it can be."""
        if response.reusable and not self._closed:
            async with self._lock:
                if len(self._idle) < IDLE_MAX:
                    self._idle.append(response.connection)
                    return
        await response.aclose()

    async def open(
        self,
        method: str,
        target: str,
        value: Json | None = None,
        *,
        source: Source | None = None,
        content_type: str = "application/octet-stream",
        accept: str | None = None,
        upgrade: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
        timeout: float | None = None,
    ) -> AsyncResponse:
        """A call whose answer's body is the caller's to read; the caller closes it.

        VALUE is sent as JSON, SOURCE as it is. Raises what belongs to an error's status.
        """
        lines = list(headers)
        body = None
        content = source is not None  # perhaps no longer there, perhaps not to be sent twice
        if value is not None:
            body = json.dumps(value).encode()
            lines.append(("Content-Type", "application/json"))
        elif source is not None:
            lines.append(("Content-Type", content_type))
            if isinstance(source, bytes):
                body, source = source, None
        elif method in ("POST", "PUT", "PATCH"):
            body = b""
        if accept is not None:
            lines.append(("Accept", accept))
        if upgrade is not None:
            lines += [("Connection", "Upgrade"), ("Upgrade", upgrade)]
        limit = self.timeout if timeout is None else timeout
        connection = await self._connection()
        reused = not connection.fresh
        try:
            response = await connection.request(method, target, lines, body, source, limit)
        except ConnectionLost:
            await connection.aclose()
            # A kept connection may have ended at the same moment: once more, where that is safe.
            if not reused or content or method not in ("GET", "HEAD", "PUT", "DELETE"):
                raise
            connection = await AsyncConnection.open(self.endpoint)
            try:
                response = await connection.request(method, target, lines, body, None, limit)
            except BaseException:
                await connection.aclose()
                raise
        except BaseException:
            await connection.aclose()
            raise
        if response.status < 400:
            wanted = (101,) if upgrade is not None else range(200, 300)
            if response.status not in wanted:
                await response.aclose()
                raise ProtocolError(f"{method} {target}: unexpected status {response.status}")
            return response
        try:
            error = await response.error(limit)
        except BaseException:
            await response.aclose()
            raise
        await self._finish(response)
        raise error

    async def call(
        self,
        method: str,
        target: str,
        value: Json | None = None,
        *,
        source: Source | None = None,
        content_type: str = "application/octet-stream",
        timeout: float | None = None,
    ) -> Any:  # noqa: ANN401
        """A call and its whole answer: the JSON value, or None when it has no body."""
        response = await self.open(
            method, target, value, source=source, content_type=content_type, timeout=timeout
        )
        try:
            body = await response.read(self.timeout if timeout is None else timeout)
        except BaseException:
            await response.aclose()
            raise
        await self._finish(response)
        _observe.response(method, target, response.status, response.headers, body)
        return parse_json(body) if body else None

    async def stream(
        self,
        method: str,
        target: str,
        value: Json | None = None,
        *,
        accept: str | None = None,
        upgrade: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
        timeout: float | None = None,
    ) -> AsyncResponse:
        """As open(), for answers that come piece by piece."""
        response = await self.open(
            method,
            target,
            value,
            accept=accept,
            upgrade=upgrade,
            headers=headers,
            timeout=timeout,
        )
        _observe.response(method, target, response.status, response.headers, None)
        return response

    async def version(self) -> Json:
        """{"version", "api"}."""
        return dict(await self.call("GET", "/version"))

    async def info(self) -> Json:
        """This host, its limits and what of them is used; docs/openapi.yaml, schema Info."""
        return dict(await self.call("GET", "/v1/info"))

    async def metrics(self) -> str:
        """Prometheus' text format."""
        response = await self.open("GET", "/metrics")
        try:
            body = await response.read(self.timeout)
        except BaseException:
            await response.aclose()
            raise
        await self._finish(response)
        _observe.response("GET", "/metrics", response.status, response.headers, body)
        return body.decode()

    async def events(
        self, sandbox: str | None = None, since: str | None = None
    ) -> AsyncIterator[Event]:
        """What happens, as it happens, without an end. Goes on by itself when the connection
        breaks off and thawd is back within reconnect_timeout seconds."""
        while True:
            target = "/v1/events" + _values.query(sandbox=sandbox, since=since)
            response = await self.reopen(target, accept="text/event-stream")
            try:
                async for event in response.events(EVENTS_SILENCE):
                    since = event.id or since
                    yield _event(event.name, parse_json(event.data.encode()))
            except (ConnectionLost, Timeout):
                pass
            finally:
                await response.aclose()

    async def reopen(
        self, target: str, *, accept: str | None = None, upgrade: str | None = None
    ) -> AsyncResponse:
        """stream("GET", ...), tried again while thawd is away, for reconnect_timeout seconds."""
        end = monotonic() + self.reconnect_timeout
        pause = RECONNECT_FIRST
        while True:
            try:
                return await self.stream("GET", target, accept=accept, upgrade=upgrade)
            except (ConnectionLost, GuestLost, InternalError):
                if monotonic() + pause > end:
                    raise
            await sleep(pause)
            pause = min(pause * 2, RECONNECT_MOST)

    async def sandboxes(
        self, labels: Mapping[str, str | None] | None = None, state: str | None = None
    ) -> AsyncIterator[SandboxInfo]:
        """All sandboxes, ordered by name. labels: they must have these; a value of None: any
        value. state: they must be in it."""
        cursor = None
        while True:
            query = _values.query(label=_values.labels_query(labels), state=state, cursor=cursor)
            page = await self.call("GET", "/v1/sandboxes" + query)
            for each in page["sandboxes"]:
                yield SandboxInfo._from(each)
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def snapshots(self, sandbox: str | None = None) -> list[Snapshot]:
        """All snapshots, or those made of one sandbox, the oldest first."""
        value = await self.call("GET", "/v1/snapshots" + _values.query(sandbox=sandbox))
        return [Snapshot._from(each) for each in value["snapshots"]]

    async def snapshot(self, snapshot: str) -> Snapshot:
        """By id or name. Raises NotFound."""
        return Snapshot._from(await self.call("GET", f"/v1/snapshots/{_values.quote(snapshot)}"))

    async def delete_snapshot(self, snapshot: str) -> None:
        """By id or name. Raises NotFound; Conflict (its dependents: what stands on it)."""
        await self.call("DELETE", f"/v1/snapshots/{_values.quote(snapshot)}")

    async def templates(self) -> list[Template]:
        """All templates, ordered by name."""
        value = await self.call("GET", "/v1/templates")
        return [Template._from(each) for each in value["templates"]]

    async def template(self, name: str) -> Template:
        """Raises NotFound."""
        return Template._from(await self.call("GET", f"/v1/templates/{_values.quote(name)}"))

    async def delete_template(self, name: str) -> None:
        """Raises NotFound; Conflict (its dependents: what needs it)."""
        await self.call("DELETE", f"/v1/templates/{_values.quote(name)}")

    async def build_template(
        self,
        name: str,
        *,
        recipe: str | None = None,
        size: str | None = None,
        replace: bool = False,
    ) -> AsyncIterator[str]:
        """Build a template; gives its messages until it is done. Leaving early ends the build."""
        value: Json = {"name": name, "recipe": recipe, "size": size, "replace": replace or None}
        value = {key: each for key, each in value.items() if each is not None}
        response = await self.stream("POST", "/v1/templates", value, accept="text/event-stream")
        try:
            async for event in response.events(EVENTS_SILENCE):
                if event.name == "progress":
                    yield str(parse_json(event.data.encode())["message"])
                elif event.name == "done":
                    return
            raise ConnectionLost("the connection broke off during the build")
        finally:
            await response.aclose()

    async def pools(self) -> list[Pool]:
        """All pools."""
        return [Pool._from(each) for each in (await self.call("GET", "/v1/pools"))["pools"]]

    async def set_pool(self, template: str, size: int, populate: bool = False) -> Pool:
        """Keep SIZE machines of TEMPLATE ready. Raises NotFound, Capacity."""
        value = {"size": size, "populate": populate}
        return Pool._from(await self.call("PUT", f"/v1/pools/{_values.quote(template)}", value))

    async def delete_pool(self, template: str) -> None:
        """Also when there is none."""
        await self.call("DELETE", f"/v1/pools/{_values.quote(template)}")

    async def prune(self, *what: str) -> list[Json]:
        """Remove what nobody needs: "stopped", "snapshots", "logs". What: [{"kind", "name"}]."""
        value = await self.call("POST", "/v1/prune", {"what": list(what)})
        return list(value["removed"])

    async def delete_sandbox(self, name: str, reason: str | None = None) -> None:
        """Kill it and forget its name; also when there is none."""
        target = f"/v1/sandboxes/{_values.quote(name)}" + _values.query(reason=reason)
        await self.call("DELETE", target)

    async def find(self, name: str) -> SandboxInfo | None:
        """The sandbox of this name, None: there is none."""
        try:
            value = await self.call("GET", f"/v1/sandboxes/{_values.quote(name)}")
        except NotFound:
            return None
        return SandboxInfo._from(value)


def _event(name: str, value: Json) -> Event:
    return Event(
        str(value.get("id", "")),
        name,
        parse_time(value.get("time")),
        value.get("sandbox"),
        value.get("details", {}),
    )
