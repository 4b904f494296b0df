# SPDX-License-Identifier: Apache-2.0
"""Made-up reports of the lab: every kind of arm and experiment, figures from a seed.

Nothing here was measured; the figures only have the shape of real ones.
"""

from __future__ import annotations

import random

Json = dict[str, object]

# Medians of c1..c5, ms, by strategy and page cache.
MEDIANS = {
    ("ws", "hot"): (5.5, 37.0, 40.0, 64.0, 73.0),
    ("mmap", "hot"): (6.7, 12.0, 47.0, 199.0, 210.0),
    ("uring", "hot"): (8.0, 1190.0, 1225.0, 1440.0, 1452.0),
    ("copy", "hot"): (8.2, 1256.0, 1291.0, 1510.0, 1522.0),
    ("memfd", "hot"): (7.9, 1411.0, 1450.0, 1602.0, 1615.0),
    ("uffd", "hot"): (7.0, 14.0, 80.0, 420.0, 432.0),
    ("pack", "hot"): (8.0, 980.0, 1015.0, 1230.0, 1242.0),
    ("ws", "cold"): (8.5, 112.0, 116.0, 142.0, 154.0),
    ("mmap", "cold"): (8.7, 18.5, 95.0, 320.0, 331.0),
    ("uring", "cold"): (8.3, 1320.0, 1351.0, 1560.0, 1572.0),
    ("copy", "cold"): (8.3, 1698.0, 1735.0, 1946.0, 1958.0),
    ("memfd", "cold"): (8.0, 1801.0, 1840.0, 2001.0, 2013.0),
    ("uffd", "cold"): (7.2, 15.0, 131.0, 560.0, 573.0),
    ("pack", "cold"): (8.1, 1010.0, 1046.0, 1262.0, 1274.0),
}
RATES = (11.0, 19.0, 21.5, 22.0, 22.1, 22.6, 22.4)  # clones/s at 1, 2, 4 ... at once
HIT = (6.1, 2.0, 5.2, 30.0, 38.0)
CLOCKS = ("c1", "c2", "c3", "c4", "c5")


def sample(draw: random.Random, medians: dict[str, float], noise: float, seq: int) -> Json:
    """One start: all of its clocks are slow together, as on a machine."""
    by = draw.lognormvariate(0.0, noise)
    return {"seq": seq, **{key: round(value * by, 4) for key, value in medians.items()}}


def arm(arm_id: str, **fields: object) -> Json:
    row: Json = {
        "id": arm_id, "kind": "thaw", "variant": "restore", "peer": None, "template": None,
        "strategy": None, "strategy_done": None, "cache": None, "pool": None,
        "vcpus": None, "memory_mib": None, "options": [], "command": ["/bin/true"],
        "n": 0, "warmups": 2, "failed": 0, "not_run": None, "errors": [], "samples": [],
    }  # fmt: skip
    return {**row, **fields}


def fill(row: Json, medians: dict[str, float], n: int, noise: float, seed: int) -> Json:
    draw = random.Random(f"{row['id']} {seed}")
    seqs = draw.sample(range(100 * n), n)
    samples = [sample(draw, medians, noise, seq) for seq in seqs]
    return {**row, "n": n + int(str(row["failed"])), "samples": samples}


def restores(n: int, noise: float, seed: int) -> list[Json]:
    rows = []
    for template, vcpus, memory, slower in (("debian", 1, 256, 1.0), ("python3", 2, 512, 1.7)):
        size = f"{vcpus}c-{memory}m"
        guest: Json = {"template": template, "vcpus": vcpus, "memory_mib": memory}
        for (strategy, cache), times in MEDIANS.items():
            pools = ["none", "miss", "hit"] if (strategy, cache) == ("ws", "hot") else ["none"]
            for pool in pools:
                clocks = dict(zip(CLOCKS, HIT if pool == "hit" else times, strict=True))
                medians = {key: value * slower for key, value in clocks.items()}
                medians |= {"wall": 1.1 * medians["c5"], "teardown": 9.0, "cpu_ms": 20.0}
                medians |= {"minor": 210.0, "major": 0.0 if cache == "hot" else 87.0}
                medians["bytes_read"] = 0.0 if cache == "hot" else 6.5e6
                row = arm(
                    f"thaw/{template}/{strategy}/{cache}/{pool}/{size}",
                    **{**guest, "strategy": strategy, "cache": cache, "pool": pool},
                )
                rows.append(fill(row, medians, n, noise, seed))
        row = arm(
            f"thaw/{template}/cold-boot/{size}", **{**guest, "variant": "cold-boot", "cache": "hot"}
        )
        rows.append(fill(row, {"c4": 4783.0 * slower}, n, noise, seed))
        row = arm(
            f"floor/{template}/warm-exec/{size}",
            **{**guest, "kind": "floor", "variant": "warm-exec", "cache": "hot"},
        )
        rows.append(fill(row, {"c4": 27.8 * slower, "wall": 30.0 * slower}, n, noise, seed))
    return rows


