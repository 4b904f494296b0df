# SPDX-License-Identifier: Apache-2.0
"""Makes the test host's initramfs: busybox, the one module that a root disk needs, the agent.

It is made anew at every start, since it carries the host's token and the agent of this checkout.
"""

import lzma
import stat
from pathlib import Path

from . import config
from .config import HostError

HOST_DIR = "run/thaw-host"

# Everything that has to happen before the root's own python3 can run as init.
UNIT_NAME = "thaw-testhost.service"
UNITS = "run/systemd/system"
AGENT = f"/usr/bin/python3 -I -X utf8 /{HOST_DIR}/agent.py"
INIT = f"""#!/bin/busybox sh
die() {{ echo "thaw-testhost: $1" >/dev/console; exec /bin/busybox poweroff -f; }}
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox insmod /virtio_blk.ko || die "no virtio_blk"
/bin/busybox mount -t ext4 -o noatime,noinit_itable /dev/vda /root || die "no root disk"
/bin/busybox mount -t tmpfs -o mode=755 run /root/run
/bin/busybox mkdir -p /root/{HOST_DIR}
/bin/busybox cp -r /host/. /root/{HOST_DIR}/
/bin/busybox umount /dev
if [ -d /units ]; then
	/bin/busybox mkdir -p /root/{UNITS}
	/bin/busybox cp -a /units/. /root/{UNITS}/
fi
exec /bin/busybox switch_root /root $(/bin/busybox cat /init-command)
"""

# With systemd as process 1 the agent is a service that wants nothing but to be first.
UNIT = f"""[Unit]
Description=Agent of the test host
DefaultDependencies=no
After=-.mount
Before=basic.target
[Service]
ExecStart={AGENT}
OOMScoreAdjust=-1000
KillMode=process
Delegate=yes
"""
INIT_COMMANDS = {"agent": AGENT, "systemd": "/usr/lib/systemd/systemd"}


class CpioWriter:
    """A cpio archive in the kernel's "newc" format (Documentation/driver-api/early-userspace)."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._inode = 0

    def add(
        self, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)
    ) -> None:
        self._inode += 1
        encoded = name.encode() + b"\0"
        fields = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(encoded), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields)
        self._parts.append(self._pad(header + encoded) + self._pad(content))

    def finish(self) -> bytes:
        self.add("TRAILER!!!", 0)
        return b"".join(self._parts)

    @staticmethod
    def _pad(data: bytes) -> bytes:
        return data + b"\0" * (-len(data) % 4)


def read_module(tree: Path, name: str) -> bytes:
    """A kernel module of the tree, unpacked: busybox loads plain ones only."""
    found = sorted((tree / "usr/lib/modules").glob(f"*/kernel/**/{name}.ko*"))
    if len(found) != 1:
        raise HostError(f"{tree}: {len(found)} files of the module {name}, 1 expected")
    content = found[0].read_bytes()
    return lzma.decompress(content) if found[0].suffix == ".xz" else content


def make_initramfs(tree: Path, host_json: bytes) -> bytes:
    """The archive; HOST_JSON is what the agent is told (agent.py, class Settings)."""
    archive = CpioWriter()
    for folder in ("bin", "dev", "root", "host", "host/thawhost"):
        archive.add(folder, stat.S_IFDIR | 0o755)
    archive.add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    archive.add("bin/busybox", stat.S_IFREG | 0o755, (tree / "usr/bin/busybox").read_bytes())
    archive.add("virtio_blk.ko", stat.S_IFREG | 0o600, read_module(tree, "virtio_blk"))
    archive.add("init", stat.S_IFREG | 0o755, INIT.encode())
    command = INIT_COMMANDS[config.init()]
    archive.add("init-command", stat.S_IFREG | 0o644, command.encode())
    if config.init() == "systemd":
        wants = "units/multi-user.target.wants"
        for folder in ("units", wants):
            archive.add(folder, stat.S_IFDIR | 0o755)
        archive.add(f"units/{UNIT_NAME}", stat.S_IFREG | 0o644, UNIT.encode())
        archive.add(f"{wants}/{UNIT_NAME}", stat.S_IFLNK | 0o777, f"../{UNIT_NAME}".encode())
    for name in config.AGENT_FILES:
        archive.add(f"host/{name}", stat.S_IFREG | 0o644, (config.HERE / name).read_bytes())
    archive.add("host/host.json", stat.S_IFREG | 0o600, host_json)
    return archive.finish()
