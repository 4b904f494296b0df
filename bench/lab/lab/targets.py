# SPDX-License-Identifier: Apache-2.0
"""The targets, computed from a report's arms and experiments. What is missing has no value and no
verdict; the note says what it was.

All are of the first template and size: a Debian guest with 256 MiB and one processor, /bin/true.
"""

from __future__ import annotations

from collections.abc import Callable

from lab.model import ArmRow, Report, Target
from lab.stats import StatsError, median

SIZE = "1c-256m"
POOLED = f"thaw/debian/ws/hot/hit/{SIZE}"
PLAIN = f"{POOLED}/plain"
UNPOOLED = f"thaw/debian/ws/hot/none/{SIZE}"
COLD = f"thaw/debian/ws/cold/none/{SIZE}"
WARM = f"floor/debian/warm-exec/{SIZE}"
COLD_BOOT = f"thaw/debian/cold-boot/{SIZE}"
BWRAP = "peer/bubblewrap/run"
QEMU = "peer/qemu-microvm/restore"


class Missing(Exception):
    """What a target needs and the report does not have."""


Value = tuple[float, int, str]  # value, samples that it stands on, note


def _values(report: Report, arm_id: str, *keys: str) -> list[float]:
    """Samples of the first of @keys that the arm has."""
    arm = report.arm(arm_id)
    if arm is None and arm_id.startswith("peer/"):
        arm = next((one for one in report.arms if one.id.startswith(f"{arm_id}/")), None)
    if arm is None:
        raise Missing(f"no arm {arm_id}")
    for key in keys:
        if values := arm.values(key):
            return values
    raise Missing(f"{arm_id}: {arm.not_run or 'no samples'}")


def _ratio(report: Report, above: tuple[str, ...], below: tuple[str, ...]) -> Value:
    top, bottom = _values(report, *above), _values(report, *below)
    if median(bottom) <= 0:
        raise Missing(f"{below[0]}: a median of 0")
    note = f"medians {median(top):.4g} and {median(bottom):.4g} ms"
    return median(top) / median(bottom), min(len(top), len(bottom)), note


def _experiment(report: Report, name: str) -> dict[str, object]:
    found = report.experiments.get(name)
    if found is None:
        raise Missing(f"experiment {name} did not run")
    if "not_run" in found:
        raise Missing(f"experiment {name}: {found['not_run']}")
    return found


def _number(data: dict[str, object], key: str) -> float:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Missing(f"no {key}")
    return float(value)


def _list(data: dict[str, object], key: str) -> list[float]:
    value = data.get(key)
    if not isinstance(value, list) or not value:
        raise Missing(f"no {key}")
    return [float(one) for one in value]


def hot_pooled(report: Report) -> Value:
    return _ratio(report, (POOLED, "c4"), (WARM, "c4"))


def hot_unpooled(report: Report) -> Value:
    return _ratio(report, (UNPOOLED, "c4"), (WARM, "c4"))


def v_bwrap(report: Report) -> Value:
    return _ratio(report, (PLAIN, "wall"), (BWRAP, "wall"))


def v_qemu(report: Report) -> Value:
    value, n, note = _ratio(report, (PLAIN, "wall"), (QEMU, "c5", "wall"))
    try:
        # What QEMU can do when its memory is a file that it maps; no part of the target.
        shared = _ratio(report, (PLAIN, "wall"), (f"{QEMU}-shared", "c5", "wall"))
        note += f"; to its restore with mapped memory {shared[0]:.3g}"
    except Missing:
        pass
    return value, n, note


def v_coldboot(report: Report) -> Value:
    return _ratio(report, (PLAIN, "wall"), (COLD_BOOT, "c5"))


def cold_bytes(report: Report) -> Value:
    io = _experiment(report, "io")
    hot = _number(io, "hot_set_bytes")
    try:
        read = _values(report, COLD, "bytes_read")
    except Missing:
        read = _list(io, "bytes_read")
    if hot <= 0:
        raise Missing("the hot set holds no data")
    return median(read) / hot, len(read), f"{median(read):.0f} bytes read, the set has {hot:.0f}"


def cold_bandwidth(report: Report) -> Value:
    io = _experiment(report, "io")
    ours, theirs = _list(io, "ws_fetch_bytes_per_s"), _list(io, "fio_bytes_per_s")
    note = f"medians {median(ours) / 1e6:.1f} and {median(theirs) / 1e6:.1f} MB/s"
    return median(ours) / median(theirs), min(len(ours), len(theirs)), note


def burst100(report: Report) -> Value:
    burst = _experiment(report, "burst")
    n = int(_number(burst, "n"))
    if n < 100:
        raise Missing(f"the burst was of {n}")
    return _number(burst, "ok"), n, f"of {n}"


def rate64(report: Report) -> Value:
    rows = _experiment(report, "sweep").get("same")
    by_count = {row["at_once"]: row for row in rows} if isinstance(rows, list) else {}
    for count in (8, 64):
        if count not in by_count:
            raise Missing(f"the sweep has no point at {count}")
    at8, at64 = _number(by_count[8], "per_s"), _number(by_count[64], "per_s")
    if at8 <= 0:
        raise Missing("none started at 8 at a time")
    clones = int(min(_number(by_count[count], "clones") for count in (8, 64)))
    if clones < 64:
        raise Missing(f"the sweep has {clones} clones a point")
    return at64 / at8, clones, f"{at64:.2f} and {at8:.2f} clones/s"


