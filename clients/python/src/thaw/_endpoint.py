# SPDX-License-Identifier: Apache-2.0
"""Where thawd is: a Unix socket, or TCP with or without TLS."""

from __future__ import annotations

import os
import ssl
import urllib.parse
from dataclasses import dataclass

DEFAULT_SOCKET = "/run/thaw/thaw.sock"


@dataclass(frozen=True)
class Endpoint:
    """How to reach thawd: SOCKET, or HOST and PORT, with TLS if there is a context."""

    socket: str | None
    host: str
    port: int
    tls: ssl.SSLContext | None
    token: str | None
    connect_timeout: float  # seconds

    def __str__(self) -> str:
        if self.socket is not None:
            return self.socket
        return f"{'https' if self.tls else 'http'}://{self.host_header}"

    @property
    def host_header(self) -> str:
        if self.socket is not None:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def find(
    socket: str | None,
    url: str | None,
    token: str | None,
    ssl_context: ssl.SSLContext | None,
    connect_timeout: float,
) -> Endpoint:
    """What the caller says; else THAW_API_URL; else THAW_SOCKET; else the usual socket."""
    if socket is not None and url is not None:
        raise ValueError("socket and url together: give one of them")
    if socket is None and url is None:
        url = os.environ.get("THAW_API_URL") or None
    if url is None:
        path = socket or os.environ.get("THAW_SOCKET") or DEFAULT_SOCKET
        return Endpoint(path, "", 0, None, token, connect_timeout)
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url {url!r}: http://HOST:PORT or https://HOST:PORT is expected")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise ValueError(f"url {url!r}: only a host and a port are expected")
    tls = None
    if parts.scheme == "https":
        tls = ssl_context or ssl.create_default_context()
    token = token if token is not None else os.environ.get("THAW_API_TOKEN") or None
    if token is not None and any(ord(c) <= 32 or ord(c) > 126 for c in token):
        raise ValueError("token: only printable ASCII without spaces is allowed")
    port = parts.port or (443 if tls else 80)
    return Endpoint(None, parts.hostname, port, tls, token, connect_timeout)
