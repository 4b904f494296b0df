# SPDX-License-Identifier: Apache-2.0
"""A burst, and ComputeSDK's three patterns: one after the other, one every 200 ms, all at once.

Every start makes its own machine (ws, no pool, hot page cache) and runs the template's command;
it succeeds when that ends well and the result is there.
"""

from __future__ import annotations

from lab.arms import Context
from lab.experiments.flight import Flown, fly


def _told(flown: Flown) -> dict[str, object]:
    return {
        "n": flown.n,
        "ok": flown.ok,
        "failed": flown.failed,
        "success_rate": flown.ok / flown.n,
        "wall_ms": flown.wall_ms,
        "c5": flown.c5,
        "errors": flown.errors,
    }


def run(ctx: Context, numbers: dict[str, object]) -> dict[str, object]:
    """{"n", "ok", "failed", "clones_ms": [c5...], "wall_ms"}."""
    n = int(str(numbers["n"]))
    template = ctx.templates[0]
    fly(ctx, [template], 2, 1)
    told = _told(fly(ctx, [template], n, n))
    return {**told, "clones_ms": told["c5"]}


def run_patterns(ctx: Context, numbers: dict[str, object]) -> dict[str, object]:
    """{"sequential": {"n", "ok", "c5": [...]}, "staggered": ..., "burst": ...}."""
    n = int(str(numbers["n"]))
    stagger_s = float(str(numbers["stagger_s"]))
    template = ctx.templates[0]
    fly(ctx, [template], 2, 1)
    return {
        "sequential": _told(fly(ctx, [template], n, 1)),
        "staggered": _told(fly(ctx, [template], n, n, stagger_s)),
        "burst": _told(fly(ctx, [template], n, n)),
        "stagger_ms": stagger_s * 1e3,
    }
