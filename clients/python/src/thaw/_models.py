# SPDX-License-Identifier: Apache-2.0
"""What thawd tells, as data classes. Times are datetimes in UTC; fields end in their units."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

Json = dict[str, Any]


def parse_time(text: str | None) -> datetime | None:
    """RFC 3339 in UTC; what is finer than a microsecond is cut off."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z", text)
    if match is None:
        raise ValueError(f"not a time: {text!r}")
    micro = int((match[2] or "0").ljust(6, "0")[:6])
    time = datetime.strptime(match[1], "%Y-%m-%dT%H:%M:%S")
    return time.replace(microsecond=micro, tzinfo=timezone.utc)


def _time(text: str) -> datetime:
    time = parse_time(text)
    assert time is not None
    return time


def decode(data: str, encoding: str) -> bytes:
    return base64.b64decode(data) if encoding == "base64" else data.encode("utf-8")


def path_of(value: Json, name: str) -> str | None:
    """A path's text; one that is not UTF-8 comes in base64 and gets surrogates (os.fsdecode)."""
    if name in value:
        return str(value[name])
    if f"{name}_b64" in value:
        return base64.b64decode(value[f"{name}_b64"]).decode("utf-8", "surrogateescape")
    return None


def path_bytes(path: str | bytes | os.PathLike[str]) -> bytes:
    raw = os.fspath(path)
    data = raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogateescape")
    if not data or b"\0" in data:
        raise ValueError(f"path {raw!r}: empty, or with a NUL")
    return data


def path_field(name: str, path: str | bytes | os.PathLike[str]) -> Json:
    """{NAME: path}, or {NAME_b64: ...} for one that is not UTF-8."""
    data = path_bytes(path)
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(data).decode()}


@dataclass(frozen=True)
class Size:
    """What a sandbox has. name: "lite" and so on, None for another one."""

    name: str | None
    vcpus: int
    memory_bytes: int
    scratch_bytes: int


@dataclass(frozen=True)
class Start:
    """How the last start went. pool: "hit", "miss" or "none"; ms: from the request until it ran."""

    pool: str
    ms: float


@dataclass(frozen=True)
class Stop:
    """How it ended. reason: exited, idle, hard_timeout, stopped, destroyed, lost or failed.

    exit_code: of the entrypoint. message: the reason that a caller gave, or what failed.
    """

    reason: str
    exit_code: int | None
    message: str | None
    time: datetime

    @classmethod
    def _from(cls, value: Json) -> Stop:
        return cls(value["reason"], value["exit_code"], value["message"], _time(value["time"]))


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox as it was when thawd answered.

    state: creating, starting, running, stopping, stopped, pausing, paused, resuming or failed.
    expires: when it is stopped unless something happens. raw: the answer itself.
    """

    name: str
    id: str | None
    state: str
    template: str
    snapshot: str | None
    parent: str | None
    size: Size
    env: dict[str, str]
    entrypoint: list[str] | None
    internet: bool
    labels: dict[str, str]
    inactivity_timeout_ms: int | None
    hard_timeout_ms: int | None
    keep_alive: bool
    auto_remove: bool
    pids_max: int | None
    nofile: int | None
    hostname: str
    created: datetime
    started: datetime | None
    last_activity: datetime | None
    expires: datetime | None
    entrypoint_exec: str | None
    start: Start | None
    stop: Stop | None
    raw: Json = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def _from(cls, value: Json) -> SandboxInfo:
        size, start, stop = value["size"], value["start"], value["stop"]
        plain = (
            "name", "id", "state", "template", "snapshot", "parent", "env", "entrypoint",
            "internet", "labels", "inactivity_timeout_ms", "hard_timeout_ms", "keep_alive",
            "auto_remove", "pids_max", "nofile", "hostname", "entrypoint_exec",
        )  # fmt: skip
        return cls(
            **{name: value[name] for name in plain},
            size=Size(size["name"], size["vcpus"], size["memory_bytes"], size["scratch_bytes"]),
            created=_time(value["created"]),
            started=parse_time(value["started"]),
            last_activity=parse_time(value["last_activity"]),
            expires=parse_time(value["expires"]),
            start=Start(start["pool"], start["ms"]) if start else None,
            stop=Stop._from(stop) if stop else None,
            raw=value,
        )


@dataclass(frozen=True)
class Stats:
    """What a running sandbox uses. vmm_memory_bytes: of the host's memory; None: not known."""

    cpu_usage_us: int
    memory_total_bytes: int
    memory_available_bytes: int
    disk_total_bytes: int
    disk_free_bytes: int
    processes: int
    vmm_memory_bytes: int | None
    uptime_ms: int

    @classmethod
    def _from(cls, value: Json) -> Stats:
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of a sandbox. pause_ms: how long the sandbox stood still for it."""

    id: str
    name: str | None
    sandbox: str | None
    template: str
    created: datetime
    memory_bytes: int
    disk_bytes: int
    pause_ms: float
    labels: dict[str, str]

    @classmethod
    def _from(cls, value: Json) -> Snapshot:
        fields = {name: value[name] for name in cls.__dataclass_fields__}
        return cls(**{**fields, "created": _time(value["created"])})


@dataclass(frozen=True)
class Template:
    """What sandboxes start from. sizes: names of the sizes that are built."""

    name: str
    created: datetime | None
    vcpus: int
    memory_bytes: int
    disk_bytes: int
    sizes: list[str]

    @classmethod
    def _from(cls, value: Json) -> Template:
        fields = {name: value[name] for name in cls.__dataclass_fields__}
        return cls(**{**fields, "created": parse_time(value["created"])})


@dataclass(frozen=True)
class Pool:
    """Machines of a template that wait for a start."""

    template: str
    size: int
    populate: bool
    ready: int
    starting: int
    hits: int
    misses: int

    @classmethod
    def _from(cls, value: Json) -> Pool:
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class ExecInfo:
    """A command. state: running or ended. signal: name of what it died of. lost: how it ended is
    not known. output_bytes: the cursor of its output's end."""

    id: str
    argv: list[str]
    pid: int | None
    state: str
    detached: bool
    pty: bool
    started: datetime
    ended: datetime | None
    exit_code: int | None
    signal: str | None
    timed_out: bool
    oom_killed: bool
    lost: bool
    output_bytes: int
    oldest_cursor: int

    @classmethod
    def _from(cls, value: Json) -> ExecInfo:
        fields: Json = {name: value.get(name) for name in cls.__dataclass_fields__}
        fields["started"] = _time(value["started"])
        fields["ended"] = parse_time(value["ended"])
        return cls(**fields)


