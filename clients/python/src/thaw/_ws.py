# SPDX-License-Identifier: Apache-2.0
"""The client's side of a WebSocket (RFC 6455, no extensions) as bytes."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from dataclasses import dataclass

from ._errors import ProtocolError

MESSAGE_MAX_BYTES = 16 << 20
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_CONTINUATION = 0
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def new_key() -> str:
    return base64.b64encode(os.urandom(16)).decode()


def accept_of(key: str) -> str:
    """What the server must answer to KEY (section 4.2.2)."""
    digest = hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def _mask(data: bytes, key: bytes) -> bytes:
    whole = (key * (len(data) // 4 + 1))[: len(data)]
    value = int.from_bytes(data, "little") ^ int.from_bytes(whole, "little")
    return value.to_bytes(len(data), "little")


def encode(opcode: int, payload: bytes) -> bytes:
    """A whole message of the client, masked."""
    size = len(payload)
    head = bytes([0x80 | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65536:
        head += bytes([0x80 | 126]) + struct.pack(">H", size)
    else:
        head += bytes([0x80 | 127]) + struct.pack(">Q", size)
    key = os.urandom(4)
    return head + key + _mask(payload, key)


def close_payload(code: int, reason: str = "") -> bytes:
    return struct.pack(">H", code) + reason.encode()[:123]


@dataclass
class Message:
    opcode: int  # TEXT, BINARY, CLOSE, PING or PONG
    data: bytes

    @property
    def close_code(self) -> int:
        return int.from_bytes(self.data[:2], "big") if len(self.data) >= 2 else 1005


class MessageReader:
    """feed() gives the messages that are complete; fragments are joined."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._parts = bytearray()
        self._opcode: int | None = None

    def feed(self, data: bytes) -> list[Message]:
        self._data += data
        messages: list[Message] = []
        while True:
            found = self._frame()
            if found is None:
                return messages
            message = self._join(*found)
            if message is not None:
                messages.append(message)

    def _frame(self) -> tuple[bool, int, bytes] | None:
        """The next frame: final?, opcode, payload."""
        buf = self._data
        if len(buf) < 2:
            return None
        if buf[0] & 0x70 or buf[1] & 0x80:
            raise ProtocolError("bad WebSocket frame")
        final, opcode, size, at = bool(buf[0] & 0x80), buf[0] & 15, buf[1] & 127, 2
        if opcode >= 8 and (size > 125 or not final):
            raise ProtocolError("bad WebSocket control frame")
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(buf) < at + width:
                return None
            size = int.from_bytes(buf[at : at + width], "big")
            at += width
        if size + len(self._parts) > MESSAGE_MAX_BYTES:
            raise ProtocolError("WebSocket message too long")
        if len(buf) < at + size:
            return None
        payload = bytes(buf[at : at + size])
        del buf[: at + size]
        return final, opcode, payload

    def _join(self, final: bool, opcode: int, payload: bytes) -> Message | None:
        if opcode in (CLOSE, PING, PONG):
            return Message(opcode, payload)
        if opcode == _CONTINUATION:
            if self._opcode is None:
                raise ProtocolError("WebSocket continuation of nothing")
            opcode = self._opcode
        elif opcode not in (TEXT, BINARY) or self._opcode is not None:
            raise ProtocolError("bad WebSocket frame")
        self._parts += payload
        if not final:
            self._opcode = opcode
            return None
        whole, self._parts, self._opcode = bytes(self._parts), bytearray(), None
        return Message(opcode, whole)
