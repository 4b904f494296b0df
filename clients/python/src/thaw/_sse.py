# SPDX-License-Identifier: Apache-2.0
"""Server-sent events as bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ._errors import ProtocolError

EVENT_MAX_BYTES = 16 << 20


@dataclass
class ServerEvent:
    name: str
    data: str
    id: str | None


class EventReader:
    """feed() gives the events that are complete; comments are dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []
        self._id: str | None = None
        self._size = 0

    def feed(self, piece: bytes) -> list[ServerEvent]:
        events = []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        self._size += len(piece)
        if self._size > EVENT_MAX_BYTES:
            raise ProtocolError("an event is too long")
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if line:
                self._field(line)
                continue
            if self._data:
                events.append(ServerEvent(self._name or "message", "\n".join(self._data), self._id))
            self._name, self._data, self._size = "", [], 0
        return events

    def _field(self, line: str) -> None:
        key, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if key == "event":
            self._name = value
        elif key == "data":
            self._data.append(value)
        elif key == "id":
            self._id = value
