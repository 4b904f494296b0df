#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The part of the lab that runs where guests can run; bench/lab/run calls it. Writes raw results.

Standard library only. Its own failures end it with status 1; those of samples do not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.path[:0] = [str(HERE), str(TOP / "tests/vm")]

from lab import experiments, plan, templates  # noqa: E402
from lab.arms import Arm, Context, NotRun  # noqa: E402
from lab.measure import CpuMeter  # noqa: E402
from lab.model import Report, save  # noqa: E402
from lab.peers import ADAPTERS  # noqa: E402
from lab.runner import Runner  # noqa: E402
from lab.starts import thaw_arms  # noqa: E402
from localbin import local_bin  # noqa: E402

EXCERPT = ("created", "kernel", "vcpus", "memory_bytes", "memory_digest", "root_digest")


def words(text: str | None) -> list[str] | None:
    """A list of an option; "none" is the empty one."""
    if text is None:
        return None
    return [] if text == "none" else [word for word in text.split(",") if word]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plan", choices=sorted(plan.PLANS), default="quick")
    parser.add_argument("--arms")
    parser.add_argument("--experiments")
    parser.add_argument("--templates")
    parser.add_argument("--n", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def kvm_kind(ctx: Context) -> str:
    said = subprocess.run([ctx.thaw, "doctor", "--json"], capture_output=True, check=False).stdout
    return str(json.loads(said)["kvm"])


def file_system(path: Path) -> str:
    """Type of the one that @path is on."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, fs, *_ = line.split()
        if (path == Path(place) or Path(place) in path.parents) and len(place) >= len(best):
            best, kind = place, fs
    return kind


def environment(ctx: Context) -> dict[str, object]:
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")]
    memory_kib = int(Path("/proc/meminfo").read_text().split("MemTotal:", 1)[1].split()[0])
    found: dict[str, object] = {
        "git": os.environ.get("THAW_GIT_REVISION") or None,  # bench/lab/run: the host has no git
        "dirty": os.environ.get("THAW_GIT_DIRTY") == "1",
        "kernel": platform.release(),
        "cpu": models[0] if models else "unknown",
        "cpus": os.cpu_count(),
        "kvm": kvm_kind(ctx),
        "memory_mib": memory_kib >> 10,
        "page_cache_fs": file_system(ctx.state),
        "digests": {
            "thaw": sha256(ctx.bin / "thaw"),
            "thaw-vmm": sha256(ctx.bin / "thaw-vmm"),
            "guest": json.loads((ctx.guest / "guest.json").read_text())["digest"],
        },
        "templates": {
            one.name: {key: one.manifest.get(key) for key in EXCERPT} for one in ctx.templates
        },
    }
    qemu = shutil.which("qemu-system-x86_64")
    if qemu:
        said = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=False)
        found["qemu"] = said.stdout.split("\n", 1)[0]
    return found


def make_templates(ctx: Context, wanted: plan.Plan) -> None:
    for recipe in wanted.recipes:
        try:
            ctx.log(f"template {recipe.name}")
            ctx.templates.append(templates.build(ctx, recipe))
        except (NotRun, OSError, subprocess.CalledProcessError) as error:
            if recipe is plan.DEBIAN:
                raise SystemExit(f"lab: template {recipe.name}: {error}") from error
            ctx.log(f"template {recipe.name}: not had: {error}")
    if not ctx.templates:
        raise SystemExit("lab: no template, nothing to measure")


def all_arms(ctx: Context, wanted: plan.Plan) -> list[Arm]:
    arms: list[Arm] = []
    for template in ctx.templates:
        arms += thaw_arms(ctx, template, wanted.every)
    for adapter in ADAPTERS:
        arms += adapter.arms(ctx)
    return arms


def run_experiments(ctx: Context, wanted: plan.Plan, report: Report) -> None:
    for name, numbers in wanted.experiments.items():
        ctx.log(f"experiment {name}")
        started = time.monotonic()
        try:
            report.experiments[name] = experiments.RUN[name](ctx, numbers)
        except NotRun as reason:
            report.experiments[name] = {"not_run": str(reason)}
        except Exception as error:  # the others go on, and the report says it
            report.experiments[name] = {"not_run": f"failed: {type(error).__name__}: {error}"}
        reason = report.experiments[name].get("not_run")
        took = f"{time.monotonic() - started:.0f} s"
        ctx.log(f"experiment {name}: {took}" + (f": not run: {reason}" if reason else ""))


def show_list(arms: list[Arm], wanted: plan.Plan) -> None:
    for arm in arms:
        reason = f"   not run: {arm.row.not_run}" if arm.row.not_run else ""
        print(f"{wanted.samples(arm.row):4}  {arm.id}{reason}")
    for name, numbers in wanted.experiments.items():
        print(f"      experiment {name}: {numbers}")


def measure(ctx: Context, wanted: plan.Plan, options: argparse.Namespace) -> None:
    patterns = words(options.arms)
    if patterns is None and options.experiments is not None:
        patterns = []
    make_templates(ctx, wanted)
    arms = [arm for arm in all_arms(ctx, wanted) if plan.chosen(arm.id, patterns)]
    if options.list:
        show_list(arms, wanted)
        return
    report = Report(
        plan=wanted.name if patterns is None else "custom",
        seed=options.seed,
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        environment=environment(ctx),
        arms=[arm.row for arm in arms],
    )
    meter = CpuMeter()
    try:
        if arms:
            runner = Runner(ctx, arms, meter)
            runner.run(
                {arm.id: wanted.samples(arm.row) for arm in arms},
                {arm.id: wanted.warmups_of(arm.row) for arm in arms},
            )
            save(report, options.out)  # what there is, should the rest not come to its end
        run_experiments(ctx, wanted, report)
    finally:
        meter.close()
    save(report, options.out)


def main() -> int:
    options = parse()
    chosen = words(options.experiments)
    if chosen == ["all"]:
        chosen = list(plan.EXPERIMENTS)
    unknown = [name for name in chosen or [] if name not in plan.EXPERIMENTS]
    if unknown:
        print(f"lab: no experiment {unknown[0]}; there are: {', '.join(plan.EXPERIMENTS)}")
        return 2
    names = [recipe.name for recipe in plan.FULL.recipes]
    strange = [name for name in words(options.templates) or [] if name not in names]
    if strange:
        print(f"lab: no template {strange[0]}; there are: {', '.join(names)}")
        return 2
    if chosen is None and options.arms is not None:
        chosen = []
    wanted = plan.customize(plan.PLANS[options.plan], options.n, words(options.templates), chosen)
    state = Path(os.environ.get("THAW_STATE", "/var/lib/thaw"))
    state.mkdir(parents=True, exist_ok=True)
    ctx = Context(
        top=TOP,
        bin=local_bin(),
        state=state,
        guest=TOP / "build/guest",
        work=Path(tempfile.mkdtemp(prefix="lab-", dir=state)),
        templates=[],
        seed=options.seed,
    )
    started = time.monotonic()
    try:
        measure(ctx, wanted, options)
    finally:
        shutil.rmtree(ctx.work, ignore_errors=True)
    ctx.log(f"done in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
