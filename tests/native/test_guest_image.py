# SPDX-License-Identifier: Apache-2.0
"""The tools that make the guest: kernel unpacking, module order, initramfs, the cache."""

import gzip
import lzma
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "guest/image"))

from thawimage import common, debian, kernel  # noqa: E402
from thawimage.common import BuildError  # noqa: E402

ELF = b"\x7fELF\x02\x01" + bytes(range(256)) * 40


def bz_image(payload: bytes, length: int | None = None, protocol: int = 0x20F) -> bytes:
    """A bzImage of two setup sectors whose payload stands 64 bytes into the kernel proper."""
    head = bytearray(0x250)
    head[0x1F1] = 2
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x206, protocol)
    struct.pack_into("<II", head, 0x248, 64, len(payload) if length is None else length)
    return bytes(head).ljust(3 * 512 + 64, b"\0") + payload + b"tail of the image"


def sized(packed: bytes, size_bytes: int = len(ELF)) -> bytes:
    return packed + struct.pack("<I", size_bytes)


def test_vmlinux_comes_out_of_xz_and_gzip() -> None:
    assert kernel.extract_vmlinux(bz_image(sized(lzma.compress(ELF))), Path("/")) == ELF
    assert kernel.extract_vmlinux(bz_image(gzip.compress(ELF)), Path("/")) == ELF


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"MZ" * 1000, "no bzImage"),
        (bz_image(sized(lzma.compress(ELF)), protocol=0x207), "boot protocol"),
        (bz_image(sized(lzma.compress(ELF)), length=1 << 20), "cut off"),
        (bz_image(sized(lzma.compress(ELF)), length=3), "cut off"),
        (bz_image(sized(lzma.compress(ELF), 7)), "expected 7"),
        (bz_image(sized(b"\x00" * 100)), "unknown compression"),
        (bz_image(sized(lzma.compress(b"#!/bin/sh"), 9)), "no 64-bit ELF"),
    ],
)
def test_bad_kernels_are_refused(image: bytes, reason: str) -> None:
    with pytest.raises(BuildError, match=reason):
        kernel.extract_vmlinux(image, Path("/"))


@pytest.fixture
def module_folder(tmp_path: Path) -> Path:
    (tmp_path / "modules.builtin").write_text("kernel/fs/ext4/ext4.ko\n")
    (tmp_path / "modules.dep").write_text(
        "kernel/a-top.ko.xz: kernel/mid.ko.xz kernel/low.ko.xz\n"
        "kernel/mid.ko.xz: kernel/low.ko.xz\n"
        "kernel/low.ko.xz:\n"
        "kernel/soft_one.ko.xz:\n"
        "kernel/round.ko: kernel/about.ko\n"
        "kernel/about.ko: kernel/round.ko\n"
    )
    (tmp_path / "modules.softdep").write_text(
        "# a comment\nsoftdep low pre: soft-one crypto-crc32c post: mid\nsoftdep gone pre: low\n"
    )
    return tmp_path


def test_modules_load_after_what_they_need(module_folder: Path) -> None:
    order = kernel.Modules(module_folder).load_order(["low", "a_top", "mid"])
    names = ["soft_one.ko.xz", "low.ko.xz", "mid.ko.xz", "a-top.ko.xz"]
    assert order == [f"kernel/{name}" for name in names]


def test_a_built_in_module_is_not_loaded(module_folder: Path) -> None:
    assert kernel.Modules(module_folder).load_order(["ext4"]) == []


@pytest.mark.parametrize(("name", "reason"), [("nothing", "no module"), ("round", "circle")])
def test_modules_that_cannot_load(module_folder: Path, name: str, reason: str) -> None:
    with pytest.raises(BuildError, match=reason):
        kernel.Modules(module_folder).load_order([name])


def test_initramfs_is_whole_and_the_same_twice(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "order").write_text("b.ko\na.ko\n")
    (modules / "a.ko").write_bytes(b"A" * 5)
    (modules / "b.ko").write_bytes(b"B" * 8)
    (modules / "not-listed.ko").write_bytes(b"C")
    shim = tmp_path / "shim"
    shim.write_bytes(b"shim!")
    files = tmp_path / "files"
    files.write_bytes(b"files!")
    archives = []
    for number in (1, 2):
        out = tmp_path / f"{number}.cpio"
        command = [TOP / "guest/image/mkinitramfs", shim, files, modules, out]
        subprocess.run(command, check=True)
        archives.append(out.read_bytes())
        os.utime(shim, (number, number))
    assert archives[0] == archives[1]
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(
        ["cpio", "--quiet", "-i", "--no-absolute-filenames"],
        input=archives[0],
        cwd=unpacked,
        check=True,
    )
    assert (unpacked / "init").read_bytes() == b"shim!"
    assert os.access(unpacked / "init", os.X_OK)
    assert (unpacked / "thaw-files").read_bytes() == b"files!"
    assert os.access(unpacked / "thaw-files", os.X_OK)
    assert (unpacked / "modules/order").read_text() == "b.ko\na.ko\n"
    assert (unpacked / "modules/b.ko").read_bytes() == b"B" * 8
    assert not (unpacked / "modules/not-listed.ko").exists()


def test_initramfs_failure_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.cpio"
    command = [TOP / "guest/image/mkinitramfs", "/nonexistent", "/nonexistent", tmp_path, out]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "mkinitramfs:" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_cache_holds_no_half_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fails(work: Path) -> None:
        (work / "half").write_text("x")
        raise BuildError("broken on purpose")

    def fills(work: Path) -> None:
        (work / "whole").write_text("x")

    def never(work: Path) -> None:
        raise AssertionError("built twice")

    (common.cache_dir() / "guest-killed.tmp").mkdir()
    with common.build_lock():
        assert not (common.cache_dir() / "guest-killed.tmp").exists()
        with pytest.raises(BuildError, match="on purpose"):
            common.cached("guest-x", fails)
        assert [path.name for path in common.cache_dir().iterdir()] == ["guest-build.lock"]
        folder = common.cached("guest-x", fills)
        assert [path.name for path in folder.iterdir()] == ["whole"]
        assert common.cached("guest-x", never) == folder


def test_mirror_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        ("Ubuntu", "Ubuntu", "noble", "http://a.invalid/ubuntu"),
        ("Debian", "Debian-Security", "bookworm-security", "http://b.invalid/security"),
        ("Debian", "Debian", "bookworm", "http://b.invalid/debian"),
    ]
    monkeypatch.delenv("THAW_MIRROR", raising=False)
    monkeypatch.setattr(debian, "machine_sources", lambda: rows)
    first, second = debian.find_sources()
    assert first.endswith("http://b.invalid/debian trixie main")
    assert second.endswith("http://b.invalid/security trixie-security main")
    monkeypatch.setattr(debian, "machine_sources", lambda: rows[:1])
    monkeypatch.setattr(debian, "machine_is_debian", lambda: False)
    assert debian.find_sources() == []
    monkeypatch.setenv("THAW_MIRROR", "http://c.invalid/debian")
    assert debian.find_sources()[0].endswith("http://c.invalid/debian trixie main")
    assert len(debian.find_sources()) == 1
