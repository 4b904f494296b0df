# SPDX-License-Identifier: Apache-2.0
"""Small ext4 file systems that fill up or fail: a file, a loop device, a device-mapper table.

The table is linear until fail() makes every write an I/O error (dm-flakey, error_writes). The
device mapper is driven by its ioctls, since the test host has no dmsetup. Linux,
include/uapi/linux/dm-ioctl.h.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from pathlib import Path

import pytest

DM_HEAD = struct.Struct("<3I I I I i I I I Q 128s 129s 7x")
DM_SPEC = struct.Struct("<QQiI16s")
DM_DEV_CREATE, DM_DEV_REMOVE, DM_DEV_SUSPEND, DM_TABLE_LOAD = 3, 4, 6, 9
DM_SUSPEND_FLAG = 1 << 1
SECTOR = 512


def run(*argv: str) -> str:
    proc = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert proc.returncode == 0, (argv, proc.stderr)
    return proc.stdout.strip()


def dm(command: int, name: str, flags: int = 0, table: tuple[int, str, str] | None = None) -> None:
    """One ioctl of /dev/mapper/control; @table: sectors, target, parameters."""
    data = b""
    if table:
        sectors, target, parameters = table
        text = parameters.encode() + b"\0"
        text += bytes(-len(text) % 8)
        spec = DM_SPEC.pack(0, sectors, 0, DM_SPEC.size + len(text), target.encode())
        data = spec + text
    size = DM_HEAD.size + len(data)
    head = DM_HEAD.pack(
        *(4, 0, 0), size, DM_HEAD.size, 1 if table else 0, 0, flags, 0, 0, 0, name.encode(), b""
    )
    request = 3 << 30 | DM_HEAD.size << 16 | 0xFD << 8 | command
    with open("/dev/mapper/control", "rb+", buffering=0) as control:
        fcntl.ioctl(control, request, bytearray(head + data))


class Volume:
    """An ext4 of @size_mib in the file @folder/NAME.img, mounted at @folder/NAME."""

    def __init__(self, folder: Path, name: str, size_mib: int, *features: str) -> None:
        subprocess.run(["modprobe", "-a", "loop", "dm-mod", "dm-flakey"], check=False)
        if not Path("/dev/mapper/control").exists():
            pytest.skip("the kernel has no device mapper (dm-mod, dm-flakey)")
        self.image = folder / f"{name}.img"
        self.path = folder / name
        self.dm_name = f"thaw-test-{os.getpid()}-{name}"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(size_mib << 20)
        options = ["-O", ",".join(features)] if features else []
        run("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", *options, str(self.image))
        self.loop = ""
        self.device = ""
        self.sectors = (size_mib << 20) // SECTOR
        self.attach()

    def attach(self) -> None:
        self.loop = run("losetup", "--find", "--show", str(self.image))
        dm(DM_DEV_CREATE, self.dm_name)
        self.load("linear", f"{self.loop} 0")
        self.device = self.find_device()
        run("mount", "-t", "ext4", self.device, str(self.path))

    def find_device(self) -> str:
        """udev may not run here: the node is made by hand, from sysfs."""
        for block in Path("/sys/block").glob("dm-*"):
            if (block / "dm/name").read_text().strip() == self.dm_name:
                major, minor = (block / "dev").read_text().split(":")
                node = self.image.with_suffix(".dev")
                node.unlink(missing_ok=True)
                os.mknod(node, 0o60600, os.makedev(int(major), int(minor)))
                return str(node)
        raise AssertionError(self.dm_name)

    def load(self, target: str, parameters: str) -> None:
        dm(DM_TABLE_LOAD, self.dm_name, table=(self.sectors, target, parameters))
        # "Suspend" without its flag is resume: it takes the new table.
        dm(DM_DEV_SUSPEND, self.dm_name)

    def fail(self) -> None:
        """From now on every write is an I/O error; reads are not."""
        self.load("flakey", f"{self.loop} 0 0 3600 1 error_writes")

    def detach(self) -> None:
        run("umount", "--recursive", str(self.path))  # also what is mounted in it
        dm(DM_DEV_REMOVE, self.dm_name)
        run("losetup", "--detach", self.loop)

    def renew(self) -> None:
        """As after a crash and a new disk: what is on the device is all there is."""
        run("umount", str(self.path))
        self.load("linear", f"{self.loop} 0")
        run("mount", "-t", "ext4", self.device, str(self.path))

    def free_mib(self) -> int:
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize >> 20

    def fill(self, left_mib: int) -> Path:
        """A file that takes all but @left_mib."""
        path = self.path / "filler"
        take = self.free_mib() - left_mib
        assert take > 0, (self.free_mib(), left_mib)
        run("fallocate", "-l", f"{take}M", str(path))
        return path
