# SPDX-License-Identifier: Apache-2.0
"""Many `thaw run` at once: how many succeed, and when each has its result."""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.arms import Context, Template
from lab.measure import TIMEOUT_S, spawn

ERRORS_KEPT = 5


@dataclass
class Flown:
    """What came of it. A start succeeds when its exit status is 0 and its result says c5."""

    n: int
    ok: int = 0
    failed: int = 0
    wall_ms: float = 0.0
    c5: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def per_s(self) -> float:
        return self.ok / self.wall_ms * 1e3 if self.wall_ms else 0.0


@dataclass
class _Start:
    pid: int
    pid_fd: int
    report: Path


def _take(flown: Flown, start: _Start, late: bool) -> None:
    """It has ended: count it."""
    _, status = os.waitpid(start.pid, 0)
    os.close(start.pid_fd)
    code = os.waitstatus_to_exitcode(status)
    try:
        if code != 0:
            raise ValueError("killed: took too long" if late else f"exit status {code}")
        flown.c5.append(float(json.loads(start.report.read_text())["clocks_ms"]["c5"]))
        flown.ok += 1
    except (OSError, ValueError, KeyError, TypeError) as error:
        flown.failed += 1
        if len(flown.errors) < ERRORS_KEPT:
            flown.errors.append(str(error))


def fly(
    ctx: Context,
    templates: Sequence[Template],
    n: int,
    at_once: int,
    stagger_s: float = 0.0,
    options: Sequence[str] = ("--no-pool",),
) -> Flown:
    """@n starts of @templates by turns, @at_once at a time, no two closer than @stagger_s."""
    flown = Flown(n)
    output_fd = os.memfd_create("output", os.MFD_CLOEXEC)
    poll = select.poll()
    under_way: dict[int, _Start] = {}
    begin, begun = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="thaw-lab-") as folder:
        while begun < n or under_way:
            due = begin + begun * stagger_s
            now = time.monotonic()
            if begun < n and len(under_way) < at_once and now >= due:
                template = templates[begun % len(templates)]
                report = Path(folder) / str(begun)
                argv = [ctx.thaw, "run", template.name, *options, "--json", str(report), "--"]
                pid, pid_fd = spawn([*argv, *template.command], output_fd)
                under_way[pid_fd] = _Start(pid, pid_fd, report)
                poll.register(pid_fd, select.POLLIN)
                begun += 1
                continue
            waits_for_time = begun < n and len(under_way) < at_once
            patience_s = due - now if waits_for_time else TIMEOUT_S
            ended = poll.poll(patience_s * 1e3)
            late = not ended and not waits_for_time
            if late:
                for start in under_way.values():
                    os.kill(start.pid, signal.SIGKILL)
                ended = [(fd, select.POLLIN) for fd in under_way]
            for fd, _ in ended:
                poll.unregister(fd)
                _take(flown, under_way.pop(fd), late)
        flown.wall_ms = (time.monotonic() - begin) * 1e3
    os.close(output_fd)
    return flown
