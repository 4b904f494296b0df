# SPDX-License-Identifier: Apache-2.0
"""The lab without a guest: model, plans, interleaving, the runner's failures, targets."""

from __future__ import annotations

import itertools
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "bench/lab"))

from lab import finish, model, plan  # noqa: E402
from lab.arms import Arm, Context, NotRun, Template  # noqa: E402
from lab.experiments import flight, io  # noqa: E402
from lab.measure import CpuMeter, Failed, run_good, run_timed  # noqa: E402
from lab.model import ArmRow, ModelError, Report, Sample, Target  # noqa: E402
from lab.runner import BLOCK_ROUNDS, GIVE_UP, Runner, rounds_of, schedule  # noqa: E402
from lab.sandbox import read_data  # noqa: E402
from lab.starts import STRATEGIES, thaw_arms  # noqa: E402
from lab.targets import (  # noqa: E402
    BWRAP,
    COLD,
    COLD_BOOT,
    PLAIN,
    POOLED,
    QEMU,
    UNPOOLED,
    WARM,
    targets,
)


def row(arm_id: str, **fields: object) -> ArmRow:
    """An arm with samples that its id stands for."""
    kind = arm_id.split("/", 1)[0]
    values = {"kind": kind, "variant": "restore", "peer": None, **fields}
    if kind == "peer":
        values["peer"] = arm_id.split("/")[1]
    samples = values.get("samples", [])
    assert isinstance(samples, list)
    for seq, sample in enumerate(samples):
        sample.setdefault("seq", seq)
    values.setdefault("n", len(samples))
    return ArmRow(id=arm_id, **values)  # type: ignore[arg-type]


def samples(n: int, **clocks: float) -> list[Sample]:
    return [dict(clocks) for _ in range(n)]


def restore(strategy: str, cache: str, pool: str, n: int, **clocks: float) -> ArmRow:
    return row(
        f"thaw/debian/{strategy}/{cache}/{pool}/1c-256m",
        **{"template": "debian", "strategy": strategy, "cache": cache, "pool": pool},
        **{"vcpus": 1, "memory_mib": 256, "samples": samples(n, **clocks)},
    )


def met_report() -> Report:
    """Every target is met, with room to spare."""
    report = Report(plan="quick", seed=1, date="2026-01-01T00:00:00Z")
    report.arms = [
        restore("ws", "hot", "hit", 30, c4=12, c5=14, wall=22),
        restore("ws", "hot", "none", 30, c4=20, c5=22, wall=30),
        restore("mmap", "hot", "none", 10, c4=40, c5=42, wall=50),
        restore("ws", "cold", "none", 30, c4=60, c5=62, wall=70, bytes_read=1050.0),
        restore("uring", "cold", "none", 30, c4=50, c5=52, wall=60, bytes_read=9000.0),
        restore("mmap", "cold", "none", 30, c4=90, c5=92, wall=99, bytes_read=5000.0),
        row(PLAIN, variant="plain", samples=samples(30, wall=20)),
        row(WARM, samples=samples(30, c4=10)),
        row(COLD_BOOT, variant="cold-boot", samples=samples(30, c4=4900, c5=5000)),
        row(BWRAP, variant="run", samples=samples(30, wall=25)),
        row(QEMU, samples=samples(30, c5=1000, wall=2000)),
    ]
    report.experiments = {
        "burst": {"n": 100, "ok": 100, "failed": 0, "clones_ms": [1.0], "wall_ms": 9.0},
        "sweep": {
            "same": [
                {"at_once": 8, "clones": 128, "ok": 128, "per_s": 10.0},
                {"at_once": 64, "clones": 128, "ok": 128, "per_s": 11.0},
            ],
            "different": [],
        },
        "memory": {
            "points": [{"clones": 1}, {"clones": 12}],
            **{"slope_private_kib": 2000.0, "hot_write_kib": 1456, "vmm_private_kib": 600},
        },
        "io": {
            **{"hot_set_bytes": 1000, "bytes_read": [1.0], "depth": 128},
            **{"ws_fetch_bytes_per_s": [90.0, 91.0], "fio_bytes_per_s": [100.0]},
        },
        "setup": {"kvm": "hardware", "c1_us": [300.0, 310.0]},
    }
    return report


