#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the seeds of fuzz_exec_guest and fuzz_ws."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

FUZZ = Path(__file__).resolve().parent
sys.path.insert(0, str(FUZZ.parent / "vm"))

import shim  # noqa: E402


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def guest() -> dict[str, bytes]:
    frame = shim.frame
    started = frame(shim.STARTED, numbers(42))
    end = frame(shim.EXIT, numbers(0, 7, 1))
    output = frame(shim.STDOUT, b"out") + frame(shim.STDERR, b"err")
    entry = bytes(16) + struct.pack("<3Q", 10, 2, 1) + numbers(5, 0, 0, 0, 0, 1, 1, 0)
    attached = frame(shim.ATTACHED, struct.pack("<QQII", 100, 106, 42, 0))
    return {
        "life": b"\0" + started + output + end,
        "bytes": b"\4" + started + output + end,
        "error": b"\0" + frame(shim.ERROR, numbers(3, 2) + b"no"),
        "attach": b"\1" + attached + output + end,
        "attach-early": b"\1"
        + frame(shim.ATTACHED, struct.pack("<QQII", 100, 100, 0, 0))
        + started
        + end,
        "list": b"\2" + frame(shim.ENTRY, entry) * 2 + frame(shim.OK),
        "list-error": b"\2" + frame(shim.ERROR, numbers(0, 2)),
        "credit": b"\1" + attached + frame(shim.STDIN_CREDIT, numbers(100)) + end,
    }


def masked(first: int, data: bytes) -> bytes:
    return bytes([first, 0x80 | len(data)]) + bytes(4) + data


def socket() -> dict[str, bytes]:
    return {
        "text": b"\1" + masked(0x81, b'{"type":"eof"}'),
        "binary": b"\1" + masked(0x82, b"abc") + masked(0x88, b"\3\xe8"),
        "pieces": b"\5" + masked(0x01, b"a") + masked(0x89, b"p") + masked(0x80, b"b"),
        "pings": b"\0" + masked(0x89, b"p" * 100) * 20,
        "long": b"\1" + bytes([0x82, 0xFE, 1, 0]) + bytes(4 + 256),
        "refused": b"\1" + masked(0x81, b"x") + masked(0x82, b"y"),
    }


def main() -> None:
    for name, seeds in (("exec_guest", guest()), ("ws", socket())):
        folder = FUZZ / "corpus" / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed, data in seeds.items():
            (folder / seed).write_bytes(data)


if __name__ == "__main__":
    main()
