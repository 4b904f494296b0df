#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the seeds of fuzz_snapshot, fuzz_manifest, fuzz_diff; numbers as in snapshots/FORMAT.md.

The digest of a state file stays zero: the fuzz target seals its input itself.
"""

import json
import struct
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"
MACHINE, VCPU, IOAPIC, VIRTIO, CPUID = 1, 2, 3, 4, 5
SIZES = {MACHINE: 120, VCPU: 17440, IOAPIC: 208, VIRTIO: 224, CPUID: 5128}
DEVICE_IDS = {0: 3, 1: 4, 2: 27, 3: 2, 4: 19}


def machine(vcpus: int, pmem: int = 0, disk: int = 0, streams: int = 0) -> bytes:
    """One struct snap_machine."""
    head = struct.pack(
        "<QIIQQQQQQ", 128 << 20, vcpus, 0, pmem, disk, 1, 2_500_000, 1, 1_700_000_000 * 10**9
    )
    clock = struct.pack("<QIIQQ4I", 5 * 10**9, 0, 0, 0, 0, 0, 0, 0, 0)
    return head + clock + struct.pack("<II", streams, 0)


def cpuid() -> bytes:
    """One struct snap_cpuid with the leaves that the CPU check looks at."""
    entries = [
        (0, 0, 0, 0x10, 0x68747541, 0x444D4163, 0x69746E65),
        (1, 0, 0, 0x870F10, 0, 0x80B82201, 0x0F8BFBFF),
        (7, 0, 1, 1, 0x219C07AB, 0x10, 0),
        (0xD, 0, 1, 7, 832, 832, 0),
        (0xD, 2, 1, 256, 576, 0, 0),
        (0x80000002, 0, 0, 0x74736554, 0, 0, 0),
        (0x80000008, 0, 0, 0x3030, 0x1000, 0, 0),
    ]
    packed = b"".join(struct.pack("<7I12x", *entry) for entry in entries)
    return (struct.pack("<II", len(entries), 0) + packed).ljust(SIZES[CPUID], b"\0")


def vcpu() -> bytes:
    """One struct snap_vcpu: two MSRs and the smallest XSAVE area."""
    state = bytearray(SIZES[VCPU])
    struct.pack_into("<II", state, 2072, 2, 576)
    struct.pack_into("<IIQIIQ", state, 2080, 0x10, 0, 1234, 0xC0000080, 0, 0xD01)
    return bytes(state)


def virtio(slot: int) -> bytes:
    """One struct snap_virtio with its first queue ready."""
    head = struct.pack("<8IQ", slot, DEVICE_IDS[slot], 15, 0, 0, 0, 0, 0, 1 << 32)
    queue = struct.pack("<5H6xQQQ", 64, 1, 5, 5, 5, 0x100000, 0x101000, 0x102000)
    return (head + queue).ljust(SIZES[VIRTIO], b"\0")


def state(sections: list[tuple[int, bytes]]) -> bytes:
    """A whole state file with a zero digest."""
    offset = (64 + 24 * len(sections) + 63) // 64 * 64
    table, body = b"", b""
    for ident, data in sections:
        assert len(data) == SIZES[ident], (ident, len(data))
        table += struct.pack("<IIQQ", ident, 1, offset + len(body), len(data))
        body += data.ljust((len(data) + 63) // 64 * 64, b"\0")
    total = offset + len(body)
    header = struct.pack("<8sIIQ16s16sQ", b"THAWTATE", 1, len(sections), total, b"", b"", 0)
    return (header + table).ljust(offset, b"\0") + body


def manifest(**changes: object) -> bytes:
    """A manifest that the reader takes, with some fields changed."""
    fields: dict[str, object] = {
        "format": "thaw-snapshot",
        "version": 1,
        "name": "debian",
        "created": "2025-01-31T12:00:00Z",
        "parent": None,
        "kernel": "6.12.0",
        "vcpus": 1,
        "memory_bytes": 128 << 20,
        "memory_digest": "0123456789abcdef" * 2,
        "disk_bytes": 0,
        "disk_digest": None,
        "root_image": None,
        "root_bytes": 0,
        "root_digest": None,
        "cpu": {"vendor": "AuthenticAMD", "signature": 8851216, "model": "x", "features": ["sse2"]},
    }
    return json.dumps(fields | changes).encode()


def diff(size: int, *runs: tuple[int, int], version: int = 1) -> bytes:
    """A list of pages, behind the byte that chooses the RAM size."""
    head = struct.pack("<8sII", b"THAWDIFF", version, len(runs))
    return bytes([size]) + head + b"".join(struct.pack("<QQ", *run) for run in runs)


def main() -> None:
    """Write all seeds."""
    fixed = [(CPUID, cpuid()), (IOAPIC, bytes(SIZES[IOAPIC]))]
    one = [(MACHINE, machine(1)), *fixed, (VCPU, vcpu())]
    full = [(MACHINE, machine(1, 2 << 20, 1 << 20, 3)), *fixed, (VCPU, vcpu())]
    full += [(VIRTIO, virtio(slot)) for slot in DEVICE_IDS]
    seeds: dict[str, bytes] = {
        "snapshot/one": state(one),
        "snapshot/full": state(full),
        "snapshot/two-vcpus": state(
            [(MACHINE, machine(2)), *fixed, (VCPU, vcpu()), (VCPU, vcpu())]
        ),
        "snapshot/cut": state(one)[:4000],
        "manifest/bare": manifest(),
        "manifest/full": manifest(
            parent="base",
            disk_bytes=4096,
            disk_digest="ab" * 16,
            root_image="/srv/root.erofs",
            root_bytes=7,
            root_digest="cd" * 16,
        ),
        "manifest/version": manifest(version=2),
        "manifest/diff": manifest(
            version=2,
            parent="base",
            diff={"parent_state": "ab" * 16, "pages": 3, "digest": "cd" * 16},
        ),
        "diff/none": diff(0),
        "diff/some": diff(1, (0, 1), (8192, 3), (255 << 20, 256)),
        "diff/high": diff(3, ((3 << 30) - 4096, 1), (4 << 30, 262144)),
        "diff/hole": diff(3, ((3 << 30) - 4096, 2)),
        "diff/order": diff(0, (8192, 1), (0, 1)),
        "diff/version": diff(0, version=2),
        "manifest/name": manifest(name="../x"),
    }
    for name, data in seeds.items():
        path = CORPUS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