def by_id(report: Report) -> dict[str, Target]:
    return {target.id: target for target in targets(report)}


# --- model ---------------------------------------------------------------------------------------


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    report = met_report()
    report.targets = targets(report)
    model.save(report, tmp_path / "new/report.json")
    assert model.load(tmp_path / "new/report.json") == report
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("schema",), 2, "schema 2"),
        (("seed",), "1", "seed is '1'"),
        (("arms", 0, "kind"), "other", "kind is 'other'"),
        (("arms", 0, "pool"), "maybe", "pool is 'maybe'"),
        (("arms", 0, "n"), 29, "n 29"),
        (("arms", 0, "n"), True, "n is True"),
        (("arms", 0, "surprise"), 1, "unknown field surprise"),
        (("arms", 0, "not_run"), "why", "samples and not_run"),
        (("arms", 0, "peer"), "qemu-microvm", "contradict"),
        (("arms", 0, "options"), [1], "no string"),
        (("arms", 1, "id"), POOLED, "twice"),
        (("arms", 0, "samples", 3, "c5"), -1.0, "c5 is -1.0"),
        (("arms", 0, "samples", 3, "c5"), float("nan"), "c5 is nan"),
        (("arms", 0, "samples", 3, "c9"), 1.0, "unknown key c9"),
        (("experiments", "burst"), [], "burst: not an object"),
        (("experiments", "other"), {}, "unknown one other"),
        (("targets", 0, "ok"), False, "ok is False"),
        (("targets", 0, "ok"), None, "contradict"),
        (("targets", 0, "unit"), "furlong", "unit is"),
        (("targets", 0, "id"), "speed", "id is"),
    ],
)
def test_what_is_no_report(path: tuple[str | int, ...], value: object, says: str) -> None:
    report = met_report()
    report.targets = targets(report)
    data = model.to_json(report)
    assert model.check(data) == []
    place: object = data
    for step in path[:-1]:
        place = place[step]  # type: ignore[index]
    place[path[-1]] = value  # type: ignore[index]
    assert any(says in one for one in model.check(data)), model.check(data)
    with pytest.raises(ModelError):
        model.from_json(data)


def test_a_sample_without_its_place_is_refused() -> None:
    data = model.to_json(met_report())
    del data["arms"][0]["samples"][0]["seq"]  # type: ignore[index]
    assert any("no seq" in one for one in model.check(data))


def test_no_report_at_all(tmp_path: Path) -> None:
    for content in ("", "[]", "{}", '{"schema": 1}'):
        (tmp_path / "x").write_text(content)
        with pytest.raises(ModelError, match="/x: "):
            model.load(tmp_path / "x")


# --- plans and interleaving ----------------------------------------------------------------------


def test_arms_with_fewer_samples_are_spread_over_the_run() -> None:
    assert rounds_of(30, 30) == list(range(30))
    few = rounds_of(6, 30)
    assert len(few) == 6 and few[0] < 6 and few[-1] >= 24
    assert all(4 <= b - a <= 6 for a, b in itertools.pairwise(few))


def test_interleaving_is_the_seeds() -> None:
    wanted = {"a": 30, "b": 30, "c": 7, "cold": 30, "never": 0}
    blocks = schedule(wanted, {"cold"}, seed=1)
    flat = [name for block in blocks for name in block]
    assert {name: flat.count(name) for name in wanted} == wanted
    assert blocks == schedule(wanted, {"cold"}, seed=1)
    assert blocks != schedule(wanted, {"cold"}, seed=2)
    for block in blocks:
        assert set(block) == {"cold"} or "cold" not in block
    hot = [block for block in blocks if block[0] != "cold"]
    assert len(hot) == 30 // BLOCK_ROUNDS
    # No arm is ever two rounds ahead of another.
    done = {"a": 0, "b": 0}
    for name in (name for block in hot for name in block):
        if name in done:
            done[name] += 1
            assert abs(done["a"] - done["b"]) <= 1
    firsts = [next(name for name in flat if name in done)]
    for seed in range(2, 12):
        order = [name for block in schedule(wanted, {"cold"}, seed) for name in block]
        firsts.append(next(name for name in order if name in done))
    assert set(firsts) == {"a", "b"}


