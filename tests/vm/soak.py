#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many restores, many generations, many kills: what must hold however long it goes on.

    make soak [SOAK='--count 1000 --seed 7 ...']
    tests/host/run -- python3 tests/vm/soak.py [--count N] [--clones N] [--generations N]
        [--kills N] [--strategy NAME]... [--seed S]

Four parts, each left out by 0. Restores (default 10,000): a mix of all strategies and of pool
hits; every clone ends well and is unlike all others, and nothing grows: see BOUNDS. Clones (1,000):
sandboxes that stay until they have told more of themselves. Generations (10): a clone of a clone of
a clone..., whole and as a chain of diffs. Kills (100 of each kind): test_kill.py's. The cases of
tests/vm are the same code with small numbers. Exit status 0: all held.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import shim
from conftest import BIN, STATE, TOP, Sandbox, Thaw, build_template
from leftovers import KVM_FOLDER, files, kvm_vms, processes, quiet

STRATEGIES = ("ws", "mmap", "copy", "uring", "memfd", "uffd")
POOL = "pool"  # as if it were a strategy: claim a machine of the pool
POOL_SIZE = 2
JOBS = 2
SAMPLES = 12
WHO = (
    "/sys/class/misc/thaw/generation",
    "/sys/class/misc/thaw/vmfork_count",
    "/run/machine-id",
    "/proc/sys/kernel/random/uuid",
)
# The most that the end of a run may lie above its beginning: a constant for the noise of a machine
# that does other things, and so much a restore. A page lost in each restore is beyond all of them
# from some thousand restores on. KiB, but for the open files.
BOUNDS = {
    "SUnreclaim": (12 << 10, 1.0),
    "PageTables": (2 << 10, 0.25),
    "KernelStack": (1 << 10, 0.25),
    "Percpu": (2 << 10, 0.25),
    "Shmem": (4 << 10, 0.25),
    "used": (64 << 10, 2.0),  # MemTotal - MemAvailable
    "pool_rss": (1 << 10, 0.05),
    "open_files": (64, 0.02),
}


class Failure(Exception):
    """Something that must hold does not."""


def meminfo() -> dict[str, int]:
    text = Path("/proc/meminfo").read_text()
    values = {key: int(value) for key, value in re.findall(r"(\w+):\s+(\d+)", text)}
    return values | {"used": values["MemTotal"] - values["MemAvailable"]}


def rss_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    return int(found[1]) if found else 0


