# SPDX-License-Identifier: Apache-2.0
"""The lab's statistics, report, plots and compare, on made-up reports (fake_report.py)."""

from __future__ import annotations

import copy
import json
import math
import random
import re
import statistics
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Callable
from pathlib import Path

import fake_report
import pytest

TOP = Path(__file__).resolve().parent.parent.parent
LAB = TOP / "bench/lab"
sys.path.insert(0, str(LAB))

from lab import model, reading, report, stats  # noqa: E402

DEBIAN_PYTHON = "/usr/bin/python3"  # the one that python3-matplotlib is for
PLOTS = ("cdf", "phases", "memory", "burst")


def run_tool(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in argv], cwd=LAB, capture_output=True, text=True, check=False
    )


def compare(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return run_tool(sys.executable, LAB / "compare", *argv)


def write(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data))
    return path


def arms_of(data: fake_report.Json) -> list[fake_report.Json]:
    arms = data["arms"]
    assert isinstance(arms, list)
    return arms


def scale(data: fake_report.Json, by: float, wanted: Callable[[fake_report.Json], bool]) -> None:
    """Every clock of the wanted arms takes @by times as long."""
    for arm in arms_of(data):
        for one in arm["samples"] if wanted(arm) else []:
            one.update({key: one[key] * by for key in one if key in model.CLOCKS})


# --- statistics ----------------------------------------------------------------------------------


def test_median_and_percentiles_are_the_known_ones() -> None:
    assert stats.median([3, 1, 2]) == 2
    assert stats.median([4, 1, 3, 2]) == 2.5
    assert stats.median([1.7e308, 1.7e308]) == 1.7e308  # no overflow half-way
    assert stats.p99(range(1, 101)) == 99
    assert stats.p99(range(1, 102)) == 100
    assert stats.p99(range(1, 31)) == 30  # of fewer than 100 the largest
    assert stats.percentile(range(1, 101), 0.07) == 7  # 0.07 * 100 is more than 7 in floats
    assert stats.percentile([15, 20, 35, 40, 50], 0.30) == 20
    assert stats.percentile([15, 20, 35, 40, 50], 1.0) == 50
    draw = random.Random(1)
    values = [draw.random() for _ in range(777)]
    assert stats.median(values) == statistics.median(values)


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf], [True], ["1"], [10**400], [None]])
def test_what_has_no_statistic_is_refused(bad: list[float]) -> None:
    for function in (stats.median, stats.p99, stats.median_interval, stats.summarize):
        with pytest.raises(stats.StatsError):
            function(bad)


