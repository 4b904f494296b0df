# SPDX-License-Identifier: Apache-2.0
"""Disks that are full or fail while a template is written, and a file system that keeps its own.

A copy of the standard template stands in a state folder on a volume of its own; its root image is
the original's, and so is the folder for scratch disks, so that only the template's writes fail.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import BIN, STATE, Thaw
from volume import Volume, run

MIB = 1 << 20
FIBMAP = 1
NEW = "new"


class Small(Thaw):
    """The command line with a state folder on @volume."""

    volume: Volume

    def __init__(self, name: str, volume: Volume) -> None:
        super().__init__(name)
        self.volume = volume
        self.templates = volume.path / "templates"

    def __call__(
        self, *args: str, stdin: bytes | None = None, timeout_s: float = 300
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(BIN / "thaw"), *args],
            env={**os.environ, "THAW_STATE": str(self.volume.path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )

    def ok(self, *args: str) -> bytes:
        proc = self(*args)
        assert proc.returncode == 0, proc.stderr
        return proc.stdout

    def names(self) -> list[str]:
        return sorted(path.name for path in self.templates.iterdir())

    def check(self, *more: str) -> None:
        """The template and @more, whole, and nothing beside them."""
        self.ok("template", "ls")
        assert self.names() == sorted([self.template, *more])
        for name in self.names():
            self.ok("template", "verify", name)

    def mount_scratch(self) -> None:
        (self.volume.path / "scratch").mkdir(exist_ok=True)
        run("mount", "--bind", str(STATE / "scratch"), str(self.volume.path / "scratch"))

    def unmount_scratch(self) -> None:
        run("umount", str(self.volume.path / "scratch"))


def make_small(thaw: Thaw, folder: Path, *features: str) -> Small:
    volume = Volume(folder, "-".join(["small", *features]), 1000, *features)
    small = Small(thaw.template, volume)
    small.templates.mkdir(mode=0o700)
    run(
        "cp",
        "-a",
        "--sparse=always",
        str(STATE / "templates" / thaw.template),
        str(small.templates),
    )
    small.mount_scratch()
    return small


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """On the state disk: /tmp is memory here. It outlives a run that was killed."""
    for old in STATE.glob("disk-test-*"):
        for mount in old.iterdir():
            subprocess.run(["umount", "--recursive", "--quiet", str(mount)], check=False)
        subprocess.run(["rm", "-rf", str(old)], check=True)
    path = STATE / f"disk-test-{os.getpid()}"
    path.mkdir()
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


@pytest.fixture(scope="module")
def pack(thaw: Thaw, folder: Path) -> Path:
    path = folder / "one.thaw"
    proc = thaw("template", "export", thaw.template, str(path))
    assert proc.returncode == 0, proc.stderr
    return path


@pytest.fixture(scope="module")
def small(thaw: Thaw, folder: Path) -> Iterator[Small]:
    made = make_small(thaw, folder)
    yield made
    made.volume.detach()


def snapshot(small: Small, pack: Path) -> tuple[str, ...]:
    """Replaces the template by its own second generation."""
    name = small.template
    return ("build", name, "--from", name, "--whole", "--replace", "--hot-runs", "1")


def diff(small: Small, pack: Path) -> tuple[str, ...]:
    """With 16 MiB that differ: what little the guest does by itself may find room anywhere."""
    fill = ("--warm", "sh", "-c", "head -c 16M /dev/urandom >/run/filler", ";")
    return ("build", NEW, "--from", small.template, "--hot-runs", "1", *fill)


def memory_pack(small: Small, pack: Path) -> tuple[str, ...]:
    return ("pack", small.template)


def export(small: Small, pack: Path) -> tuple[str, ...]:
    return ("export", small.template, str(small.volume.path / "out.thaw"))


def import_(small: Small, pack: Path) -> tuple[str, ...]:
    return ("import", small.template, str(pack), "--replace")


WRITES: dict[str, tuple[Callable[[Small, Path], tuple[str, ...]], int]] = {
    # What writes, and how much room is too little for it, MiB.
    "snapshot": (snapshot, 16),
    "pack": (memory_pack, 2),
    "export": (export, 2),
    "import": (import_, 16),
    "diff": (diff, 4),
}


def contents(small: Small) -> dict[str, bytes]:
    """What the template is; files are told apart by their digests and by inode."""
    folder = small.templates / small.template
    return {name: (folder / name).read_bytes() for name in ("manifest.json", "state")}


@pytest.mark.parametrize("what", WRITES)
def test_full_disk(small: Small, pack: Path, what: str) -> None:
    make, left_mib = WRITES[what]
    args = make(small, pack)
    before = contents(small)
    filler = small.volume.fill(left_mib)
    proc = small("template", *args)
    filler.unlink()
    assert proc.returncode == 1, proc.stderr
    assert b"No space left" in proc.stderr or b"MiB are free" in proc.stderr, proc.stderr
    assert contents(small) == before
    assert not (small.volume.path / "out.thaw").exists()
    small.check()


def test_disk_fills_up_during_an_import(small: Small, pack: Path) -> None:
    """It had room when it was asked whether it has."""
    data = pack.read_bytes()
    before = contents(small)
    process = subprocess.Popen(
        [str(BIN / "thaw"), "template", "import", small.template, "-", "--replace"],
        env={**os.environ, "THAW_STATE": str(small.volume.path)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    # More than what a pipe and the reader's buffers hold: the folder is there when this is taken.
    process.stdin.write(data[: 8 * MIB])
    process.stdin.flush()
    assert [name for name in small.names() if name.startswith(".") and ".tmp-" in name]
    filler = small.volume.fill(1)
    _, stderr = process.communicate(data[8 * MIB :], timeout=300)
    filler.unlink()
    assert process.returncode == 1 and b"No space left" in stderr, stderr
    assert contents(small) == before
    small.check()


@pytest.mark.parametrize("what", WRITES)
def test_failing_disk(small: Small, pack: Path, what: str) -> None:
    """Every write is an I/O error from the start; what counts is what is on the disk then."""
    make, _ = WRITES[what]
    args = make(small, pack)
    before = contents(small)
    run("sync")
    small.volume.fail()
    proc = small("template", *args)
    small.unmount_scratch()
    small.volume.renew()
    small.mount_scratch()
    assert proc.returncode == 1, proc.stderr
    assert b"Input/output error" in proc.stderr or b"Read-only" in proc.stderr, proc.stderr
    assert contents(small) == before
    assert not (small.volume.path / "out.thaw").exists()
    small.check()


def test_afterwards(small: Small, pack: Path) -> None:
    """It works once the disk does, after all that."""
    for make in (import_, diff):
        small.ok("template", *make(small, pack))
    small.check(NEW)
    assert small.run("--", "sh", "-c", "exit 5").returncode == 5


def verity(small: Small) -> dict[str, str] | None:
    data = json.loads(small.ok("template", "inspect", small.template, "--json"))
    found = data["verity"]
    assert found is None or isinstance(found, dict)
    return found


def first_block(path: Path) -> int:
    """Where the first block of a file lies on its device."""
    with path.open("rb") as file:
        reply = fcntl.ioctl(file, FIBMAP, struct.pack("i", 0))
    return int(struct.unpack("i", reply)[0])


def test_no_fs_verity(small: Small) -> None:
    assert verity(small) is None
    text = small.ok("template", "inspect", small.template).decode()
    assert "\nverity        no\n" in text


def test_fs_verity(thaw: Thaw, folder: Path) -> None:
    """A file system that has it: sealed when published, unchangeable, damage is an error."""
    if not Path("/sys/fs/ext4/features/verity").exists():
        pytest.skip("the kernel's ext4 has no fs-verity (CONFIG_FS_VERITY)")
    small = make_small(thaw, folder, "verity")
    memory = small.templates / small.template / "memory"
    try:
        assert verity(small) is None  # a copy that nobody published
        small.ok("template", "record", small.template, "--hot-runs", "1")
        found = verity(small)
        assert found is not None
        assert set(found) == {path.name for path in memory.parent.iterdir()} - {"disk"}
        assert all(text.startswith("sha256:") and len(text) == 71 for text in found.values())
        text = small.ok("template", "inspect", small.template).decode()
        assert f"\nverity        {found['memory']}\n" in text
        memory.chmod(0o600)
        with pytest.raises(PermissionError):
            memory.open("r+b")
        memory.chmod(0o400)
        for strategy in ("ws", "uring"):
            assert small.run("--strategy", strategy, "--", "true").returncode == 0, strategy
        # What is added is sealed as well.
        small.ok("template", "pack", small.template)
        again = verity(small)
        assert again is not None and again == found | {"memory.pack": again["memory.pack"]}
        small.check()
        block = first_block(memory)
        small.unmount_scratch()
        run("umount", str(small.volume.path))
        with small.volume.image.open("r+b") as image:
            image.seek(block * 4096)
            byte = image.read(1)[0]
            image.seek(block * 4096)
            image.write(bytes([byte ^ 1]))
            os.fsync(image.fileno())
        Path("/proc/sys/vm/drop_caches").write_text("3")
        run("mount", "-t", "ext4", small.volume.device, str(small.volume.path))
        small.mount_scratch()
        proc = small("template", "verify", small.template)
        assert proc.returncode == 1 and b"memory: Input/output error" in proc.stderr, proc.stderr
        proc = small.run("--strategy", "copy", "--", "true")
        assert proc.returncode == 125 and b"Input/output error" in proc.stderr, proc.stderr
    finally:
        small.volume.detach()
