# SPDX-License-Identifier: Apache-2.0
"""Snapshots that must not be restored: each refusal names the file and the reason."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from conftest import BIN, STATE, Thaw

HEADER_BYTES = 64
SECTION_BYTES = 24


@pytest.fixture
def copy(template: Path, tmp_path: Path) -> Path:
    """A private, writable copy of the template, sparse as the original."""
    target = tmp_path / "copy"
    subprocess.run(["cp", "-r", "--sparse=always", str(template), str(target)], check=True)
    subprocess.run(["chmod", "-R", "u+w", str(target)], check=True)
    return target


def restore(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "thaw-vmm"), "restore", str(folder), "--disk-dir", str(STATE)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def refused(folder: Path, file: str, *words: str) -> None:
    proc = restore(folder)
    assert proc.returncode == 1, (proc.returncode, proc.stderr)
    lines = [line for line in proc.stderr.splitlines() if file in line]
    assert lines, proc.stderr
    for word in words:
        assert word.lower() in lines[0].lower(), proc.stderr


@pytest.mark.parametrize("file", ["state", "manifest.json"])
def test_flipped_bits(copy: Path, file: str) -> None:
    """Bits over the whole file; tests/unit flips every byte of both."""
    path = copy / file
    good = path.read_bytes()
    for step in range(12):
        position = step * (len(good) - 1) // 11
        bad = bytearray(good)
        bad[position] ^= 1 << step % 8
        path.write_bytes(bad)
        proc = restore(copy)
        assert proc.returncode == 1, position
        assert "state" in proc.stderr or "manifest.json" in proc.stderr, proc.stderr
    path.write_bytes(good)


@pytest.mark.parametrize("file", ["state", "manifest.json", "memory", "disk"])
def test_truncation_growth_and_absence(copy: Path, file: str) -> None:
    path = copy / file
    size = path.stat().st_size
    with path.open("r+b") as handle:
        handle.truncate(size - 1)
    refused(copy, file)
    with path.open("r+b") as handle:
        handle.truncate(size // 2)
    refused(copy, file)
    with path.open("r+b") as handle:
        handle.truncate(size + 4096)
    refused(copy, file)
    path.unlink()
    refused(copy, file, "no such file")


def reseal(state: bytearray) -> bytes:
    """Give a changed state a right digest, as somebody who means it would."""
    state[24:40] = bytes(16)
    state[24:40] = xxhash.xxh3_128_digest(bytes(state))
    return bytes(state)


def section(state: bytes, wanted: int) -> int:
    for index in range(struct.unpack_from("<I", state, 12)[0]):
        kind, _, offset, _ = struct.unpack_from(
            "<IIQQ", state, HEADER_BYTES + index * SECTION_BYTES
        )
        if kind == wanted:
            return int(offset)
    raise AssertionError(f"no section {wanted}")


def test_unknown_versions(copy: Path) -> None:
    state = bytearray((copy / "state").read_bytes())
    struct.pack_into("<I", state, 8, 2)
    (copy / "state").write_bytes(reseal(state))
    refused(copy, "state", "version")
    struct.pack_into("<I", state, 8, 1)
    struct.pack_into("<I", state, HEADER_BYTES + 4, 99)  # the first section's version
    (copy / "state").write_bytes(reseal(state))
    refused(copy, "state", "version")


@pytest.mark.parametrize(
    ("leaf", "register", "bit", "word"),
    [(1, 2, 20, "SSE4.2"), (7, 1, 26, "AVX512PF")],
)
def test_missing_cpu_feature(copy: Path, leaf: int, register: int, bit: int, word: str) -> None:
    """The guest was shown a feature that this CPU lacks (or, for one it has, nothing changes)."""
    state = bytearray((copy / "state").read_bytes())
    offset = section(state, 5)
    for entry in range(struct.unpack_from("<I", state, offset)[0]):
        at = offset + 8 + entry * 40
        function, index = struct.unpack_from("<II", state, at)
        if function != leaf or index != 0:
            continue
        value = struct.unpack_from("<I", state, at + 12 + register * 4)[0]
        if value >> bit & 1:
            pytest.skip(f"this CPU has {word}: nothing to miss")
        struct.pack_into("<I", state, at + 12 + register * 4, value | 1 << bit)
    (copy / "state").write_bytes(reseal(state))
    refused(copy, "state", word)


def test_other_cpu_model(copy: Path) -> None:
    state = bytearray((copy / "state").read_bytes())
    offset = section(state, 5)
    for entry in range(struct.unpack_from("<I", state, offset)[0]):
        at = offset + 8 + entry * 40
        if struct.unpack_from("<I", state, at)[0] == 1:
            eax = struct.unpack_from("<I", state, at + 12)[0]
            struct.pack_into("<I", state, at + 12, eax ^ 0x10)  # the model's lowest bit
    (copy / "state").write_bytes(reseal(state))
    refused(copy, "state", "model")


def test_hostile_numbers_with_a_right_digest(copy: Path) -> None:
    good = (copy / "state").read_bytes()
    machine, cpuid, vcpu = (section(good, kind) for kind in (1, 5, 2))
    for offset, format_, value in [
        (machine, "<Q", 1 << 62),  # RAM
        (machine + 8, "<I", 200),  # vCPUs
        (machine + 16, "<Q", 1 << 60),  # root image
        (cpuid, "<I", 0xFFFFFFFF),  # CPUID entries
        (HEADER_BYTES + 8, "<Q", 0xFFFFFFFFFFFFFFC0),  # a section's offset
        (HEADER_BYTES + 16, "<Q", 0xFFFFFFFFFFFFFFFF),  # a section's length
        (12, "<I", 0xFFFFFFFF),  # number of sections
    ]:
        state = bytearray(good)
        struct.pack_into(format_, state, offset, value)
        (copy / "state").write_bytes(reseal(state))
        refused(copy, "state")
    # A vCPU's own numbers: whatever KVM makes of them, thaw-vmm ends by itself and says why.
    state = bytearray(good)
    state[vcpu : vcpu + 600] = b"\xff" * 600
    (copy / "state").write_bytes(reseal(state))
    proc = restore(copy)
    assert proc.returncode == 1 and proc.stderr, proc


def test_cli_names_the_template(thaw: Thaw) -> None:
    proc = thaw("run", "no-such-template", "--", "true")
    assert proc.returncode == 125 and b"no-such-template" in proc.stderr
    proc = thaw("run", "../etc", "--", "true")
    assert proc.returncode == 125 and b"../etc" in proc.stderr
    proc = thaw("run", thaw.template, "--strategy", "telepathy", "--", "true")
    assert proc.returncode == 125 and b"telepathy" in proc.stderr and b"mmap" in proc.stderr


def test_memory_flip_is_found_by_verify(
    thaw: Thaw, template: Path, copy: Path, sandbox_of: Callable[..., object]
) -> None:
    assert thaw("template", "verify", thaw.template).returncode == 0
    bad = STATE / "templates" / "t-flipped"
    subprocess.run(["rm", "-rf", str(bad)], check=True)
    with (copy / "memory").open("r+b") as file:
        data = 0
        file.seek(1 << 20)
        data = file.read(1)[0]
        file.seek(1 << 20)
        file.write(bytes([data ^ 4]))
    subprocess.run(["cp", "-r", "--sparse=always", str(copy), str(bad)], check=True)
    proc = thaw("template", "verify", "t-flipped")
    subprocess.run(["rm", "-rf", str(bad)], check=True)
    assert proc.returncode != 0 and b"memory" in proc.stderr, proc
