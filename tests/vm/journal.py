# SPDX-License-Identifier: Apache-2.0
"""A journal of a run's cases that outlives the machine they run in.

The file that THAW_TEST_JOURNAL names gets a JSON line when a case starts and one when it has
ended. A run that finds ended cases there leaves them out: this is how tests/run-all goes on after
a test host that died. conftest.py takes these hooks in.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

PATH = os.environ.get("THAW_TEST_JOURNAL")


def note(nodeid: str, outcome: str, reason: str = "") -> None:
    if PATH:
        with open(PATH, "a") as file:
            file.write(json.dumps({"id": nodeid, "outcome": outcome, "reason": reason}) + "\n")


def ended() -> set[str]:
    if not PATH or not Path(PATH).exists():
        return set()
    lines = [json.loads(line) for line in Path(PATH).read_text().splitlines()]
    return {line["id"] for line in lines if line["outcome"] != "started"}


def leave_out_ended(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = ended()
    if left := [item for item in items if item.nodeid in done]:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.nodeid not in done]


def pytest_runtest_logstart(nodeid: str, location: tuple) -> None:
    note(nodeid, "started")


class Outcomes:
    """The worst outcome of a case's set-up, call and teardown."""

    worst = "passed"
    reason = ""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "setup":
        Outcomes.worst, Outcomes.reason = "passed", ""
    if report.failed:
        Outcomes.worst = "failed"
    elif report.skipped and Outcomes.worst == "passed":
        Outcomes.worst = "skipped"
        if isinstance(report.longrepr, tuple):
            Outcomes.reason = str(report.longrepr[2])
    if report.when == "teardown":
        note(report.nodeid, Outcomes.worst, Outcomes.reason)
