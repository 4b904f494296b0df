# SPDX-License-Identifier: Apache-2.0
"""The state disk: /var/lib/thaw of the test host, which survives its stops and crashes."""

import fcntl
import os
import subprocess
import time
from pathlib import Path

from . import config, image
from .config import HostError, note


def lock() -> int:
    """Locks the state disk; QEMU inherits the lock, so it holds as long as the disk is in use.

    The start lock is not enough: it is in the runtime folder, which another login may have
    elsewhere, and repairing a disk that a running host has mounted would destroy it.
    """
    path = config.state_disk().with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(50):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            # A killed QEMU may take a moment to go.
            time.sleep(0.1)
    os.close(fd)
    raise HostError(
        f"{config.state_disk()} is in use by a host of this checkout that was started with another"
        " XDG_RUNTIME_DIR: stop that one first"
    )


def prepare(tree: Path) -> None:
    """The state disk exists and is clean, or is made anew; every repair is told."""
    disk = config.state_disk()
    if disk.exists():
        if not is_dirty(disk):
            return
        checker = [*image.tool_command(tree, "usr/sbin/e2fsck"), "-f", "-y", str(disk)]
        result = subprocess.run(checker, capture_output=True, text=True, env=image.tool_env(tree))
        if result.returncode < 4:
            note(f"the state disk was not unmounted cleanly; e2fsck: status {result.returncode}")
            return
        note(f"the state disk is damaged (e2fsck: status {result.returncode}): making a new one")
        disk.unlink()
    temporary = disk.with_suffix(f".{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    image.make_ext4(temporary, config.STATE_DISK_BYTES, tree, None)
    temporary.rename(disk)


def is_dirty(disk: Path) -> bool:
    """Reads the ext4 superblock: not cleanly unmounted, in need of recovery, or none at all."""
    with disk.open("rb") as file:
        file.seek(1024)
        block = file.read(1024)
    if len(block) < 1024 or block[0x38:0x3A] != b"\x53\xef":
        return True
    state = int.from_bytes(block[0x3A:0x3C], "little")
    incompatible = int.from_bytes(block[0x60:0x64], "little")
    clean, has_errors, needs_recovery = 1, 2, 4
    return not state & clean or bool(state & has_errors) or bool(incompatible & needs_recovery)
