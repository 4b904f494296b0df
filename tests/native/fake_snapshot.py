# SPDX-License-Identifier: Apache-2.0
"""A small snapshot that the reader takes, and hot sets for it: for the stand-in for thaw-vmm.

The structures are those of the fuzzers' seeds; here the digests are right as well.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))
import seeds_hot
import seeds_snapshot as seeds

RAM_BYTES = 128 << 20
READ, WRITE = seeds_hot.READ, seeds_hot.WRITE


class _Digest(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


_XXH = ctypes.CDLL("libxxhash.so.0")
_XXH.XXH3_128bits.restype = _Digest
_XXH.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def digest(data: bytes) -> bytes:
    """XXH3-128 in canonical form."""
    value = _XXH.XXH3_128bits(data, len(data))
    return struct.pack(">QQ", value.high, value.low)


def write(folder: Path, name: str) -> None:
    """A whole snapshot of a machine with one vCPU, 128 MiB and no disk, into an empty folder."""
    fixed = [(seeds.CPUID, seeds.cpuid()), (seeds.IOAPIC, bytes(seeds.SIZES[seeds.IOAPIC]))]
    sections = [(seeds.MACHINE, seeds.machine(1)), *fixed, (seeds.VCPU, seeds.vcpu())]
    manifest = seeds.manifest(
        name=name,
        memory_bytes=RAM_BYTES,
        cpu={"vendor": "AuthenticAMD", "signature": 0x870F10, "model": "Test", "features": []},
    )
    state = bytearray(seeds.state(sections))
    state[40:56] = digest(manifest)
    state[24:40] = digest(bytes(state))
    with (folder / "memory").open("wb") as memory:
        memory.write(b"m" * 4096)
        memory.truncate(RAM_BYTES)
    (folder / "state").write_bytes(state)
    (folder / "manifest.json").write_bytes(manifest)
    for path in folder.iterdir():
        path.chmod(0o400)
    folder.chmod(0o500)


def hot(folder: Path, runs: list[tuple[int, int, int]]) -> bytes:
    """What thaw-vmm --hot-fd writes for a clone of the snapshot in @folder that touched @runs."""
    data = bytearray(seeds_hot.hot(runs, clones=1, threshold=1, commands=1))
    data[32:48] = (folder / "state").read_bytes()[24:40]
    data[16:32] = digest(bytes(data))
    return bytes(data)