def peers(n: int, noise: float, seed: int) -> list[Json]:
    rows = []
    for name, variant, wall in (
        ("bubblewrap", "run", 48.0),
        ("runsc", "run", 750.0),
        ("qemu-microvm", "cold-boot", 8100.0),
        ("qemu-microvm", "restore", 1650.0),
    ):
        row = arm(f"peer/{name}/{variant}", kind="peer", peer=name, variant=variant, cache="hot")
        rows.append(fill(row, {"c5": wall - 2.0, "wall": wall}, n, noise, seed))
    for name in ("firecracker", "cloud-hypervisor"):
        variable = name.upper().replace("-", "_")
        row = arm(f"peer/{name}/restore", kind="peer", peer=name, cache="hot", n=n)
        rows.append({**row, "not_run": f"{variable}= names no binary | of it"})
    return rows


def experiments(draw: random.Random) -> Json:
    def times(median: float, n: int) -> list[float]:
        return [round(median * draw.lognormvariate(0, 0.15), 3) for _ in range(n)]

    def sweep(factor: float) -> list[Json]:
        return [
            {
                "at_once": k, "clones": 64, "ok": 64, "wall_ms": 64e3 / rate / factor,
                "per_s": rate * factor, "c5": times(70.0 * max(1, k / 2), 64),
            }
            for k, rate in zip((1, 2, 4, 8, 16, 32, 64), RATES, strict=True)
        ]  # fmt: skip

    points = [
        {
            "clones": k,
            "pss_kib": 9000 + 2350 * k + draw.uniform(-400, 400),
            "private_kib": 2100 * k + draw.uniform(-300, 300),
            "memavailable_kib": 2_400_000 - 2900 * k + draw.uniform(-900, 900),
        }
        for k in (0, 1, 2, 4, 8, 12, 16, 24, 32)
    ]
    return {
        "burst": {
            "n": 100, "ok": 100, "failed": 0, "wall_ms": 4700.0,
            "clones_ms": [40.0 + 45.0 * k * draw.uniform(0.93, 1.07) for k in range(1, 101)],
        },
        "patterns": {
            name: {"n": 100, "ok": 100, "c5": times(median, 100)}
            for name, median in (("sequential", 73.0), ("staggered", 80.0), ("burst", 2300.0))
        },
        "sweep": {"same": sweep(1.0), "different": sweep(0.85)},
        "memory": {
            "points": points, "slope_pss_kib": 2350.0, "intercept_pss_kib": 9000.0,
            "slope_private_kib": 2100.0, "slope_memavailable_kib": 2900.0,
            "memavailable_without_kib": 2_400_500, "teardown_ms": times(11.0, 32),
            "errors": ["one clone did not come up"],
            "hot_write_kib": 1400.0, "vmm_private_kib": 980.0,
        },
        "io": {
            "hot_set_bytes": 6_200_000, "bytes_read": [6.5e6 + 4096 * k for k in range(30)],
            "ws_fetch_bytes_per_s": times(2.1e8, 30), "fio_bytes_per_s": times(2.4e8, 5),
            "depth": 128,
        },
        "replay": {
            "recorded_on": "A",
            "rows": [
                {"command": "/bin/true", "set_from": "A", "c4": times(64.0, 30)},
                {"command": "python3 -c 0", "set_from": "B", "c4": times(190.0, 30)},
            ],
        },
        "setup": {"kvm": "pvm", "c1_us": times(430.0, 30)},
    }  # fmt: skip


def targets() -> list[Json]:
    def row(
        name: str, what: str, value: float | None, limit: float, unit: str, **more: object
    ) -> Json:
        better = str(more.get("better", "lower"))
        ok = None if value is None else value <= limit if better == "lower" else value >= limit
        n = 30 if value is not None else 0
        note = str(more.get("note", ""))
        return {
            "id": name, "what": what, "value": value, "limit": limit, "unit": unit,
            "better": better, "ok": ok, "n": n, "note": note,
        }  # fmt: skip

    return [
        row("hot-pooled", "pool hit c4 / warm exec", 1.08, 1.5, "ratio"),
        row("hot-unpooled", "ws c4 / warm exec", 2.3, 2.5, "ratio"),
        row("v-qemu", "pool hit wall / QEMU's restore", None, 0.03, "ratio", note="QEMU not there"),
        row("cold-bytes", "bytes read / hot set", 1.15, 1.1, "ratio", note="read-ahead of `state`"),
        row("burst100", "starts that succeeded", 100, 100, "count", better="higher"),
    ]


def report(seed: int = 1, n: int = 30, noise: float = 0.08, kvm: str = "emulated") -> Json:
    """A full report; the same seed gives the same one."""
    return {
        "schema": 1, "plan": "full", "seed": seed, "date": "2026-01-02T03:04:05Z",
        "environment": {
            "git": "0123456789abcdef0123456789abcdef01234567", "dirty": False, "kernel": "6.12.0",
            "cpu": "QEMU Virtual CPU", "cpus": 2, "kvm": kvm, "qemu": "10.0.2", "memory_mib": 3072,
            "page_cache_fs": "ext4",
            "digests": {"thaw": "a" * 64, "thaw-vmm": "b" * 64, "guest": "c" * 64},
            "templates": {
                "debian": {"vcpus": 1, "memory_bytes": 268435456},
                "python3": {"vcpus": 2, "memory_bytes": 536870912},
            },
        },
        "arms": restores(n, noise, seed) + peers(n, noise, seed),
        "experiments": experiments(random.Random(f"experiments {seed}")),
        "targets": targets(),
    }  # fmt: skip
