# SPDX-License-Identifier: Apache-2.0
"""What is measured: which arms, how often, which experiments. What costs time is here."""

from __future__ import annotations

from dataclasses import dataclass, field

from lab.model import ArmRow

ESSENTIAL = 30  # samples where a target depends on it


@dataclass(frozen=True)
class Recipe:
    """A template of the lab."""

    label: str
    name: str  # of the template
    recipe: str  # file, from the top of the checkout
    guest: str  # guest folder, from the top of the checkout
    vcpus: int
    memory_mib: int
    command: tuple[str, ...]


TRUE = ("/bin/true",)
DEBIAN = Recipe("debian", "debian", "snapshots/recipes/debian", "build/guest", 1, 256, TRUE)
LARGE = Recipe("debian", "lab-large", "bench/lab/recipes/large", "build/guest", 2, 1024, TRUE)
NUMPY = Recipe(
    *("numpy", "lab-numpy", "bench/lab/recipes/numpy", "build/guest-lab", 1, 512),
    ("python3", "-c", "import numpy; numpy.ones(9).sum()"),
)
NODE = Recipe(
    *("node", "lab-node", "bench/lab/recipes/node", "build/guest-lab", 1, 512),
    ("node", "-e", "0"),
)


@dataclass
class Plan:
    """Numbers of a run. `slow` is for arms that take seconds each and only stand beside others."""

    name: str
    recipes: tuple[Recipe, ...]
    every: bool  # also the variants of a strategy, and every kind of pool
    n: int
    slow: int
    boots: int  # cold boots of peers
    experiments: dict[str, dict[str, object]] = field(default_factory=dict)
    warmups: int = 2

    def samples(self, row: ArmRow) -> int:
        """How many samples @row gets."""
        if row.kind == "peer" and row.variant == "cold-boot":
            return self.boots
        if row.peer in ("runsc", "cloud-hypervisor", "firecracker"):
            return self.slow
        if row.variant == "restore-shared":
            return self.slow
        if row.strategy not in (None, "ws"):
            return self.slow
        return self.n

    def warmups_of(self, row: ArmRow) -> int:
        """A cold boot remembers nothing, and a cold start forgets it."""
        return 0 if row.variant == "cold-boot" or row.cache == "cold" else self.warmups


QUICK = Plan(
    name="quick",
    recipes=(DEBIAN,),
    every=False,
    n=ESSENTIAL,
    slow=4,
    boots=2,
    warmups=1,
    experiments={
        "burst": {"n": 100},
        "sweep": {"at_once": (8, 64), "clones": 128, "rounds": 2, "templates": 0},
        "memory": {"clones": (1, 4, 8, 12)},
        "io": {"n": ESSENTIAL},
    },
)
FULL = Plan(
    name="full",
    recipes=(DEBIAN, LARGE, NUMPY, NODE),
    every=True,
    n=ESSENTIAL,
    slow=ESSENTIAL,
    boots=ESSENTIAL,
    experiments={
        "burst": {"n": 100},
        "patterns": {"n": 100, "stagger_s": 0.2},
        "sweep": {"at_once": (1, 2, 4, 8, 16, 32, 64), "clones": 128, "rounds": 3, "templates": 8},
        "memory": {"clones": (1, 4, 8, 16)},
        "io": {"n": ESSENTIAL, "sequential": True},
        "replay": {"n": ESSENTIAL},
    },
)
PLANS = {plan.name: plan for plan in (QUICK, FULL)}
EXPERIMENTS = tuple(FULL.experiments)  # those that run where guests can


def chosen(arm_id: str, patterns: list[str] | None) -> bool:
    """Whether --arms takes this arm: one of the words is part of its id; none: all are taken."""
    return patterns is None or any(word in arm_id for word in patterns)


def customize(
    plan: Plan, n: int | None, recipes: list[str] | None, experiments: list[str] | None
) -> Plan:
    """@plan with numbers of one's own; its name tells that it is no plan any more."""
    if n is None and recipes is None and experiments is None:
        return plan
    everything = {**FULL.experiments, **plan.experiments}
    picked = plan.experiments if experiments is None else {k: everything[k] for k in experiments}
    if n is not None:
        counts = ("n", "clones")
        picked = {
            name: {k: n if k in counts and isinstance(v, int) else v for k, v in one.items()}
            for name, one in picked.items()
        }
    return Plan(
        name="custom",
        recipes=tuple(
            one
            for one in (plan.recipes if recipes is None else FULL.recipes)
            if recipes is None or one.name in recipes
        ),
        every=plan.every,
        n=plan.n if n is None else n,
        slow=plan.slow if n is None else n,
        boots=plan.boots if n is None else n,
        warmups=plan.warmups,
        experiments=picked,
    )