def naive_medians(ordered: list[float], resamples: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return sorted(
        statistics.median(draw.choices(ordered, k=len(ordered))) for _ in range(resamples)
    )


@pytest.mark.parametrize("n", [7, 8, 30])
def test_bootstrap_by_ranks_is_the_bootstrap(n: int) -> None:
    """Medians drawn by ranks have the distribution of those of real resamples."""
    draw = random.Random(n)
    ordered = sorted(draw.gauss(100, 5) for _ in range(n))
    naive = naive_medians(ordered, 20000, 3)
    ours = sorted(stats.resampled_medians(ordered, 20000, "test"))
    # Kolmogorov-Smirnov: two samples of 20,000 of one distribution differ by 0.0195 once in 1,000.
    worst = max(
        abs(sum(v <= at for v in naive) - sum(v <= at for v in ours)) / 20000 for at in naive[::500]
    )
    assert worst < 0.0195


@pytest.mark.parametrize("n", [10, 30, 31, 100])
@pytest.mark.parametrize("law", ["normal", "lognormal", "exponential"])
def test_interval_holds_the_true_median_about_as_often_as_it_says(n: int, law: str) -> None:
    draws: dict[str, tuple[Callable[[random.Random], float], float]] = {
        "normal": (lambda draw: draw.gauss(50, 7), 50.0),
        "lognormal": (lambda draw: draw.lognormvariate(0, 0.5), 1.0),
        "exponential": (lambda draw: draw.expovariate(1.0), math.log(2)),
    }
    one, true = draws[law]
    held = 0
    for seed in range(400):
        draw = random.Random(f"{law} {n} {seed}")
        interval = stats.median_interval([one(draw) for _ in range(n)], resamples=1000)
        assert interval is not None
        held += interval.holds(true)
    assert 0.90 <= held / 400 <= 0.985


def test_intervals_depend_on_the_samples_and_the_seed_only() -> None:
    draw = random.Random(5)
    values = [draw.gauss(10, 1) for _ in range(30)]
    shuffled = sorted(values, key=lambda value: value % 0.1)
    assert stats.median_interval(values) == stats.median_interval(shuffled)
    assert stats.median_interval(values, seed=1) != stats.median_interval(values, seed=2)
    wide = stats.median_interval(values, confidence=0.99)
    narrow = stats.median_interval(values, confidence=0.5)
    assert wide is not None and narrow is not None
    assert wide.low < narrow.low < narrow.high < wide.high
    assert stats.median_interval(values[: stats.MIN_FOR_INTERVAL - 1]) is None


def test_ratio_of_medians() -> None:
    draw = random.Random(2)
    above = [draw.gauss(300, 6) for _ in range(40)]
    below = [draw.gauss(100, 2) for _ in range(30)]
    found = stats.ratio_of_medians(above, below)
    assert found.value == stats.median(above) / stats.median(below)
    assert found.interval is not None
    assert found.interval.holds(3.0) and 2.9 < found.interval.low < found.interval.high < 3.1
    assert stats.ratio_of_medians([2.0], [4.0]) == stats.Ratio(0.5, None)
    with pytest.raises(stats.StatsError, match="not positive"):
        stats.ratio_of_medians([1.0], [0.0, 1.0])


def test_mann_whitney_against_exact_permutation() -> None:
    """p is near the share of all ways to split the values that are at least as far apart."""
    draw = random.Random(8)
    for shift in (0.0, 0.5, 1.0):
        one = [draw.gauss(0, 1) for _ in range(12)]
        other = [draw.gauss(shift, 1) for _ in range(12)]

        def u_of(first: list[float], second: list[float]) -> float:
            return sum((a > b) + 0.5 * (a == b) for a in first for b in second)

        far = abs(u_of(one, other) - 72)
        pooled, hits = one + other, 0
        for _ in range(4000):
            draw.shuffle(pooled)
            hits += abs(u_of(pooled[:12], pooled[12:]) - 72) >= far
        assert stats.mann_whitney(one, other) == pytest.approx(hits / 4000, abs=0.03)
    assert stats.mann_whitney([1, 1, 1], [1, 1, 1]) == 1.0
    assert stats.mann_whitney([0] * 20, [1] * 20) < 1e-8
    # Known: U = 8 of 64, tie-corrected variance 90.4.., z = 2.4735..
    p = stats.mann_whitney([1, 2, 3, 4, 5, 6, 7, 8], [5, 6, 7, 8, 9, 10, 11, 12])
    assert p == pytest.approx(0.0133130, abs=1e-6)


def test_holm() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []


def test_line() -> None:
    slope, intercept = stats.fit_line([(0, 5.0), (1, 7.0), (4, 13.0)])
    assert (slope, intercept) == (pytest.approx(2.0), pytest.approx(5.0))
    with pytest.raises(stats.StatsError):
        stats.fit_line([(1, 2.0), (1, 3.0)])


def changes(shift: float, noise: float, tries: int) -> int:
    found = 0
    for seed in range(tries):
        draw = random.Random(f"{shift} {seed}")
        before = [100 * draw.lognormvariate(0, noise) for _ in range(30)]
        after = [100 * shift * draw.lognormvariate(0, noise) for _ in range(30)]
        found += stats.beyond_noise(stats.change(before, after), threshold=0.05)
    return found


def test_beyond_noise_finds_a_tenth_and_not_nothing() -> None:
    assert changes(1.10, 0.03, 100) >= 98
    assert changes(0.90, 0.03, 100) >= 98
    assert changes(1.00, 0.03, 200) == 0
    assert changes(1.00, 0.30, 200) <= 10
    assert changes(1.03, 0.01, 100) <= 5  # real, but below the threshold
    # Ranks differ, and medians by 60 %, but either median could as well be in its other hump.
    humps = stats.change([50.0] * 15 + [150.0] * 15, [60.0] * 14 + [160.0] * 16)
    assert humps.p is not None and humps.p < 0.01 and humps.after == 1.6 * humps.before
    assert not stats.beyond_noise(humps, threshold=0.05)
    few = stats.change([1.0] * 5, [9.0] * 5)
    assert few.p is None and not stats.beyond_noise(few)
    assert stats.beyond_noise(stats.change([0.0] * 10, [3.0] * 10))  # no ratio, but a change


def test_huge_input_takes_no_huge_time() -> None:
    draw = random.Random(1)
    values = [draw.random() for _ in range(200_000)]
    found = stats.summarize(values)
    assert found.n == 200_000
    assert found.interval is not None and found.interval.high - found.interval.low < 0.01
    assert stats.mann_whitney(values[:100_000], values[100_000:]) > 0.001


# --- report --------------------------------------------------------------------------------------


def render(data: fake_report.Json) -> str:
    return report.render(model.from_json(copy.deepcopy(data)))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_report_has_a_row_for_every_arm_and_the_figures_of_its_samples() -> None:
    data = fake_report.report()
    text = render(data)
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")]
    for arm in model.from_json(data).arms:
        values = arm.values("c4") or arm.values("wall")
        if not values:
            continue
        figures = f"{reading.figure(stats.median(values))} ["
        ends = f"/ {reading.figure(max(values))}"
        name = arm.strategy or reading.arm_name(arm)
        found = [
            row
            for row in rows
            if row[0] in (name, arm.variant)
            and any(cell.startswith(figures) and cell.endswith(ends) for cell in row)
        ]
        assert found, arm.id


def test_cold_and_hot_and_pools_stand_apart() -> None:
    text = render(fake_report.report())
    start = text.index("### Template debian")
    guest = text[start : text.index("### Template python3")]
    hot, cold = guest.split("#### Cold page cache")
    assert hot.count("#### Hot page cache") == 1
    pools = [cells(line)[1] for line in hot.splitlines() if line.startswith("| ws |")]
    assert pools == ["hit", "miss", "none"] * 2  # clocks, and what else it took
    colds = [cells(line)[1] for line in cold.splitlines() if line.startswith("| ws |")]
    assert colds == ["none"] * 2


def test_what_did_not_run_has_its_reason_and_no_number() -> None:
    data = fake_report.report()
    arms = arms_of(data)
    broken = next(arm for arm in arms if arm["strategy"] == "uffd" and arm["cache"] == "hot")
    broken.update({"samples": [], "not_run": "no <userfaultfd> here | at all", "n": 30})
    text = render(data)
    lines = [line for line in text.splitlines() if "userfaultfd" in line]
    assert len(lines) == 2  # its row, and the list of what did not run
    for line in lines:
        assert "&lt;userfaultfd&gt; here \\| at all" in line
    row = cells(lines[0])
    assert row[0] == "uffd" and row[1] == "none"
    assert not any(row[2:-1]) and row[-1].startswith("not run: ")
    for name in ("firecracker", "cloud-hypervisor"):
        row = next(cells(line) for line in text.splitlines() if line.startswith(f"| {name} "))
        assert row[0] == f"{name} restore" and not any(row[3:-1]), row
        assert "names no binary" in row[-1]


def test_failures_and_errors_are_told() -> None:
    data = fake_report.report()
    arm = arms_of(data)[0]
    arms_of(data)[3]["strategy_done"] = "mmap+bounce"
    arm["samples"].pop()
    arm.update({"failed": 1, "errors": ["exit status 125\nno such *template*"]})
    text = render(data)
    assert "**1 of 30 failed**: exit status 125 no such \\*template\\*" in text
    assert "1 failed starts" in text
    assert "| done as mmap+bounce |" in text and text.count("done as") == 1
    assert "1 error is kept; the first: one clone did not come up." in text


def test_targets_tell_ok_miss_and_no_data() -> None:
    text = render(fake_report.report())
    rows = {cells(line)[0]: cells(line) for line in text.splitlines() if line.startswith("| `")}
    assert rows["`hot-pooled`"][2:6] == ["1.08", "≤ 1.5", "ratio", "ok"]
    assert rows["`cold-bytes`"][2:6] == ["1.15", "≤ 1.1", "ratio", "**MISS**"]
    assert rows["`v-qemu`"][2:7] == ["", "≤ 0.03", "ratio", "no data", ""]
    assert rows["`burst100`"][2:6] == ["100", "≥ 100", "count", "ok"]
    assert "Targets: 3 met, 1 missed, 1 without data. Missed: `cold-bytes`." in text


def test_limits_of_an_emulated_run_are_told_only_there() -> None:
    assert "Emulation is 20 to 50 times slower" in render(fake_report.report())
    assert "Emulation" not in render(fake_report.report(kvm="hardware"))


def test_experiments_that_did_not_run_say_so() -> None:
    data = fake_report.report()
    experiments = data["experiments"]
    assert isinstance(experiments, dict)
    experiments["burst"] = {"not_run": "too little memory"}
    experiments["io"] = {}
    del experiments["replay"]
    text = render(data)
    assert "Not run: too little memory." in text
    assert "Not run: no result." in text
    assert "Not run: not part of this run." in text


def test_an_empty_run_is_a_report_too() -> None:
    data = {**fake_report.report(), "arms": [], "experiments": {}, "targets": []}
    text = render(data)
    assert "0 of 0 arms ran" in text and "No arm of thaw in this run." in text


def test_report_is_written_and_links_the_plots_that_are_there(tmp_path: Path) -> None:
    source = write(tmp_path / "report.json", fake_report.report())
    plots = tmp_path / "plots"
    plots.mkdir()
    (plots / "cdf.svg").write_text("<svg/>")
    out = tmp_path / "docs" / "report.md"
    done = run_tool(*(sys.executable, "-m", "lab.report", source, "--out", out, "--plots", plots))
    assert (done.returncode, done.stderr) == (0, "")
    text = out.read_text()
    assert "](../plots/cdf.svg)" in text and "burst.svg" not in text


# --- hostile input -------------------------------------------------------------------------------

Spoil = Callable[[fake_report.Json], object]


def spoil_sample(key: str, value: object) -> Spoil:
    return lambda data: arms_of(data)[3]["samples"][4].update({key: value})


def spoil_experiment(name: str, **fields: object) -> Spoil:
    return lambda data: data["experiments"][name].update(fields)


MMAP = "thaw/debian/mmap/hot/none/1c-256m"
SPOILS: dict[str, tuple[Spoil, str]] = {
    "no plan": (lambda data: data.pop("plan"), "report: no field plan"),
    "another schema": (lambda data: data.update(schema=2), "schema 2, this lab knows 1"),
    "schema is text": (lambda data: data.update(schema="1"), "schema is '1'"),
    "arms no list": (lambda data: data.update(arms={}), "arms is {}"),
    "arm no object": (lambda data: data["arms"].append(7), "arm 42: not an object"),
    "arm without id": (lambda data: data["arms"][3].pop("id"), "arm 3: no field id"),
    "id is a list": (lambda data: data["arms"][3].update(id=["x"]), "arm 3: id is ['x']"),
    "arm twice": (lambda data: data["arms"].append(data["arms"][3]), f"arm {MMAP}: twice"),
    "NaN": (spoil_sample("c4", math.nan), f"arm 3 ({MMAP}): sample 4: c4 is nan"),
    "infinity": (spoil_sample("c5", math.inf), "sample 4: c5 is inf"),
    "negative": (spoil_sample("wall", -1.0), "sample 4: wall is -1.0"),
    "text": (spoil_sample("c1", "5"), "sample 4: c1 is '5'"),
    "truth": (spoil_sample("c1", True), "sample 4: c1 is True"),
    "too big": (spoil_sample("c1", 10**400), "sample 4: c1 is 1000"),
    "unknown clock": (spoil_sample("c6", 1.0), "sample 4: unknown key c6"),
    "samples and not_run": (lambda data: data["arms"][3].update(not_run="x"), "and not_run"),
    "samples gone": (lambda data: data["arms"][3].update(samples=[]), "n 30 is not samples 0"),
    "target NaN": (lambda data: data["targets"][3].update(value=math.nan), "value is nan"),
    "target lies": (lambda data: data["targets"][3].update(ok=True), "ok is True, but 1.15"),
    "target huge": (lambda data: data["targets"][0].update(limit=10**400), "limit is 1000"),
    "unknown experiment": (lambda data: data["experiments"].update(x={}), "unknown one x"),
    "burst": (spoil_experiment("burst", clones_ms=[1.0, math.nan]), "burst.clones_ms[1]: must be"),
    "burst n": (spoil_experiment("burst", n="100"), "experiments.burst.n: must be a number"),
    "patterns": (spoil_experiment("patterns", burst=[1]), "patterns.burst: must be an object"),
    "sweep": (spoil_experiment("sweep", same={"a": 1}), "experiments.sweep.same: must be a list"),
    "sweep row": (
        spoil_experiment("sweep", different=[{"at_once": 1}, {"at_once": 2, "c5": [None]}]),
        "experiments.sweep.different[1].c5[0]: must be a number",
    ),
    "memory": (
        spoil_experiment("memory", points=[{"clones": 1, "pss_kib": 10**400}]),
        "experiments.memory.points[0].pss_kib: does not fit",
    ),
    "io": (spoil_experiment("io", fio_bytes_per_s=[True]), "io.fio_bytes_per_s[0]: must be"),
    "replay": (spoil_experiment("replay", rows=3), "experiments.replay.rows: must be a list"),
    "setup": (spoil_experiment("setup", kvm=1), "experiments.setup.kvm: must be a string"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILS)
def test_bad_reports_are_refused_with_file_and_field(name: str, tmp_path: Path) -> None:
    spoil, message = SPOILS[name]
    data = fake_report.report(n=8)
    for arm in arms_of(data):
        if arm["samples"]:
            arm.update(n=8)
    if name == "samples gone":
        message = "n 8 is not samples 0"
    spoil(data)
    path = write(tmp_path / "bad.json", data)
    done = run_tool(sys.executable, "-m", "lab.report", path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"lab.report: {path}: "), done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr) < 2000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[]", "report: not an object"),
        ("[" * 100_000, "nested too deep"),
        ("\udcff", "decode"),
        ('{"schema": ' + "9" * 5000 + "}", "limit"),
    ],
)
def test_what_is_no_report_is_refused(text: str, message: str, tmp_path: Path) -> None:
    good = write(tmp_path / "good.json", fake_report.report(n=8))
    bad = tmp_path / "bad.json"
    bad.write_bytes(text.encode(errors="surrogateescape"))
    for done in (compare(good, bad), compare(bad, good)):
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.startswith(f"compare: {bad}: ") and message in done.stderr
    gone = tmp_path / "gone.json"
    done = compare(good, gone)
    assert done.returncode == 2 and str(gone) in done.stderr and "No such file" in done.stderr


def test_compare_names_the_file_whose_experiment_is_bad(tmp_path: Path) -> None:
    good = write(tmp_path / "good.json", fake_report.report(n=8))
    for name in ("burst", "sweep row", "setup"):
        data = fake_report.report(n=8)
        spoil, message = SPOILS[name]
        spoil(data)
        bad = write(tmp_path / "bad.json", data)
        done = compare(good, bad)
        assert done.returncode == 2 and f"compare: {bad}: " in done.stderr
        assert message in done.stderr


def test_huge_reports_are_read(tmp_path: Path) -> None:
    data = fake_report.report(n=6)
    row = fake_report.arm(
        "thaw/huge", strategy="ws", cache="hot", pool="none", template="huge" * 1000
    )
    data["arms"] = [fake_report.fill(row, {"c4": 60.0, "c5": 70.0}, 50_000, 0.1, 1)]
    path = write(tmp_path / "huge.json", data)
    done = run_tool(sys.executable, "-m", "lab.report", path)
    assert done.returncode == 0 and "| 50000 |" in done.stdout


# --- compare -------------------------------------------------------------------------------------


def small(seed: int, noise: float = 0.02) -> fake_report.Json:
    """A run with one template only."""
    data = fake_report.report(seed=seed, noise=noise)
    data["arms"] = [arm for arm in arms_of(data) if arm["template"] != "python3"]
    return data


