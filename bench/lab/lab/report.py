# SPDX-License-Identifier: Apache-2.0
"""The report of a lab run, as Markdown, out of report.json.

    PYTHONPATH=bench/lab python3 -m lab.report REPORT.json [--out FILE] [--plots FOLDER]

What did not run keeps its row, with empty cells and the reason; no figure comes from anywhere but
the file. `--plots` names the folder of lab.plots' files; those that are there are shown.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab import stats
from lab.model import ArmRow, ModelError, Report, Target, load
from lab.reading import (
    CLOCKS,
    Node,
    arm_name,
    arm_order,
    binary_size,
    count,
    environment_text,
    experiment,
    figure,
    from_file,
    not_run,
    size_name,
)

PLOTS = (
    ("cdf", "First command by strategy: share of starts that were done by a time"),
    ("phases", "Where a start's time goes, by arm"),
    ("memory", "Memory of idle clones"),
    ("burst", "Many starts at once"),
)

CLOCK_TEXT = (
    ("c1", "the first KVM ioctl", "vCPU state set (pool hit: paid ahead of the start)"),
    ("c2", "thaw-vmm has started (pool hit: the start has reached it)", "vCPU about to run"),
    ("c3", "as c2", "the guest is back from its checkpoint call"),
    ("c4", "as c2", "the first command's result at the host"),
    ("c5", "the client process has started", "the first command's result at the client"),
    ("wall", "the client process is forked", "the client process has ended"),
)

ENVIRONMENT = (
    ("git", "git revision"),
    ("dirty", "uncommitted changes"),
    ("kvm", "KVM"),
    ("qemu", "QEMU"),
    ("kernel", "kernel"),
    ("cpu", "processor"),
    ("cpus", "processors"),
    ("memory_mib", "memory, MiB"),
    ("page_cache_fs", "file system of binaries and templates"),
)

EMULATED = """\
The whole machine was emulated in software (QEMU), processor and virtualisation included. So this
run can't tell:

- **Absolute times on hardware.** Emulation is 20 to 50 times slower, and unevenly: what is one
  instruction on hardware, such as an exit from the guest or a TLB flush, may be thousands here.
  Only ratios within this one run mean anything, and a ratio of two things that spend their time
  differently means less.
- **What an exit or a page fault costs on hardware**, and so which strategy wins there when two are
  close here. Copying is emulated as well: eager strategies look worse than they are.
- **Disks.** The test host's disk is a file of the machine under it: a cold page cache here is cold
  in the test host only, and bandwidth is that of the emulated device.
- **Many processors.** With as few as the table says, concurrency measures how work queues, not how
  it scales.
- **Tails.** A p99 of 30 samples is the largest of them, and on a shared machine it says what else
  ran there."""

HARDWARE = """\
Other processors, kernels and disks than those of the table above; other guests than these
templates; and tails: a p99 of 30 samples is the largest of them. Times of another machine or
another run are no match for these; `bench/lab/compare` says what two runs allow to be said."""


# --- Markdown ------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """@text in one table cell, meaning nothing to Markdown or HTML."""
    flat = " ".join(text.split())
    for sign, instead in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        flat = flat.replace(sign, instead)
    for sign in ("\\", "|", "`", "*", "_", "[", "]"):
        flat = flat.replace(sign, "\\" + sign)
    return flat


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: frozenset[int]) -> list[str]:
    """A table; the columns @numeric stand to the right."""
    marks = ["---:" if column in numeric else "---" for column in range(len(head))]
    lines = [list(head), marks, *[list(row) for row in rows]]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def right(head: Sequence[str], *left: str) -> frozenset[int]:
    return frozenset(column for column, name in enumerate(head) if name not in left)


def clock_cell(arm: ArmRow, key: str, seed: int) -> str:
    """median [low, high] / p99; empty if the arm has no such clock."""
    values = arm.values(key)
    if not values:
        return ""
    found = stats.summarize(values, seed)
    interval = found.interval
    span = f" [{figure(interval.low)}, {figure(interval.high)}]" if interval else ""
    return f"{figure(found.median)}{span} / {figure(found.p99)}"


def median_cell(arm: ArmRow, key: str) -> str:
    values = arm.values(key)
    return figure(stats.median(values)) if values else ""


def note_cell(arm: ArmRow) -> str:
    notes = []
    if arm.not_run is not None:
        notes.append(f"not run: {escaped(arm.not_run)}")
    if arm.strategy_done not in (None, arm.strategy):
        notes.append(f"done as {escaped(arm.strategy_done or '')}")
    if arm.failed:
        errors = f": {escaped(arm.errors[0])}" if arm.errors else ""
        notes.append(f"**{arm.failed} of {arm.n} failed**{errors}")
    return "; ".join(notes)


def ratio_cell(arm: ArmRow, base: ArmRow | None, key: str, seed: int) -> str:
    """@arm's median over @base's, with its interval."""
    if base is None or base is arm:
        return "1" if base is arm and arm.values(key) else ""
    above, below = arm.values(key), base.values(key)
    if not above or not below or min(below) <= 0:
        return ""
    found = stats.ratio_of_medians(above, below, seed)
    span = ""
    if found.interval:
        span = f" [{figure(found.interval.low)}, {figure(found.interval.high)}]"
    return f"{figure(found.value)}{span}"


def text_cell(value: object) -> str:
    """An environment's value in a cell; long digests are cut."""
    if isinstance(value, dict):
        return ", ".join(f"{escaped(str(k))} {text_cell(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(text_cell(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    is_digest = len(text) > 20 and all(c in "0123456789abcdef" for c in text)
    return f"`{text[:12]}`" if is_digest else escaped(text)


# --- sections ------------------------------------------------------------------------------------


def head(report: Report) -> list[str]:
    ran = [arm for arm in report.arms if arm.not_run is None]
    samples = sum(len(arm.samples) for arm in report.arms)
    failed = sum(arm.failed for arm in report.arms)
    met = sum(target.ok is True for target in report.targets)
    missed = [target.id for target in report.targets if target.ok is False]
    unknown = sum(target.ok is None for target in report.targets)
    verdict = f"Targets: {met} met, {len(missed)} missed, {unknown} without data."
    if missed:
        verdict += " Missed: " + ", ".join(f"`{escaped(one)}`" for one in missed) + "."
    return [
        "# Lab report",
        "",
        f"Plan `{escaped(report.plan)}`, {escaped(report.date)}, seed {report.seed}: "
        f"{len(ran)} of {len(report.arms)} arms ran, {samples:,} samples, {failed} failed starts.",
        "",
        verdict,
    ]


def environment(report: Report) -> list[str]:
    known = dict(ENVIRONMENT)
    rows = []
    for key, label in ENVIRONMENT:
        if key in report.environment:
            rows.append([label, text_cell(report.environment[key])])
    for key, value in report.environment.items():
        if key in known:
            continue
        if key in ("digests", "templates") and isinstance(value, dict):
            label = key.removesuffix("s")
            rows += [
                [f"{label} {escaped(str(name))}", text_cell(one)] for name, one in value.items()
            ]
        else:
            rows.append([escaped(key), text_cell(value)])
    return ["## Environment", "", *table(["what", "value"], rows, frozenset())]


READING = """\
- Times are milliseconds. A cell is `median [low, high] / p99`: the 95 % bootstrap interval of the
  median, and the nearest-rank p99 (of fewer than 100 samples: the largest one). An empty cell: the
  arm has no such clock, or did not run and says why.
- All arms were interleaved in one order drawn from the seed, so what the machine did besides hit
  all alike. Warm-ups are not in the samples.
- `hot`: what the start reads is in the page cache. `cold`: the page cache was dropped just before
  each sample. They are never mixed.
- `pool`: `hit` took over a machine that stood ready, `miss` asked a pool that had none left, `none`
  had no pool. They are rows of their own, never averaged.
- `c4 : ws` sets an arm's c4 against that of plain `ws` without a pool in the same table.
- c5 is what a user waits for; c1 alone says little. Peers have only the clocks that they can have.
- Ratios are of medians within this run. Two intervals that do not overlap differ; two that do may
  differ all the same.
- Docs: `docs/lab.md` has the method, `bench/lab/compare` sets two runs against each other."""


def reading() -> list[str]:
    clocks = table(["clock", "starts", "stops"], CLOCK_TEXT, frozenset())
    return ["## How to read it", "", READING, "", *clocks]


def limit_text(target: Target) -> str:
    return f"{'≤' if target.better == 'lower' else '≥'} {target.limit:,g}"


def target_text(target: Target) -> str:
    assert target.value is not None
    return (count if target.unit == "count" else figure)(target.value)


def targets(report: Report) -> list[str]:
    words = {True: "ok", False: "**MISS**", None: "no data"}
    rows = [
        [
            f"`{escaped(target.id)}`",
            escaped(target.what),
            "" if target.value is None else target_text(target),
            limit_text(target),
            escaped(target.unit),
            words[target.ok],
            str(target.n) if target.value is not None else "",
            escaped(target.note),
        ]
        for target in report.targets
    ]
    columns = ["id", "what", "value", "limit", "unit", "", "n", "note"]
    return ["## Targets", "", *table(columns, rows, frozenset((2, 3, 6)))]


def group_title(arm: ArmRow) -> str:
    command = " ".join(arm.command)
    parts = [f"Template {escaped(arm.template or 'of no name')}", size_name(arm)]
    return ", ".join(part for part in parts if part) + f", command `{command.replace('`', '')}`"


def groups(arms: Sequence[ArmRow]) -> list[list[ArmRow]]:
    """Arms that may stand in one table: the same guest, the same command."""
    found: dict[tuple[object, ...], list[ArmRow]] = {}
    for arm in arms:
        key = (arm.template, arm.vcpus, arm.memory_mib, tuple(arm.command))
        found.setdefault(key, []).append(arm)
    return [sorted(group, key=arm_order) for group in found.values()]


def base_of(arms: Sequence[ArmRow], strategy: str = "ws") -> ArmRow | None:
    """The plain unpooled start that the others of a table are set against."""
    for arm in arms:
        if (arm.strategy, arm.pool, arm.options) == (strategy, "none", []) and arm.samples:
            return arm
    return None


def clocks_table(arms: Sequence[ArmRow], seed: int) -> list[str]:
    base = base_of(arms)
    key = "c4"
    rows = [
        [
            escaped(arm.strategy or arm.variant),
            arm.pool or "",
            escaped(" ".join(arm.options)),
            str(len(arm.samples)) if arm.samples else "",
            *[clock_cell(arm, clock, seed) for clock in CLOCKS],
            ratio_cell(arm, base, key, seed),
            note_cell(arm),
        ]
        for arm in arms
    ]
    columns = ["strategy", "pool", "options", "n", *CLOCKS, "c4 : ws", "note"]
    return table(columns, rows, right(columns, "strategy", "pool", "options", "note"))


COSTS = ("wall", "teardown", "cpu_ms", "minor", "major", "bytes_read")


def costs_table(arms: Sequence[ArmRow]) -> list[str]:
    columns = ["strategy", "pool", "options", "wall", "teardown", "CPU"]
    columns += ["minor faults", "major faults", "bytes read"]
    rows = []
    for arm in arms:
        if not any(arm.values(key) for key in COSTS):
            continue
        cells = [median_cell(arm, key) for key in COSTS[:-1]]
        read = arm.values("bytes_read")
        cells.append(binary_size(stats.median(read)) if read else "")
        name = escaped(arm.strategy or arm.variant)
        rows.append([name, arm.pool or "", escaped(" ".join(arm.options)), *cells])
    return table(columns, rows, right(columns, "strategy", "pool", "options"))


def starts(report: Report) -> list[str]:
    lines = ["## Starts"]
    for group in groups([arm for arm in report.arms if arm.kind == "thaw"]):
        lines += ["", f"### {group_title(group[0])}"]
        for cache in ("hot", "cold", None):
            arms = [arm for arm in group if arm.cache == cache]
            if not arms:
                continue
            title = f"{cache.capitalize()} page cache" if cache else "Without a page-cache state"
            lines += ["", f"#### {title}", "", *clocks_table(arms, report.seed)]
            if any(arm.values(key) for arm in arms for key in COSTS):
                lines += ["", "What else it took, medians (times in ms):", "", *costs_table(arms)]
    return lines if len(lines) > 1 else [*lines, "", "No arm of thaw in this run."]


def reference(report: Report) -> ArmRow | None:
    """The start that peers are set against: pooled and hot if that ran, else `ws` hot."""
    for pool in ("hit", "none"):
        for arm in report.find(kind="thaw", cache="hot", pool=pool, strategy="ws", options=[]):
            if arm.samples and arm.values("wall") and arm.command == ["/bin/true"]:
                return arm
    return None


def others(report: Report, kind: str, title: str) -> list[str]:
    arms = [arm for arm in report.arms if arm.kind == kind]
    if not arms:
        return [f"## {title}", "", "None in this run."]
    base = reference(report)
    columns = ["what", "guest", "cache", "n", *CLOCKS, "wall", "wall : thaw", "note"]
    rows = [
        [
            escaped(arm_name(arm)),
            escaped(", ".join(part for part in (arm.template, size_name(arm)) if part)),
            arm.cache or "",
            str(len(arm.samples)) if arm.samples else "",
            *[clock_cell(arm, clock, report.seed) for clock in (*CLOCKS, "wall")],
            ratio_cell(arm, base, "wall", report.seed),
            note_cell(arm),
        ]
        for arm in arms
    ]
    lines = [f"## {title}", ""]
    if base is not None:
        lines += [
            f"`wall : thaw` is against `{base.id}` of this run, "
            f"{clock_cell(base, 'wall', report.seed)} ms.",
            "",
        ]
    return [*lines, *table(columns, rows, right(columns, "what", "guest", "cache", "note"))]


def missing(report: Report) -> list[str]:
    arms = [arm for arm in report.arms if arm.not_run is not None]
    lines = ["## What did not run", ""]
    if not arms:
        return [*lines, "Every arm of the plan ran."]
    rows = [[f"`{arm.id}`", escaped(arm.not_run or "")] for arm in arms]
    return [*lines, *table(["arm", "why"], rows, frozenset())]


# --- experiments ---------------------------------------------------------------------------------


def times_cells(values: Sequence[float], seed: int) -> list[str]:
    if not values:
        return ["", ""]
    found = stats.summarize(values, seed)
    span = ""
    if found.interval:
        span = f" [{figure(found.interval.low)}, {figure(found.interval.high)}]"
    return [figure(found.median) + span, figure(found.p99)]


def number_cell(node: Node, key: str) -> str:
    found = node.number_at(key)
    return "" if found is None else count(found)


def burst(node: Node, seed: int) -> list[str]:
    columns = ["asked for", "succeeded", "failed", "c5 median", "c5 p99", "all of it, ms"]
    cells = [number_cell(node, key) for key in ("n", "ok", "failed")]
    cells += [*times_cells(node.numbers_at("clones_ms"), seed), number_cell(node, "wall_ms")]
    return table(columns, [cells], right(columns))


def patterns(node: Node, seed: int) -> list[str]:
    columns = ["pattern", "asked for", "succeeded", "success rate", "c5 median", "c5 p99"]
    rows = []
    for name in ("sequential", "staggered", "burst"):
        one = node.get(name)
        if one is None:
            rows.append([name, "", "", "", "", ""])
            continue
        n, ok = one.number_at("n"), one.number_at("ok")
        rate = f"{100 * ok / n:.1f} %" if n and ok is not None else ""
        cells = [number_cell(one, "n"), number_cell(one, "ok"), rate]
        rows.append([name, *cells, *times_cells(one.numbers_at("c5"), seed)])
    return table(columns, rows, right(columns, "pattern"))


def sweep(node: Node, seed: int) -> list[str]:
    columns = ["templates", "at once", "clones", "succeeded", "clones/s", "c5 median", "c5 p99"]
    rows = []
    for name in ("same", "different"):
        for one in node.rows_at(name):
            cells = [number_cell(one, key) for key in ("at_once", "clones", "ok", "per_s")]
            rows.append([name, *cells, *times_cells(one.numbers_at("c5"), seed)])
    return table(columns, rows, right(columns, "templates")) if rows else ["No data."]


def memory(node: Node, _seed: int) -> list[str]:
    labels = (
        ("slope_pss_kib", "PSS a clone (slope)"),
        ("intercept_pss_kib", "PSS before the first (intercept)"),
        ("slope_private_kib", "private memory a clone (slope)"),
        ("slope_memavailable_kib", "MemAvailable a clone (slope)"),
        ("hot_write_kib", "what a clone's hot writes need"),
        ("vmm_private_kib", "thaw-vmm's own private memory, without guest"),
    )
    rows = [[label, number_cell(node, key)] for key, label in labels]
    lines = table(["", "KiB"], rows, frozenset((1,)))
    ends = node.numbers_at("teardown_ms")
    if ends:
        told = f"{figure(stats.median(ends))} / {figure(stats.p99(ends))} ms, n {len(ends)}"
        lines += ["", f"An idle clone that is killed is gone after (median / p99): {told}."]
    points = node.rows_at("points")
    if points:
        keys = ("clones", "pss_kib", "private_kib", "memavailable_kib")
        columns = ["idle clones", "PSS, KiB", "private, KiB", "MemAvailable, KiB"]
        rows = [[number_cell(one, key) for key in keys] for one in points]
        lines += ["", *table(columns, rows, right(columns))]
    return lines


def disk(node: Node, seed: int) -> list[str]:
    def bandwidth(key: str) -> str:
        values = node.numbers_at(key)
        if not values:
            return ""
        found = stats.summarize(values, seed)
        span = ""
        if found.interval:
            low, high = found.interval.low, found.interval.high
            span = f" [{binary_size(low)}, {binary_size(high)}]"
        return f"{binary_size(found.median)}{span} a second, n {found.n}"

    read, hot = node.numbers_at("bytes_read"), node.number_at("hot_set_bytes")
    read_text = binary_size(stats.median(read)) if read else ""
    if read and hot:
        read_text += f" ({figure(stats.median(read) / hot)} of the hot set)"
    rows = [
        ["hot set on disk", binary_size(hot) if hot is not None else ""],
        ["read by a cold start, median", read_text],
        ["bandwidth of the fetch", bandwidth("ws_fetch_bytes_per_s")],
        ["bandwidth of fio, same file and depth", bandwidth("fio_bytes_per_s")],
        ["depth", number_cell(node, "depth")],
    ]
    return table(["", "value"], rows, frozenset())


def replay(node: Node, seed: int) -> list[str]:
    recorded = node.text_at("recorded_on") or "A"
    columns = ["command", "hot set of", "n", "c4 median", "c4 p99"]
    rows = []
    for one in node.rows_at("rows"):
        command = one.get("command")
        words = (
            [w.text() for w in command.items()]
            if command and isinstance(command.value, list)
            else []
        )
        name = " ".join(words) if words else (one.text_at("command") or "")
        values = one.numbers_at("c4")
        cells = [escaped(name), escaped(one.text_at("set_from") or ""), str(len(values) or "")]
        rows.append([*cells, *times_cells(values, seed)])
    lines = table(columns, rows, right(columns, "command", "hot set of")) if rows else ["No data."]
    return [f"The template's own set was recorded on {escaped(recorded)}.", "", *lines]


def setup(node: Node, seed: int) -> list[str]:
    values = [one / 1000 for one in node.numbers_at("c1_us")]
    columns = ["KVM", "n", "c1 median, ms", "c1 p99, ms"]
    row = [escaped(node.text_at("kvm") or ""), str(len(values) or ""), *times_cells(values, seed)]
    return table(columns, [row], right(columns, "KVM"))


EXPERIMENTS = (
    ("burst", "Burst", burst),
    ("patterns", "Three patterns: one after the other, every 200 ms, all at once", patterns),
    ("sweep", "Concurrency", sweep),
    ("memory", "Memory of idle clones", memory),
    ("io", "Disk, cold", disk),
    ("replay", "Recorded on one command, replayed on another", replay),
    ("setup", "Set-up natively (Google Benchmark)", setup),
)


def experiments(report: Report) -> list[str]:
    lines = ["## Experiments"]
    for name, title, section in EXPERIMENTS:
        node = experiment(report, name)
        lines += ["", f"### {title}", ""]
        if node is None:
            lines.append(f"Not run: {escaped(not_run(report, name) or 'no reason given')}.")
        else:
            lines += section(node, report.seed)
            errors = node.rows_at("errors")
            if errors:
                kept = "1 error is" if len(errors) == 1 else f"{len(errors)} errors are"
                lines += ["", f"{kept} kept; the first: {escaped(errors[0].text())}."]
    return lines


def limits(report: Report) -> list[str]:
    emulated = environment_text(report, "kvm") == "emulated"
    return ["## What this can't tell", "", EMULATED if emulated else HARDWARE]


def plots(folder: Path | None, page: Path | None) -> list[str]:
    """Links to the plots that exist, as seen from where the report will stand."""
    if folder is None:
        return []
    base = page.parent if page else Path()
    found = []
    for name, text in PLOTS:
        file = folder / f"{name}.svg"
        if file.exists():
            found += ["", f"![{text}]({Path(os.path.relpath(file, base)).as_posix()})"]
    return ["## Plots", *found] if found else []


def render(report: Report, folder: Path | None = None, page: Path | None = None) -> str:
    """All of the report; ModelError names the field that is not as it must be."""
    sections = [
        ["<!-- SPDX-License-Identifier: Apache-2.0 -->", *head(report)],
        environment(report),
        reading(),
        targets(report),
        plots(folder, page),
        starts(report),
        others(report, "floor", "Floors"),
        others(report, "peer", "Peers"),
        missing(report),
        experiments(report),
        limits(report),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.report", description="The Markdown report of a run.")
    parser.add_argument("report", type=Path, help="report.json")
    parser.add_argument("--out", type=Path, help="where to write it (default: standard output)")
    parser.add_argument("--plots", type=Path, help="the folder with lab.plots' files")
    options = parser.parse_args()
    try:
        found = load(options.report)
        text = from_file(options.report, lambda: render(found, options.plots, options.out))
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(text)
        else:
            sys.stdout.write(text)
    except (ModelError, OSError) as error:
        print(f"lab.report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
