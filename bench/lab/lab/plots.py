# SPDX-License-Identifier: Apache-2.0
"""The plots of a lab run, SVG and PNG, out of report.json.

    PYTHONPATH=bench/lab /usr/bin/python3 -m lab.plots REPORT.json FOLDER

cdf: first command by strategy; phases: where a start's time goes; memory: idle clones; burst: many
at once. A plot whose data the run does not have is not made, and an older one of that name removed.
The same report gives the same bytes with the same Matplotlib, Debian's (python3-matplotlib).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from lab import stats
from lab.model import ArmRow, ModelError, Report, load
from lab.reading import (
    Node,
    arm_name,
    arm_order,
    environment_text,
    experiment,
    figure,
    from_file,
    not_run,
    size_name,
)

# Okabe and Ito's palette, made for every common colour blindness; lines differ in dashes too.
BLUE, SKY, ORANGE, GREEN = "#0072B2", "#56B4E9", "#E69F00", "#009E73"
RED, PINK, BLACK, GREY = "#D55E00", "#CC79A7", "#000000", "#8C8C8C"
STYLES = {
    "ws": (BLUE, "-"),
    "mmap": (ORANGE, "-"),
    "uring": (GREEN, "-"),
    "copy": (RED, "--"),
    "memfd": (PINK, "-."),
    "uffd": (SKY, "--"),
    "pack": (BLACK, ":"),
}
DASHES = ("-", "--", "-.", ":")
PHASES = (
    ("c1", "c1: KVM objects, vCPU state", BLUE),
    ("c2", "to c2: memory, devices, vCPU about to run", SKY),
    ("c3", "to c3: the guest is back", ORANGE),
    ("c4", "to c4: the command", GREEN),
    ("c5", "to c5: around it, client to client", "#BDBDBD"),
)
SETTINGS = {
    "svg.hashsalt": "thaw",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E2E2E2",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "axes.formatter.useoffset": False,
}
PNG_DPI = 120
CUT = 12.0
BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15), "handlelength": 2.6}


def plain(value: float, _at: int = 0) -> str:
    return f"{value:,.0f}" if value == 0 or abs(value) >= 1 else f"{value:g}"


def percent(share: float, _at: int = 0) -> str:
    return f"{100 * share:.0f} %"


def subtitle(report: Report, times: bool) -> str:
    """What every plot says of its run; @times: it shows times, which mean little when emulated."""
    kvm = environment_text(report, "kvm") or "unknown"
    git = (environment_text(report, "git") or "unknown")[:12]
    warning = "; only ratios within this run mean anything" if times and kvm == "emulated" else ""
    return f"KVM {kvm}, thaw {git}, plan {report.plan}{warning}"


def finish(
    plot: Figure, report: Report, title: str, times: bool = True, below_in: float = 0.62
) -> Figure:
    """Title, and below it what run this is of; the panels begin @below_in inches from the top."""
    height = plot.get_size_inches()[1]
    plot.text(0.01, 1 - 0.1 / height, title, ha="left", va="top", weight="bold", size=13)
    run = subtitle(report, times)
    plot.text(0.01, 1 - 0.38 / height, run, ha="left", va="top", color="#555555")
    plot.tight_layout(rect=(0, 0, 1, 1 - below_in / height))
    return plot


def empty(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color="#555555", transform=axes.transAxes)


def main_group(report: Report) -> list[ArmRow]:
    """The arms of the guest that most was measured of: those that stand in one plot."""
    found: dict[tuple[object, ...], list[ArmRow]] = {}
    for arm in report.arms:
        if arm.kind == "thaw" and arm.strategy and arm.samples:
            key = (arm.template, arm.vcpus, arm.memory_mib, tuple(arm.command))
            found.setdefault(key, []).append(arm)
    if not found:
        return []
    return sorted(max(found.values(), key=len), key=arm_order)


def companions(report: Report, group: Sequence[ArmRow]) -> list[ArmRow]:
    """What a start of the same guest is set against: the warm exec, the cold boot."""
    first = group[0]
    return [
        arm
        for arm in report.arms
        if arm.strategy is None
        and arm.samples
        and arm.kind in ("thaw", "floor")
        and (arm.template, arm.vcpus, arm.memory_mib)
        == (first.template, first.vcpus, first.memory_mib)
        and arm.command == first.command
    ]


def guest_name(arm: ArmRow) -> str:
    parts = [f"template {arm.template}" if arm.template else "", size_name(arm)]
    return ", ".join(part for part in parts if part)


def steps(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The cumulative distribution, from nothing to all."""
    ordered = sorted(values)
    n = len(ordered)
    return [ordered[0], *ordered], [k / n for k in range(n + 1)]


