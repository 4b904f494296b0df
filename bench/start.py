#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole starts, measured where guests can run: cold boot, restore to first command, warm exec.

    bench/start.py [--out FILE] [--n N] [--cold-boots N] [--seed S]

Every sample is a real `thaw run` (or `thaw-vmm boot`) and its own JSON result. Arms are interleaved
in an order drawn from the seed; two warm-ups an arm (none of the cold boot) are discarded, and one
before each sample of a "hot" arm that follows another arm. The page cache is dropped before each
sample of a "cold" arm and only there. Prints a table, writes raw samples with the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/vm"))
import shim  # noqa: E402
from localbin import local_bin  # noqa: E402

BIN = local_bin()
STATE = Path(os.environ.get("THAW_STATE", "/var/lib/thaw"))
TEMPLATE = "debian"


# Name, strategy, options, page caches: every strategy, and ws with one part less (or more) each.
RESTORES: list[tuple[str, str, tuple[str, ...], tuple[bool, ...]]] = [
    *(
        (strategy, strategy, (), (False, True))
        for strategy in ("ws", "mmap", "copy", "uring", "memfd", "uffd")
    ),
    ("ws, no fetch", "mmap", ("--populate", "both", "--prefault", "on"), (True,)),
    ("ws, no pre-fault", "ws", ("--prefault", "off"), (False,)),
    ("ws, 2 threads", "ws", ("--threads", "2"), (False,)),
    ("ws, written only", "ws", ("--populate", "write", "--prefault", "off"), (False,)),
    ("copy, huge pages", "copy", ("--huge", "thp"), (False,)),
]


@dataclass
class Arm:
    """One way of starting; @sample returns milliseconds by clock name."""

    name: str
    sample: Callable[[], dict[str, float]]
    n: int
    results: list[dict[str, float]] = field(default_factory=list)


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def thaw_run(strategy: str, cold: bool, *options: str) -> dict[str, float]:
    if cold:
        drop_caches()
    return timed_run("none", "--strategy", strategy, *options)


