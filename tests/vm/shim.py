# SPDX-License-Identifier: Apache-2.0
"""The exec protocol from the host side, over the Unix socket of `thaw-vmm --vsock PATH`.

The wire format is guest/shim/proto.h; the prose is docs/exec-protocol.md.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SHIM_PORT = 1024
VERSION = 1
EXEC, STDIN, STDIN_EOF, SIGNAL, CHECKPOINT, PING, POWEROFF = 1, 2, 3, 4, 5, 6, 7
CHECKPOINT_LIVE, SHUTDOWN, RESIZE, KILL, ACK, ATTACH, LIST, FORGET = 8, 9, 10, 11, 12, 13, 14, 15
CONNECT, USAGE = 16, 17
STARTED, STDOUT, STDERR, EXIT, ERROR, PONG, OK, STDIN_CREDIT = 64, 65, 66, 67, 68, 69, 70, 71
ATTACHED, ENTRY, USAGE_REPLY = 72, 73, 74
STDIN_WINDOW = 256 << 10  # stdin bytes that may be under way without STDIN_CREDIT
EXEC_STDIN, EXEC_DETACH, EXEC_EXT = 1, 2, 4
EXT_KEEP, EXT_PTY, EXT_COMBINED, EXT_FILES = 1, 2, 4, 8
RING_BYTES, RING_UNACKED_MAX, KEPT_ENDED_MAX = 1 << 20, 1 << 19, 64
EXIT_CODE, EXIT_SIGNAL = 0, 1
DRAINED, TIMED_OUT, OOM = 1, 2, 4  # flags of EXIT
RUNNING, ENDED = 0, 1
END = (1 << 64) - 1  # an offset: that of the end


class Lost(Exception):
    """The stream ended in the middle of a frame, or before the last one."""


@dataclass
class Attached:
    """The answer to ATTACH."""

    offset: int
    end: int
    pid: int
    state: int


@dataclass
class Entry:
    """One kept exec."""

    id: bytes
    end: int
    oldest: int
    started_ns: int
    pid: int
    state: int
    kind: int
    value: int
    flags: int
    attached: int
    ext_flags: int


@dataclass
class Usage:
    """The answer to USAGE."""

    uptime_ms: int
    cpu_usage_us: int
    memory_total_bytes: int
    memory_available_bytes: int
    disk_total_bytes: int
    disk_free_bytes: int
    processes: int
    kept_execs: int


@dataclass
class Result:
    """What an exec gave: output as bytes, and how it ended."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    pid: int | None = None
    kind: int | None = None
    value: int | None = None
    flags: int | None = None
    attached: Attached | None = None
    error: tuple[int, int, str] | None = None  # stage, errno, text

    @property
    def drained(self) -> int | None:
        return None if self.flags is None else self.flags & DRAINED