def log_time_axis(axes: Axes, values: Sequence[float], most: float) -> None:
    """A logarithmic axis of ms; it has more labels when its ends differ less than @most times."""
    low, high = min(values), max(values)
    axes.set_xscale("log")
    axes.set_xlim(low / 1.25, high * 1.25)
    subs = (1.0, 2.0, 5.0) if high / low < most else (1.0, 3.0)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(plain))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())


# --- the plots -----------------------------------------------------------------------------------


def line_style(arm: ArmRow, seen: dict[str, int]) -> dict[str, object]:
    """Colour by strategy; pools and options of one strategy differ in dashes and width."""
    if arm.strategy is None:
        return {"color": GREY, "linestyle": ":" if arm.kind == "floor" else "--", "linewidth": 1.6}
    color, dashes = STYLES.get(arm.strategy, (GREY, "-"))
    if arm.pool == "hit":
        return {"color": color, "linestyle": dashes, "linewidth": 3.2, "alpha": 0.7}
    if arm.pool != "none" or arm.options:
        number = seen[arm.strategy] = seen.get(arm.strategy, 0) + 1
        dashes = DASHES[(DASHES.index(dashes) + number) % len(DASHES)]
    return {"color": color, "linestyle": dashes, "linewidth": 1.8}


def cdf(report: Report) -> Figure | None:
    # Variants of a strategy are in the table and among the phases; here they would hide the rest.
    group = [arm for arm in main_group(report) if arm.values("c4") and not arm.options]
    if not group:
        return None
    others = [arm for arm in companions(report, group) if arm.values("c4")]
    caches = [c for c in ("hot", "cold") if any(arm.cache == c for arm in group)] or [None]
    most = max(sum(arm.cache == cache for arm in group) for cache in caches) + len(others)
    plot = Figure(figsize=(10.0, 0.75 + max(3.6, 0.9 + 0.2 * most) * len(caches)))
    panels = plot.subplots(len(caches), 1, squeeze=False, sharex=True)
    every = [value for arm in group + others for value in arm.values("c4") if value > 0]
    for axes, cache in zip(panels[:, 0], caches, strict=True):
        shown = [arm for arm in group if arm.cache == cache] + others
        seen: dict[str, int] = {}
        styled = [(arm, line_style(arm, seen)) for arm in shown]
        styled.sort(key=lambda one: stats.median(one[0].values("c4")))
        for arm, style in styled:
            values = arm.values("c4")
            label = f"{arm_name(arm)}: {figure(stats.median(values))} ms"
            axes.plot(*steps(values), label=label, drawstyle="steps-post", **style)
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(FuncFormatter(percent))
        axes.set_ylabel("starts done")
        axes.set_title(f"{cache or 'any'} page cache")
        axes.legend(
            loc="center left", bbox_to_anchor=(1.01, 0.5), title="median of c4", handlelength=3.2
        )
        axes.tick_params(labelbottom=True)
    log_time_axis(panels[-1, 0], every, 1000.0)
    panels[-1, 0].set_xlabel(
        "from the start of thaw-vmm to the first command's result (c4), ms, logarithmic"
    )
    return finish(plot, report, f"First command by strategy: {guest_name(group[0])}")


def phase_parts(arm: ArmRow) -> list[tuple[str, float]]:
    """How much each clock adds to the one before, of medians; c1 of a pool hit was paid ahead."""
    parts = []
    before = 0.0
    for clock, _, _ in PHASES:
        values = arm.values(clock)
        if not values or (clock == "c1" and arm.pool == "hit"):
            continue
        at = stats.median(values)
        parts.append((clock, max(0.0, at - before)))
        before = max(before, at)
    return parts


def cut_at(totals: Sequence[float]) -> float:
    """The longest bar that is shown whole: bars of thousands would make those of ten invisible."""
    end = max(total for total in totals if total <= CUT * min(totals))
    return max(totals) if max(totals) <= 2 * end else end