def timed_run(pool: str, *args: str) -> dict[str, float]:
    """One `thaw run` of /bin/true; @pool is what its result must say of the pool."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        start = time.monotonic()
        subprocess.run(
            [
                *(str(BIN / "thaw"), "run", TEMPLATE, *args),
                *("--json", report.name, "--", "/bin/true"),
            ],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        wall = (time.monotonic() - start) * 1e3
        data = json.loads(Path(report.name).read_text())
    if data["pool"] != pool:
        raise RuntimeError(f"pool: {data['pool']}, expected {pool}")
    sample = {k: float(v) for k, v in data["clocks_ms"].items()}
    sample["wall"] = wall  # fork of this process to the end of thaw, teardown included
    sample["minor"] = float(data["faults"]["minor"])
    sample["major"] = float(data["faults"]["major"])
    sample["bytes_read"] = float(data["bytes_read"])
    return sample


class Pool:
    """`thaw pool`; a sample waits until its machine is replaced, outside the clock."""

    def __init__(self, *args: str) -> None:
        self.process = subprocess.Popen(
            [str(BIN / "thaw"), "pool", TEMPLATE, "--size", "2", "--idle-timeout", "0", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise RuntimeError("the pool did not come up")

    def status(self) -> dict[str, int]:
        out = subprocess.run(
            [str(BIN / "thaw"), "pool", TEMPLATE, "--status", "--json"],
            check=True,
            capture_output=True,
        ).stdout
        data = json.loads(out)
        assert isinstance(data, dict)
        return data

    def wait_filled(self) -> None:
        while self.status()["ready"] < 2:
            time.sleep(0.05)

    def sample(self) -> dict[str, float]:
        self.wait_filled()
        result = timed_run("hit")
        self.wait_filled()  # its set-up must not fall into another arm's sample
        return result

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


CTL_READY = 67  # vmm/util/ctl.h


def receive_start(ctl: socket.socket) -> int:
    """Wait until the shim is ready; when thaw-vmm was started, in nanoseconds (CLOCK_MONOTONIC)."""
    while True:
        data = ctl.recv(4096)
        if not data:
            raise RuntimeError("thaw-vmm ended before its guest was ready")
        if int.from_bytes(data[4:8], "little") == CTL_READY:
            return int.from_bytes(data[32:40], "little")


class ColdBoot:
    """Power-on to the first command's exit status, with the template's kernel, root and disk."""

    def __init__(self) -> None:
        folder = STATE / "templates" / TEMPLATE
        manifest = json.loads((folder / "manifest.json").read_text())
        guest = Path(os.environ["THAW_GUEST_DIR"])
        cmdline = subprocess.run(
            [str(BIN / "thaw"), "run", TEMPLATE, "--", "cat", "/proc/cmdline"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        self.args = [
            *("--kernel", str(guest / "vmlinux"), "--initramfs", str(guest / "initramfs.cpio")),
            *("--cmdline", cmdline, "--root", manifest["root_image"]),
            *("--vcpus", str(manifest["vcpus"]), "--memory", str(manifest["memory_bytes"])),
            *("--disk-base", str(folder / "disk"), "--disk-size", str(manifest["disk_bytes"])),
            *("--disk-dir", str(STATE)),
        ]

    def sample(self) -> dict[str, float]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with tempfile.TemporaryDirectory() as folder, ours, theirs:
            vsock = Path(folder) / "vsock"
            process = subprocess.Popen(
                [
                    *(str(BIN / "thaw-vmm"), "boot", *self.args),
                    *("--vsock", str(vsock), "--ctl-fd", str(theirs.fileno())),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
            theirs.close()
            start_ns = receive_start(ours)
            result = shim.run(vsock, ["/bin/true"])
            took = (time.monotonic_ns() - start_ns) / 1e6
            assert result.value == 0, result
            process.terminate()
            process.wait()
        return {"c4": took}


class Warm:
    """A sandbox that stays; one exec of /bin/true in it is the floor of every start."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.vsock = Path(self.folder.name) / "vsock"
        self.process = subprocess.Popen(
            [
                *(str(BIN / "thaw-vmm"), "restore", str(STATE / "templates" / TEMPLATE)),
                *("--disk-dir", str(STATE), "--vsock", str(self.vsock)),
            ],
            stdin=subprocess.DEVNULL,
        )
        while not self.vsock.exists():
            time.sleep(0.01)
        for _ in range(5):
            self.sample()

    def sample(self) -> dict[str, float]:
        start = time.monotonic()
        result = shim.run(self.vsock, ["/bin/true"])
        took = (time.monotonic() - start) * 1e3
        assert result.value == 0, result
        return {"c4": took}

    def private_kib(self) -> int:
        """Private memory of thaw-vmm: every private mapping but guest RAM and the root image."""
        total, name, size = 0, "", 0
        for line in Path(f"/proc/{self.process.pid}/smaps").read_text().splitlines():
            fields = line.split()
            if "-" in fields[0] and not fields[0].endswith(":"):
                name = fields[5] if len(fields) > 5 else ""
                begin, end = (int(x, 16) for x in fields[0].split("-"))
                size = end - begin
            elif fields[0] in ("Private_Dirty:", "Private_Clean:"):
                guest = name.endswith(("/memory", "/root.erofs")) or size >= 64 << 20
                total += 0 if guest else int(fields[1])
        return total

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


def percentile(values: list[float], share: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * len(ordered) * 100) // 100) - 1))]


