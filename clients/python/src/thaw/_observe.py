# SPDX-License-Identifier: Apache-2.0
"""A hook for tests: somebody looks at every answer that comes from thawd."""

from __future__ import annotations

from typing import Callable, Optional

Response = Callable[[str, str, int, Optional[str], Optional[bytes], "dict[str, str]"], object]
Event = Callable[[str, str, int, str, str], object]
Text = Callable[[str], object]

_response: Response | None = None
_event: Event | None = None
_text: Text | None = None


def set_observer(response: Response | None, event: Event | None, text: Text | None) -> None:
    """RESPONSE(method, target, status, content_type, body, headers), with body None for a stream;
    EVENT(method, target, status, name, data); TEXT(message of a WebSocket). None: nobody."""
    global _response, _event, _text
    _response, _event, _text = response, event, text


def response(
    method: str, target: str, status: int, headers: dict[str, str], body: bytes | None
) -> None:
    if _response is not None:
        _response(method, target, status, headers.get("content-type"), body, headers)


def event(method: str, target: str, status: int, name: str, data: str) -> None:
    if _event is not None:
        _event(method, target, status, name, data)


def text(message: str) -> None:
    if _text is not None:
        _text(message)
