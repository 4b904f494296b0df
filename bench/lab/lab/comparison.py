# SPDX-License-Identifier: Apache-2.0
"""What changed between two runs of the lab beyond noise; bench/lab/compare is its command.

An arm's clock has changed when three agree: the bootstrap interval of the difference of medians
excludes 0, Mann-Whitney's p, by Holm's adjustment over all clocks of all arms, is below 5 %, and
the medians differ by more than the threshold. Two runs also differ by what the machine did
meanwhile, which no sample of one run shows: so peers, which are no code of ours, tell how much
slower the machine was, and a change must hold as measured and relative to them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lab import stats
from lab.model import ArmRow, Report
from lab.reading import Node, count, environment_text, experiment, figure

THRESHOLD = 0.05
MIN_PEERS = 2
CLOCKS = (
    "c5",
    "wall",
    "c4",
    "c3",
    "c2",
    "c1",
    "teardown",
)  # the first that is there stands for all
# Another one of these, or one that is not known, and times can't be compared at all.
MUST_AGREE = (
    ("kvm", "the kind of KVM"),
    ("cpu", "the processor"),
    ("cpus", "the number of processors"),
)
SHOULD_AGREE = ("qemu", "kernel", "memory_mib", "page_cache_fs", "dirty")
SAME_ARM = ("kind", "peer", "variant", "template", "strategy", "cache", "pool", "vcpus")
SAME_ARM += ("memory_mib", "options", "command")

WORSE, BETTER, SAME, FEW = "worse", "better", "same", "too few"


@dataclass
class Row:
    """One clock of one arm, or one series of an experiment, in both runs."""

    name: str
    clock: str
    unit: str
    kind: str  # thaw, floor, peer, experiment
    change: stats.Change
    lower_is_better: bool = True
    relative: stats.Change | None = None  # to what the machine itself did, if that is known
    p: float | None = None  # adjusted for all rows
    verdict: str = SAME
    relative_p: float | None = None  # adjusted likewise
    by_machine: bool = False  # it changed, but no more than the peers did
    masked: bool = False  # it did not change, but relative to the peers it did


@dataclass
class Comparison:
    invalid: list[str] = field(default_factory=list)  # why times can't be compared
    notes: list[str] = field(default_factory=list)
    drift: float | None = None  # how many times as long the peers took
    peers: int = 0
    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # worse, whatever the times say
    only: dict[str, list[str]] = field(default_factory=lambda: {"A": [], "B": []})
    values: list[str] = field(default_factory=list)  # one figure a run: no noise is known of them
    targets: list[str] = field(default_factory=list)
    targets_worse: list[str] = field(default_factory=list)

    @property
    def worse(self) -> bool:
        ours = any(row.verdict == WORSE and row.kind != "peer" for row in self.rows)
        return ours or bool(self.failures) or bool(self.targets_worse)


# --- what is compared ----------------------------------------------------------------------------


def check_environment(a: Report, b: Report, found: Comparison) -> None:
    for key, what in MUST_AGREE:
        one, other = environment_text(a, key), environment_text(b, key)
        if one is None or other is None:
            missing = " and ".join(n for n, value in (("A", one), ("B", other)) if value is None)
            found.invalid.append(f"{what} is not in environment.{key} of {missing}")
        elif one != other:
            found.invalid.append(f"{what} differs: {one} in A, {other} in B")
    for key in SHOULD_AGREE:
        one, other = environment_text(a, key), environment_text(b, key)
        if one != other:
            found.notes.append(
                f"{key} differs: {one or 'not told'} in A, {other or 'not told'} in B"
            )
    guests = [environment_text(run, "digests", "guest") for run in (a, b)]
    if guests[0] != guests[1]:
        found.notes.append("the guest image differs")
    if a.plan != b.plan:
        found.notes.append(f"plan differs: {a.plan} in A, {b.plan} in B")


def paired_arms(a: Report, b: Report, found: Comparison) -> list[tuple[ArmRow, ArmRow]]:
    """Arms with samples in both; says which of the others are where."""
    pairs = []
    theirs = {arm.id: arm for arm in b.arms}
    for arm in a.arms:
        other = theirs.pop(arm.id, None)
        if other is None:
            if arm.samples:
                found.only["A"].append(arm.id)
            continue
        differs = [name for name in SAME_ARM if getattr(arm, name) != getattr(other, name)]
        if differs:
            found.notes.append(f"{arm.id} is not the same arm in both: {', '.join(differs)}")
            continue
        if other.failed > arm.failed:
            error = f": {other.errors[0]}" if other.errors else ""
            failed = f"{other.failed} of {other.n} failed, {arm.failed} of {arm.n} before"
            found.failures.append(f"{arm.id}: {failed}{error}")
        if arm.samples and other.samples:
            pairs.append((arm, other))
        elif arm.samples:
            found.only["A"].append(f"{arm.id}: {other.not_run or 'every sample failed in B'}")
        elif other.samples:
            found.only["B"].append(f"{arm.id}: {arm.not_run or 'every sample failed in A'}")
    found.only["B"] += [arm.id for arm in theirs.values() if arm.samples]
    return pairs


Series = tuple[str, str, str, bool, list[float]]


def series_of(report: Report) -> Iterable[Series]:
    """Experiments' samples: name, clock, unit, whether lower is better, values."""
    burst = experiment(report, "burst")
    if burst is not None:
        yield "burst", "c5", "ms", True, burst.numbers_at("clones_ms")
    patterns = experiment(report, "patterns")
    for name in ("sequential", "staggered", "burst"):
        one = patterns.get(name) if patterns is not None else None
        if one is not None:
            yield f"patterns/{name}", "c5", "ms", True, one.numbers_at("c5")
    sweep = experiment(report, "sweep")
    for name in ("same", "different"):
        for one in sweep.rows_at(name) if sweep is not None else []:
            at_once = one.number_at("at_once")
            if at_once is not None:
                yield f"sweep/{name}/{count(at_once)}", "c5", "ms", True, one.numbers_at("c5")
    disk = experiment(report, "io")
    if disk is not None:
        yield "io/read", "bytes_read", "B", True, disk.numbers_at("bytes_read")
        yield "io/fetch", "ws_fetch", "B/s", False, disk.numbers_at("ws_fetch_bytes_per_s")
    replay = experiment(report, "replay")
    for one in replay.rows_at("rows") if replay is not None else []:
        command = one.get("command")
        name = str(command.value) if command is not None else ""
        yield f"replay/{name}/{one.text_at('set_from')}", "c4", "ms", True, one.numbers_at("c4")
    setup = experiment(report, "setup")
    if setup is not None:
        yield f"setup/{setup.text_at('kvm')}", "c1", "µs", True, setup.numbers_at("c1_us")


