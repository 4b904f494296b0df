#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the seeds of fuzz_hot; the numbers come from snapshots/FORMAT.md.

The digest stays zero: the fuzz target seals its input itself.
"""

import struct
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus/hot"
READ, WRITE = 0, 1
UNKNOWN = 0xFFFFFFFF
HIGH, ROOT = 4 << 30, 5 << 30  # RAM of 4 GiB: high RAM, and the root image right behind it


def hot(
    runs: list[tuple[int, int, int]],
    clones: int = 15,
    threshold: int = 8,
    commands: int = 5,
    version: int = 2,
) -> bytes:
    """A whole file with a zero digest."""
    header = struct.pack("<8sII16s16s", b"THAWHOT", version, len(runs), b"", b"")
    shares = (UNKNOWN, UNKNOWN) if clones == 1 else (983, 611)
    info = struct.pack("<8I4Q16x", 1, 2, threshold, clones, commands, *shares, 0, 2311, 900, 1, 1)
    return header + info + b"".join(struct.pack("<QII", *run) for run in runs)


def main() -> None:
    """Write all seeds."""
    seeds = {
        "empty": hot([]),
        "one": hot([(0x1000, 3, WRITE)], clones=1, threshold=1, commands=1),
        "all-stretches": hot(
            [
                (0, 1, READ),
                (0x1000, 16, WRITE),
                ((3 << 30) - 4096, 1, READ),
                (HIGH, 2, WRITE),
                (ROOT - 4096, 1, READ),
                (ROOT, 512, READ),
            ]
        ),
        "neighbours": hot([(0x1000, 1, READ), (0x2000, 1, READ), (0x3000, 1, WRITE)]),
        "overlap": hot([(0x1000, 2, READ), (0x2000, 1, READ)]),
        "wraps": hot([(2**64 - 4096, 1, READ)]),
        "root-written": hot([(ROOT, 1, WRITE)]),
        "threshold": hot([(0, 1, READ)], clones=2, threshold=3, commands=2),
        "version": hot([], version=1),
    }
    CORPUS.mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (CORPUS / name).write_bytes(data)


if __name__ == "__main__":
    main()
