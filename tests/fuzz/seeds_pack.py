#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the seeds of fuzz_pack; the numbers come from snapshots/FORMAT.md.

Digests stay zero: the fuzz target makes them right itself. Content is zstd's raw blocks, so that no
compressor is needed here.
"""

import struct
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus/pack"
SKIPPABLE = 0x184D2A5E
MANIFEST, STATE, HOT, MEMORY, DISK, ROOT = range(6)
SIZES = {MANIFEST: 600, STATE: 8192, HOT: 64, MEMORY: 1 << 27, DISK: 1 << 20, ROOT: 6000}


def record(payload: bytes) -> bytes:
    """A skippable frame."""
    return struct.pack("<II", SKIPPABLE, len(payload)) + payload


def header(parts: dict[int, int] = SIZES, version: int = 1) -> bytes:
    """The first record."""
    sizes = b"".join(struct.pack("<QQ", parts.get(p, 0), parts.get(p, 0)) for p in range(6))
    return record(b"THAWPACK" + struct.pack("<II", version, 0) + sizes + bytes(32))


def zstd(raw: bytes) -> bytes:
    """A zstd frame (RFC 8878) with its content size and one raw or run-length block."""
    same = len(set(raw)) == 1
    head = struct.pack("<IBI", 0xFD2FB528, 0xA0, len(raw))
    block = len(raw) << 3 | (2 if same else 0) | 1
    return head + block.to_bytes(3, "little") + (raw[:1] if same else raw)


def frame(part: int, runs: list[tuple[int, int]], raw: bytes, flags: int = 0) -> bytes:
    """One frame: record, runs, content."""
    content = zstd(raw)
    head = struct.pack("<6I16x", 1, part, flags, len(runs), len(raw), len(content))
    return record(head + b"".join(struct.pack("<QQ", *run) for run in runs)) + content


def pack(frames: list[bytes], head: bytes = b"") -> bytes:
    """A whole pack."""
    out, entries = head or header(), b""
    for item in frames:
        part, flags, nruns, raw, packed = struct.unpack_from("<5I", item, 12)
        entries += struct.pack("<Q6I16x", len(out), part, flags, nruns, raw, packed, 0)
        out += item
    table = len(out)
    out += record(struct.pack("<II16x", 2, len(frames)) + entries)
    end = struct.pack("<IIQQQ16x", 3, len(frames), 0x444E455057414854, table, len(out) + 56)
    return out + record(end)


def main() -> None:
    """Write all seeds."""
    page = bytes(range(256)) * 16
    small = [
        frame(MANIFEST, [(0, 600)], page[:600]),
        frame(STATE, [(0, 8192)], b"S" * 8192),
        frame(HOT, [(0, 64)], b"H" * 64),
    ]
    hot = frame(MEMORY, [(0x2000, 4096), (0x6000, 8192)], b"h" * 12288, 1)
    cold = frame(MEMORY, [(0, 4096), (0x8000, 4096)], page * 2)
    rest = [
        frame(DISK, [(4096, 4096)], b"d" * 4096),
        frame(ROOT, [(0, 4096), (4096, 1904)], b"r" * 6000),
    ]
    seeds = {
        "bare": pack([]),
        "full": pack([*small, hot, cold, *rest]),
        "order": pack([*small, cold, hot]),
        "no-root": pack([*small, hot, cold], header({**SIZES, ROOT: 0, DISK: 0})),
        "version": pack(small, header(version=2)),
        "outside": pack([frame(ROOT, [(4096, 4096)], b"r" * 4096)]),
        "zeros": pack([frame(MEMORY, [(0, 8192)], bytes(8192))]),
    }
    CORPUS.mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (CORPUS / name).write_bytes(data)


if __name__ == "__main__":
    main()
