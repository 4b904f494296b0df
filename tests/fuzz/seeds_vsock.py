#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the seeds of fuzz_vsock into corpus/vsock. Same output each time.

An input is a sequence of steps: a byte modulo 9 selects one, its arguments follow, little-endian.
"""

import struct
from pathlib import Path

REQUEST, RESPONSE, RST, SHUTDOWN, RW, CREDIT_UPDATE, CREDIT_REQUEST = range(1, 8)


def packet(
    op: int, guest: int, host: int, size: int = 0, flags: int = 0, alloc: int = 0x4000
) -> bytes:
    """A packet of the guest; host ports from 128 on are those that vsock_connect() chose."""
    return bytes([0, op, guest, host]) + struct.pack("<HBHHB", size, flags, alloc, 0, 0)


def spoilt(op: int, guest: int, host: int, field: int, xor: int, short: int = 0) -> bytes:
    """The same with one byte of the header changed, and perhaps a byte too few."""
    return packet(op, guest, host)[:-1] + bytes([0x80 | field, xor, short])


def post(count: int, size: int = 4000) -> bytes:
    return bytes([2, count]) + struct.pack("<H", size)


DRAIN = bytes([3])


def connect(port: int) -> bytes:
    return bytes([4, port])


def sock(which: int, what: int, size: int = 0) -> bytes:
    """what: 0 send, 1 receive, 2 and 3 shutdown, 4 close. Odd `which`: a socket of the guest."""
    return bytes([5, which, what]) + struct.pack("<H", size)


def event(count: int) -> bytes:
    return bytes([6, count - 1])


def restore(reset: bool) -> bytes:
    return bytes([7, 1, reset])


def corrupt(gpa: int, value: int) -> bytes:
    return bytes([7, 0]) + gpa.to_bytes(3, "little") + bytes([value])


NEW_DRIVER = bytes([8, 0])

HOST_CONNECT = [post(20), connect(1), packet(RESPONSE, 1, 128)]

SEEDS = {
    "host-connect": [
        *HOST_CONNECT,
        sock(0, 0, 9000),
        DRAIN,
        packet(RW, 1, 128, 5000),
        sock(0, 1, 5000),
        sock(0, 2),
        packet(SHUTDOWN, 1, 128, flags=3),
        DRAIN,
    ],
    "guest-connect": [
        post(20),
        packet(REQUEST, 2, 5),
        DRAIN,
        *[packet(RW, 2, 5, 65535)] * 5,
        *[sock(1, 1, 65535)] * 5,
        packet(SHUTDOWN, 2, 5, flags=2),
        sock(1, 0, 10),
        sock(1, 4),
        DRAIN,
    ],
    "credit": [
        post(20),
        packet(REQUEST, 2, 5, alloc=1),
        sock(1, 0, 9000),
        DRAIN,
        packet(CREDIT_UPDATE, 2, 5, alloc=100),
        DRAIN,
        packet(CREDIT_REQUEST, 2, 5),
        *[packet(RW, 2, 5, 65535)] * 12,
    ],
    "unknown": [*[packet(op, 1, 9) for op in range(10)] * 8, post(30), DRAIN, post(30)],
    "lies": [
        *HOST_CONNECT,
        spoilt(RW, 1, 128, 24, 255),
        DRAIN,
        spoilt(REQUEST, 1, 9, 28, 3),
        spoilt(RW, 1, 2, 0, 1),
        spoilt(RW, 1, 2, 0, 0, 1),
    ],
    "restore": [
        *HOST_CONNECT,
        *[event(2)] * 2,
        sock(0, 0, 100),
        restore(True),
        connect(1),
        packet(RW, 1, 128, 10),
        event(1),
        DRAIN,
        restore(False),
        NEW_DRIVER,
    ],
    "corrupt": [
        post(20),
        connect(1),
        corrupt(0x4002, 255),
        corrupt(0x10008, 1),
        NEW_DRIVER,
        packet(REQUEST, 1, 2),
        corrupt(0x18002, 7),
    ],
}


def main() -> None:
    folder = Path(__file__).resolve().parent / "corpus" / "vsock"
    folder.mkdir(parents=True, exist_ok=True)
    for name, steps in SEEDS.items():
        (folder / name).write_bytes(b"".join(steps))


if __name__ == "__main__":
    main()
