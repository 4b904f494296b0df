# SPDX-License-Identifier: Apache-2.0
"""The stock kernel: vmlinux out of a bzImage, and modules in the order in which they load."""

import bz2
import gzip
import lzma
import struct
import subprocess
from pathlib import Path

from .common import BuildError, chroot, run

MODULE_SUFFIXES = (".ko", ".ko.xz", ".ko.gz", ".ko.zst")


def payload_of(image: bytes) -> tuple[bytes, int]:
    """A bzImage's compressed payload and the size it unpacks to (the x86 boot protocol, 2.08)."""
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        raise BuildError("the kernel is no bzImage")
    (protocol,) = struct.unpack_from("<H", image, 0x206)
    if protocol < 0x208:
        raise BuildError(f"the kernel speaks boot protocol {protocol:#x}, 0x208 is needed")
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = image[start : start + length]
    if length < 4 or len(payload) != length:
        raise BuildError("the kernel is cut off")
    # Every compressor but gzip, which ends with the size itself, has it appended by the build.
    (size_bytes,) = struct.unpack("<I", payload[-4:])
    return (payload if payload[:2] == b"\x1f\x8b" else payload[:-4]), size_bytes


def unpack(data: bytes, kit: Path) -> bytes:
    """DATA unpacked; its first bytes tell how it was packed."""
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:6] == b"\xfd7zXZ\0":
        return lzma.decompress(data)
    if data[:3] == b"BZh":
        return bz2.decompress(data)
    if data[:4] == b"\x28\xb5\x2f\xfd":
        command = chroot(kit, "zstd", "-dc")
        result = subprocess.run(command, input=data, capture_output=True, check=False)
        if result.returncode != 0:
            raise BuildError(f"zstd: {result.stderr.decode(errors='replace').strip()}")
        return result.stdout
    raise BuildError(f"unknown compression, first bytes {data[:6].hex()}")


def extract_vmlinux(image: bytes, kit: Path) -> bytes:
    """The uncompressed kernel, an ELF file (followed by the relocations of KASLR)."""
    payload, size_bytes = payload_of(image)
    kernel = unpack(payload, kit)
    if len(kernel) != size_bytes:
        raise BuildError(f"the kernel unpacks to {len(kernel)} bytes, expected {size_bytes}")
    if kernel[:6] != b"\x7fELF\x02\x01":
        raise BuildError("the kernel's payload is no 64-bit ELF file")
    return kernel


def kernel_release(kit: Path) -> str:
    """The one kernel that the kit has, with image, modules and headers all of that version."""
    images = sorted((kit / "boot").glob("vmlinuz-*"))
    if len(images) != 1:
        raise BuildError(f"{kit}/boot has {len(images)} kernels, 1 expected")
    release = images[0].name.removeprefix("vmlinuz-")
    if not (kit / "usr/lib/modules" / release / "build").is_symlink():
        raise BuildError(f"the kit has no headers for its kernel {release}; build again later")
    return release


def module_name(path: str) -> str:
    """The name of the module in file PATH: hyphens and underscores are the same in it."""
    name = path.rpartition("/")[2]
    for suffix in MODULE_SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix).replace("-", "_")
    raise BuildError(f"{path} is no kernel module")


class Modules:
    """The modules of one kernel, by modules.dep and modules.softdep."""

    def __init__(self, folder: Path) -> None:
        self._path: dict[str, str] = {}
        self._needs: dict[str, list[str]] = {}
        self._builtin = {
            module_name(line) for line in (folder / "modules.builtin").read_text().splitlines()
        }
        for line in (folder / "modules.dep").read_text().splitlines():
            path, _, needs = line.partition(":")
            name = module_name(path)
            self._path[name] = path
            self._needs[name] = [module_name(other) for other in needs.split()]
        for line in (folder / "modules.softdep").read_text().splitlines():
            self._add_soft(line.split())

    def _add_soft(self, words: list[str]) -> None:
        """`softdep NAME pre: A B post: C`; what names no module here is an alias or built in."""
        if len(words) < 3 or words[0] != "softdep" or words[1] not in self._needs:
            return
        before = False
        for word in words[2:]:
            if word.endswith(":"):
                before = word == "pre:"
            elif before and word.replace("-", "_") in self._path:
                self._needs[words[1]].append(word.replace("-", "_"))

    def load_order(self, wanted: list[str]) -> list[str]:
        """Paths of WANTED and all they need, each after what it needs."""
        order: list[str] = []
        under_way: set[str] = set()

        def add(name: str) -> None:
            if name in self._builtin or self._path.get(name) in order:
                return
            if name not in self._path:
                raise BuildError(f"this kernel has no module {name}")
            if name in under_way:
                raise BuildError(f"modules depend on each other in a circle at {name}")
            under_way.add(name)
            for other in sorted(self._needs[name]):
                add(other)
            order.append(self._path[name])

        for name in wanted:
            add(name)
        return order


def copy_modules(kit: Path, release: str, wanted: list[str], target: Path) -> list[str]:
    """Unpacks the modules into TARGET; returns the file names in load order.

    They stay as they were signed: Debian's have no debug information that could be stripped.
    """
    folder = kit / "usr/lib/modules" / release
    names = []
    for path in Modules(folder).load_order(wanted):
        packed = (folder / path).read_bytes()
        content = packed if path.endswith(".ko") else unpack(packed, kit)
        name = module_name(path) + ".ko"
        (target / name).write_bytes(content)
        names.append(name)
    return names


def build_module(kit: Path, release: str, sources: dict[str, bytes], log: Path) -> bytes:
    """Builds thaw.ko from a copy of SOURCES (path in the checkout: content) in the kit."""
    work = kit / "thaw-module"
    for path, content in sources.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_bytes(content)
    make = ["make", "-C", f"/lib/modules/{release}/build", "M=/thaw-module", "KCFLAGS=-Werror"]
    # Type information of its own would need the kernel's, and pahole, for no user of it.
    run(chroot(kit, *make, "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"), log)
    built = work / "guest/module/thaw.ko"
    run(chroot(kit, "strip", "--strip-debug", f"/{built.relative_to(kit)}"), log)
    return built.read_bytes()
