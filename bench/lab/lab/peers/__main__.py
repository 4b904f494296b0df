# SPDX-License-Identifier: Apache-2.0
"""Tries peers alone, for whoever writes an adapter; the lab itself is bench/lab/run.

tests/host/run -- env PYTHONPATH=bench/lab python3 -m lab.peers [--n N] [WORD...]

Runs the arms whose id holds one of the WORDs (all without one) one after the other and prints the
samples. Exit status 1 when an arm failed; one that can't be had says why and is no failure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from lab.arms import Arm, Context, NotRun
from lab.peers import ADAPTERS
from lab.plan import DEBIAN, chosen
from lab.templates import build

TOP = Path(__file__).resolve().parents[4]
sys.path.append(str(TOP / "tests/vm"))
from localbin import local_bin  # noqa: E402


def try_arm(arm: Arm, n: int) -> bool:
    """Print what @n samples of it gave; false when it failed."""
    try:
        if arm.row.not_run is not None:
            raise NotRun(arm.row.not_run)
        arm.setup()
        for _ in range(n):
            arm.prepare()
            sample = arm.sample()
            arm.settle()
            clocks = "  ".join(f"{clock} {ms:.1f}" for clock, ms in sample.items())
            print(f"{arm.id:40} {clocks}", flush=True)
    except NotRun as reason:
        print(f"{arm.id:40} not run: {reason}", flush=True)
    except Exception as error:
        print(f"{arm.id:40} FAILED: {error}", flush=True)
        return False
    finally:
        arm.teardown()
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m lab.peers", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--n", type=int, default=3, help="samples an arm (default 3)")
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of an arm's id")
    options = parser.parse_args()
    state = Path(os.environ.get("THAW_STATE", "/var/lib/thaw"))
    work = Path(tempfile.mkdtemp(prefix="lab-peers-", dir=state))
    try:
        ctx = Context(
            top=TOP,
            bin=local_bin(),
            state=state,
            guest=TOP / DEBIAN.guest,
            work=work,
            templates=[],
        )
        ctx.templates.append(build(ctx, DEBIAN))
        arms = [arm for adapter in ADAPTERS for arm in adapter.arms(ctx)]
        tried = [try_arm(arm, options.n) for arm in arms if chosen(arm.id, options.words or None)]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0 if all(tried) else 1


if __name__ == "__main__":
    sys.exit(main())
