# SPDX-License-Identifier: Apache-2.0
"""Clones a second by how many start at a time: of one template, and of several.

"Different" templates are copies with the same content and files of their own, so that nothing but
the root image is shared between them in the page cache.
"""

from __future__ import annotations

import random

from lab.arms import Context, Template
from lab.experiments.flight import Flown, fly
from lab.templates import Copies


def _told(at_once: int, flights: list[Flown]) -> dict[str, object]:
    ok = sum(one.ok for one in flights)
    wall_ms = sum(one.wall_ms for one in flights)
    return {
        "at_once": at_once,
        "clones": sum(one.n for one in flights),
        "ok": ok,
        "wall_ms": wall_ms,
        "per_s": ok / wall_ms * 1e3 if wall_ms else 0.0,
        "rounds_per_s": [one.per_s for one in flights],
        "c5": [value for one in flights for value in one.c5],
        "errors": [text for one in flights for text in one.errors],
    }


def run(ctx: Context, numbers: dict[str, object]) -> dict[str, object]:
    """{"same": [{"at_once", "clones", "ok", "wall_ms", "per_s", "c5"}...], "different": [...]}."""
    at_once = numbers["at_once"]
    assert isinstance(at_once, tuple)
    clones = int(str(numbers["clones"]))
    copies = Copies(ctx, ctx.templates[0])
    try:
        several = [copies.make(f"lab-copy-{i}") for i in range(int(str(numbers["templates"])))]
        kinds: dict[str, list[Template]] = {"same": [ctx.templates[0]], "different": several}
        points = [(kind, n) for kind in kinds if kinds[kind] for n in at_once]
        flights: dict[tuple[str, int], list[Flown]] = {point: [] for point in points}
        for kind in kinds.values():
            if kind:
                fly(ctx, kind, 2 * len(kind), 1)
        rng = random.Random(ctx.seed)
        for _ in range(int(str(numbers["rounds"]))):
            rng.shuffle(points)
            for kind, n in points:
                flights[kind, n].append(fly(ctx, kinds[kind], clones, n))
    finally:
        copies.remove()
    return {
        kind: [_told(n, flights[kind, n]) for n in at_once if (kind, n) in flights]
        for kind in kinds
    }
