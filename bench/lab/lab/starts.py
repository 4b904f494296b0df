# SPDX-License-Identifier: Apache-2.0
"""thaw's own arms: every strategy and pool, cold boot, and the floor: a warm sandbox."""

from __future__ import annotations

from dataclasses import dataclass

from lab.arms import Arm, Context, Template
from lab.measure import Failed, run_good
from lab.model import ArmRow, Sample
from lab.sandbox import ColdBoot, Pool, Sandbox, read_data, thaw_run

STRATEGIES = ("ws", "mmap", "copy", "uring", "memfd", "uffd", "pack")
# ws with one part less, or more, each; and others with what is not their habit.
VARIANTS: list[tuple[str, list[str], str]] = [
    ("ws", ["--prefault", "off"], "hot"),
    ("ws", ["--threads", "2"], "hot"),
    ("ws", ["--populate", "write", "--prefault", "off"], "hot"),
    ("mmap", ["--populate", "both", "--prefault", "on"], "hot"),
    ("mmap", ["--populate", "both", "--prefault", "on"], "cold"),  # ws without its fetch
    ("copy", ["--huge", "thp"], "hot"),
    ("uring", ["--huge", "thp"], "hot"),
    ("uffd", ["--fault-window", "64K"], "hot"),
]


@dataclass
class Warmer:
    """Brings a template's files back into the page cache, once after each time it was dropped."""

    ctx: Context
    template: Template
    drops_seen: int = -1

    def warm(self) -> None:
        if self.drops_seen == self.ctx.cache_drops:
            return
        for path in sorted(self.template.folder.iterdir()):
            if path.name != "disk":
                read_data(path)
        # Twice: what the program, the root image and the disk need, and then nothing is left.
        for _ in range(2):
            thaw_run(self.ctx, self.template, ["--no-pool"], self.template.command, "none")
        self.drops_seen = self.ctx.cache_drops


def _row(template: Template, strategy: str, cache: str, pool: str, options: list[str]) -> ArmRow:
    words = ["thaw", template.label, strategy, cache, pool, template.size]
    if options:
        words.append("".join(options).lstrip("-").replace("--", "-"))
    return ArmRow(
        id="/".join(words),
        kind="thaw",
        variant="restore",
        template=template.label,
        strategy=strategy,
        cache=cache,
        pool=pool,
        vcpus=template.vcpus,
        memory_mib=template.memory_mib,
        options=options,
        command=template.command,
    )


class Restore(Arm):
    """`thaw run` with a machine of its own."""

    def __init__(
        self, ctx: Context, warmer: Warmer, strategy: str, cache: str, options: list[str]
    ) -> None:
        super().__init__(_row(warmer.template, strategy, cache, "none", options))
        self.ctx = ctx
        self.warmer = warmer
        self.options = ["--strategy", strategy, *options]

    def setup(self) -> None:
        template = self.warmer.template
        if self.row.strategy == "pack" and not (template.folder / "memory.pack").exists():
            run_good([self.ctx.thaw, "template", "pack", template.name])

    def warm(self) -> None:
        self.warmer.warm()

    def prepare(self) -> None:
        if self.row.cache == "cold":
            self.ctx.drop_caches()

    def sample(self) -> Sample:
        template = self.warmer.template
        sample, self.row.strategy_done = thaw_run(
            self.ctx, template, self.options, self.row.command, "none"
        )
        return sample


class PoolRun(Arm):
    """`thaw run` that finds a pool: a machine ready (hit) or not (miss)."""

    def __init__(
        self, ctx: Context, warmer: Warmer, pool: Pool, outcome: str, cache: str, populate: bool
    ) -> None:
        strategy = "ws" if populate or outcome == "miss" else "mmap"
        super().__init__(_row(warmer.template, strategy, cache, outcome, []))
        self.ctx = ctx
        self.warmer = warmer
        self.pool = pool
        self.outcome = outcome
        self.pool_options = ["--populate"] if populate else []

    def warm(self) -> None:
        self.warmer.warm()

    def prepare(self) -> None:
        self.pool.need(self.pool_options)
        if self.outcome == "miss":
            # Nobody refills it, and its machines are taken.
            self.pool.hold_refill(True)
            for _ in range(self.pool.size):
                thaw_run(self.ctx, self.warmer.template, [], self.row.command, "hit")
        if self.row.cache == "cold":
            self.ctx.drop_caches()

    def sample(self) -> Sample:
        sample, self.row.strategy_done = thaw_run(
            self.ctx, self.warmer.template, [], self.row.command, self.outcome
        )
        return sample

    def overhead_ms(self) -> float:
        return self.pool.asked_ms

    def settle(self) -> None:
        if self.outcome == "miss":
            self.pool.hold_refill(False)
        if self.row.cache == "cold":
            self.pool.stop()  # its machines map what other cold samples must not find
        else:
            self.pool.wait_filled()  # its set-up must not fall into another arm's sample

    def release(self) -> None:
        self.pool.stop()

    def teardown(self) -> None:
        self.pool.stop()