@dataclass(frozen=True)
class CommandResult:
    """How a command ended, and what it printed.

    exit_code: 128 + n when it died of signal n, 124 when its time was over. signal: its name.
    raw_stdout, raw_stderr: bytes; stdout, stderr: the same as text, with U+FFFD for what is not
    UTF-8. truncated: more was printed than was kept. dropped_bytes: output that was lost, because
    the connection was away for too long. drained: False: something it left behind still held its
    output when the time for that was over.
    """

    id: str
    pid: int | None
    exit_code: int
    signal: str | None
    timed_out: bool
    oom_killed: bool
    raw_stdout: bytes = field(repr=False)
    raw_stderr: bytes = field(repr=False)
    truncated: bool = False
    dropped_bytes: int = 0
    drained: bool = True

    @property
    def stdout(self) -> str:
        return self.raw_stdout.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.raw_stderr.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True)
class Output:
    """A piece of output. stream: "stdout" or "stderr"; cursor: offset of its first byte, both
    streams together."""

    stream: str
    data: bytes
    cursor: int

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Logs:
    """A part of a command's output. next_cursor: where the next call goes on. dropped_bytes: what
    was no longer there. ended: the command has ended and this is the end of its output."""

    entries: list[Output]
    next_cursor: int
    dropped_bytes: int
    ended: bool
    exit_code: int | None

    @classmethod
    def _from(cls, value: Json) -> Logs:
        entries = [
            Output(each["stream"], decode(each["data"], each["encoding"]), each["cursor"])
            for each in value["entries"]
        ]
        return cls(
            entries,
            value["next_cursor"],
            value["dropped_bytes"],
            value["ended"],
            value["exit_code"],
        )


@dataclass(frozen=True)
class LogMatch:
    """A line that was waited for. cursor: offset of its first byte."""

    line: str
    cursor: int


@dataclass(frozen=True)
class FileStat:
    """type: file, directory, symlink, block, char, fifo or socket. mode: permission bits. target:
    of a symbolic link."""

    type: str
    size_bytes: int
    mode: int
    uid: int
    gid: int
    atime: datetime
    mtime: datetime
    ctime: datetime
    target: str | None

    @classmethod
    def _fields(cls, value: Json) -> Json:
        fields = {name: value[name] for name in ("type", "size_bytes", "mode", "uid", "gid")}
        fields |= {name: _time(value[name]) for name in ("atime", "mtime", "ctime")}
        return {**fields, "target": path_of(value, "target")}

    @classmethod
    def _from(cls, value: Json) -> FileStat:
        return cls(**cls._fields(value))

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"


@dataclass(frozen=True)
class FileEntry(FileStat):
    """An entry of a folder. path: relative to the folder that was listed. error: of a folder: name
    of the errno for which what is in it is not listed."""

    path: str
    error: str | None

    @classmethod
    def _from(cls, value: Json) -> FileEntry:
        return cls(
            **cls._fields(value), path=path_of(value, "path") or "", error=value.get("error")
        )

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class FileEvent:
    """A change. type: create, modify, delete, move, attrib, or overflow: changes were lost; or
    unwatched: a folder below can't be watched.

    path: relative to what is watched. source: of a move: where it was; None: outside.
    """

    type: str
    path: str
    source: str | None
    directory: bool | None


@dataclass(frozen=True)
class TarResult:
    """What was unpacked. warnings: (path, text) of what was left out or changed, the first ones."""

    entries: int
    size_bytes: int
    warnings: list[tuple[str | None, str]]
    warnings_total: int

    @classmethod
    def _from(cls, value: Json) -> TarResult:
        warnings = [(path_of(each, "path"), each["text"]) for each in value["warnings"]]
        return cls(value["entries"], value["size_bytes"], warnings, value["warnings_total"])


@dataclass(frozen=True)
class Event:
    """Something that happened. type: such as "sandbox.stopped"; "gap": some events were lost."""

    id: str
    type: str
    time: datetime | None
    sandbox: str | None
    details: Json


@dataclass(frozen=True)
class Preview:
    """Where a browser reaches servers of a sandbox. domain and url: None without a listener."""

    domain: str | None
    token: str = field(repr=False)
    url: str | None = field(repr=False)

    def url_of(self, port: int) -> str | None:
        """For the server on PORT; None without a preview listener."""
        return self.url.replace("{port}", str(port)) if self.url else None


@dataclass(frozen=True)
class HttpAnswer:
    """Of a server in a sandbox. headers: names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes
