# SPDX-License-Identifier: Apache-2.0
"""The lab's peers that the test host has, for real: one start each. Nothing is timed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import BIN, STATE, TOP, Thaw

sys.path.append(str(TOP / "bench/lab"))

from lab.arms import Context, Template
from lab.peers import ADAPTERS


@pytest.fixture
def ctx(thaw: Thaw, template: Path) -> Iterator[Context]:
    manifest = json.loads((template / "manifest.json").read_text())
    work = STATE / "test-peers"
    work.mkdir(exist_ok=True)
    subject = Template(
        label="debian",
        name=thaw.template,
        folder=template,
        guest=TOP / "build/guest",
        vcpus=int(manifest["vcpus"]),
        memory_mib=int(manifest["memory_bytes"]) >> 20,
        command=["/bin/true"],
        manifest=manifest,
    )
    yield Context(
        top=TOP, bin=BIN, state=STATE, guest=TOP / "build/guest", work=work, templates=[subject]
    )
    for left in sorted(work.rglob("*"), reverse=True):
        left.rmdir() if left.is_dir() else left.unlink()
    work.rmdir()


# A boot of QEMU is part of both restores, so it is no case of its own.
@pytest.mark.parametrize(
    "arm_id",
    [
        "peer/qemu-microvm/restore",
        "peer/qemu-microvm/restore-shared",
        "peer/bubblewrap/run",
        "peer/bubblewrap/run-output",
        "peer/runsc/run",
    ],
)
def test_peer(ctx: Context, arm_id: str) -> None:
    (arm,) = [one for adapter in ADAPTERS for one in adapter.arms(ctx) if one.id == arm_id]
    try:
        arm.setup()
        arm.prepare()
        sample = arm.sample()
        arm.settle()
    finally:
        arm.teardown()
    assert 0 < sample["c5"] <= sample["wall"]