def summarize(arms: list[Arm]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for arm in arms:
        row: dict[str, object] = {"arm": arm.name, "n": len(arm.results)}
        for key in arm.results[0]:
            values = [r[key] for r in arm.results]
            row[key] = {
                "median": statistics.median(values),
                "p99": percentile(values, 0.99),
                "min": min(values),
                "max": max(values),
            }
        rows.append(row)
    return rows


def environment() -> dict[str, object]:
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")]
    return {
        "git": os.environ.get("THAW_GIT_REVISION"),  # bench/run sets it: the host has no git
        "kernel": platform.release(),
        "cpu": models[0] if models else "unknown",
        "cpus": os.cpu_count(),
        "template": json.loads((STATE / "templates" / TEMPLATE / "manifest.json").read_text()),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=TOP / "build/bench/start.json")
    parser.add_argument("--n", type=int, default=30, help="samples a restore arm (default 30)")
    parser.add_argument("--cold-boots", type=int, default=30, help="samples of the cold boot")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    subprocess.run([str(TOP / "scripts/template"), TEMPLATE], check=True)
    warm = Warm()
    pool = Pool("--populate")
    arms = [
        *(
            Arm(
                f"restore {name}, {'cold' if cold else 'hot'}",
                partial(thaw_run, strategy, cold, *options_of_restore),
                options.n,
            )
            for name, strategy, options_of_restore, colds in RESTORES
            for cold in colds
        ),
        Arm("pool hit, hot", pool.sample, options.n),
        Arm("warm exec", warm.sample, options.n),
        Arm("cold boot", ColdBoot().sample, options.cold_boots),
    ]
    order = [arm for arm in arms for _ in range(arm.n)]
    random.Random(options.seed).shuffle(order)
    for arm in arms[:-1]:  # not the cold boot
        for _ in range(2):
            arm.sample()
    for number, arm in enumerate(order):
        if arm.name.endswith("hot") and (not number or order[number - 1] is not arm):
            arm.sample()  # what went before may have dropped the page cache, or filled less of it
        arm.results.append(arm.sample())
        done = f"bench: {number + 1} of {len(order)} samples"
        if sys.stderr.isatty():
            end = "\n" if number + 1 == len(order) else ""
            print(f"\r\x1b[K{done}", end=end, file=sys.stderr, flush=True)
        elif number % 20 == 19:
            print(done, file=sys.stderr)
    private = warm.private_kib()
    pool_status = pool.status()
    pool.stop()
    warm.stop()

    rows = summarize(arms)
    by_name = {str(row["arm"]): row for row in rows}

    def c4(name: str, what: str = "median") -> float:
        value = by_name[name]["c4"]
        assert isinstance(value, dict)
        return float(value[what])

    ratios = {
        "restore ws hot / cold boot": c4("restore ws, hot") / c4("cold boot"),
        "restore mmap hot / cold boot": c4("restore mmap, hot") / c4("cold boot"),
        "restore copy hot / cold boot": c4("restore copy, hot") / c4("cold boot"),
        "restore ws hot / warm exec": c4("restore ws, hot") / c4("warm exec"),
        "pool hit / warm exec": c4("pool hit, hot") / c4("warm exec"),
        "restore ws hot / restore mmap hot": c4("restore ws, hot") / c4("restore mmap, hot"),
        "restore mmap hot / restore copy hot": c4("restore mmap, hot") / c4("restore copy, hot"),
    }
    targets = [
        (
            "restored first command / cold boot (median)",
            ratios["restore ws hot / cold boot"],
            0.02,
        ),
        ("restored first command, p99, ms", c4("restore ws, hot", "p99"), 600.0),
        ("thaw-vmm private memory, KiB", float(private), 2048.0),
    ]
    print(f"{'arm':30} {'n':>4} {'c4 median':>10} {'p99':>10} {'min':>10}  (ms)")
    for row in rows:
        name = str(row["arm"])
        figures = " ".join(f"{c4(name, what):10.1f}" for what in ("median", "p99", "min"))
        print(f"{name:30} {row['n']!s:>4} {figures}")
    for name, ratio in ratios.items():
        print(f"{name:44} {ratio:.4f}")
    for name, value, limit in targets:
        print(f"{'ok  ' if value <= limit else 'MISS'} {name}: {value:.4g} (limit {limit:.4g})")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(
        json.dumps(
            {
                "environment": environment(),
                "seed": options.seed,
                "summary": rows,
                "ratios": ratios,
                "targets": [
                    {"id": name, "value": value, "limit": limit, "ok": value <= limit}
                    for name, value, limit in targets
                ],
                "vmm_private_kib": private,
                "pool": pool_status,
                "samples": {arm.name: arm.results for arm in arms},
            },
            indent=1,
        )
        + "\n"
    )
    print(f"raw samples in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
