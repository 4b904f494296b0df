# SPDX-License-Identifier: Apache-2.0
"""thaw-files as the tests run it: one process an operation, its frames taken apart
(guest/files/proto.h)."""

from __future__ import annotations

import os
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent.parent
FILES = os.environ.get("THAW_FILES", str(TOP / "build/release/thaw-files"))
SIZED = 1
STAT = struct.Struct("<QQqqqIIIIIIII")
STAT_NAMES = (
    "size", "inode", "atime_s", "mtime_s", "ctime_s", "atime_ns", "mtime_ns", "ctime_ns", "mode",
    "uid", "gid", "links", "reserved",
)  # fmt: skip
EVENTS = {1: "create", 2: "modify", 3: "delete", 4: "move", 5: "attrib", 6: "overflow"}


@dataclass
class Frame:
    kind: str
    fields: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None


def stat_fields(raw: bytes) -> dict[str, Any]:
    return dict(zip(STAT_NAMES, STAT.unpack(raw), strict=True))


def parse_frame(kind: int, payload: bytes) -> Frame:
    if kind == 1:
        fields = stat_fields(payload[:72])
        fields["offset"], fields["length"], fields["flags"], _ = struct.unpack(
            "<QQII", payload[72:]
        )
        return Frame("opened", fields)
    if kind == 2:
        fields = stat_fields(payload[:72])
        fields["error"], path, target = struct.unpack("<IHH", payload[72:80])
        assert len(payload) == 80 + path + target
        fields.update(path=payload[80 : 80 + path], target=payload[80 + path :])
        return Frame("entry", fields)
    if kind == 3:
        event, folder, path, to, _ = struct.unpack("<IIHHI", payload[:16])
        assert len(payload) == 16 + path + to
        return Frame(
            "event",
            {
                "event": EVENTS[event],
                "folder": bool(folder),
                "path": payload[16 : 16 + path],
                "to": payload[16 + path :],
            },
        )
    if kind == 4:
        error, path, text = struct.unpack("<IHH", payload[:8])
        assert len(payload) == 8 + path + text
        return Frame(
            "note",
            {"error": error, "path": payload[8 : 8 + path], "text": payload[8 + path :].decode()},
        )
    if kind == 5:
        moved, count = struct.unpack("<QQ", payload)
        return Frame("done", {"bytes": moved, "count": count})
    assert kind == 6, kind
    error, path, to, text, _ = struct.unpack("<IHHHH", payload[:12])
    assert len(payload) == 12 + path + to + text <= 140000 and text <= 512
    at = 12 + path
    return Frame(
        "error",
        {
            "error": error,
            "path": payload[12:at],
            "to": payload[at : at + to],
            "text": payload[at + to :].decode(),
        },
    )


def take_frame(data: bytes) -> tuple[Frame | None, int]:
    """The first frame and its length; (None, 0): it is not complete."""
    if len(data) < 8:
        return None, 0
    length, kind, version, reserved = struct.unpack("<IBBH", data[:8])
    assert (version, reserved) == (1, 0)
    if len(data) < 8 + length:
        return None, 0
    return parse_frame(kind, data[8 : 8 + length]), 8 + length


def frames_of(data: bytes) -> list[Frame]:
    frames = []
    while data:
        frame, used = take_frame(data)
        assert frame, f"half a frame at the end: {data!r}"
        frames.append(frame)
        data = data[used:]
    return frames


@dataclass
class Result:
    status: int
    out: bytes
    frames: list[Frame]

    @property
    def last(self) -> Frame:
        return self.frames[-1]

    def of(self, kind: str) -> list[Frame]:
        return [frame for frame in self.frames if frame.kind == kind]


def command(*args: str | bytes | Path) -> list[bytes]:
    return [os.fsencode(FILES), *(os.fsencode(arg) for arg in args)]


def credentials(user: int | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def run(
    *args: str | bytes | Path,
    stdin: bytes = b"",
    user: int | None = None,
    cwd: Path | None = None,
) -> Result:
    done = subprocess.run(
        command(*args),
        input=stdin,
        capture_output=True,
        check=False,
        timeout=60,
        cwd=cwd,
        **credentials(user),
    )
    result = Result(done.returncode, done.stdout, frames_of(done.stderr))
    assert result.frames, f"no frame, exit status {done.returncode}"
    assert result.last.kind == ("done" if result.status == 0 else "error")
    assert all(frame.kind not in ("done", "error") for frame in result.frames[:-1])
    return result


class Running:
    """One that goes on: frames come as they are written."""

    def __init__(self, *args: str | bytes | Path, user: int | None = None) -> None:
        self.proc = subprocess.Popen(
            command(*args),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            **credentials(user),
        )
        self._data = b""

    def frame(self) -> Frame:
        assert self.proc.stderr
        while True:
            frame, used = take_frame(self._data)
            if frame:
                self._data = self._data[used:]
                return frame
            more = os.read(self.proc.stderr.fileno(), 65536)
            assert more, "it ended"
            self._data += more

    def close(self) -> None:
        self.proc.kill()
        self.proc.wait()
        for stream in (self.proc.stdin, self.proc.stdout, self.proc.stderr):
            if stream:
                stream.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
