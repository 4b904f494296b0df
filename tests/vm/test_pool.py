# SPDX-License-Identifier: Apache-2.0
"""Pools of real machines: identity of the claim, no trace of the wait, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import BIN, STATE, Thaw
from leftovers import processes

IDENTITY = """
cat /sys/class/misc/thaw/generation /sys/class/misc/thaw/vmfork_count /run/machine-id
od -An -tx1 -N16 /dev/urandom | tr -d ' '
date +%s.%N
cut -d' ' -f1 /proc/uptime
uname -n
"""


class Pool:
    def __init__(self, thaw: Thaw, *args: str) -> None:
        self.thaw = thaw
        self.process = subprocess.Popen(
            [str(BIN / "thaw"), "pool", thaw.template, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"pool of "), (line, self.process.stderr and self.process.stderr)

    def status(self) -> dict[str, int]:
        proc = self.thaw("pool", self.thaw.template, "--status", "--json")
        assert proc.returncode == 0, proc.stderr
        data = json.loads(proc.stdout)
        assert isinstance(data, dict)
        return data

    def wait_ready(self, count: int) -> None:
        deadline = time.monotonic() + 120
        while self.status()["ready"] != count:
            assert time.monotonic() < deadline, self.status()
            time.sleep(0.1)

    def end(self, signo: int = signal.SIGTERM) -> int:
        self.process.send_signal(signo)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def pool_of(thaw: Thaw) -> Iterator[Callable[..., Pool]]:
    pools: list[Pool] = []
    before = processes()

    def make(*args: str) -> Pool:
        pools.append(Pool(thaw, *args))
        return pools[-1]

    yield make
    for pool in pools:
        if pool.process.poll() is None:
            assert pool.end() == 0
    deadline = time.monotonic() + 30
    while processes() != before:
        assert time.monotonic() < deadline, processes() - before
        time.sleep(0.05)
    assert list((STATE / "pools").iterdir()) == []


def run(thaw: Thaw, report: Path, *options: str) -> tuple[dict[str, object], dict[str, str]]:
    """A run that tells who it is: its JSON result, and what the guest said."""
    proc = thaw.run("--json", str(report), *options, "--", "sh", "-c", IDENTITY)
    assert proc.returncode == 0, proc.stderr
    keys = ("generation", "vmfork_count", "machine_id", "random", "date", "uptime", "hostname")
    said = dict(zip(keys, proc.stdout.decode().split("\n"), strict=False))
    return json.loads(report.read_text()), said


@pytest.mark.parametrize("populate", [(), ("--populate",)])
def test_identity_is_of_the_claim(
    thaw: Thaw, pool_of: Callable[..., Pool], tmp_path: Path, populate: tuple[str, ...]
) -> None:
    pool = pool_of("--size", "4", "--idle-timeout", "0", *populate)
    fresh = float(run(thaw, tmp_path / "r", "--no-pool")[1]["uptime"])
    # Long enough that a clock that had gone on would show.
    time.sleep(8)
    seen: dict[str, set[str]] = {"generation": set(), "machine_id": set(), "random": set()}
    hits = 0
    for number in range(12):
        before = time.time()
        data, said = run(thaw, tmp_path / "r", "--hostname", f"box-{number}")
        after = time.time()
        assert data["pool"] in ("hit", "miss")
        assert number >= 4 or data["pool"] == "hit"
        hits += data["pool"] == "hit"
        if data["pool"] == "hit":
            assert data["strategy"] == ("ws" if populate else "mmap")
        clocks = data["clocks_ms"]
        assert isinstance(clocks, dict)
        assert 0 < clocks["c2"] < clocks["c3"] < clocks["c4"] < clocks["c5"]
        assert said["vmfork_count"] == "1" and int(said["generation"]) >= 2
        assert re.fullmatch(r"[0-9a-f]{32}", said["machine_id"])
        assert said["hostname"] == f"box-{number}"
        assert before - 0.02 <= float(said["date"]) <= after + 0.02
        # Monotonic time goes on from the snapshot: the wait in the pool does not exist.
        assert abs(float(said["uptime"]) - fresh) < 4
        for key, values in seen.items():
            assert said[key] not in values, (number, key)
            values.add(said[key])
    pool.wait_ready(4)
    status = pool.status()
    assert status["hits"] == hits and status["misses"] == 12 - hits
    assert status["pss_kib"] > 0


def test_burst_of_more_than_there_are(thaw: Thaw, pool_of: Callable[..., Pool]) -> None:
    pool = pool_of("--size", "3", "--populate")
    argv = [str(BIN / "thaw"), "run", thaw.template, "--", "sh", "-c"]
    clients = [subprocess.Popen([*argv, f"sleep 1; exit {number}"]) for number in range(8)]
    assert [client.wait(timeout=120) for client in clients] == list(range(8))
    pool.wait_ready(3)
    status = pool.status()
    assert status["hits"] >= 3 and status["hits"] + status["misses"] == 8


def test_kills(thaw: Thaw, pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    """kill -9 of a client, a shell, the zygote, and at last the pool under a client."""
    before = processes()
    pool = pool_of("--size", "2")
    argv = [str(BIN / "thaw"), "run", thaw.template, "--", "sh", "-c", "echo up; sleep 1000"]
    client = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert client.stdout is not None and client.stdout.readline() == b"up\n"
    client.kill()
    client.wait()
    pool.wait_ready(2)

    def vmms() -> list[int]:
        names = processes() - before
        return sorted(int(name.split()[0]) for name in names if "thaw-vmm" in name)

    deadline = time.monotonic() + 30
    while len(vmms()) != 3:  # the zygote and two shells
        assert time.monotonic() < deadline, vmms()
        time.sleep(0.05)
    zygote = int(Path(f"/proc/{pool.process.pid}/task/{pool.process.pid}/children").read_text())
    shell = next(pid for pid in vmms() if pid != zygote)
    os.kill(shell, signal.SIGKILL)
    while shell in vmms():
        time.sleep(0.05)
    pool.wait_ready(2)
    os.kill(zygote, signal.SIGKILL)
    assert run(thaw, tmp_path / "r")[0]["pool"] == "hit"
    pool.wait_ready(2)
    assert run(thaw, tmp_path / "r")[0]["pool"] == "hit"

    argv[-1] = "echo up; sleep 3; exit 9"
    client = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert client.stdout is not None and client.stdout.readline() == b"up\n"
    pool.end(signal.SIGKILL)
    assert client.wait(timeout=60) == 9
    # The name that the killed pool left is cleared away by the next run.
    assert run(thaw, tmp_path / "r")[0]["pool"] == "none"


def test_template_is_in_use(thaw: Thaw, pool_of: Callable[..., Pool]) -> None:
    pool_of("--size", "1")
    proc = thaw("template", "rm", thaw.template)
    assert proc.returncode == 1 and b"in use" in proc.stderr