def connect(path: Path, port: int = SHIM_PORT, timeout_s: float = 120) -> socket.socket:
    """A stream to a guest port through the VMM's listening socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    sock.connect(str(path))
    sock.sendall(f"CONNECT {port}\n".encode())
    line = b""
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte:
            raise Lost(f"no answer to CONNECT {port}: {line!r}")
        line += byte
    if not line.startswith(b"OK "):
        raise Lost(f"CONNECT {port} refused: {line!r}")
    return sock


def frame(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IBBH", len(payload), kind, VERSION, 0) + payload


def exec_payload(
    argv: Sequence[str | bytes],
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    uid: int = 0,
    gid: int = 0,
    stdin: bool = False,
    drain_ms: int = 0,
    detach: bool = False,
    keep: bytes | None = None,
    pty: tuple[int, int] | bool = False,
    combined: bool = False,
    files: bool = False,
    timeout_ms: int = 0,
    pids_max: int = 0,
    nofile: int = 0,
) -> bytes:
    """The payload of EXEC; @pty: its columns and rows, or True for the default."""
    args = [a.encode() if isinstance(a, str) else a for a in argv]
    envs = [f"{k}={v}".encode() for k, v in (env or {}).items()]
    cols, rows = pty if isinstance(pty, tuple) else (0, 0)
    flags = (EXT_KEEP if keep else 0) | (EXT_PTY if pty else 0)
    flags |= (EXT_COMBINED if combined else 0) | (EXT_FILES if files else 0)
    ext = b""
    if flags or timeout_ms or pids_max or nofile:
        ext = (keep or bytes(16)) + struct.pack(
            "<IIHHIII", flags, timeout_ms, cols, rows, pids_max, nofile, 0
        )
    stdin = stdin or bool(pty)
    head = struct.pack(
        "<8I",
        (EXEC_STDIN if stdin else 0) | (EXEC_DETACH if detach else 0) | (EXEC_EXT if ext else 0),
        len(args),
        len(envs),
        1 if cwd is not None else 0,
        uid,
        gid,
        drain_ms,
        0,
    )
    strings = [*args, *envs] + ([cwd.encode()] if cwd is not None else [])
    return head + ext + b"".join(s + b"\0" for s in strings)


def read_exact(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            raise Lost(f"stream ended after {len(parts)} of {size} bytes")
        parts += part
    return bytes(parts)


def frames(sock: socket.socket) -> Iterator[tuple[int, bytes]]:
    while True:
        size, kind, version, reserved = struct.unpack("<IBBH", read_exact(sock, 8))
        assert version == VERSION and reserved == 0 and size <= 65536, (size, version, reserved)
        yield kind, read_exact(sock, size)


def collect(sock: socket.socket) -> Result:
    """Read until the last frame."""
    result = Result()
    for kind, payload in frames(sock):
        if kind == STDOUT:
            result.stdout += payload
        elif kind == STDERR:
            result.stderr += payload
        elif kind == STARTED:
            (result.pid,) = struct.unpack("<I", payload)
        elif kind == EXIT:
            result.kind, result.value, result.flags = struct.unpack("<III", payload)
            return result
        elif kind == ERROR:
            stage, error = struct.unpack("<II", payload[:8])
            result.error = (stage, error, payload[8:].decode())
            return result
        elif kind == ATTACHED:
            result.attached = Attached(*struct.unpack("<QQII", payload))
            result.pid = result.attached.pid
        elif kind != STDIN_CREDIT:
            raise AssertionError(f"unexpected frame {kind}")
    raise AssertionError("unreachable")


def attach(id: bytes, offset: int = 0) -> bytes:
    return frame(ATTACH, id + struct.pack("<Q", offset))


def ack(offset: int) -> bytes:
    return frame(ACK, struct.pack("<Q", offset))


def resize(cols: int, rows: int) -> bytes:
    return frame(RESIZE, struct.pack("<HH", cols, rows))


def answer(sock: socket.socket) -> tuple[int, int, str] | None:
    """OK: None; ERROR: its stage, errno and text."""
    kind, payload = next(frames(sock))
    if kind == OK:
        return None
    assert kind == ERROR, kind
    return (*struct.unpack("<II", payload[:8]), payload[8:].decode())


def entries(sock: socket.socket) -> dict[bytes, Entry]:
    """What LIST says, by id."""
    sock.sendall(frame(LIST))
    found = {}
    for kind, payload in frames(sock):
        if kind == OK:
            return found
        assert kind == ENTRY, kind
        entry = Entry(payload[:16], *struct.unpack("<QQQ7I", payload[16:68]))
        found[entry.id] = entry
    raise AssertionError("unreachable")


def usage(sock: socket.socket) -> Usage:
    sock.sendall(frame(USAGE))
    kind, payload = next(frames(sock))
    assert kind == USAGE_REPLY, kind
    return Usage(*struct.unpack("<QQQQQQII", payload))


def run(
    path: Path, argv: Sequence[str | bytes], stdin: bytes | None = None, **kw: object
) -> Result:
    """One exec, connect to exit; @stdin goes before output is read: at most STDIN_WINDOW."""
    with connect(path) as sock:
        payload = exec_payload(argv, stdin=stdin is not None, **kw)  # type: ignore[arg-type]
        sock.sendall(frame(EXEC, payload))
        if stdin is not None:
            for start in range(0, len(stdin), 65536):
                sock.sendall(frame(STDIN, stdin[start : start + 65536]))
            sock.sendall(frame(STDIN_EOF))
        return collect(sock)