def phase_bars(axes: Axes, arms: Sequence[ArmRow], share: bool) -> None:
    """One bar an arm; @share: all as long as each other, else as long as they took."""
    totals = [sum(part for _, part in phase_parts(arm)) or 1.0 for arm in arms]
    end = 1.0 if share else cut_at(totals)
    colors = {clock: color for clock, _, color in PHASES}
    for row, (arm, total) in enumerate(zip(arms, totals, strict=True)):
        left = 0.0
        for clock, part in phase_parts(arm):
            width = part / total if share else min(part, max(0.0, end * 1.06 - left))
            axes.barh(row, width, left=left, height=0.68, color=colors[clock])
            left += width
        if share:
            continue
        cut = total > left * 1.0001
        if cut:
            axes.plot([left], [row], marker=9, markersize=8, color="#333333")
        text = f"{figure(total)} ms" + (", bar cut" if cut else "")
        axes.text(left + end * (0.05 if cut else 0.015), row, text, va="center", fontsize=9)
    axes.set_yticks(range(len(arms)), [arm_name(arm) for arm in arms])
    axes.set_ylim(len(arms) - 0.4, -0.6)
    axes.set_xlim(0, end if share else end * 1.45)
    axes.xaxis.set_major_formatter(FuncFormatter(percent if share else plain))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0, labelleft=not share)


def phases(report: Report) -> Figure | None:
    group = [arm for arm in main_group(report) if arm.values("c4")]
    panels_of = [
        (cache, [arm for arm in group if arm.cache == cache])
        for cache in ("hot", "cold", None)
        if any(arm.cache == cache for arm in group)
    ]
    if not panels_of:
        return None
    heights = [len(arms) + 1.6 for _, arms in panels_of]
    plot = Figure(figsize=(12.0, 1.9 + 0.34 * sum(heights)))
    panels = plot.subplots(
        len(panels_of), 2, squeeze=False,
        gridspec_kw={"height_ratios": heights, "width_ratios": (3, 2)},
    )  # fmt: skip
    for (left, right), (cache, arms) in zip(panels, panels_of, strict=True):
        ordered = sorted(arms, key=lambda arm: sum(part for _, part in phase_parts(arm)))
        phase_bars(left, ordered, share=False)
        phase_bars(right, ordered, share=True)
        left.set_title(f"{cache or 'any'} page cache")
        right.set_title("shares of it")
    panels[-1, 0].set_xlabel("ms, medians; a pool hit's c1 was paid ahead of the start")
    top = 1 - 0.62 / plot.get_size_inches()[1]
    plot.legend(
        [Line2D([], [], color=color, linewidth=8) for _, _, color in PHASES],
        [text for _, text, _ in PHASES],
        loc="upper left", bbox_to_anchor=(0.0, top), ncol=len(PHASES), handlelength=1.0,
        columnspacing=1.4,
    )  # fmt: skip
    title = f"Where a start's time goes: {guest_name(group[0])}"
    return finish(plot, report, title, below_in=1.0)


def points(node: Node, key: str) -> list[tuple[float, float]]:
    found = []
    for one in node.rows_at("points"):
        clones, value = one.number_at("clones"), one.number_at(key)
        if clones is not None and value is not None:
            found.append((clones, value / 1024))
    return sorted(found)


def fitted(
    axes: Axes, data: list[tuple[float, float]], color: str, marker: str, label: str
) -> None:
    """Points, the line through them, and its slope in the legend."""
    xs = [x for x, _ in data]
    text = label
    if len(set(xs)) >= 2:
        slope, base = stats.fit_line(data)
        ends = [min(xs), max(xs)]
        axes.plot(ends, [base + slope * x for x in ends], color=color, linewidth=1.6)
        text = f"{label}: {figure(slope)} MiB a clone"
    axes.plot(
        xs, [y for _, y in data], color=color, marker=marker, markersize=6, linestyle="", label=text
    )


def memory(report: Report) -> Figure | None:
    node = experiment(report, "memory")
    if node is None or not node.rows_at("points"):
        return None
    plot = Figure(figsize=(10.0, 4.6))
    left, right = plot.subplots(1, 2)
    for key, color, marker, label in (
        ("pss_kib", BLUE, "o", "PSS"),
        ("private_kib", ORANGE, "s", "private"),
    ):
        data = points(node, key)
        if data:
            fitted(left, data, color, marker, label)
    left.set_title("all thaw-vmm processes together")
    available = points(node, "memavailable_kib")
    if available:
        without = node.number_at("memavailable_without_kib")
        most = available[0][1] if without is None else without / 1024
        fitted(right, [(x, most - y) for x, y in available], GREEN, "^", "MemAvailable")
    right.set_title("what the whole machine lost")
    for axes in (left, right):
        axes.set_xlabel("idle clones")
        axes.set_ylabel("MiB")
        axes.yaxis.set_major_formatter(FuncFormatter(plain))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper left")
            axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    title = "Memory of idle clones, with the line through the points"
    return finish(plot, report, title, times=False)


def burst_panel(axes: Axes, report: Report) -> bool:
    node = experiment(report, "burst")
    times = sorted(node.numbers_at("clones_ms")) if node else []
    if node is None or not times:
        empty(axes, f"burst: {not_run(report, 'burst') or 'no data'}")
        return False
    axes.plot([0, *times], range(len(times) + 1), color=BLUE, drawstyle="steps-post", linewidth=2)
    n = node.number_at("n") or len(times)
    axes.axhline(n, color=GREY, linestyle="--", linewidth=1)
    axes.set_title(f"burst of {n:,.0f}: {len(times)} came back")
    axes.set_xlim(left=0)
    axes.set_ylim(0, n * 1.05)
    axes.set_xlabel("c5, ms")
    axes.set_ylabel("clones that are done")
    axes.xaxis.set_major_formatter(FuncFormatter(plain))
    return True


def patterns_panel(axes: Axes, report: Report) -> bool:
    node = experiment(report, "patterns")
    every: list[float] = []
    for name, color, dashes in (
        ("sequential", BLUE, "-"),
        ("staggered", ORANGE, "--"),
        ("burst", RED, "-."),
    ):
        one = node.get(name) if node else None
        values = [value for value in one.numbers_at("c5") if value > 0] if one else []
        if values:
            label = f"{name}, median {figure(stats.median(values))} ms"
            axes.plot(
                *steps(values), color=color, linestyle=dashes, linewidth=2, label=label,
                drawstyle="steps-post",
            )  # fmt: skip
            every += values
    if not every:
        empty(axes, f"patterns: {not_run(report, 'patterns') or 'no data'}")
        return False
    log_time_axis(axes, every, 30.0)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(FuncFormatter(percent))
    axes.set_title("three patterns")
    axes.set_xlabel("c5, ms, logarithmic")
    axes.set_ylabel("starts done")
    axes.legend(**BELOW, ncol=2)
    return True


def sweep_panel(axes: Axes, report: Report) -> bool:
    node = experiment(report, "sweep")
    ticks: set[float] = set()
    for name, color, marker in (("same", BLUE, "o"), ("different", ORANGE, "s")):
        data = []
        for one in node.rows_at(name) if node else []:
            at_once, rate = one.number_at("at_once"), one.number_at("per_s")
            if at_once is not None and at_once > 0 and rate is not None:
                data.append((at_once, rate))
        if data:
            data.sort()
            label = "same template" if name == "same" else "different templates"
            axes.plot(
                *zip(*data, strict=True), color=color, marker=marker, linewidth=2, label=label
            )
            ticks |= {at_once for at_once, _ in data}
    if not ticks:
        empty(axes, f"sweep: {not_run(report, 'sweep') or 'no data'}")
        return False
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(ticks), [plain(tick) for tick in sorted(ticks)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.set_title("how many at once")
    axes.set_xlabel("starts at a time")
    axes.set_ylabel("clones a second")
    axes.legend(**BELOW, ncol=2)
    return True


def burst(report: Report) -> Figure | None:
    plot = Figure(figsize=(13.0, 4.9))
    one, two, three = plot.subplots(1, 3)
    made = [
        burst_panel(one, report),
        patterns_panel(two, report),
        sweep_panel(three, report),
    ]
    return finish(plot, report, "Many starts at once") if any(made) else None


PLOTS = {"cdf": cdf, "phases": phases, "memory": memory, "burst": burst}


def write(report: Report, folder: Path) -> list[Path]:
    """Write all plots that @report has data for; the files, SVG and PNG of each."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(SETTINGS):
        for name, draw in PLOTS.items():
            plot = draw(report)
            for suffix in ("svg", "png"):
                path = folder / f"{name}.{suffix}"
                if plot is None:
                    path.unlink(missing_ok=True)
                    continue
                none = {"Date": None} if suffix == "svg" else {"Software": None}
                plot.savefig(path, dpi=PNG_DPI, metadata={"Title": name, **none})
                written.append(path)
    return written


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.plots", description="The plots of a run.")
    parser.add_argument("report", type=Path, help="report.json")
    parser.add_argument("folder", type=Path, help="where the plots go")
    options = parser.parse_args()
    try:
        found = load(options.report)
        for path in from_file(options.report, lambda: write(found, options.folder)):
            print(path)
    except (ModelError, OSError) as error:
        print(f"lab.plots: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
