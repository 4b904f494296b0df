# SPDX-License-Identifier: Apache-2.0
"""Recording the hot set with real guests: two recorders on one template, and their agreement."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import STATE, TOP, Thaw

NAME = "t-hot"
PAGE = 4096
BPF_TEST = TOP / "build/release/unit/test_hot_bpf"


@pytest.fixture(scope="module")
def hot_template(thaw: Thaw) -> Iterator[str]:
    """A second generation of the standard template, whose hot set may be recorded again."""
    thaw("template", "rm", NAME)
    proc = thaw("template", "build", NAME, "--from", thaw.template, "--whole", "--hot-runs", "1")
    assert proc.returncode == 0, proc.stderr
    yield NAME
    assert thaw("template", "rm", NAME).returncode == 0


def record(thaw: Thaw, *args: str) -> tuple[dict[str, object], dict[int, int]]:
    """What `inspect` says of a fresh recording, and its pages: address to kind."""
    proc = thaw("template", "record", NAME, *args)
    assert proc.returncode == 0, proc.stderr
    proc = thaw("template", "inspect", NAME, "--json")
    assert proc.returncode == 0, proc.stderr
    data = (STATE / "templates" / NAME / "hot").read_bytes()
    pages: dict[int, int] = {}
    for gpa, npages, kind in struct.iter_unpack("<QII", data[128:]):
        pages |= {gpa + i * PAGE: kind for i in range(npages)}
    return json.loads(proc.stdout)["hot"], pages


def test_both_recorders(thaw: Thaw, hot_template: str, tmp_path: Path) -> None:
    hot: dict[str, dict[str, object]] = {}
    pages: dict[str, dict[int, int]] = {}
    for recorder in ("pagemap", "bpf"):
        hot[recorder], pages[recorder] = record(thaw, "--recorder", recorder, "--hot-runs", "2")
        one = hot[recorder]
        assert one["recorder"] == recorder and one["rule"] == "half"
        # /bin/true, sh -c : and python3 -c 0, twice each.
        assert (one["clones"], one["commands"], one["threshold"]) == (6, 3, 3)
        assert one["read_pages"] + one["write_pages"] == len(pages[recorder])  # type: ignore[operator]
        assert one["intersection_pages"] <= len(pages[recorder]) <= one["union_pages"]  # type: ignore[operator]
        assert list(pages[recorder].values()).count(1) == one["write_pages"] > 50  # type: ignore[operator]
        assert one["stability"] > 0.8 and one["similarity"] < one["stability"]  # type: ignore[operator]
        report = tmp_path / f"{recorder}.json"
        proc = thaw("run", NAME, "--json", str(report), "--", "true")
        assert proc.returncode == 0, proc.stderr
        assert "no-hot-set" not in json.loads(report.read_text())["strategy"]
    # The guest's accesses are a part of what was touched in its memory; the rest is the devices'.
    bpf, pagemap = set(pages["bpf"]), set(pages["pagemap"])
    common = len(bpf & pagemap)
    print(f"pagemap {len(pagemap)}, bpf {len(bpf)}, both {common}")
    assert common / len(bpf | pagemap) > 0.7, (len(bpf), len(pagemap), common)


def test_rules(thaw: Thaw, hot_template: str) -> None:
    union, union_pages = record(thaw, "--hot-rule", "union", "--hot-runs", "1")
    all_, all_pages = record(thaw, "--hot-rule", "intersection", "--hot-runs", "1")
    assert len(union_pages) == union["union_pages"] and len(all_pages) < len(union_pages)
    assert len(all_pages) == all_["intersection_pages"] and union["stability"] is None


def test_bpf_program_on_a_small_guest() -> None:
    proc = subprocess.run([str(BPF_TEST)], capture_output=True, text=True, check=False, timeout=120)
    assert proc.returncode == 0, proc.stdout + proc.stderr
