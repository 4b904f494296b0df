# SPDX-License-Identifier: Apache-2.0
"""A bare HTTP client for tests of thawd's API: every answer is held to docs/openapi.yaml.

For what the Python client does not let one do: wrong bodies, odd headers, half requests.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openapi_check


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float = 60.0) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of an error."""
        return self.json["error"]["code"]


@dataclass
class Event:
    name: str
    id: str | None
    data: Any


class Stream:
    """An answer whose body is read piece by piece; a context manager."""

    def __init__(self, method: str, target: str, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        self.method, self.target = method, target
        self.response = connection.getresponse()
        self.status = self.response.status
        self.headers = {name.lower(): value for name, value in self.response.getheaders()}

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()
        self.connection.close()

    def read(self, max_bytes: int | None = None) -> bytes:
        return self.response.read(max_bytes)

    def events(self, pings: bool = False) -> Iterator[Event]:
        """Server-sent events, each checked, until the stream ends."""
        name, ident, data = "message", None, []
        for raw in self.response:
            line = raw.decode().rstrip("\r\n")
            key, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not line:
                if data:
                    text = "\n".join(data)
                    openapi_check.check_event(self.method, self.target, self.status, name, text)
                    if name != "ping" or pings:
                        yield Event(name, ident, json.loads(text))
                name, data = "message", []
            elif key == "event":
                name = value
            elif key == "id":
                ident = value
            elif key == "data":
                data.append(value)


class ApiClient:
    """Calls to a thawd on a Unix socket (a path) or TCP ((host, port)), a connection each."""

    def __init__(self, where: str | tuple[str, int], token: str | None = None) -> None:
        self.where, self.token = where, token

    def connection(self, timeout_s: float = 60.0) -> http.client.HTTPConnection:
        if isinstance(self.where, str):
            return UnixConnection(self.where, timeout_s)
        return http.client.HTTPConnection(*self.where, timeout=timeout_s)

    def _send(
        self,
        method: str,
        target: str,
        value: object,
        body: bytes | Iterator[bytes] | None,
        headers: dict[str, str] | None,
        timeout_s: float,
    ) -> http.client.HTTPConnection:
        sent = dict(headers or {})
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        if value is not None:
            body = json.dumps(value).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = self.connection(timeout_s)
        chunked = body is not None and not isinstance(body, bytes)
        connection.request(method, target, body, sent, encode_chunked=chunked)
        return connection

    def call(
        self,
        method: str,
        target: str,
        value: object = None,
        *,
        body: bytes | Iterator[bytes] | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> Answer:
        """One call and its whole answer. VALUE is sent as JSON. CHECK=False: the test means to get
        what the file does not allow, such as the answer of a server in a sandbox."""
        connection = self._send(method, target, value, body, headers, timeout_s)
        try:
            response = connection.getresponse()
            answer = Answer(
                response.status,
                {name.lower(): text for name, text in response.getheaders()},
                response.read(),
            )
        finally:
            connection.close()
        if check:
            kind = answer.headers.get("content-type")
            openapi_check.check_response(
                method, target, answer.status, kind, answer.body, answer.headers
            )
        return answer

    def stream(
        self,
        method: str,
        target: str,
        value: object = None,
        *,
        body: bytes | Iterator[bytes] | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Stream:
        """An answer that is read by the caller; its head is checked."""
        connection = self._send(method, target, value, body, headers, timeout_s)
        stream = Stream(method, target, connection)
        kind = stream.headers.get("content-type")
        openapi_check.check_response(method, target, stream.status, kind, None, stream.headers)
        return stream
