# SPDX-License-Identifier: Apache-2.0
"""Host side: from the raw results to build/lab/report.json, with the native set-up and the targets.

python3 -m lab.finish RAW.json REPORT.json [--bench GOOGLE_BENCHMARK.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from lab.model import ModelError, Report, load, save
from lab.targets import targets

C1 = "c1/restore/1/256"  # bench/setup.cc: first KVM ioctl to vCPU state set, of a restore


def native_setup(path: Path) -> dict[str, object]:
    """{"kvm", "c1_us": [...]} of the repetitions in a Google Benchmark file."""
    runs = [
        one
        for one in json.loads(path.read_text())["benchmarks"]
        if one.get("run_type") == "iteration" and one["name"].startswith(C1)
    ]
    if not runs or any(one.get("error_occurred") for one in runs):
        return {"not_run": f"{C1} has no result"}
    return {"kvm": runs[0]["label"], "c1_us": [float(one["real_time"]) for one in runs]}


def show(report: Report) -> None:
    for one in report.targets:
        word = {True: "ok  ", False: "MISS", None: "-   "}[one.ok]
        value = "-" if one.value is None else f"{one.value:.4g}"
        sign = "<=" if one.better == "lower" else ">="
        print(
            f"{word} {one.id:15} {value:>9} {sign} {one.limit:g} {one.unit}, n {one.n}; {one.note}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--bench", type=Path, help="native results of bench-setup")
    options = parser.parse_args()
    try:
        report = load(options.raw)
    except ModelError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    if options.bench is not None:
        report.experiments["setup"] = native_setup(options.bench)
    report.targets = targets(report)
    save(report, options.report)
    show(report)
    failed = sum(arm.failed for arm in report.arms)
    not_run = sum(arm.not_run is not None for arm in report.arms)
    print(f"{len(report.arms)} arms, {not_run} of them not run; {failed} samples failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