def two_runs(
    folder: Path, change: Callable[[fake_report.Json], object] | None = None, noise: float = 0.02
) -> tuple[Path, Path]:
    a, b = small(1, noise), small(2, noise)
    if change is not None:
        change(b)
    return write(folder / "a.json", a), write(folder / "b.json", b)


def verdicts(text: str) -> dict[str, str]:
    found = re.findall(r"^(worse|better|same|too few) +(\S+)", text, re.MULTILINE)
    return {name: verdict for verdict, name in found}


def test_compare_finds_a_tenth_in_the_arm_that_has_it_only(tmp_path: Path) -> None:
    a, b = two_runs(tmp_path, lambda data: scale(data, 1.1, lambda arm: arm["id"] == MMAP))
    done = compare(a, b)
    assert done.returncode == 1, done.stdout
    found = verdicts(done.stdout)
    assert [name for name, verdict in found.items() if verdict != "same"] == [MMAP]
    assert found[MMAP] == "worse"
    line = next(line for line in done.stdout.splitlines() if "worse: c5" in line)
    assert re.search(r"\+(8|9|10|11|12)\.\d % \[\+\d", line), line
    back = compare(b, a)
    assert back.returncode == 0 and verdicts(back.stdout)[MMAP] == "better"
    assert compare(a, b, "--threshold", "25").returncode == 0
    assert compare(a, b, "--threshold", "5%").returncode == 1


@pytest.mark.parametrize("noise", [0.02, 0.15])
def test_compare_finds_nothing_in_two_draws_of_the_same(noise: float, tmp_path: Path) -> None:
    for seed in (3, 4, 5):
        a = write(tmp_path / "a.json", fake_report.report(seed=1, noise=noise))
        b = write(tmp_path / "b.json", fake_report.report(seed=seed, noise=noise))
        done = compare(a, b)
        assert done.returncode == 0, done.stdout
        assert set(verdicts(done.stdout).values()) == {"same"}, done.stdout


def test_compare_has_every_arm(tmp_path: Path) -> None:
    a, b = two_runs(tmp_path)
    found = verdicts(compare(a, b).stdout)
    arms = model.load(a).arms
    assert {arm.id for arm in arms if arm.samples} <= set(found)
    assert not {arm.id for arm in arms if arm.not_run} & set(found)


def test_a_slower_machine_is_not_slower_code(tmp_path: Path) -> None:
    def slower_machine(data: fake_report.Json) -> None:
        scale(data, 1.2, lambda arm: True)
        scale(data, 1.3, lambda arm: arm["id"] == MMAP)

    a, b = two_runs(tmp_path, slower_machine)
    done = compare(a, b)
    assert "4 arms of peers took 1.2" in done.stdout
    assert "no more than the machine itself" in done.stdout
    found = verdicts(done.stdout)
    ours = {name: verdict for name, verdict in found.items() if not name.startswith("peer/")}
    assert [name for name, verdict in ours.items() if verdict == "worse"] == [MMAP]
    assert done.returncode == 1


def test_a_faster_machine_does_not_hide_slower_code(tmp_path: Path) -> None:
    a, b = two_runs(tmp_path, lambda data: scale(data, 0.8, lambda arm: arm["id"] != MMAP))
    done = compare(a, b)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    where = next(place for place, line in enumerate(lines) if MMAP in line)
    assert lines[where].startswith("same") and "relative to the machine" in lines[where + 1]


def test_without_peers_the_machine_is_said_to_be_unknown(tmp_path: Path) -> None:
    def no_peers(data: fake_report.Json) -> None:
        data["arms"] = [arm for arm in arms_of(data) if arm["kind"] != "peer"]

    a, b = two_runs(tmp_path, no_peers)
    done = compare(a, b)
    assert "0 arms of peers ran in both" in done.stdout and "can't be told" in done.stdout
    assert "only in A: peer/bubblewrap/run" in done.stdout


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("kvm", "hardware", "the kind of KVM differs: emulated in A, hardware in B"),
        ("cpu", "Another CPU", "the processor differs"),
        ("cpus", 4, "the number of processors differs: 2 in A, 4 in B"),
        ("kvm", None, "the kind of KVM is not in environment.kvm of B"),
    ],
)
def test_other_machines_are_not_compared(
    key: str, value: object, what: str, tmp_path: Path
) -> None:
    a, b = two_runs(tmp_path, lambda data: data["environment"].update({key: value}))
    done = compare(a, b)
    assert done.returncode == 2 and done.stdout == "" and what in done.stderr
    anyway = compare(a, b, "--anyway")
    assert anyway.returncode == 0 and f"invalid: {what}" in anyway.stdout


def test_other_kernels_are_noted(tmp_path: Path) -> None:
    def other(data: fake_report.Json) -> None:
        data["environment"].update(kernel="6.18.0", dirty=True)
        data["environment"]["digests"]["guest"] = "d" * 64

    done = compare(*two_runs(tmp_path, other))
    assert done.returncode == 0
    assert "note: kernel differs: 6.12.0 in A, 6.18.0 in B" in done.stdout
    assert "note: dirty differs" in done.stdout and "note: the guest image differs" in done.stdout


def test_arms_of_one_run_only(tmp_path: Path) -> None:
    def drop(data: fake_report.Json) -> None:
        arms = arms_of(data)
        arms[4].update(samples=[], not_run="no io_uring")
        del arms[5]

    a, b = two_runs(tmp_path, drop)
    ids = [arm.id for arm in model.load(a).arms]
    done = compare(a, b)
    assert done.returncode == 0
    assert f"only in A: {ids[4]}: no io_uring" in done.stdout
    assert f"only in A: {ids[5]}\n" in done.stdout
    back = compare(b, a).stdout
    assert f"only in B: {ids[4]}: no io_uring" in back and f"only in B: {ids[5]}\n" in back


def test_more_failures_are_worse(tmp_path: Path) -> None:
    def fail(data: fake_report.Json) -> None:
        arm = arms_of(data)[0]
        arm["samples"] = arm["samples"][:28]
        arm.update(failed=2, errors=["exit status 125"])

    a, b = two_runs(tmp_path, fail)
    done = compare(a, b)
    assert done.returncode == 1 and "2 of 30 failed, 0 of 30 before: exit status 125" in done.stdout
    assert compare(b, a).returncode == 0


def test_fewer_successes_of_an_experiment_are_worse(tmp_path: Path) -> None:
    def fail(data: fake_report.Json) -> None:
        data["experiments"]["burst"].update(ok=99, failed=1)

    done = compare(*two_runs(tmp_path, fail))
    assert done.returncode == 1 and "burst: 99 of 100 succeeded, 100 of 100 before" in done.stdout


def test_a_target_that_is_missed_now_is_worse(tmp_path: Path) -> None:
    def miss(value: float) -> Callable[[fake_report.Json], object]:
        return lambda data: data["targets"][1].update(value=value, ok=value <= 2.5)

    done = compare(*two_runs(tmp_path, miss(2.9)))
    assert done.returncode == 1
    assert "target hot-unpooled: met before, missed now: 2.30 -> 2.90, limit 2.5" in done.stdout


def test_too_few_samples_are_told(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", fake_report.report(seed=1, n=4))
    b = write(tmp_path / "b.json", fake_report.report(seed=2, n=4))
    done = compare(a, b)
    assert done.returncode == 0 and verdicts(done.stdout)[MMAP] == "too few"
    assert "n 4 and 4: too few to tell" in done.stdout


def test_compare_as_json(tmp_path: Path) -> None:
    a, b = two_runs(tmp_path, lambda data: scale(data, 1.1, lambda arm: arm["id"] == MMAP))
    done = compare(a, b, "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 1 and data["worse"] is True and data["threshold"] == 0.05
    worse = {row["name"] for row in data["rows"] if row["verdict"] == "worse"}
    assert worse == {MMAP}
    row = next(row for row in data["rows"] if row["name"] == MMAP and row["clock"] == "c5")
    assert row["change"]["n_before"] == 30 and row["change"]["ratio"]["interval"]["low"] > 1.05


@pytest.mark.parametrize("argv", [[], ["a.json"], ["a", "b", "--threshold", "x"], ["a", "b", "-z"]])
def test_bad_usage(argv: list[str]) -> None:
    done = compare(*argv)
    assert done.returncode == 2 and "usage: compare" in done.stderr


# --- plots ---------------------------------------------------------------------------------------


def draw(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_tool(DEBIAN_PYTHON, "-m", "lab.plots", path, folder)


def pixels(path: Path) -> tuple[int, int, set[bytes]]:
    """Width, height and the distinct pixels (as filtered) among every seventh of an RGBA PNG."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, size = 8, b"", (0, 0)
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        assert (
            zlib.crc32(kind + body)
            == struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0]
        )
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
            assert body[8:10] == b"\x08\x06"
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    raw = zlib.decompress(packed)
    assert len(raw) == size[1] * (4 * size[0] + 1)
    return size[0], size[1], {raw[i : i + 4] for i in range(0, len(raw), 28)}


@pytest.fixture(scope="module")
def plots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plots")
    done = draw(write(folder / "report.json", fake_report.report()), folder / "out")
    assert (done.returncode, done.stderr) == (0, "")
    names = [Path(line).name for line in done.stdout.splitlines()]
    assert names == [f"{name}.{suffix}" for name in PLOTS for suffix in ("svg", "png")]
    return folder / "out"


@pytest.mark.parametrize("name", PLOTS)
def test_plots_are_whole_and_show_something(name: str, plots: Path) -> None:
    root = ElementTree.parse(plots / f"{name}.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    drawn = root.findall(".//{http://www.w3.org/2000/svg}path")
    assert len(drawn) > 40
    width, height, colors = pixels(plots / f"{name}.png")
    assert width >= 1000 and height >= 500 and len(colors) > 20


@pytest.mark.parametrize(
    ("name", "colors"),
    [
        ("cdf", ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c8c8c"]),
        ("phases", ["#0072b2", "#56b4e9", "#e69f00", "#009e73", "#bdbdbd"]),
        ("memory", ["#0072b2", "#e69f00", "#009e73"]),
        ("burst", ["#0072b2", "#e69f00", "#d55e00"]),
    ],
)
def test_every_series_is_drawn(name: str, colors: list[str], plots: Path) -> None:
    text = (plots / f"{name}.svg").read_text().lower()
    for color in colors:
        assert color in text, color


def test_the_same_report_gives_the_same_plots(plots: Path, tmp_path: Path) -> None:
    assert draw(plots.parent / "report.json", tmp_path).returncode == 0
    for name in PLOTS:
        for suffix in ("svg", "png"):
            file = f"{name}.{suffix}"
            assert (tmp_path / file).read_bytes() == (plots / file).read_bytes(), file
    assert "<dc:date>" not in (plots / "cdf.svg").read_text()


def test_plots_without_data_are_not_made_and_old_ones_removed(tmp_path: Path) -> None:
    data = fake_report.report(n=8)
    data["arms"] = [arm for arm in arms_of(data) if arm["cache"] == "cold"]
    data["experiments"] = {"burst": data["experiments"]["burst"], "memory": {"not_run": "x"}}
    (tmp_path / "memory.svg").write_text("old")
    done = draw(write(tmp_path / "report.json", data), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    made = {path.name for path in tmp_path.glob("*.svg")}
    assert made == {"cdf.svg", "phases.svg", "burst.svg"}
    data.update(arms=[], experiments={})
    done = draw(write(tmp_path / "report.json", data), tmp_path)
    assert (done.returncode, done.stdout) == (0, "") and not list(tmp_path.glob("*.svg"))


def test_plots_refuse_what_is_no_report(tmp_path: Path) -> None:
    data = fake_report.report(n=8)
    SPOILS["memory"][0](data)
    path = write(tmp_path / "bad.json", data)
    done = draw(path, tmp_path)
    assert done.returncode == 2 and f"lab.plots: {path}: {SPOILS['memory'][1]}" in done.stderr
