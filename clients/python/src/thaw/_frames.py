# SPDX-License-Identifier: Apache-2.0
"""Frames of thaw-exec/1 as bytes; docs/exec-protocol.md tells what they mean."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ._errors import ProtocolError

VERSION = 1
EXEC, STDIN, STDIN_EOF, SIGNAL, KILL = 1, 2, 3, 4, 11
STARTED, STDOUT, STDERR, EXIT, ERROR, STDIN_CREDIT, ATTACHED = 64, 65, 66, 67, 68, 71, 72
DATA_MAX_BYTES = 65536
STDIN_WINDOW_BYTES = 262144
EXEC_MAX_BYTES = 2 << 20
PAYLOAD_MAX_BYTES = DATA_MAX_BYTES

_HEAD = struct.Struct("<IBBH")
_EXEC = struct.Struct("<8I")
_EXT = struct.Struct("<16sIIHHIII")
_FLAG_STDIN, _FLAG_EXT = 1, 4
_EXT_COMBINED = 4
_EXIT_DRAINED, _EXIT_TIMED_OUT, _EXIT_OOM = 1, 2, 4
STAGES = ("request", "setup", "cwd", "exec")


def frame(kind: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload), kind, VERSION, 0) + payload


def exec_frame(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    user: tuple[int, int],
    stdin: bool,
    combined: bool,
    timeout_ms: int,
    drain_ms: int,
) -> bytes:
    """First frame of a command."""
    flags = (_FLAG_STDIN if stdin else 0) | _FLAG_EXT
    uid, gid = user
    head = _EXEC.pack(flags, len(argv), len(env), int(cwd is not None), uid, gid, drain_ms, 0)
    ext = _EXT.pack(bytes(16), _EXT_COMBINED if combined else 0, timeout_ms, 0, 0, 0, 0, 0)
    strings = [*argv, *(f"{name}={value}" for name, value in env.items())]
    strings += [cwd] if cwd is not None else []
    payload = head + ext
    payload += b"".join(text.encode("utf-8", "surrogateescape") + b"\0" for text in strings)
    if len(payload) > EXEC_MAX_BYTES:
        raise ValueError(f"argv and env have {len(payload)} bytes, {EXEC_MAX_BYTES} are possible")
    return frame(EXEC, payload)


@dataclass
class ExitStatus:
    """How a command ended."""

    exit_code: int
    signal: int | None
    timed_out: bool
    oom_killed: bool
    drained: bool


def parse_exit(payload: bytes) -> ExitStatus:
    if len(payload) != 12:
        raise ProtocolError("bad exit frame")
    kind, value, flags = struct.unpack("<III", payload)
    timed_out = bool(flags & _EXIT_TIMED_OUT)
    code = 128 + value if kind == 1 else value
    return ExitStatus(
        exit_code=124 if timed_out else code,
        signal=value if kind == 1 else None,
        timed_out=timed_out,
        oom_killed=bool(flags & _EXIT_OOM),
        drained=bool(flags & _EXIT_DRAINED),
    )


def parse_error(payload: bytes) -> tuple[str, int, str]:
    """(stage, errno, text)."""
    if len(payload) < 8:
        raise ProtocolError("bad error frame")
    stage, number = struct.unpack_from("<II", payload)
    name = STAGES[stage] if stage < len(STAGES) else "setup"
    return name, number, payload[8:].decode("utf-8", "replace")


def parse_u32(payload: bytes) -> int:
    if len(payload) != 4:
        raise ProtocolError("bad frame")
    return int(struct.unpack("<I", payload)[0])


def parse_attached(payload: bytes) -> tuple[int, int]:
    """(offset where output begins, pid)."""
    if len(payload) != 24:
        raise ProtocolError("bad attached frame")
    offset, _, pid, _ = struct.unpack("<QQII", payload)
    return offset, pid


class FrameReader:
    """feed() gives the frames that are complete, as (type, payload)."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        self._data += data
        frames = []
        while len(self._data) >= _HEAD.size:
            size, kind, version, reserved = _HEAD.unpack_from(self._data)
            if version != VERSION or reserved or size > PAYLOAD_MAX_BYTES:
                raise ProtocolError("bad frame")
            end = _HEAD.size + size
            if len(self._data) < end:
                break
            frames.append((kind, bytes(self._data[_HEAD.size : end])))
            del self._data[:end]
        return frames
