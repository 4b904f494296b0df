# SPDX-License-Identifier: Apache-2.0
"""Diff templates in the thaw command: who depends on whom, removal, flattening, what a build asks
for. Manifests and state files are made up here; the content of diffs is tests/unit/test_diff.c's,
and real ones are built in tests/vm/test_diff.py."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent.parent
THAW = Path(os.environ.get("THAW_BIN", TOP / "build/release/thaw"))
FAKE = TOP / "tests/native/fake_vmm.py"
HEX = "0123456789abcdef" * 2

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not THAW.exists(), reason=f"{THAW} is not built"),
]


class Templates:
    """A state folder with templates of which only the small files are there."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        (self.state / "templates").mkdir(parents=True)
        self.report = folder / "fake.json"
        self.digests: dict[str, str] = {}

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": os.environ["PATH"],
            "THAW_STATE": str(self.state),
            "THAW_VMM": str(FAKE),
            "THAW_FAKE_LOG": str(self.report),
        }
        return subprocess.run(
            [str(THAW), *args],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def make(self, name: str, parent: str | None = None, diff: bool = True) -> None:
        digest = f"{len(self.digests) + 1:032x}"
        self.digests[name] = digest
        manifest: dict[str, object] = {
            "format": "thaw-snapshot",
            "version": 2 if parent and diff else 1,
            "name": name,
            "created": "2025-01-31T12:00:00Z",
            "parent": parent,
            "kernel": "6.12.0",
            "vcpus": 1,
            "memory_bytes": 128 << 20,
            "memory_digest": HEX,
            "disk_bytes": 0,
            "disk_digest": None,
            "root_image": None,
            "root_bytes": 0,
            "root_digest": None,
            "cpu": {"vendor": "AuthenticAMD", "signature": 1, "model": "x", "features": []},
        }
        if parent and diff:
            manifest["diff"] = {"parent_state": self.digests[parent], "pages": 7, "digest": HEX}
        folder = self.state / "templates" / name
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps(manifest))
        head = struct.pack("<8sIIQ16s", b"THAWTATE", 1, 0, 64, bytes.fromhex(digest))
        (folder / "state").write_bytes(head.ljust(64, b"\0"))

    def names(self) -> list[str]:
        return sorted(path.name for path in (self.state / "templates").iterdir())


@pytest.fixture
def templates(tmp_path: Path) -> Templates:
    """root <- a <- b; whole was restored from root, and needs it no more."""
    made = Templates(tmp_path)
    made.make("root")
    made.make("a", "root")
    made.make("b", "a")
    made.make("whole", "root", diff=False)
    return made


def test_rm_names_the_dependents(templates: Templates) -> None:
    templates.make("a2", "root")
    proc = templates("template", "rm", "root")
    assert proc.returncode == 1
    assert "'root' can't be removed: 2 templates hold only what differs from it: 'a', 'a2'" in (
        proc.stderr
    )
    assert "flatten" in proc.stderr
    proc = templates("template", "rm", "a")
    assert proc.returncode == 1 and "1 template holds only" in proc.stderr and "'b'" in proc.stderr
    assert templates.names() == ["a", "a2", "b", "root", "whole"]
    # From the top down it works, and for what was never a diff.
    for name in ("whole", "b", "a", "a2", "root"):
        assert templates("template", "rm", name).returncode == 0
    assert templates.names() == []


def test_rm_of_a_chain_in_any_order(templates: Templates) -> None:
    assert templates("template", "rm", "root", "a", "b").returncode == 0
    assert templates.names() == ["whole"]


def test_rm_of_a_part_of_a_chain(templates: Templates) -> None:
    proc = templates("template", "rm", "root", "a", "whole")
    assert proc.returncode == 1 and "'b'" in proc.stderr and "'a'" in proc.stderr
    assert templates.names() == ["a", "b", "root"]


def test_an_orphan_stands_in_nobodys_way(templates: Templates) -> None:
    """What has its parent's name under it, but not its parent, can't be used anyway."""
    state = templates.state / "templates/root/state"
    state.write_bytes(state.read_bytes()[:24] + b"x" * 16 + b"\0" * 24)
    assert templates("template", "rm", "root").returncode == 0


