# SPDX-License-Identifier: Apache-2.0
"""Requests out of what callers give; every wrong value is told before anything is sent."""

from __future__ import annotations

import base64
import os
import signal as signals
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ._models import Json, path_bytes


class Unset:
    """Stands for an argument that was not given, where None means something."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


def quote(part: str) -> str:
    """One segment of a path."""
    if not part:
        raise ValueError("an empty name")
    return urllib.parse.quote(part, safe="")


def query(**values: str | int | bytes | Sequence[str] | None) -> str:
    """ "?a=b&...", without those that are None."""
    pairs: list[tuple[str, str | bytes]] = []
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, (str, bytes)):
            pairs.append((name, value))
        elif isinstance(value, int):
            pairs.append((name, str(int(value))))
        else:
            pairs += [(name, each) for each in value]
    return "?" + urllib.parse.urlencode(pairs, quote_via=urllib.parse.quote) if pairs else ""


def argv_of(cmd: Sequence[str]) -> list[str]:
    if isinstance(cmd, (str, bytes)):
        raise TypeError(
            "cmd must be a list of arguments, no shell is involved: "
            f'["sh", "-c", {cmd!r}] has it run by one'
        )
    argv = list(cmd)
    if not argv:
        raise ValueError("cmd is empty")
    for each in argv:
        if not isinstance(each, str):
            raise TypeError(f"cmd: {each!r} is not a str")
        if "\0" in each:
            raise ValueError(f"cmd: {each!r} has a NUL")
    return argv


def env_of(env: Mapping[str, str] | None) -> dict[str, str]:
    result = dict(env or {})
    for name, value in result.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env: {name!r}: names and values must be str")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"env: {name!r}: empty, or with '=' or NUL")
    return result


def user_of(user: str | None) -> tuple[int, int]:
    if user is None:
        return 0, 0
    uid, colon, gid = user.partition(":")
    if not colon or not uid.isdigit() or not gid.isdigit():
        raise ValueError(f'user {user!r}: "UID:GID", two numbers, is expected')
    return int(uid), int(gid)


def millis(seconds: float | None, name: str) -> int | None:
    """A time in seconds as whole milliseconds, at least 1."""
    if seconds is None:
        return None
    if not seconds > 0:
        raise ValueError(f"{name} is {seconds!r}: more than 0 seconds is expected")
    return max(1, round(seconds * 1000))


def signal_value(signal: int | str) -> int | str:
    if isinstance(signal, str):
        return signal
    number = int(signal)
    if not 1 <= number <= 64:
        raise ValueError(f"signal {number}: 1 to 64 is expected")
    return number


def signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def labels_query(labels: Mapping[str, str | None] | None) -> list[str] | None:
    if not labels:
        return None
    return [name if value is None else f"{name}={value}" for name, value in labels.items()]


def spec(
    *,
    template: str | None,
    snapshot: str | None,
    size: str | None,
    vcpus: int | None,
    memory_bytes: int | None,
    scratch_bytes: int | None,
    env: Mapping[str, str] | None,
    entrypoint: Sequence[str] | None,
    internet: bool,
    labels: Mapping[str, str] | None,
    inactivity_timeout: float | None,
    hard_timeout: float | None,
    keep_alive: bool,
    pids_max: int | None,
    nofile: int | None,
    hostname: str | None,
    auto_remove: bool,
    start: bool,
) -> Json:
    """A sandbox's specification; what was not given is left to thawd."""
    if template is not None and snapshot is not None:
        raise ValueError("template and snapshot together: give one of them")
    if size is not None and (vcpus is not None or memory_bytes is not None):
        raise ValueError("size together with vcpus or memory_bytes")
    values: dict[str, Any] = {
        "template": template,
        "snapshot": snapshot,
        "size": size,
        "vcpus": vcpus,
        "memory_bytes": memory_bytes,
        "scratch_bytes": scratch_bytes,
        "env": env_of(env) or None,
        "entrypoint": argv_of(entrypoint) if entrypoint is not None else None,
        "labels": dict(labels) if labels else None,
        "inactivity_timeout_ms": millis(inactivity_timeout, "inactivity_timeout"),
        "hard_timeout_ms": millis(hard_timeout, "hard_timeout"),
        "pids_max": pids_max,
        "nofile": nofile,
        "hostname": hostname,
    }
    result = {name: value for name, value in values.items() if value is not None}
    flags = {"internet": (internet, False), "keep_alive": (keep_alive, False)}
    flags["auto_remove"] = (auto_remove, False)
    flags["start"] = (start, True)
    result.update({name: value for name, (value, usual) in flags.items() if value != usual})
    return result


def exec_body(
    argv: list[str],
    env: Mapping[str, str] | None,
    cwd: str | None,
    user: str | None,
    timeout: float | None,
    stdin: bytes | None,
    combined: bool,
    **more: object,
) -> Json:
    """Body of an exec that thawd is to parse (detached, or with a terminal)."""
    user_of(user)
    values: dict[str, Any] = {
        "argv": argv,
        "env": env_of(env) or None,
        "cwd": cwd,
        "user": user,
        "timeout_ms": millis(timeout, "timeout"),
        "combined": combined or None,
        **more,
    }
    if stdin is not None:
        values["stdin"] = base64.b64encode(stdin).decode()
        values["stdin_encoding"] = "base64"
    return {name: value for name, value in values.items() if value is not None}


def file_query(
    path: str | bytes | os.PathLike[str],
    cwd: str | None,
    user: str | None,
    **more: str | int | None,
) -> str:
    user_of(user)
    return query(path=path_bytes(path), cwd=cwd, user=user, **more)


def octal(mode: int | None) -> str | None:
    if mode is None:
        return None
    if not 0 <= mode <= 0o7777:
        raise ValueError(f"mode {mode:#o}: 0 to 0o7777 is expected")
    return f"{mode:04o}"