class PlainRun(PoolRun):
    """A pool hit as a user types it: without --json, which reads counters of the machine and writes
    a file. It has no clock but the wall's, which is what peers have, too."""

    def __init__(self, ctx: Context, warmer: Warmer, pool: Pool) -> None:
        super().__init__(ctx, warmer, pool, "hit", "hot", populate=True)
        self.row.id += "/plain"
        self.row.variant = "plain"
        self.row.options = ["(no --json)"]
        self.hits = 0

    def prepare(self) -> None:
        super().prepare()
        self.hits = self.pool.status()["hits"]

    def sample(self) -> Sample:
        template = self.warmer.template
        ended = run_good([self.ctx.thaw, "run", template.name, "--", *self.row.command])
        return {"wall": ended.wall_ms}

    def settle(self) -> None:
        super().settle()
        if (hits := self.pool.status()["hits"]) != self.hits + 1:
            raise Failed(f"the pool says {hits - self.hits} hits of one run")


def hot_row(template: Template, id: str, kind: str, variant: str) -> ArmRow:
    """The row of an arm that restores nothing: no strategy, no pool."""
    return ArmRow(
        id=id,
        kind=kind,
        variant=variant,
        template=template.label,
        cache="hot",
        vcpus=template.vcpus,
        memory_mib=template.memory_mib,
        command=template.command,
    )


class Boot(Arm):
    """A cold boot of the same guest."""

    def __init__(self, ctx: Context, warmer: Warmer) -> None:
        template = warmer.template
        super().__init__(
            hot_row(
                template,
                id=f"thaw/{template.label}/cold-boot/{template.size}",
                kind="thaw",
                variant="cold-boot",
            )
        )
        self.ctx = ctx
        self.warmer = warmer
        self.boot: ColdBoot | None = None

    def setup(self) -> None:
        self.boot = ColdBoot(self.ctx, self.warmer.template)

    def warm(self) -> None:
        self.warmer.warm()
        for name in ("vmlinux", "initramfs.cpio"):
            read_data(self.warmer.template.guest / name)

    def sample(self) -> Sample:
        assert self.boot is not None
        return self.boot.sample(self.row.command)


class WarmExec(Arm):
    """The command in a sandbox that is up and has run it before: what no start can beat."""

    def __init__(self, ctx: Context, warmer: Warmer) -> None:
        template = warmer.template
        super().__init__(
            hot_row(
                template,
                id=f"floor/{template.label}/warm-exec/{template.size}",
                kind="floor",
                variant="warm-exec",
            )
        )
        self.ctx = ctx
        self.template = template
        self.box: Sandbox | None = None

    def prepare(self) -> None:
        if self.box is None:
            self.box = Sandbox(self.ctx, self.template)
            for _ in range(5):
                self.box.run(self.row.command)

    def sample(self) -> Sample:
        assert self.box is not None
        return {"c4": self.box.timed(self.row.command)}

    def release(self) -> None:
        if self.box is not None:
            self.box.stop()
            self.box = None

    def teardown(self) -> None:
        self.release()


def thaw_arms(ctx: Context, template: Template, every: bool) -> list[Arm]:
    """The arms of @template; with @every also those that only a comparison of details needs."""
    warmer = Warmer(ctx, template)
    pool = Pool(ctx, template)
    arms: list[Arm] = [WarmExec(ctx, warmer), Boot(ctx, warmer)]
    arms.append(PoolRun(ctx, warmer, pool, "hit", "hot", populate=True))
    arms.append(PlainRun(ctx, warmer, pool))
    for strategy in STRATEGIES:
        for cache in ("hot", "cold"):
            arms.append(Restore(ctx, warmer, strategy, cache, []))
    if every:
        arms += [
            PoolRun(ctx, warmer, pool, "hit", "hot", populate=False),
            PoolRun(ctx, warmer, pool, "hit", "cold", populate=True),
            PoolRun(ctx, warmer, pool, "hit", "cold", populate=False),
            PoolRun(ctx, warmer, pool, "miss", "hot", populate=True),
            PoolRun(ctx, warmer, pool, "miss", "cold", populate=True),
        ]
        arms += [
            Restore(ctx, warmer, strategy, cache, options) for strategy, options, cache in VARIANTS
        ]
    return arms
