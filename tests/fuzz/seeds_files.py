#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the seeds of fuzz_files.

An even first byte means frames of a guest, an odd one an archive for a guest.
"""

from __future__ import annotations

import io
import struct
import sys
import tarfile
from pathlib import Path

FUZZ = Path(__file__).resolve().parent
sys.path.insert(0, str(FUZZ.parent / "vm"))

import shim  # noqa: E402

OPENED, ENTRY, EVENT, NOTE, DONE, ERROR = range(1, 7)


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def message(kind: int, payload: bytes) -> bytes:
    return struct.pack("<IBBH", len(payload), kind, 1, 0) + payload


def stat(mode: int, size: int = 10) -> bytes:
    return struct.pack("<QQqqqIIIIIIII", size, 7, 1, 2, -3, 4, 5, 6, mode, 8, 9, 1, 0)


def opened(length: int) -> bytes:
    return message(OPENED, stat(0o100644) + struct.pack("<QQII", 0, length, 1, 0))


def entry(mode: int, path: bytes, target: bytes = b"", error: int = 0) -> bytes:
    head = struct.pack("<IHH", error, len(path), len(target))
    return message(ENTRY, stat(mode) + head + path + target)


def event(kind: int, path: bytes, to: bytes = b"") -> bytes:
    return message(EVENT, struct.pack("<IIHHI", kind, 0, len(path), len(to), 0) + path + to)


def error(number: int, path: bytes, to: bytes, text: bytes) -> bytes:
    head = struct.pack("<IHHHH", number, len(path), len(to), len(text), 0)
    return message(ERROR, head + path + to + text)


def done(moved: int, count: int) -> bytes:
    return message(DONE, struct.pack("<QQ", moved, count))


def run(messages: bytes, data: bytes = b"", status: int = 0) -> bytes:
    frame = shim.frame
    return (
        b"\0"
        + frame(shim.STARTED, numbers(42))
        + (frame(shim.STDOUT, data) if data else b"")
        + frame(shim.STDERR, messages)
        + frame(shim.EXIT, numbers(0, status, 1))
    )


def archive(*names: str, link: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            info = tarfile.TarInfo("l" if kind == tarfile.SYMTYPE else "h")
            info.type, info.linkname = kind, link
            if link:
                tar.addfile(info)
    return b"\1" + out.getvalue().rstrip(b"\0") + bytes(1024)


def seeds() -> dict[str, bytes]:
    names = entry(0o100644, b"a/f") + entry(0o120777, b"l", b"\xff") + entry(0o40755, b"d", b"", 13)
    events = event(1, b"f") + event(4, b"f", b"g") + event(6, b"")
    note = message(NOTE, struct.pack("<IHH", 0, 3, 8) + b"./sa socket")
    return {
        "read": run(opened(5) + done(5, 1), b"hello"),
        "list": run(opened(0) + names + done(0, 3)),
        "watch": run(opened(0) + events + note + done(0, 0)),
        "error": run(error(18, b"/a", b"/b", b"Invalid cross-device link"), status=1),
        "spawn": b"\0" + shim.frame(shim.ERROR, numbers(3, 2) + b"thaw-files"),
        "tar": archive("a/b", "c", link="a/b"),
        "tar-out": archive("link/evil", "file", link="../outside/secret"),
        "tar-dotdot": archive("a/../../outside/evil"),
    }


def main() -> None:
    folder = FUZZ / "corpus/files"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds().items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
