# SPDX-License-Identifier: Apache-2.0
"""tests/run-all goes on after a test host that broke, and ends all the same."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

RUN_ALL = Path(__file__).resolve().parent.parent / "run-all"
# Writes what the journal of a run would get, one step a call, and ends with that step's status.
FAKE = """
import os, sys
folder, steps = sys.argv[1], sys.argv[2:]
number = len(os.listdir(folder))
open(f"{folder}/{number}", "w").close()
status, *words = steps[min(number, len(steps) - 1)].split()
with open(os.environ["THAW_TEST_JOURNAL"], "a") as journal:
    for word in words:
        case, outcome = word.split(":")
        journal.write(f'{{"id": "{case}", "outcome": "{outcome}", "reason": ""}}\\n')
if status == "hang":
    import time
    time.sleep(60)
sys.exit(int(status))
"""


@pytest.fixture
def run_all(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loader = SourceFileLoader("run_all", str(RUN_ALL))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = ModuleType("run_all")
    module.__file__ = str(RUN_ALL)
    exec(loader.get_code("run_all"), module.__dict__)
    return module


def run(
    run_all: ModuleType, tmp_path: Path, *steps: str, limit_s: float = 30
) -> tuple[int | None, str, int, dict[str, str]]:
    calls = tmp_path / "calls"
    calls.mkdir()
    run_all.VM_RUNNER = [sys.executable, "-c", FAKE, str(calls), *steps, "--"]
    # What run_in_host() adds are further steps that no call reaches.
    journal = tmp_path / "journal"
    status, trouble = run_all.run_in_host(journal, limit_s, [])
    cases = {line["id"]: line["outcome"] for line in run_all.read_journal(journal)}
    return status, trouble, len(list(calls.iterdir())), cases


def test_a_broken_host_is_tried_again(run_all: ModuleType, tmp_path: Path) -> None:
    status, trouble, calls, cases = run(
        run_all, tmp_path, "120 a:started a:passed b:started", "0 b:started b:passed"
    )
    assert (status, trouble, calls) == (0, "", 2)
    assert cases == {"a": "passed", "b": "passed"}


def test_a_case_that_breaks_it_twice_is_to_blame(run_all: ModuleType, tmp_path: Path) -> None:
    status, trouble, calls, cases = run(run_all, tmp_path, "120 a:started", "120 a:started", "0")
    assert status == run_all.HOST_BROKEN and trouble and calls == 2
    assert cases == {"a": "started"}


def test_it_does_not_try_for_ever(run_all: ModuleType, tmp_path: Path) -> None:
    steps = [f"120 {name}:started" for name in "abcdef"]
    status, trouble, calls, _ = run(run_all, tmp_path, *steps)
    assert status == run_all.HOST_BROKEN and trouble and calls == run_all.HOST_TRIES


def test_a_failure_is_not_tried_again(run_all: ModuleType, tmp_path: Path) -> None:
    status, trouble, calls, cases = run(run_all, tmp_path, "1 a:started a:failed", "0")
    assert (status, trouble, calls) == (1, "", 1)
    assert cases == {"a": "failed"}


def test_a_run_that_hangs_is_ended(run_all: ModuleType, tmp_path: Path) -> None:
    status, trouble, calls, _ = run(run_all, tmp_path, "hang a:started", limit_s=1)
    assert status is None and "not done after 1 s" in trouble and calls == 1
