# SPDX-License-Identifier: Apache-2.0
"""Diff templates of real guests: a chain built, run by every strategy, verified, flattened."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Thaw

NAMES = ("t-diff1", "t-diff2", "t-diff3", "t-whole")


def remember(word: str) -> tuple[str, ...]:
    """A warm-up that leaves @word in memory (/run is a tmpfs) and on the scratch disk."""
    return ("--warm", "sh", "-c", f"echo {word} >>/run/words; echo {word} >>/root/words", ";")


def strategies(thaw: Thaw) -> list[str]:
    """All there are, from the help text, but for the one that needs a packed template."""
    proc = thaw("run", "--help")
    rows = proc.stdout.decode().split("\nStrategies (default ws):\n")[1].splitlines()
    return [row.split()[0] for row in rows if row.startswith("  ") and row.split()[0] != "pack"]


def inspect(thaw: Thaw, name: str) -> dict[str, object]:
    proc = thaw("template", "inspect", name, "--json")
    assert proc.returncode == 0, proc.stderr
    data = json.loads(proc.stdout)
    assert isinstance(data, dict)
    return data


def words(thaw: Thaw, name: str, *options: str) -> list[str]:
    proc = thaw("run", name, *options, "--", "cat", "/run/words", "/root/words")
    assert proc.returncode == 0, proc.stderr
    return proc.stdout.decode().split()


def build(thaw: Thaw, name: str, parent: str, *options: str) -> None:
    proc = thaw("template", "build", name, "--from", parent, *options, *remember(name))
    assert proc.returncode == 0, proc.stderr


def remove(thaw: Thaw) -> subprocess.CompletedProcess[bytes]:
    return thaw("template", "rm", *NAMES)


@pytest.fixture(scope="module")
def chain(thaw: Thaw) -> Iterator[list[str]]:
    """t-diff3 -> t-diff2 -> t-diff1 -> the standard template."""
    remove(thaw)
    parent = thaw.template
    for name in NAMES[:3]:
        build(thaw, name, parent)
        parent = name
    yield [*NAMES[:3]]
    # Whatever became of it: the next module may want to replace the standard template.
    remove(thaw)


def test_only_what_differs_is_kept(thaw: Thaw, chain: list[str]) -> None:
    base = inspect(thaw, thaw.template)
    top = inspect(thaw, chain[2])
    assert top["lineage"] == ["t-diff2", "t-diff1", thaw.template] and base["lineage"] == []
    for name in chain:
        one = inspect(thaw, name)
        manifest = one["manifest"]
        assert isinstance(manifest, dict)
        memory = Path(str(one["path"])) / "memory"
        whole = Path(str(base["path"])) / "memory"
        used, full = memory.stat().st_blocks * 512, whole.stat().st_blocks * 512
        print(f"{name}: {manifest['diff']['pages']} pages, {used >> 10} of {full >> 10} KiB")
        assert 0 < manifest["diff"]["pages"] * 4096 < full / 2 and used < full / 2


def test_every_strategy_puts_it_together(thaw: Thaw, chain: list[str]) -> None:
    assert {"ws", "mmap", "copy"} <= set(strategies(thaw))
    for strategy in strategies(thaw):
        for i, name in enumerate(chain):
            assert words(thaw, name, "--strategy", strategy) == chain[: i + 1] * 2, strategy


def test_verify_reads_the_chain(thaw: Thaw, chain: list[str]) -> None:
    proc = thaw("template", "verify", chain[2])
    assert proc.returncode == 0, proc.stderr


def test_parents_are_kept(thaw: Thaw, chain: list[str]) -> None:
    for name, child in ((thaw.template, chain[0]), (chain[0], chain[1])):
        proc = thaw("template", "rm", name)
        assert proc.returncode == 1 and f"'{child}'" in proc.stderr.decode()
    proc = thaw("template", "flatten", chain[1])
    assert proc.returncode == 1 and f"'{chain[2]}'" in proc.stderr.decode()
    assert words(thaw, chain[2]) == chain * 2


def test_whole_and_flattened(thaw: Thaw, chain: list[str]) -> None:
    build(thaw, "t-whole", chain[2], "--whole")
    assert inspect(thaw, "t-whole")["lineage"] == []
    assert words(thaw, "t-whole") == [*chain, "t-whole"] * 2
    proc = thaw("template", "flatten", chain[2])
    assert proc.returncode == 0, proc.stderr
    assert inspect(thaw, chain[2])["lineage"] == []
    # What it stood on can go now, and it runs as before, with its hot set.
    proc = thaw("template", "rm", chain[0], chain[1])
    assert proc.returncode == 0, proc.stderr
    for strategy in strategies(thaw):
        assert words(thaw, chain[2], "--strategy", strategy) == chain * 2, strategy
    assert (Path(str(inspect(thaw, chain[2])["path"])) / "hot").exists()
    proc = thaw("template", "verify", chain[2])
    assert proc.returncode == 0, proc.stderr