def fake_context(tmp_path: Path) -> Context:
    folder = tmp_path / "templates/debian"
    folder.mkdir(parents=True, exist_ok=True)
    template = Template("debian", "debian", folder, tmp_path, 1, 256, ["/bin/true"], {})
    return Context(TOP, tmp_path, tmp_path, tmp_path, tmp_path, [template])


def test_the_quick_plan_has_what_the_targets_need(tmp_path: Path) -> None:
    ctx = fake_context(tmp_path)
    rows = {arm.id: arm.row for arm in thaw_arms(ctx, ctx.templates[0], plan.QUICK.every)}
    for needed in (POOLED, UNPOOLED, COLD, WARM, COLD_BOOT):
        assert plan.QUICK.samples(rows[needed]) >= 30, needed
    assert plan.QUICK.samples(row(BWRAP, variant="run")) >= 30
    assert plan.QUICK.samples(row(QEMU)) >= 30
    for strategy in STRATEGIES:
        for cache in ("hot", "cold"):
            assert f"thaw/debian/{strategy}/{cache}/none/1c-256m" in rows
    assert {"burst", "sweep", "memory", "io"} <= set(plan.QUICK.experiments)
    assert set(plan.QUICK.experiments["sweep"]["at_once"]) >= {8, 64}  # type: ignore[call-overload]


def test_the_full_plan_has_every_cell(tmp_path: Path) -> None:
    ctx = fake_context(tmp_path)
    arms = thaw_arms(ctx, ctx.templates[0], plan.FULL.every)
    assert len({arm.id for arm in arms}) == len(arms)
    cells = {(arm.row.cache, arm.row.pool) for arm in arms}
    assert cells >= {(cache, pool) for cache in ("hot", "cold") for pool in ("hit", "miss", "none")}
    assert all(plan.FULL.samples(arm.row) >= 30 for arm in arms)
    assert {(one.vcpus, one.memory_mib) for one in plan.FULL.recipes} >= {(1, 256), (2, 1024)}
    for recipe in plan.FULL.recipes:
        data = json.loads((TOP / recipe.recipe).read_text())
        assert (data["vcpus"], data["memory_mib"]) == (recipe.vcpus, recipe.memory_mib)
    assert set(plan.FULL.experiments) == set(model.EXPERIMENTS) - {"setup"}


def test_a_plan_of_ones_own() -> None:
    assert plan.customize(plan.QUICK, None, None, None) is plan.QUICK
    mine = plan.customize(plan.QUICK, 3, ["lab-large"], ["io", "replay"])
    assert mine.name == "custom" and mine.n == mine.slow == 3
    assert [one.name for one in mine.recipes] == ["lab-large"]
    assert mine.experiments["io"]["n"] == 3 and list(mine.experiments) == ["io", "replay"]
    assert plan.QUICK.experiments["io"]["n"] == 30
    assert plan.chosen(UNPOOLED, ["peer/", "/ws/hot"]) and not plan.chosen(COLD, ["/ws/hot"])
    assert plan.chosen(COLD, None) and not plan.chosen(COLD, [])


# --- the runner ----------------------------------------------------------------------------------


class FakeArm(Arm):
    def __init__(self, ctx: Context, name: str, cache: str, fails: int = 0) -> None:
        super().__init__(row(f"thaw/{name}", cache=cache))
        self.ctx = ctx
        self.fails = fails
        self.calls: list[str] = []

    def prepare(self) -> None:
        self.calls.append("prepare")
        if self.row.cache == "cold":
            self.ctx.cache_drops += 1

    def sample(self) -> Sample:
        self.calls.append("sample")
        if self.fails:
            self.fails -= 1
            raise Failed("broken")
        return {"c4": 1.0}

    def settle(self) -> None:
        self.calls.append("settle")

    def warm(self) -> None:
        self.calls.append("warm")

    def release(self) -> None:
        self.calls.append("release")

    def teardown(self) -> None:
        self.calls.append("teardown")


