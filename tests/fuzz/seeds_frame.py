#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the seeds of fuzz_frame.

An odd first byte means a request for the shim, an even one frames of a guest.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

FUZZ = Path(__file__).resolve().parent
sys.path.insert(0, str(FUZZ.parent / "vm"))

import shim  # noqa: E402


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def seeds() -> dict[str, bytes]:
    frame = shim.frame
    started = frame(shim.STARTED, numbers(42))
    env = {"PATH": "/bin", "B": ""}
    full = shim.exec_payload(["echo", "hi"], {"A": "b"}, "/tmp", 1000, 1001, True, 500)
    return {
        "request": b"\1" + full,
        "request-small": b"\1" + shim.exec_payload(["x"]),
        "request-path": b"\1" + shim.exec_payload(["sh", "-c", "true"], env),
        "request-options": b"\1"
        + shim.exec_payload(["sh"], env, pty=(132, 50), keep=b"k" * 16, timeout_ms=5, nofile=9),
        "request-detached": b"\1" + shim.exec_payload(["x"], detach=True, pids_max=7),
        "attached": b"\0"
        + frame(shim.ATTACHED, struct.pack("<QQII", 5, 9, 42, 0))
        + frame(shim.STDIN_CREDIT, numbers(1000))
        + frame(shim.STDERR, b"late")
        + frame(shim.EXIT, numbers(1, 9, shim.TIMED_OUT | shim.OOM)),
        "exit": b"\0"
        + started
        + frame(shim.STDOUT, b"out")
        + frame(shim.STDERR, b"err")
        + frame(shim.EXIT, numbers(0, 7, 1)),
        "signal": b"\0" + started + frame(shim.EXIT, numbers(1, 9, 0)),
        "error": b"\0" + frame(shim.ERROR, numbers(3, 2) + b"echo: No such file"),
        "long": b"\0"
        + started
        + frame(shim.STDOUT, b"x" * 5000)
        + frame(shim.STDIN_CREDIT, numbers(0))
        + frame(shim.EXIT, numbers(0, 0, 1)),
        "other": b"\0" + frame(shim.PONG, b"ping") + frame(shim.OK),
    }


def main() -> None:
    folder = FUZZ / "corpus/frame"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds().items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
