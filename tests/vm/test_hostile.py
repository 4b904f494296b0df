# SPDX-License-Identifier: Apache-2.0
"""Guests that attack: each is a small program of tests/hostile that thaw-vmm boots as its kernel.

Whatever a guest does must end in DEVICE_NEEDS_RESET, an I/O error or its own VM's end. thaw-vmm
must neither crash nor hang nor grow, and an attacked VM must still be served.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from conftest import BIN, STATE, TOP

RAM = 128 << 20


class Attack:
    """One hostile guest under one thaw-vmm."""

    def __init__(self, name: str, folder: Path, *args: str, stdout: int | None = None) -> None:
        self.vsock = folder / "vsock"
        self.process = subprocess.Popen(
            [
                *(
                    str(BIN / "thaw-vmm"),
                    "boot",
                    "--kernel",
                    str(TOP / f"build/hostile/{name}.elf"),
                ),
                *("--cmdline", "hostile", "--memory", "128M", "--serial", "--console", "-"),
                *(
                    "--disk-size",
                    "16M",
                    "--disk-dir",
                    str(STATE),
                    "--vsock",
                    str(self.vsock),
                    *args,
                ),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE,
            pass_fds=[int(args[i + 1]) for i, a in enumerate(args) if a == "--ctl-fd"],
        )

    def finish(self, timeout_s: float = 240) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, (out or b"").decode(errors="replace"), err.decode()

    def rss_kib(self) -> int:
        """Resident memory of thaw-vmm without guest RAM; 0 before its execve is done."""
        total, size = 0, 0
        process = Path(f"/proc/{self.process.pid}")
        if (process / "exe").readlink().name != "thaw-vmm":
            return 0
        for line in (process / "smaps").read_text().splitlines():
            fields = line.split()
            if "-" in fields[0] and not fields[0].endswith(":"):
                start, end = (int(x, 16) for x in fields[0].split("-"))
                size = end - start
            elif fields[0] == "Rss:" and size < RAM // 2:
                total += int(fields[1])
        return total


def attack(name: str, folder: Path, *args: str) -> dict[str, list[str]]:
    """Run @name to its end; what it saw, by the name of the observation."""
    code, out, err = Attack(name, folder, *args).finish()
    seen: dict[str, list[str]] = {}
    for line in out.replace("\r", "").splitlines():
        key, _, value = line.partition(": ")
        seen.setdefault(key, []).append(value)
    assert code == 0, (code, out, err)
    assert seen.get("all") == ["done"], (out, err)
    assert "BUG" not in err and "Sanitizer" not in err, err
    # What a guest can cause is logged at a limited rate.
    assert len(err.splitlines()) < 300, err
    if "control" in seen:
        assert seen["control"] == ["rng works"], out
    return seen


def test_looping_chains(tmp_path: Path) -> None:
    seen = attack("chain_loop", tmp_path)
    for device in ("rng", "blk", "console", "vsock"):
        assert seen[device] == [
            "self loop: needs reset",
            "long loop: needs reset",
            "next past the table: needs reset",
        ]


def test_overlong_chains(tmp_path: Path) -> None:
    seen = attack("chain_long", tmp_path)
    for what in ("sum over 4 GiB", "avail index jump", "head past the table"):
        assert seen[what] == ["4: needs reset", "2: needs reset", "3: needs reset"], what


def test_addresses_past_memory(tmp_path: Path) -> None:
    seen = attack("addr_past", tmp_path)
    assert len(seen["rng write to"]) == 11
    # The last one is a length of 0 at a good address: nothing to write, so it may be taken.
    assert all(line.endswith("needs reset") for line in seen["rng write to"][:10]), seen
    assert len(seen["blk read to"]) == 11
    assert all(line.endswith("refused") for line in seen["blk read to"][:10]), seen


def test_bad_rings(tmp_path: Path) -> None:
    seen = attack("ring_bad", tmp_path)
    for what in ("descriptor table at", "avail ring at", "used ring at"):
        assert len(seen[what]) == 7
        assert all(re.search("needs reset|ignored", line) for line in seen[what])
    assert seen["sizes"] == ["9 survived"]
    assert "queue" not in seen


def test_double_fetch(tmp_path: Path) -> None:
    seen = attack("double_fetch", tmp_path)
    for device in ("rng", "blk", "vsock"):
        assert seen[device][0].startswith("survived")
    # The storm does hit the device, else it shows nothing.
    assert any(seen[device] == ["survived, was reset"] for device in ("rng", "blk", "vsock"))


def test_register_sequences(tmp_path: Path) -> None:
    seen = attack("regs", tmp_path)
    assert seen["random accesses"] == ["survived"]
    assert seen["features not offered"] == ["refused"]
    assert seen["no VERSION_1"] == ["refused"]


def test_doorbell_storm(tmp_path: Path) -> None:
    """The owner of the control channel does not read: the VM must neither block nor grow."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        seen = attack("doorbell", tmp_path, "--ctl-fd", str(theirs.fileno()))
    assert seen["checkpoint without a place"] == ["EOPNOTSUPP"]
    assert seen["magic"] == ["57414854"]