class NoMeter(CpuMeter):
    def __init__(self) -> None:
        self.folder = None


def run_arms(ctx: Context, arms: list[Arm], n: int, warmups: int = 0) -> list[ArmRow]:
    runner = Runner(ctx, arms, NoMeter())
    runner.run({arm.id: n for arm in arms}, {arm.id: warmups for arm in arms})
    report = Report("custom", 1, "", arms=[arm.row for arm in arms])
    assert model.check(model.to_json(report)) == []
    return report.arms


def test_a_failed_sample_is_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    ctx = fake_context(tmp_path)
    good, flaky = FakeArm(ctx, "good", "hot"), FakeArm(ctx, "flaky", "hot", fails=2)
    rows = run_arms(ctx, [good, flaky], 8)
    assert (rows[0].n, rows[0].failed, len(rows[0].samples)) == (8, 0, 8)
    assert (rows[1].n, rows[1].failed, len(rows[1].samples)) == (8, 2, 6)
    assert rows[1].errors == ["Failed: broken"] * 2
    seqs = sorted(int(sample["seq"]) for one in rows for sample in one.samples)
    assert seqs == list(range(14))
    assert flaky.calls.count("settle") == 8 and flaky.calls[-1] == "teardown"


def test_an_arm_that_only_fails_is_given_up(tmp_path: Path) -> None:
    ctx = fake_context(tmp_path)
    rows = run_arms(ctx, [FakeArm(ctx, "bad", "hot", fails=99), FakeArm(ctx, "good", "hot")], 20)
    assert (rows[0].n, rows[0].failed, rows[0].samples) == (GIVE_UP, GIVE_UP, [])
    assert len(rows[1].samples) == 20


def test_what_can_not_be_had_says_why(tmp_path: Path) -> None:
    ctx = fake_context(tmp_path)

    class Absent(FakeArm):
        def setup(self) -> None:
            raise NotRun("no such program")

    class Broken(FakeArm):
        def setup(self) -> None:
            raise ValueError("surprise")

    arms: list[Arm] = [Absent(ctx, "absent", "hot"), Broken(ctx, "broken", "hot")]
    arms.append(FakeArm(ctx, "good", "hot"))
    rows = run_arms(ctx, arms, 3)
    assert [one.not_run for one in rows] == ["no such program", "set-up failed: surprise", None]
    assert [len(one.samples) for one in rows] == [0, 0, 3]
    assert arms[0].calls == ["teardown"]  # type: ignore[attr-defined]


def test_hot_arms_are_warmed_after_a_drop(tmp_path: Path) -> None:
    ctx = fake_context(tmp_path)
    hot, cold = FakeArm(ctx, "hot", "hot"), FakeArm(ctx, "cold", "cold")
    rows = run_arms(ctx, [hot, cold], 2 * BLOCK_ROUNDS, warmups=2)
    # Before each of the two blocks: the warm-ups of the cold arm dropped it, too.
    assert hot.calls.count("warm") == 2
    assert hot.calls.count("sample") == 2 * BLOCK_ROUNDS + 2
    # And before each block of cold ones it lets go of what it holds.
    assert hot.calls.count("release") == 2
    assert [one.warmups for one in rows] == [2, 2]
    assert len(rows[0].samples) == 2 * BLOCK_ROUNDS


# --- stop-watches and files ----------------------------------------------------------------------