def success_counts(report: Report) -> Iterable[tuple[str, float, float]]:
    """Experiments' asked for and succeeded."""

    def pair(name: str, node: Node | None, asked: str) -> Iterable[tuple[str, float, float]]:
        if node is not None:
            n, ok = node.number_at(asked), node.number_at("ok")
            if n is not None and ok is not None and n > 0:
                yield name, n, ok

    yield from pair("burst", experiment(report, "burst"), "n")
    patterns = experiment(report, "patterns")
    for name in ("sequential", "staggered", "burst"):
        yield from pair(f"patterns/{name}", patterns.get(name) if patterns else None, "n")
    sweep = experiment(report, "sweep")
    for name in ("same", "different"):
        for one in sweep.rows_at(name) if sweep is not None else []:
            at_once = one.number_at("at_once")
            yield from pair(f"sweep/{name}/{count(at_once or 0)}", one, "clones")


MEMORY = ("slope_pss_kib", "intercept_pss_kib", "slope_private_kib", "slope_memavailable_kib")
MEMORY += ("hot_write_kib", "vmm_private_kib")


def single_values(report: Report) -> dict[str, tuple[float, str]]:
    """Experiments' figures of which a run has one each, with their units."""
    found: dict[str, tuple[float, str]] = {}
    memory = experiment(report, "memory")
    for key in MEMORY if memory is not None else ():
        value = memory.number_at(key) if memory is not None else None
        if value is not None:
            found[f"memory {key.removesuffix('_kib')}"] = (value, "KiB")
    sweep = experiment(report, "sweep")
    for name in ("same", "different"):
        for one in sweep.rows_at(name) if sweep is not None else []:
            at_once, rate = one.number_at("at_once"), one.number_at("per_s")
            if at_once is not None and rate is not None:
                found[f"sweep/{name}/{count(at_once)} rate"] = (rate, "clones/s")
    return found


def compare_values(a: Report, b: Report, found: Comparison) -> None:
    after = single_values(b)
    for name, (value, unit) in single_values(a).items():
        if name in after:
            other = after[name][0]
            share = f"  {100 * (other / value - 1):+.1f} %" if value > 0 else ""
            found.values.append(f"{name} {figure(value)} -> {figure(other)} {unit}{share}")


