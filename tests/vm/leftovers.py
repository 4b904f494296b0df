# SPDX-License-Identifier: Apache-2.0
"""What a run may leave behind: processes, virtual machines, files, locks, mounts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from conftest import STATE

T = TypeVar("T")
QUIET_S = 60.0
KVM_FOLDER = Path("/sys/kernel/debug/kvm")


def processes() -> set[str]:
    """Those of this test run: whatever it starts stays in its cgroup, orphans included."""
    names = set()
    own = Path("/proc/self/cgroup").read_text()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name = (entry / "comm").read_text().strip()
                same = (entry / "cgroup").read_text() == own
            except OSError:
                continue
            if same and name.startswith("thaw"):
                names.add(f"{entry.name} {name}")
    return names


def files() -> set[str]:
    found = set()
    for top in (STATE, Path("/dev/shm")):
        for folder, _, names in os.walk(top):
            if "pytest" not in folder:
                found.update(f"{folder}/{name}" for name in names)
    return found


def kvm_vms() -> set[str]:
    """Virtual machines that exist, by KVM's own list in debugfs: "PID-FD"."""
    if not KVM_FOLDER.is_dir():
        return set()
    return {path.name for path in KVM_FOLDER.iterdir() if re.fullmatch(r"\d+-\d+", path.name)}


def locks() -> set[str]:
    """Files that somebody holds locked (flock), by device and inode."""
    text = Path("/proc/locks").read_text()
    return set(re.findall(r"FLOCK .* ([0-9a-f]+:[0-9a-f]+:\d+) ", text))


def quiet(read: Callable[[], T], wanted: Callable[[T], bool]) -> T:
    """What @read gives once it is as @wanted, or else after a minute: an end takes its time."""
    deadline = time.monotonic() + QUIET_S
    while True:
        value = read()
        if wanted(value) or time.monotonic() > deadline:
            return value
        time.sleep(0.02)