def test_a_process_is_timed_and_its_failure_told() -> None:
    ended = run_timed(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert ended.status == 3 and "out" in ended.output and "err" in ended.output
    assert ended.wall_ms > 0
    with pytest.raises(Failed, match=r"sh ended with status 3: first; why"):
        run_good(["sh", "-c", "echo first; echo why; exit 3"])
    with pytest.raises(Failed, match="killed after"):
        run_timed(["sleep", "100"], timeout_s=0.05)
    with pytest.raises(OSError):
        run_timed(["/no/such/program"])


def test_a_flight_counts_what_fails(tmp_path: Path) -> None:
    ctx = fake_context(tmp_path)
    # Stands in for thaw: every third start fails, every start leaves a mark while it is there.
    program = tmp_path / "thaw"
    program.write_text(
        f"""#!/bin/sh
mkdir {tmp_path}/up-$$
ls -d {tmp_path}/up-* | wc -l >>{tmp_path}/peak
sleep 0.05
rmdir {tmp_path}/up-$$
while [ "$1" != --json ]; do shift; done
case $2 in *[147]) exit 1 ;; esac
echo '{{"clocks_ms": {{"c5": 7.5}}}}' >"$2"
"""
    )
    program.chmod(0o755)
    flown = flight.fly(ctx, ctx.templates, 9, 3)
    assert (flown.n, flown.ok, flown.failed) == (9, 6, 3)
    assert flown.c5 == [7.5] * 6 and flown.errors == ["exit status 1"] * 3
    assert flown.per_s > 0
    assert max(int(line) for line in (tmp_path / "peak").read_text().split()) <= 3


def test_the_requests_of_a_hot_set(tmp_path: Path) -> None:
    """Neighbours are one request, holes are none, and a request has at most 64 pages."""
    ctx = fake_context(tmp_path)
    template = ctx.templates[0]
    root = tmp_path / "root"
    root.write_bytes(b"r" * 8192)
    with (template.folder / "memory").open("wb") as memory:
        os.truncate(memory.fileno(), 4 << 20)
        os.pwrite(memory.fileno(), b"m" * (100 * 4096), 0)
    runs = [(0, 1, 0), (4096, 99, 1), (1 << 20, 4, 0), (4 << 30, 2, 0)]
    header = struct.pack("<8sII", b"THAWHOT\0", 2, len(runs)).ljust(128, b"\0")
    body = b"".join(struct.pack("<QII", *run) for run in runs)
    (template.folder / "hot").write_bytes(header + body)
    template.manifest["root_image"] = str(root)
    memory_path = template.folder / "memory"
    wanted = io.requests(template)
    assert wanted == [
        (memory_path, 0, 64 * 4096),
        (memory_path, 64 * 4096, 36 * 4096),
        (root, 0, 8192),
    ]
    io.write_log(tmp_path / "log", wanted)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "fio version 2 iolog" and f"{root} read 0 8192" in lines
    read_data(memory_path)


# --- targets -------------------------------------------------------------------------------------


def test_all_targets_met() -> None:
    found = by_id(met_report())
    assert tuple(found) == model.TARGETS
    assert {name: one.ok for name, one in found.items()} == dict.fromkeys(found, True)
    assert found["hot-pooled"].value == pytest.approx(1.2) and found["hot-pooled"].n == 30
    assert found["v-qemu"].value == pytest.approx(0.02)  # by c5, which the peer has
    assert found["clone-private"].value == pytest.approx(544)
    assert "2000" in found["clone-private"].note and "1456" in found["clone-private"].note
    assert found["c1-native"].value == pytest.approx(0.305)
    assert found["ws-best-hot"].value == pytest.approx(0.5) and found["ws-best-hot"].n == 10


def with_clock(arm_id: str, **clocks: float) -> Report:
    report = met_report()
    arm = report.arm(arm_id)
    assert arm is not None
    for sample in arm.samples:
        sample.update(clocks)
    return report


def with_number(experiment: str, **numbers: object) -> Report:
    report = met_report()
    report.experiments[experiment].update(numbers)
    return report


def sweep_of(at8: float, at64: float) -> list[dict[str, float]]:
    return [
        {"at_once": 8, "clones": 64, "ok": 64, "per_s": at8},
        {"at_once": 64, "clones": 64, "ok": 64, "per_s": at64},
    ]


@pytest.mark.parametrize(
    ("target", "report", "value"),
    [
        ("hot-pooled", with_clock(POOLED, c4=15.1), 1.51),
        ("hot-unpooled", with_clock(UNPOOLED, c4=25.1), 2.51),
        ("v-bwrap", with_clock(BWRAP, wall=19), 20 / 19),
        ("v-qemu", with_clock(QEMU, c5=600), 1 / 30),
        ("v-coldboot", with_clock(COLD_BOOT, c5=3900), 20 / 3900),
        ("cold-bytes", with_clock(COLD, bytes_read=1101.0), 1.101),
        ("cold-bandwidth", with_number("io", fio_bytes_per_s=[120.0]), 90.5 / 120),
        ("burst100", with_number("burst", ok=99), 99),
        ("rate64", with_number("sweep", same=sweep_of(10.0, 9.9)), 0.99),
        ("clone-private", with_number("memory", slope_private_kib=2481.0), 1025),
        ("vmm-private", with_number("memory", vmm_private_kib=1025), 1025),
        ("c1-native", with_number("setup", c1_us=[501.0]), 0.501),
        ("ws-best-hot", with_clock("thaw/debian/mmap/hot/none/1c-256m", c4=19), 20 / 19),
        ("cold-best", with_clock("thaw/debian/mmap/cold/none/1c-256m", c4=49), 50 / 49),
    ],
)
def test_a_target_missed(target: str, report: Report, value: float) -> None:
    found = by_id(report)
    assert found[target].ok is False
    assert found[target].value == pytest.approx(value)
    # The one number moves no other verdict.
    assert [name for name, one in found.items() if one.ok is not True] == [target]


def test_what_is_missing_has_no_verdict() -> None:
    for found in (by_id(Report("quick", 1, "")), by_id(nothing_ran())):
        assert tuple(found) == model.TARGETS
        for one in found.values():
            assert one.ok is None and one.value is None and one.note.startswith("not told: "), one


def nothing_ran() -> Report:
    report = met_report()
    for arm in report.arms:
        arm.samples, arm.n, arm.not_run = [], 0, "not here"
    report.experiments = {name: {"not_run": "not here"} for name in report.experiments}
    return report


def test_a_small_burst_is_no_verdict() -> None:
    assert by_id(with_number("burst", n=10, ok=10))["burst100"].ok is None


def test_arms_with_options_do_not_stand_for_their_strategy() -> None:
    report = met_report()
    assert by_id(report)["ws-best-hot"].ok is True
    fast = restore("mmap", "hot", "none", 30, c4=1)
    fast.id, fast.options = f"{fast.id}/x", ["--populate", "both"]
    report.arms.append(fast)
    assert by_id(report)["ws-best-hot"].ok is True


def test_finish(tmp_path: Path) -> None:
    """From raw results and Google Benchmark's to the report."""
    report = met_report()
    del report.experiments["setup"]
    model.save(report, tmp_path / "raw.json")
    bench = [
        {"name": finish.C1, "run_type": "iteration", "label": "pvm", "real_time": 250.0},
        {"name": "setup/other", "run_type": "iteration", "label": "pvm", "real_time": 1.0},
        {"name": f"{finish.C1}_mean", "run_type": "aggregate", "label": "pvm", "real_time": 2.0},
    ]
    (tmp_path / "bench.json").write_text(json.dumps({"benchmarks": bench}))
    argv = [sys.executable, "-m", "lab.finish", str(tmp_path / "raw.json")]
    argv += [str(tmp_path / "report.json"), "--bench", str(tmp_path / "bench.json")]
    env = {**os.environ, "PYTHONPATH": str(TOP / "bench/lab")}
    said = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
    done = model.load(tmp_path / "report.json")
    assert done.experiments["setup"] == {"kvm": "pvm", "c1_us": [250.0]}
    assert [one.id for one in done.targets] == list(model.TARGETS)
    assert "MISS" not in said and "ok   hot-pooled" in said


def test_usage() -> None:
    lab = [str(TOP / "bench/lab/run")]
    said = subprocess.run([*lab, "--help"], capture_output=True, text=True, check=True).stdout
    for word in ("--plan", "--arms", "--experiments", "--templates", "--n", "--seed", "--list"):
        assert word in said
    for name in plan.EXPERIMENTS:
        assert name in said
    for wrong in (["--what"], ["--n"], ["--plan", "slow"]):
        assert subprocess.run([*lab, *wrong], capture_output=True).returncode == 2
