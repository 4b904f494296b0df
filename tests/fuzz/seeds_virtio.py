#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the seeds of fuzz_virtq, fuzz_mmio and fuzz_blk into corpus/. Same output each time.

Each input is a short head and then a sequence of steps: a byte modulo 8 selects one, its arguments
follow, little-endian. The functions below are named after the steps in the fuzzers.
"""

import struct
from pathlib import Path

NEXT, WRITE, INDIRECT = 1, 2, 4


# --- fuzz_virtq: log2 of the size, EVENT_IDX, first index ---


def vq(log2: int, event_idx: bool, index: int) -> bytes:
    return struct.pack("<BBH", log2, event_idx, index)


def poke(at: int, value: int) -> bytes:
    return struct.pack("<BHB", 0, at, value)


def pop(offset: int = 0) -> bytes:
    return struct.pack("<BH", 1, offset)


def push(head: int, size: int) -> bytes:
    return struct.pack("<BHI", 2, head, size)


SIGNAL, UNPOP = bytes([3]), bytes([4])


def desc(index: int, gpa: int, size: int, flags: int, follow: int = 0) -> bytes:
    head = struct.pack("<BB", 5, index)
    return head + struct.pack("<I", gpa)[:3] + struct.pack("<HBB", size, flags, follow)


def avail(head: int) -> bytes:
    return bytes([6, head])


def move(table: int, driver: int, device: int, size: int) -> bytes:
    gpas = b"".join(struct.pack("<I", gpa)[:3] for gpa in (table, driver, device))
    return bytes([7]) + gpas + struct.pack("<H", size)


VIRTQ = {
    "good": vq(3, True, 0)
    + desc(0, 0x8000, 16, NEXT, 1)
    + desc(1, 0x9000, 512, NEXT | WRITE, 2)
    + desc(2, 0xA000, 1, WRITE)
    + avail(0)
    + pop(3)
    + push(0, 513)
    + SIGNAL
    + pop(),
    "wrap": vq(2, True, 0xFFFE)
    + desc(0, 0x8000, 300, WRITE)
    + (avail(0) + pop(250) + push(0, 4) + SIGNAL) * 5
    + pop(),
    "loop": vq(3, False, 7) + desc(0, 0x8000, 1, NEXT, 0) + avail(0) + pop(),
    "order": vq(3, True, 0)
    + desc(0, 0x8000, 1, NEXT | WRITE, 1)
    + desc(1, 0x8000, 1, 0)
    + avail(0)
    + pop(),
    "indirect": vq(3, True, 0) + desc(0, 0x8000, 16, INDIRECT) + avail(0) + pop(),
    "edges": vq(4, True, 0)
    + desc(0, 0x1FFFF, 1, WRITE)
    + desc(1, 0x1FFFF, 2, WRITE)
    + desc(2, 5, 9, 0x80)
    + avail(0)
    + avail(1)
    + avail(2)
    + pop()
    + pop()
    + pop(),
    "jump": vq(3, True, 0) + poke(0x2002, 9) + pop() + poke(0x2002, 8) + pop() + UNPOP + pop(),
    "move": vq(0, True, 3)
    + move(0x1000, 0x1F000, 0x1FF00, 8)
    + move(0x4000, 0x6000, 0x7000, 256)
    + desc(255, 0x9000, 20, 0)
    + avail(255)
    + pop()
    + push(255, 0)
    + push(256, 0)
    + pop(),
}


# --- fuzz_mmio: the device ---


def write(offset: int, value: int) -> bytes:
    return struct.pack("<BBHI", 0, 0, offset, value)


def read(offset: int, width: int = 0) -> bytes:
    return struct.pack("<BBH", 2, width, offset)


def ram(at: int, data: bytes) -> bytes:
    return b"".join(struct.pack("<BHB", 3, at + i, byte) for i, byte in enumerate(data))


def start(no_event_idx: bool = False) -> bytes:
    return bytes([4, no_event_idx])


def notify(queue: int) -> bytes:
    return bytes([5, queue])


RESTORE = bytes([6])


def hostile(changes: dict[int, int]) -> bytes:
    pairs = b"".join(struct.pack("<HB", at, value) for at, value in changes.items())
    return bytes([7, len(changes)]) + pairs


def ring(queue: int, gpa: int, size: int, flags: int) -> bytes:
    """One descriptor, made available."""
    base = 0x2000 + queue * 0x3000
    return ram(base, struct.pack("<QIHH", gpa, size, flags, 0)) + ram(base + 0x1002, b"\1")


STATUS, READY, SEL = 0x70, 0x44, 0x30
MMIO = {
    "console": b"\0" + start() + ring(1, 0x9000, 50, 0) + notify(1) + RESTORE + notify(1),
    "rng": b"\1"
    + start(True)
    + ring(0, 0x9000, 500, WRITE)
    + notify(0)
    + read(0x60)
    + write(0x64, 1)
    + RESTORE,
    "pmem": b"\2" + start() + ring(0, 0x9000, 4, 0) + notify(0) + read(0x100, 7) + RESTORE,
    "blk": b"\3" + start() + ring(0, 0x9000, 17, WRITE) + notify(0) + write(STATUS, 0) + start(),
    "status": b"\1"
    + write(STATUS, 4)
    + write(STATUS, 1)
    + write(STATUS, 3)
    + write(0x24, 2)
    + write(0x20, 1)
    + write(STATUS, 11)
    + write(STATUS, 0x80),
    "bad-queue": b"\1"
    + write(STATUS, 3)
    + write(0x24, 1)
    + write(0x20, 1)
    + write(STATUS, 11)
    + write(SEL, 0)
    + write(0x38, 8)
    + write(0x84, 0xFFFFFFFF)
    + write(READY, 1)
    + write(STATUS, 15)
    + RESTORE,
    "stop": b"\3" + start() + write(SEL, 0) + write(READY, 0) + notify(0) + write(READY, 1),
    "unkicked": b"\1" + start() + ring(0, 0x9000, 9, WRITE) + RESTORE + RESTORE,
    "hostile": b"\3" + start() + hostile({8: 0x0F, 40: 7}) + start() + hostile({48: 0, 72: 0xFF}),
}


# --- fuzz_blk: nothing before the steps ---


def request(kind: int, sector: int, *descs: tuple[int, int, int]) -> bytes:
    """kind: index of its table; descs: offset, size, how (1 write, 2 header, 4 sectors)."""
    body = b"".join(struct.pack("<HHB", at, size, how) for at, size, how in descs)
    return struct.pack("<BBBB", 0, kind, len(descs) - 1, sector) + body


IN, OUT, FLUSH, GET_ID, DISCARD, ZEROES, BAD = 0, 1, 2, 3, 4, 6, 7
KICK, RESET, CLONE = bytes([3]), bytes([5]), bytes([7])
HEAD, STAT = (0x100, 16, 2), (0x80, 1, 1)
BLK = {
    "read": request(IN, 3, HEAD, (0x1000, 4096, 5)) + KICK,
    "write": request(OUT, 9, HEAD, (0x1000, 5120, 4), STAT)
    + request(IN, 0, HEAD, (0x4000, 8192, 5))
    + KICK
    + CLONE
    + request(IN, 8, HEAD, (0x4000, 4096, 5))
    + KICK,
    "shared-block": request(OUT, 8, HEAD, (0x1000, 512, 4), STAT)
    + request(OUT, 10, (0x200, 16, 2), (0x2000, 1024, 4), (0x90, 1, 1))
    + KICK
    + RESET,
    "others": request(FLUSH, 0, HEAD, STAT)
    + request(GET_ID, 0, HEAD, (0x1000, 20, 1), STAT)
    + request(BAD, 0, HEAD, STAT)
    + KICK,
    # The segment is what RAM holds there: zeros, a range of no sectors.
    "zeroes": request(ZEROES, 0, HEAD, (0x3000, 16, 0), STAT)
    + request(DISCARD, 0, HEAD, (0x3000, 16, 0), STAT)
    + KICK,
    "no-status": request(IN, 0, HEAD) + KICK + request(IN, 0, HEAD, STAT) + KICK + RESET,
    "outside": request(IN, 0, HEAD, (0x1000, 512, 0xF8), STAT) + KICK,
    "corrupt": request(IN, 0, HEAD, STAT) + bytes([6]) + struct.pack("<HB", 0x1003, 1) + KICK,
}


def main() -> None:
    corpus = Path(__file__).parent / "corpus"
    for name, seeds in {"virtq": VIRTQ, "mmio": MMIO, "blk": BLK}.items():
        folder = corpus / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed, data in seeds.items():
            (folder / seed).write_bytes(data)


if __name__ == "__main__":
    main()
