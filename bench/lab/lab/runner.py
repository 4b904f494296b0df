# SPDX-License-Identifier: Apache-2.0
"""Samples the arms, interleaved.

Theory of operation

What a machine does slowly over an hour (other load, heat, a fragmented memory) must hit all arms
alike. So a run is made of rounds, each of them one sample of every arm in an order drawn from the
seed; an arm with fewer samples than others has its rounds spread over the whole run.

Cold samples drop the page cache, and a hot sample after one would be cold, too. Rounds therefore
come in blocks: a few rounds of the hot arms, then as many of the cold ones. Before a block of hot
ones that comes after a drop every arm of it is warmed, outside the clocks (Arm.warm()). Before a
block of cold ones every arm lets go of what it holds (Arm.release()): a page that some process maps
is not dropped, and a start that finds it is not cold.

A sample that fails is counted and the run goes on. An arm that fails GIVE_UP times in a row is
given up: its n is what was tried.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lab.arms import Arm, Context, NotRun
from lab.measure import CpuMeter

BLOCK_ROUNDS = 6
GIVE_UP = 5
ERRORS_KEPT = 5


def rounds_of(n: int, rounds: int) -> list[int]:
    """In which of @rounds rounds an arm with @n samples takes part: spread evenly."""
    return [(2 * k + 1) * rounds // (2 * n) for k in range(n)]


def schedule(wanted: dict[str, int], cold: set[str], seed: int) -> list[list[str]]:
    """Blocks of arm ids, hot and cold ones by turns, in the order in which they are sampled."""
    rounds = max(wanted.values(), default=0)
    members: list[list[str]] = [[] for _ in range(rounds)]
    for name, n in wanted.items():
        for number in rounds_of(n, rounds):
            members[number].append(name)
    rng = random.Random(seed)
    blocks: list[list[str]] = []
    for start in range(0, rounds, BLOCK_ROUNDS):
        for is_cold in (False, True):
            block: list[str] = []
            for names in members[start : start + BLOCK_ROUNDS]:
                mine = [name for name in names if (name in cold) == is_cold]
                rng.shuffle(mine)
                block += mine
            if block:
                blocks.append(block)
    return blocks


@dataclass
class Progress:
    """One line on a terminal, one now and then elsewhere."""

    total: int
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    told: float = 0.0

    def step(self) -> None:
        self.done += 1
        now, last = time.monotonic(), self.done == self.total
        text = f"lab: {self.done} of {self.total} samples, {now - self.started:.0f} s"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="\n" if last else "", file=sys.stderr, flush=True)
        elif last or now - self.told >= 10:
            print(text, file=sys.stderr, flush=True)
            self.told = now


class Runner:
    def __init__(self, ctx: Context, arms: list[Arm], meter: CpuMeter) -> None:
        self.ctx = ctx
        self.arms = {arm.id: arm for arm in arms}
        self.meter = meter
        self.seq = 0
        self.in_a_row = dict.fromkeys(self.arms, 0)

    def _used_ms(self, arm: Arm) -> float | None:
        used = self.meter.used_ms()
        return None if used is None else used - arm.overhead_ms()

    def _note(self, arm: Arm, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self.ctx.log(f"{arm.id}: {text}")
        if len(arm.row.errors) < ERRORS_KEPT:
            arm.row.errors.append(text)

    def setup(self, wanted: dict[str, int]) -> dict[str, int]:
        """Set up every arm; those that can be sampled, with their numbers."""
        ready = {}
        for name, n in wanted.items():
            arm = self.arms[name]
            if arm.row.not_run is None:
                try:
                    arm.setup()
                except NotRun as reason:
                    arm.row.not_run = str(reason)
                except Exception as error:  # whatever it is, the others go on
                    arm.row.not_run = f"set-up failed: {error}"
            if arm.row.not_run is None and n > 0:
                ready[name] = n
            elif arm.row.not_run is not None:
                self.ctx.log(f"{name}: not run: {arm.row.not_run}")
                self._quietly(arm, arm.teardown)
        return ready

    def _quietly(self, arm: Arm, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as error:
            self._note(arm, error)

    def warm_up(self, names: list[str], warmups: dict[str, int]) -> None:
        """Before the first sample: discarded, and what fails here is known early."""
        for name in names:
            arm = self.arms[name]
            if warmups[name]:
                self.ctx.log(f"warm-up of {name}")
            for _ in range(warmups[name]):
                self._quietly(arm, lambda arm=arm: self._discarded(arm))
            arm.row.warmups = warmups[name]

    def _discarded(self, arm: Arm) -> None:
        try:
            arm.prepare()
            arm.sample()
        finally:
            arm.settle()

    def _sample(self, arm: Arm) -> None:
        row = arm.row
        row.n += 1
        try:
            try:
                arm.prepare()
                before = self._used_ms(arm)
                sample = arm.sample()
            finally:
                arm.settle()
            after = self._used_ms(arm)
        except NotRun as reason:
            self._fail(arm, reason)
            return
        except Exception as error:  # a sample, not the run
            self._fail(arm, error)
            return
        sample["seq"] = self.seq
        if before is not None and after is not None and "cpu_ms" not in sample:
            sample["cpu_ms"] = max(0.0, after - before)
        row.samples.append(sample)
        self.in_a_row[arm.id] = 0
        self.seq += 1

    def _fail(self, arm: Arm, error: BaseException) -> None:
        self._note(arm, error)
        arm.row.failed += 1
        self.in_a_row[arm.id] += 1
        if self.in_a_row[arm.id] == GIVE_UP:
            self.ctx.log(f"{arm.id}: given up after {GIVE_UP} failures in a row")

    def run(self, wanted: dict[str, int], warmups: dict[str, int]) -> None:
        """@wanted, @warmups: how many samples, by arm id. Fills the arms' rows."""
        try:
            ready = self.setup(wanted)
            cold = {name for name in ready if self.arms[name].row.cache == "cold"}
            blocks = schedule(ready, cold, self.ctx.seed)
            progress = Progress(sum(len(block) for block in blocks))
            self.warm_up([name for name in ready if name not in cold], warmups)
            self.warm_up([name for name in ready if name in cold], warmups)
            drops = 0
            for block in blocks:
                if block[0] not in cold and self.ctx.cache_drops != drops:
                    for name in dict.fromkeys(block):
                        if self.in_a_row[name] < GIVE_UP:
                            self._quietly(self.arms[name], self.arms[name].warm)
                    drops = self.ctx.cache_drops
                if block[0] in cold:
                    for name in ready:
                        self._quietly(self.arms[name], self.arms[name].release)
                for name in block:
                    if self.in_a_row[name] < GIVE_UP:
                        self._sample(self.arms[name])
                    progress.step()
        finally:
            for name in wanted:
                if self.arms[name].row.not_run is None:
                    self._quietly(self.arms[name], self.arms[name].teardown)