def test_unreadable_state_counts_every_child(templates: Templates) -> None:
    (templates.state / "templates/root/state").unlink()
    proc = templates("template", "rm", "root")
    assert proc.returncode == 1 and "'a'" in proc.stderr


def test_inspect_and_ls(templates: Templates) -> None:
    data = json.loads(templates("template", "inspect", "b", "--json").stdout)
    assert data["lineage"] == ["a", "root"] and data["manifest"]["diff"]["pages"] == 7
    assert json.loads(templates("template", "inspect", "whole", "--json").stdout)["lineage"] == []
    text = templates("template", "inspect", "b").stdout
    assert "diff          7 pages kept; the others are in a <- root\n" in text
    assert "diff" not in templates("template", "inspect", "whole").stdout
    rows = templates("template", "ls").stdout.splitlines()
    assert [row.split()[0] for row in rows if "(diff)" in row] == ["a", "b"]
    # A missing link ends the list.
    assert templates("template", "rm", "whole").returncode == 0
    (templates.state / "templates/root").rename(templates.state / "elsewhere")
    data = json.loads(templates("template", "inspect", "b", "--json").stdout)
    assert data["lineage"] == ["a", "root"]


def test_flatten_refusals(templates: Templates) -> None:
    proc = templates("template", "flatten", "gone")
    assert proc.returncode == 1 and "there is none" in proc.stderr
    proc = templates("template", "flatten", "..")
    assert proc.returncode == 2 and "'..'" in proc.stderr
    proc = templates("template", "flatten")
    assert proc.returncode == 2
    # It checks everything that it builds on.
    proc = templates("template", "flatten", "b")
    assert proc.returncode == 1 and "b/state: " in proc.stderr
    assert templates.names() == ["a", "b", "root", "whole"]


def test_what_a_build_asks_for(templates: Templates) -> None:
    assert templates("template", "build", "c", "--from", "b").returncode == 0
    argv = json.loads(templates.report.read_text())["argv"]
    assert "--diff" in argv and argv[argv.index("--parent") + 1] == "b"
    assert templates("template", "build", "d", "--from", "b", "--whole").returncode == 0
    argv = json.loads(templates.report.read_text())["argv"]
    assert "--diff" not in argv and argv[argv.index("--parent") + 1] == "b"


@pytest.mark.parametrize(
    ("args", "status", "word"),
    [
        (["x", "--whole"], 2, "--whole needs --from"),
        (["a", "--from", "a", "--replace"], 2, "give --whole"),
        (["a", "--from", "root", "--replace"], 1, "'a' can't be replaced: 1 template holds"),
        (["root", "--from", "b", "--replace"], 1, "'root' can't be replaced"),
        (["root", "--from", "b", "--replace", "--whole"], 1, "'root' can't be replaced"),
    ],
)
def test_build_refusals(templates: Templates, args: list[str], status: int, word: str) -> None:
    proc = templates("template", "build", *args)
    assert proc.returncode == status and word in proc.stderr, proc
    assert templates.names() == ["a", "b", "root", "whole"]


def test_what_can_not_be_looked_at_may_be_a_diff(templates: Templates) -> None:
    """Without files to open, that is: each limit lets it come a little further."""
    for limit in range(4, 10):
        proc = subprocess.run(
            ["prlimit", f"--nofile={limit}", str(THAW), "template", "rm", "root"],
            env={"PATH": os.environ["PATH"], "THAW_STATE": str(templates.state)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert proc.returncode != 0 and "root" in templates.names(), (limit, proc.stderr)


def test_a_diff_that_comes_while_its_parent_is_built(templates: Templates, tmp_path: Path) -> None:
    templates.make("alone")
    templates.make("late", "alone")
    late, aside = templates.state / "templates/late", tmp_path / "late"
    late.rename(aside)
    build = ("template", "build", "alone", "--from", "root", "--whole", "--replace")
    proc = templates(*build, "--warm", "mv", str(aside), str(late), ";")
    assert proc.returncode == 1 and "late" in proc.stderr and "flatten" in proc.stderr
    state = (templates.state / "templates/alone/state").read_bytes()
    assert state[24:40].hex() == templates.digests["alone"]
    assert templates("template", "rm", "late", "alone").returncode == 0
