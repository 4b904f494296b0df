# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 as bytes: heads of requests, heads and bodies of answers. No input or output here."""

from __future__ import annotations

from dataclasses import dataclass

from ._errors import ConnectionLost, ProtocolError

HEAD_MAX_BYTES = 65536
LINE_MAX_BYTES = 4096


@dataclass
class Head:
    """Head of an answer; names of headers in lower case."""

    status: int
    reason: str
    headers: dict[str, str]

    @property
    def keep_alive(self) -> bool:
        return "close" not in self.headers.get("connection", "").lower()


def request_head(method: str, target: str, headers: list[tuple[str, str]]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers]
    for line in lines:
        if "\r" in line or "\n" in line or "\0" in line:
            raise ValueError(f"control character in {line!r}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class HeadReader:
    """Collects a head; what came behind it is in `rest`."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.rest = b""

    @property
    def started(self) -> bool:
        return bool(self._data)

    def feed(self, data: bytes) -> Head | None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            if len(self._data) > HEAD_MAX_BYTES:
                raise ProtocolError("the head of the answer is too long")
            return None
        self.rest = bytes(self._data[end + 4 :])
        return _parse_head(bytes(self._data[:end]))


def _parse_head(data: bytes) -> Head:
    first, *lines = data.decode("latin-1").split("\r\n")
    parts = first.split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
        raise ProtocolError(f"not an HTTP/1.1 answer: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise ProtocolError(f"bad header: {line[:80]!r}")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Head(int(parts[1]), parts[2] if len(parts) > 2 else "", headers)


class BodyReader:
    """Takes what follows a head apart: feed() gives the body's bytes, `rest` what is behind it."""

    def __init__(self, method: str, head: Head) -> None:
        self.done = False
        self.rest = b""
        self._chunked = False
        self._left: int | None = None  # None: to the end of the stream
        self._line = bytearray()
        self._state = "size"
        if method == "HEAD" or head.status in (204, 304) or head.status < 200:
            self.done = True
        elif "transfer-encoding" in head.headers:
            if head.headers["transfer-encoding"].lower() != "chunked":
                raise ProtocolError("unknown transfer encoding")
            self._chunked = True
        elif "content-length" in head.headers:
            text = head.headers["content-length"]
            if not text.isdigit():
                raise ProtocolError(f"bad content length {text!r}")
            self._left = int(text)
            self.done = self._left == 0

    def feed(self, data: bytes) -> bytes:
        if self.done:
            self.rest += data
            return b""
        if self._chunked:
            return self._feed_chunked(data)
        if self._left is None:
            return data
        body, self.rest = data[: self._left], data[self._left :]
        self._left -= len(body)
        self.done = self._left == 0
        return body

    def end(self) -> None:
        """The stream has ended."""
        if not self.done and (self._chunked or self._left is not None):
            raise ConnectionLost("the connection broke off in the middle of an answer")
        self.done = True

    def _take_line(self, data: bytes) -> tuple[bytes | None, bytes]:
        head, newline, rest = data.partition(b"\n")
        self._line += head + newline
        if len(self._line) > LINE_MAX_BYTES:
            raise ProtocolError("bad chunk")
        if not newline:
            return None, b""
        line = bytes(self._line).rstrip(b"\r\n")
        self._line.clear()
        return line, rest

    def _feed_chunked(self, data: bytes) -> bytes:
        out = []
        while data and not self.done:
            if self._state == "data":
                assert self._left is not None
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                out.append(piece)
                if self._left == 0:
                    self._state = "end"
                continue
            line, data = self._take_line(data)
            if line is None:
                break
            if self._state == "size":
                self._chunk_size(line)
            elif self._state == "end":
                if line:
                    raise ProtocolError("bad chunk")
                self._state = "size"
            elif not line:  # trailers end
                self.done = True
        if self.done:
            self.rest = data
        return b"".join(out)

    def _chunk_size(self, line: bytes) -> None:
        text = line.partition(b";")[0].strip()
        if not text or any(byte not in b"0123456789abcdefABCDEF" for byte in text):
            raise ProtocolError("bad chunk")
        self._left = int(text, 16)
        self._state = "data" if self._left else "trailer"