def clone_private(report: Report) -> Value:
    memory = _experiment(report, "memory")
    slope, hot = _number(memory, "slope_private_kib"), _number(memory, "hot_write_kib")
    points = memory.get("points")
    n = max(int(one["clones"]) for one in points) if isinstance(points, list) and points else 0
    return slope - hot, n, f"private {slope:.0f} KiB a clone, hot writes {hot:.0f} KiB"


def vmm_private(report: Report) -> Value:
    memory = _experiment(report, "memory")
    points = memory.get("points")
    n = max(int(one["clones"]) for one in points) if isinstance(points, list) and points else 0
    return _number(memory, "vmm_private_kib"), n, "of an idle clone, guest memory left out"


def c1_native(report: Report) -> Value:
    setup = _experiment(report, "setup")
    values = _list(setup, "c1_us")
    return median(values) / 1e3, len(values), f"KVM: {setup.get('kvm', 'unknown')}"


def _strategies(report: Report, cache: str) -> dict[str, ArmRow]:
    """Restores without a pool and without options, by strategy."""
    rows = report.find(
        **{"kind": "thaw", "variant": "restore", "template": "debian", "cache": cache},
        **{"pool": "none", "options": [], "vcpus": 1, "memory_mib": 256},
    )
    return {str(row.strategy): row for row in rows if row.values("c4")}


def _best(report: Report, cache: str, ours: tuple[str, ...]) -> Value:
    rows = _strategies(report, cache)
    mine = {name: row for name, row in rows.items() if name in ours}
    rest = {name: row for name, row in rows.items() if name not in ours}
    if not mine or not rest:
        raise Missing(f"no {' or '.join(ours) if not mine else 'other strategy'}, {cache}")

    def c4(name: str) -> float:
        return median(rows[name].values("c4"))

    first, second = min(mine, key=c4), min(rest, key=c4)
    n = min(len(row.values("c4")) for row in rows.values())
    note = f"{first} {c4(first):.4g} ms, {second} {c4(second):.4g} ms, of {len(rows)} strategies"
    return c4(first) / c4(second), n, note


def ws_best_hot(report: Report) -> Value:
    return _best(report, "hot", ("ws",))


def cold_best(report: Report) -> Value:
    return _best(report, "cold", ("ws", "uring"))


# id, what, limit, unit, which way is better, how it is computed
TABLE: list[tuple[str, str, float, str, str, Callable[[Report], Value]]] = [
    (
        *("hot-pooled", "first command, populated pool / the same in a warm sandbox (c4)"),
        *(1.5, "ratio", "lower", hot_pooled),
    ),
    (
        *("hot-unpooled", "first command, ws without a pool / the same in a warm sandbox (c4)"),
        *(2.5, "ratio", "lower", hot_unpooled),
    ),
    (
        *("v-bwrap", "thaw run /bin/true, pooled / bwrap --unshare-all /bin/true (wall)"),
        *(1.0, "ratio", "lower", v_bwrap),
    ),
    (
        *("v-qemu", "thaw run /bin/true, pooled (wall) / QEMU microvm's restore (c5)"),
        *(0.03, "ratio", "lower", v_qemu),
    ),
    (
        *("v-coldboot", "thaw run /bin/true, pooled (wall) / own cold boot (c5)"),
        *(0.005, "ratio", "lower", v_coldboot),
    ),
    (
        *("cold-bytes", "bytes read by a cold start / hot set's bytes on disk"),
        *(1.1, "ratio", "lower", cold_bytes),
    ),
    (
        *("cold-bandwidth", "bandwidth of the hot set's fetch / fio's, same requests and depth"),
        *(0.8, "ratio", "higher", cold_bandwidth),
    ),
    ("burst100", "successes of 100 starts at once", 100, "count", "higher", burst100),
    (
        *("rate64", "clones a second, 64 at a time / 8 at a time"),
        *(1.0, "ratio", "higher", rate64),
    ),
    (
        *("clone-private", "private memory of one more idle clone, less its hot writes"),
        *(1024, "KiB", "lower", clone_private),
    ),
    ("vmm-private", "private memory of thaw-vmm alone", 1024, "KiB", "lower", vmm_private),
    ("c1-native", "c1, set-up natively on /dev/kvm", 0.5, "ms", "lower", c1_native),
    ("ws-best-hot", "ws / the best other strategy, hot (c4)", 1.0, "ratio", "lower", ws_best_hot),
    (
        *("cold-best", "the better of ws and uring / the best other strategy, cold (c4)"),
        *(1.0, "ratio", "lower", cold_best),
    ),
]


def targets(report: Report) -> list[Target]:
    """All of them, in the order of the table."""
    found = []
    for name, what, limit, unit, better, compute in TABLE:
        target = Target(name, what, None, limit, unit, better, None, 0)
        try:
            target.value, target.n, target.note = compute(report)
            met = target.value <= limit if better == "lower" else target.value >= limit
            target.ok = met
        except (Missing, StatsError) as reason:
            target.value, target.note = None, f"not told: {reason}"
        found.append(target)
    return found