def read_experiments(report: Report) -> None:
    """ModelError if what is compared of an experiment is not as it must be."""
    list(series_of(report))
    list(success_counts(report))
    single_values(report)


def without_drift(
    before: list[float], after: list[float], found: Comparison, seed: int
) -> stats.Change | None:
    """The change relative to the machine's own; None if that is not known."""
    if found.drift is None:
        return None
    return stats.change(before, [value / found.drift for value in after], seed)


def compare_experiments(a: Report, b: Report, found: Comparison) -> None:
    late = {series[:4]: series[4] for series in series_of(b)}
    for name, clock, unit, lower, values in series_of(a):
        others = late.get((name, clock, unit, lower))
        if values and others:
            change = stats.change(values, others, a.seed)
            row = Row(f"experiment {name}", clock, unit, "experiment", change, lower)
            if unit == "ms":
                row.relative = without_drift(values, others, found, a.seed)
            found.rows.append(row)
    after = {name: (n, ok) for name, n, ok in success_counts(b)}
    for name, n, ok in success_counts(a):
        if name in after and after[name][1] / after[name][0] < ok / n:
            n_after, ok_after = after[name]
            found.failures.append(
                f"experiment {name}: {count(ok_after)} of {count(n_after)} succeeded, "
                f"{count(ok)} of {count(n)} before"
            )


def compare_targets(a: Report, b: Report, threshold: float, found: Comparison) -> None:
    before = {target.id: target for target in a.targets}
    words = {True: "met", False: "missed", None: "without data"}
    for target in b.targets:
        old = before.get(target.id)
        if old is None or old.ok == target.ok:
            continue
        old_value = "none" if old.value is None else figure(old.value)
        value = "none" if target.value is None else figure(target.value)
        text = (
            f"{target.id}: {words[old.ok]} before, {words[target.ok]} now: "
            f"{old_value} -> {value}, limit {target.limit:g} {target.unit}"
        )
        found.targets.append(text)
        if old.ok and target.ok is False and old.value is not None and target.value is not None:
            moved = abs(target.value - old.value)
            if target.unit == "count" or moved > threshold * abs(old.value):
                found.targets_worse.append(text)


# --- the verdict ---------------------------------------------------------------------------------


def find_drift(pairs: list[tuple[ArmRow, ArmRow]], found: Comparison) -> None:
    ratios = []
    for arm, other in pairs:
        for clock in ("wall", "c5"):
            before, after = arm.values(clock), other.values(clock)
            if arm.kind == "peer" and before and after and min(before) > 0 and min(after) > 0:
                ratios.append(stats.median(after) / stats.median(before))
                break
    found.peers = len(ratios)
    if len(ratios) >= MIN_PEERS:
        found.drift = stats.median(ratios)


def direction(change: stats.Change, p: float | None, threshold: float) -> int:
    """-1, 0, 1: became less, not beyond noise, became more."""
    if not stats.beyond_noise(change, p, threshold):
        return 0
    return 1 if change.after > change.before else -1


def judge(row: Row, threshold: float) -> None:
    if row.p is None:
        row.verdict = FEW
        return
    moved = direction(row.change, row.p, threshold)
    if row.relative is not None:
        relative = direction(row.relative, row.relative_p, threshold)
        row.by_machine = moved != 0 and relative != moved
        row.masked = moved == 0 and relative != 0
    if moved and not row.by_machine:
        row.verdict = WORSE if (moved > 0) == row.lower_is_better else BETTER


def adjust(rows: list[Row]) -> None:
    """Holm's adjustment: with hundreds of tests some find a change where there is none."""
    tested = [row for row in rows if row.change.p is not None]
    for row, p in zip(tested, stats.holm([row.change.p or 0.0 for row in tested]), strict=True):
        row.p = p
    relative = [row.relative for row in rows if row.relative and row.relative.p is not None]
    ps = iter(stats.holm([change.p or 0.0 for change in relative]))
    for row in rows:
        if row.relative is not None and row.relative.p is not None:
            row.relative_p = next(ps)


