# SPDX-License-Identifier: Apache-2.0
"""A WebSocket client for tests: it can misbehave, and it checks what the server sends."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import struct
from typing import Any

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Closed(Exception):
    """By the server; args[0]: its code, 0: without one."""


def read_head(sock: socket.socket) -> tuple[int, dict[str, str]]:
    """Of an answer, not a byte more: its status and headers, names in lower case."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        assert byte, head
        head += byte
    first, *lines = head.decode().split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split()[1]), {name.lower(): text.strip() for name, _, text in pairs}


def upgrade(
    path: str, method: str, target: str, protocol: str, headers: dict[str, str] | None = None
) -> tuple[socket.socket, int, dict[str, str]]:
    """A connection to the Unix socket PATH that has asked for PROTOCOL."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(60)
    sock.connect(path)
    lines = [f"{method} {target} HTTP/1.1", "Host: x", f"Upgrade: {protocol}"]
    lines += ["Connection: Upgrade", *(f"{k}: {v}" for k, v in (headers or {}).items())]
    if method != "GET":
        lines.append("Content-Length: 0")
    sock.sendall("\r\n".join([*lines, "", ""]).encode())
    return sock, *read_head(sock)


class WebSocket:
    def __init__(self, path: str, target: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        headers = {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key}
        self.sock, self.status, self.headers = upgrade(path, "GET", target, "websocket", headers)
        if self.status == 101:
            digest = hashlib.sha1(key.encode() + GUID).digest()
            assert self.headers["sec-websocket-accept"] == base64.b64encode(digest).decode()

    def send(self, opcode: int, data: bytes, fin: bool = True) -> None:
        mask = os.urandom(4)
        head = bytes([opcode | (0x80 if fin else 0)])
        if len(data) < 126:
            head += bytes([0x80 | len(data)])
        elif len(data) < 65536:
            head += bytes([0x80 | 126]) + struct.pack(">H", len(data))
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", len(data))
        mask_all = mask * (len(data) // 4 + 1)
        whole = int.from_bytes(data, "little") ^ int.from_bytes(mask_all[: len(data)], "little")
        self.sock.sendall(head + mask + whole.to_bytes(len(data), "little"))

    def say(self, value: object) -> None:
        self.send(TEXT, json.dumps(value).encode())

    def write(self, data: bytes) -> None:
        self.send(BINARY, data)

    def _exact(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return data

    def frame(self) -> tuple[int, bytes]:
        first, second = self._exact(2)
        size = second & 0x7F
        assert not second & 0x80, "a server's frame is masked"
        assert first & 0x80, "a fragment"
        if size == 126:
            (size,) = struct.unpack(">H", self._exact(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._exact(8))
        return first & 0xF, self._exact(size)

    def receive(self) -> dict[str, Any] | bytes:
        """The next message: JSON of a text, bytes of a binary one. Pings are answered."""
        while True:
            opcode, data = self.frame()
            if opcode == PING:
                self.send(PONG, data)
            elif opcode == CLOSE:
                raise Closed(struct.unpack(">H", data[:2])[0] if data else 0)
            elif opcode == TEXT:
                return json.loads(data)
            elif opcode == BINARY:
                return data

    def until(self, wanted: bytes) -> bytes:
        """Output until WANTED has come."""
        data = b""
        while wanted not in data:
            piece = self.receive()
            assert isinstance(piece, bytes), (piece, data)
            data += piece
        return data

    def rest(self) -> tuple[bytes, dict[str, Any]]:
        """Output until the next text message, and that."""
        data = b""
        while isinstance(piece := self.receive(), bytes):
            data += piece
        return data, piece

    def close(self) -> None:
        self.sock.close()