def open_fds(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@dataclass
class Clones:
    """What the clones said of themselves; no two may say the same."""

    vmfork_count: str
    seen: dict[str, set[str]] = field(
        default_factory=lambda: {"generation": set(), "machine_id": set(), "random": set()}
    )

    def add(self, output: bytes) -> None:
        lines = output.decode().split("\n")
        if len(lines) != 5 or lines[1] != self.vmfork_count or int(lines[0]) < 2:
            raise Failure(f"a clone says {lines}")
        if not re.fullmatch(r"[0-9a-f]{32}", lines[2]):
            raise Failure(f"a clone's machine-id is {lines[2]!r}")
        for (key, values), value in zip(self.seen.items(), [lines[0], *lines[2:]], strict=False):
            if value in values:
                raise Failure(f"two clones have the same {key}: {value}")
            values.add(value)


@contextmanager
def running_pool(template: str) -> Iterator[list[int]]:
    """A populated pool; gives the processes that live as long as it does: the pool, its zygote."""
    process = subprocess.Popen(
        [
            *(str(BIN / "thaw"), "pool", template, "--size", str(POOL_SIZE)),
            *("--populate", "--idle-timeout", "0"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(b"pool of "):
            raise Failure(f"the pool did not start: {line!r}")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield [process.pid, *map(int, children)]
    finally:
        process.terminate()
        process.communicate(timeout=60)


@dataclass
class State:
    """What there is whenever nothing runs; descriptors are those of the processes that stay."""

    processes: int
    machines: int
    files: set[str]
    descriptors: list[int]

    @classmethod
    def now(cls, long_lived: list[int]) -> State:
        return cls(len(processes()), len(kvm_vms()), files(), [open_fds(pid) for pid in long_lived])

    def difference(self, other: State) -> str:
        return (
            f"processes {self.processes} -> {other.processes}, virtual machines {self.machines} "
            f"-> {other.machines}, descriptors {self.descriptors} -> {other.descriptors}, files "
            f"{sorted(self.files ^ other.files)[:5]}"
        )


class Probe:
    """Samples of what may not grow."""

    def __init__(self, before: State, long_lived: list[int]) -> None:
        """@before: without pool and all."""
        self.long_lived = long_lived
        self.samples: list[dict[str, int]] = []
        processes_more = POOL_SIZE + len(long_lived) if long_lived else 0
        machines_more = POOL_SIZE if long_lived and KVM_FOLDER.is_dir() else 0
        self.want = State(
            before.processes + processes_more, before.machines + machines_more, set(), []
        )

        def settled(now: State) -> bool:
            return (now.processes, now.machines) == (self.want.processes, self.want.machines)

        first = quiet(lambda: State.now(long_lived), settled)
        self.want.files, self.want.descriptors = first.files, first.descriptors

    def take(self) -> None:
        now = quiet(lambda: State.now(self.long_lived), lambda state: state == self.want)
        if now != self.want:
            raise Failure(f"not as before: {self.want.difference(now)}")
        values = meminfo()
        sample = {key: values[key] for key in BOUNDS if key in values}
        sample["pool_rss"] = sum(map(rss_kib, self.long_lived))
        sample["open_files"] = int(Path("/proc/sys/fs/file-nr").read_text().split()[0])
        self.samples.append(sample)

    def growth(self) -> dict[str, float]:
        """Median of the last quarter over that of the first."""
        part = max(1, len(self.samples) // 4)
        return {
            key: statistics.median(s[key] for s in self.samples[-part:])
            - statistics.median(s[key] for s in self.samples[:part])
            for key in BOUNDS
        }

    def check(self, count: int) -> None:
        bad = []
        for key, value in self.growth().items():
            constant, slope = BOUNDS[key]
            bound = constant + slope * count
            print(f"  {key:12} {value:+10.0f}  (at most {bound:+.0f})")
            if value > bound:
                bad.append(f"{key} grew by {value:.0f} in {count} restores, at most {bound:.0f}")
        if bad:
            raise Failure("; ".join(bad))


def restores(thaw: Thaw, count: int, strategies: list[str], seed: int) -> None:
    """@count clones of the template, JOBS at a time; what they do is read who they are."""
    order = random.Random(seed)
    clones = Clones("1")
    before = State.now([])

    def one(strategy: str) -> tuple[str, subprocess.CompletedProcess[bytes]]:
        how = [] if strategy == POOL else ["--no-pool", "--strategy", strategy]
        return strategy, thaw.run(*how, "--", "cat", *WHO)

    with (
        running_pool(thaw.template) if POOL in strategies else no_pool() as long_lived,
        ThreadPoolExecutor(JOBS) as jobs,
    ):
        # Each strategy once before the first sample: what is made once is no growth.
        batches = [list(strategies)] + [
            [order.choice(strategies) for _ in range(size)] for size in split(count, SAMPLES)
        ]
        probe: Probe | None = None
        for batch in batches:
            for strategy, proc in jobs.map(one, batch):
                if proc.returncode or proc.stderr:
                    raise Failure(f"{strategy}: {proc.returncode}, {proc.stderr.decode()}")
                clones.add(proc.stdout)
            probe = probe or Probe(before, long_lived)
            probe.take()
        assert probe is not None
        probe.check(count)


@contextmanager
def no_pool() -> Iterator[list[int]]:
    yield []


def split(count: int, parts: int) -> list[int]:
    """@count in about equal parts, none of them empty."""
    parts = min(parts, count)
    return [count * (i + 1) // parts - count * i // parts for i in range(parts)]


Make = Callable[..., Sandbox]


def distinct(make: Make, count: int) -> None:
    """@count sandboxes that stay, each asked over vsock: identity, host name, time of day."""
    clones = Clones("1")
    for number in range(count):
        box = make("--hostname", f"clone-{number}")
        before = time.time()
        script = f"cat {' '.join(WHO)}; date +%s.%N >&2; uname -n >&2"
        result = box.exec("sh", "-c", script)
        after = time.time()
        clones.add(bytes(result.stdout))
        date, name = bytes(result.stderr).decode().split()
        # Real time is the host's: between the request and the answer, with 20 ms of slack.
        if not before - 0.02 <= float(date) <= after + 0.02:
            raise Failure(f"clone {number}: time {date}, the host's {before} to {after}")
        if name != f"clone-{number}" or box.stop() != 0:
            raise Failure(f"clone {number}: named {name}; {box.log()}")


def checkpoint(box: Sandbox) -> int:
    """Ask the shim for a checkpoint and wait for the VMM's end; its exit status."""
    with shim.connect(box.vsock) as sock:
        sock.sendall(shim.frame(shim.CHECKPOINT))
        kind, payload = next(shim.frames(sock))
        if kind != shim.OK:
            raise Failure(f"no checkpoint: {kind} {payload!r}")
    return box.process.wait(timeout=120)


def generations(
    thaw: Thaw, make: Make, depth: int, diff: bool, strategies: list[str] | None = None
) -> None:
    """A clone of a clone of a clone...: the last one knows what each of them did, and is new.

    The first generation is the template that was booted, so @depth - 1 snapshots are made.
    """
    names = [f"t-gen{number}" for number in range(2, depth + 1)]
    parent = thaw.template
    remove(thaw, names)
    try:
        for number, name in enumerate(names, 2):
            options = ["--diff"] if diff else []
            box = make(
                *("--snapshot", str(STATE / "templates" / name), "--name", name),
                *("--parent", parent, *options),
                template=STATE / "templates" / parent,
            )
            mark = f"echo {number} >>/root/marks; echo {number} >>/run/marks; sync"
            try:
                bad = box.exec("sh", "-c", mark).value or checkpoint(box)
            except (OSError, shim.Lost) as error:
                bad = error
            if bad:
                box.stop()
                raise Failure(f"generation {number}: {bad}; {box.log()}")
            parent = name
        check_last(Thaw(parent), depth, strategies or ["ws", "copy"])
    finally:
        remove(thaw, names)
    if left := [name for name in names if (STATE / "templates" / name).exists()]:
        raise Failure(f"can't be removed: {left}")


def remove(thaw: Thaw, names: list[str]) -> None:
    """The last of a chain first; those that are not there don't matter."""
    for name in reversed(names):
        if (STATE / "templates" / name).exists():
            thaw("template", "rm", name)


def check_last(thaw: Thaw, depth: int, strategies: list[str]) -> None:
    """What the clones of all generations wrote, in memory and on the disk."""
    clones = Clones(str(depth))
    marks = "".join(f"{number}\n" for number in range(2, depth + 1)) * 3
    # The disk once more, below the page cache.
    script = f"cat {' '.join(WHO)}; cat /root/marks /run/marks >&2; "
    script += "echo 3 >/proc/sys/vm/drop_caches; cat /root/marks >&2"
    for strategy in strategies:
        for _ in range(2):
            proc = thaw.run("--strategy", strategy, "--", "sh", "-c", script)
            if proc.returncode or proc.stderr.decode() != marks:
                raise Failure(f"{strategy}: {proc}")
            clones.add(proc.stdout)
    proc = thaw("template", "verify", thaw.template)
    if proc.returncode:
        raise Failure(proc.stderr.decode())


class Boxes:
    """Sandboxes in a folder of their own, for who has no fixture."""

    def __init__(self, folder: Path, template: Path) -> None:
        self.folder, self.template, self.count = folder, template, 0

    def __call__(self, *args: str, template: Path | None = None) -> Sandbox:
        self.count += 1
        folder = self.folder / f"box-{self.count}"
        folder.mkdir()
        return Sandbox(template or self.template, folder, *args)


def part(name: str, what: Callable[[], object]) -> bool:
    print(f"== {name}", flush=True)
    start = time.monotonic()
    try:
        what()
    except (Failure, AssertionError) as error:
        print(f"FAIL  {name}: {error}", flush=True)
        return False
    print(f"pass  {name}  {time.monotonic() - start:.0f} s", flush=True)
    return True


def main() -> int:
    import test_kill  # it imports this file

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=10000, help="restores")
    parser.add_argument("--clones", type=int, default=1000, help="sandboxes that stay a while")
    parser.add_argument("--generations", type=int, default=10, help="2 to 16")
    parser.add_argument("--kills", type=int, default=100, help="of each kind")
    parser.add_argument("--strategy", action="append", choices=[*STRATEGIES, POOL, "pack"])
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    build_template("t-debian", "--recipe", str(TOP / "snapshots/recipes/debian"))
    thaw = Thaw("t-debian")
    strategies = args.strategy or [*STRATEGIES, POOL, "pack"]
    print(json.dumps(vars(args)))
    with tempfile.TemporaryDirectory(prefix="thaw-soak-") as name:
        boxes = Boxes(Path(name), STATE / "templates" / thaw.template)
        parts: list[tuple[str, int, Callable[[], object]]] = [
            ("restores", args.count, lambda: restores_with_pack(thaw, args, strategies)),
            ("clones", args.clones, lambda: distinct(boxes, args.clones)),
            *(
                (
                    f"generations, {how}",
                    args.generations,
                    lambda how=how: generations(
                        thaw, boxes, args.generations, how == "diff", list(STRATEGIES)
                    ),
                )
                for how in ("whole", "diff")
            ),
            *(
                (
                    f"kills of {kind}",
                    args.kills,
                    lambda kind=kind: test_kill.kill_rounds(thaw, kind, args.kills, args.seed),
                )
                for kind in test_kill.KINDS
            ),
        ]
        good = [part(name, what) for name, count, what in parts if count]
    print(f"{sum(good)} passed, {len(good) - sum(good)} failed")
    return 0 if all(good) else 1


def restores_with_pack(thaw: Thaw, args: argparse.Namespace, strategies: list[str]) -> None:
    """Strategy pack needs a template that has one: a copy of the standard one."""
    if "pack" not in strategies:
        restores(thaw, args.count, strategies, args.seed)
        return
    copy = "t-soak"
    with tempfile.NamedTemporaryFile(dir=STATE, suffix=".thaw") as file:
        for argv in (
            ("rm", copy),
            ("export", thaw.template, file.name, "--replace"),
            ("import", copy, file.name),
            ("pack", copy),
        ):
            proc = thaw("template", *argv)
            if proc.returncode and argv[0] != "rm":
                raise Failure(proc.stderr.decode())
    try:
        restores(Thaw(copy), args.count, strategies, args.seed)
    finally:
        thaw("template", "rm", copy)


if __name__ == "__main__":
    sys.exit(main())