def compare(a: Report, b: Report, threshold: float = THRESHOLD) -> Comparison:
    """All that is to be said of @b against @a; .invalid says if times may be compared at all."""
    found = Comparison()
    check_environment(a, b, found)
    pairs = paired_arms(a, b, found)
    find_drift(pairs, found)
    for arm, other in pairs:
        for clock in CLOCKS:
            before, after = arm.values(clock), other.values(clock)
            if not before or not after:
                continue
            change = stats.change(before, after, a.seed)
            row = Row(arm.id, clock, "ms", arm.kind, change)
            if arm.kind != "peer":
                row.relative = without_drift(before, after, found, a.seed)
            found.rows.append(row)
    compare_experiments(a, b, found)
    adjust(found.rows)
    for row in found.rows:
        judge(row, threshold)
    compare_values(a, b, found)
    compare_targets(a, b, threshold, found)
    return found


# --- words ---------------------------------------------------------------------------------------


def change_text(row: Row) -> str:
    """ "64.0 -> 70.5 ms  +10.1 % [+7.9, +12.0]"."""
    change = row.change
    text = f"{row.clock} {figure(change.before)} -> {figure(change.after)} {row.unit}"
    if change.ratio is not None:
        text += f"  {100 * (change.ratio.value - 1):+.1f} %"
        if change.ratio.interval is not None:
            low, high = change.ratio.interval.low, change.ratio.interval.high
            text += f" [{100 * (low - 1):+.1f}, {100 * (high - 1):+.1f}]"
    if row.p is None:
        text += f"  n {change.n_before} and {change.n_after}: too few to tell"
    elif row.by_machine:
        text += "  no more than the machine itself"
    elif row.masked and row.relative is not None:
        share = 100 * (row.relative.after / row.relative.before - 1)
        text += f"  {share:+.1f} % relative to the machine"
    return text


def by_name(rows: list[Row]) -> list[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.name, []).append(row)
    return list(groups.items())


def verdict_of(rows: list[Row]) -> str:
    """An arm's: the gravest of its clocks'."""
    verdicts = {row.verdict for row in rows}
    for verdict in (WORSE, BETTER, SAME, FEW):
        if verdict in verdicts:
            return verdict
    return SAME


def run_text(report: Report, path: Path) -> str:
    git = (environment_text(report, "git") or "unknown")[:12]
    kvm = environment_text(report, "kvm") or "unknown"
    return f"{path}: thaw {git}, {report.date}, plan {report.plan}, KVM {kvm}"


def drift_text(found: Comparison) -> str:
    if found.drift is None:
        return (
            f"machine: {found.peers} arms of peers ran in both, {MIN_PEERS} are needed: "
            "a slower machine can't be told from slower code"
        )
    return (
        f"machine: {found.peers} arms of peers took {found.drift:.3f} times as long in B as in A; "
        "a change counts if it holds as measured and relative to that"
    )


def arms_text(found: Comparison) -> list[str]:
    lines = []
    groups = by_name(found.rows)
    order = (WORSE, BETTER, SAME, FEW)
    for name, rows in sorted(groups, key=lambda group: order.index(verdict_of(group[1]))):
        verdict = verdict_of(rows)
        kind = " (a peer: the machine, not thaw)" if rows[0].kind == "peer" else ""
        lines.append(f"{verdict:8} {name}{kind}")
        changed = [row for row in rows if row.verdict in (WORSE, BETTER)]
        for row in changed or [row for row in rows if row.masked] or rows[:1]:
            mark = f"{row.verdict}: " if changed else ""
            lines.append(f"{'':9}  {mark}{change_text(row)}")
    return lines


def to_text(a: Report, b: Report, paths: tuple[Path, Path], found: Comparison) -> str:
    lines = [f"A  {run_text(a, paths[0])}", f"B  {run_text(b, paths[1])}"]
    lines += [f"invalid: {text}" for text in found.invalid]
    lines += [f"note: {text}" for text in found.notes]
    lines += [drift_text(found), "", *arms_text(found), ""]
    if found.values:
        lines += ["one figure a run, of which no noise is known:"]
        lines += [*[f"{'':9}  {text}" for text in found.values], ""]
    for run in ("A", "B"):
        lines += [f"only in {run}: {text}" for text in found.only[run]]
    lines += [f"failures: {text}" for text in found.failures]
    lines += [f"target {text}" for text in found.targets]
    verdicts = [verdict_of(rows) for _, rows in by_name(found.rows)]
    tally = ", ".join(f"{verdicts.count(one)} {one}" for one in (WORSE, BETTER, SAME, FEW))
    lines.append(f"{tally}; {len(found.failures)} with more failures")
    return "\n".join(lines) + "\n"


def to_json(found: Comparison, threshold: float) -> dict[str, object]:
    return {"threshold": threshold, "worse": found.worse, **dataclasses.asdict(found)}