def test_reset_with_requests_in_flight(tmp_path: Path) -> None:
    seen = attack("reset_inflight", tmp_path)
    assert seen["writes after a reset"] == ["0"]


@pytest.mark.parametrize("io", ["uring", "plain"])
def test_block_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, io: str) -> None:
    if io == "plain":
        monkeypatch.setenv("THAW_IO", "plain")
    seen = attack("blk_range", tmp_path)
    for good in ("good read", "good write", "good read after all"):
        assert seen[good] == ["0"], seen
    for bad in (
        *("read at the end", "read across the end", "write at the end", "write that wraps"),
        *("write at 2^55", "half a sector", "unknown type", "discard past the end"),
        *("zeroes past the end", "discard of half a range"),
    ):
        assert seen[bad][0] in ("1", "2", "fe"), (bad, seen)  # IOERR, UNSUPP, needs reset
    # Data the wrong way round is no data: nothing is moved, whatever the status says.
    for empty in ("write from a writable buffer", "read into a readable buffer"):
        assert seen[empty][0] in ("0", "1", "fe"), (empty, seen)
    assert seen["no status byte"] == ["needs reset"]


def test_vsock_credit_abuse(tmp_path: Path) -> None:
    guest = Attack("vsock_credit", tmp_path)
    deadline = time.monotonic() + 60
    while not guest.vsock.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(200)
    sock.connect(str(guest.vsock))
    sock.sendall(b"CONNECT 5000\n")
    peak = 0
    while guest.process.poll() is None:
        try:
            peak = max(peak, guest.rss_kib())
        except OSError:
            break
        time.sleep(0.05)
    code, out, err = guest.finish()
    sock.close()
    assert code == 0 and "all: done" in out, (out, err)
    assert "request: port 1388" in out
    assert "after too much: reset" in out, out
    assert 0 < peak < 16384, f"{peak} KiB"


def test_vsock_flood(tmp_path: Path) -> None:
    guest = Attack("vsock_flood", tmp_path)
    peak = 0
    while guest.process.poll() is None:
        try:
            peak = max(peak, guest.rss_kib())
        except OSError:
            break
        time.sleep(0.05)
    code, out, err = guest.finish()
    assert code == 0 and "all: done" in out and "control: rng works" in out, (out, err)
    assert "stray packet: answered by RST" in out
    assert 0 < peak < 16384, f"{peak} KiB"


def test_ports_and_holes(tmp_path: Path) -> None:
    seen = attack("ports", tmp_path)
    assert seen["ports"] == seen["holes"] == seen["ioapic"] == ["survived"]


def test_triple_fault_ends_the_vm(tmp_path: Path) -> None:
    code, out, err = Attack("triple_fault", tmp_path).finish()
    assert code == 3 and "fault: now" in out, (code, out, err)


def test_console_flood_does_not_block(tmp_path: Path) -> None:
    """Nobody reads the console: 32 MiB are dropped, not stored; the guest goes on to power off."""
    read_end, write_end = os.pipe()
    guest = Attack("console_flood", tmp_path, stdout=write_end)
    os.close(write_end)
    try:
        assert guest.process.wait(timeout=240) == 0
    finally:
        os.close(read_end)
        guest.process.communicate()


def test_a_guest_that_only_spins_can_be_stopped(tmp_path: Path) -> None:
    """SIGTERM ends a VM whatever its guest does: this one waits for a packet that never comes."""
    guest = Attack("vsock_credit", tmp_path)
    time.sleep(0.5)
    guest.process.send_signal(signal.SIGTERM)
    code, _, err = guest.finish(60)
    assert code == 0, err
