#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A guest that lies: stands in for thaw-shim. An exec of thaw-files whose path is /lie/NAME is
answered with the lie of that name; "stuck", also as a command, with nothing at all; everything else
with what keeps thawd content.

  lying_shim.py --listen-unix PATH
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
from pathlib import Path

STARTED, STDOUT, STDERR, EXIT, ERROR, OK, CREDIT = 64, 65, 66, 67, 68, 70, 71
OPENED, ENTRY, EVENT, NOTE, DONE, FAILED = range(1, 7)


def frame(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IBBH", len(payload), kind, 1, 0) + payload


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def stat(mode: int = 0o100644, size: int = 10) -> bytes:
    return struct.pack("<QQqqqIIIIIIII", size, 1, 0, 0, 0, 0, 0, 0, mode, 0, 0, 1, 0)


def opened(size: int = 10, offset: int = 0, length: int = 10, mode: int = 0o100644) -> bytes:
    return frame(OPENED, stat(mode, size) + struct.pack("<QQII", offset, length, 1, 0))


def entry(path: bytes) -> bytes:
    return frame(ENTRY, stat() + struct.pack("<IHH", 0, len(path), 0) + path)


def failed(error: int, path: bytes = b"", text: bytes = b"no") -> bytes:
    return frame(FAILED, struct.pack("<IHHHH", error, len(path), 0, len(text), 0) + path + text)


def done(moved: int = 0, count: int = 0) -> bytes:
    return frame(DONE, struct.pack("<QQ", moved, count))


def said(*messages: bytes) -> bytes:
    return frame(STDERR, b"".join(messages))


START = frame(STARTED, numbers(7))
END = frame(EXIT, numbers(0, 0, 1))
LIES: dict[bytes, bytes] = {
    b"truth": START + said(opened()) + frame(STDOUT, b"0123456789") + said(done(10, 1)) + END,
    b"data-first": START + frame(STDOUT, b"01234") + frame(STDOUT, b"56789")
    + said(opened(), done(10, 1)) + END,
    b"garbage": b"\xff" * 1000,
    b"silence": b"",
    b"only-the-end": START + END,
    b"end-before-start": END,
    b"output-before-start": frame(STDOUT, b"x"),
    b"twice": START + START,
    b"long-frame": struct.pack("<IBBH", 1 << 30, STDERR, 1, 0),
    b"long-message": START + said(struct.pack("<IBBH", 1 << 30, NOTE, 1, 0)),
    b"version": START + said(struct.pack("<IBBH", 0, DONE, 9, 0)),
    b"half-a-message": START + said(opened()[:20]) + END,
    b"behind-the-last": START + said(opened(), done(10, 1), done(10, 1)),
    b"no-such-errno": START + said(failed(0)),
    b"nul": START + said(failed(2, b"a\0b")),
    b"mode": START + said(opened(mode=0)),
    b"outside": START + said(opened(size=10, offset=5, length=10)),
    b"status": START + said(opened()) + frame(STDOUT, b"0123456789") + said(done(10, 1))
    + frame(EXIT, numbers(0, 1, 1)),
    b"killed": START + frame(EXIT, numbers(1, 9, 5)),
    b"credit": START + frame(CREDIT, numbers(1 << 30)),
    b"old": frame(ERROR, numbers(3, 2) + b"thaw-files"),
    b"busy": frame(ERROR, numbers(0, 11) + b"too many"),
    b"flood-before": START + frame(STDOUT, bytes(65536)) * 20,
    b"more": START + said(opened()) + frame(STDOUT, b"0" * 20) + said(done(20, 1)) + END,
    b"fewer": START + said(opened()) + frame(STDOUT, b"01234") + said(done(5, 1)) + END,
    b"miscounted": START + said(opened()) + frame(STDOUT, b"0123456789") + said(done(9, 1)) + END,
    b"cut": START + said(opened()) + frame(STDOUT, b"01234"),
    b"error-text": START
    + said(failed(1, b"\xff/\n\x1b[2J", b"\x1b]0;title\x07\xff\n" * 10))
    + frame(EXIT, numbers(0, 1, 1)),
}  # fmt: skip


def listen_path() -> str:
    return sys.argv[sys.argv.index("--listen-unix") + 1]


def receive(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = sock.recv(length - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def lie(sock: socket.socket, name: bytes) -> None:
    if name == b"endless-list":
        sock.sendall(START + said(opened()))
        while True:
            sock.sendall(said(*(entry(b"name" * 50) for _ in range(100))))
    sock.sendall(LIES[name] if name != b"waits" else START)
    if name == b"waits":
        Path(f"{listen_path()}.came").touch()
        sock.recv(1)  # until the other side closes
        Path(f"{listen_path()}.left").touch()


def wait_for_others() -> None:
    """For as many shims as the file `together` of the state folder says to be asked, too."""
    state = next(p for p in Path(listen_path()).parents if (p / "templates").is_dir())
    with contextlib.suppress(FileNotFoundError):
        count = int((state / "together").read_text())
        (state / f"came-{listen_path().replace('/', '-')}").touch()
        while len(list(state.glob("came-*"))) < count:
            time.sleep(0.01)


def serve(sock: socket.socket) -> None:
    with sock, contextlib.suppress(OSError, EOFError):
        length, kind, _, _ = struct.unpack("<IBBH", receive(sock, 8))
        payload = receive(sock, length)
        words = payload[72:].split(b"\0") if kind == 1 else []
        if words[:1] == [b"stuck"] or words[2:3] == [b"/lie/stuck"]:
            sock.recv(1)  # until the other side closes
        elif words[:1] == [b"thaw-files"] and words[2].startswith(b"/lie/"):
            lie(sock, words[2].removeprefix(b"/lie/"))
        elif kind == 14:
            wait_for_others()
            sock.sendall(frame(OK))
        elif kind == 6:
            sock.sendall(frame(69, payload))
        else:
            sock.sendall(frame(OK))
            sock.recv(1)


def main() -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(listen_path())
    listener.listen(100)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()
