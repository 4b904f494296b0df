# SPDX-License-Identifier: Apache-2.0
"""kill -9 of export, import and pack at random instants: the old template stays whole, no partial
one is seen, and the next command finds nothing of it. tests/vm/test_kill.py has what needs a guest.

The seed is printed with a failure; KILL_SEED sets it, KILL_ROUNDS the kills of each case.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from test_pack import THAW, Host

ROUNDS = int(os.environ.get("KILL_ROUNDS", "25"))
SEED = int(os.environ.get("KILL_SEED", "1"))

pytestmark = pytest.mark.skipif(not THAW.exists(), reason=f"{THAW} is not built")


class Killer:
    """Starts a command again and again and kills it somewhere on its way."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.random = random.Random(SEED)
        self.span_s = 0.0

    def popen(self, *args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(THAW), "template", *args],
            env=self.host.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def measure(self, *args: str) -> None:
        start = time.monotonic()
        assert self.popen(*args).wait(timeout=60) == 0
        self.span_s = time.monotonic() - start

    def kill(self, *args: str) -> bool:
        """Was it killed before it ended?"""
        process = self.popen(*args)
        time.sleep(self.random.uniform(0, self.span_s))
        process.send_signal(signal.SIGKILL)
        return process.wait(timeout=60) == -signal.SIGKILL


def state_files(host: Host) -> set[str]:
    """All names below the state folder, folders too."""
    return {str(path.relative_to(host.state)) for path in host.state.rglob("*")}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path / "here")
    made.make_one()
    made.ok("export", "one", str(tmp_path / "one.thaw"))
    made.ok("import", "base", str(tmp_path / "one.thaw"))
    made.ok("rm", "one")
    return made


def test_import(host: Host, tmp_path: Path) -> None:
    """Into a machine that has neither the template nor its image."""
    pack = str(tmp_path / "one.thaw")
    there = Host(tmp_path / "there")
    killer = Killer(there)
    killer.measure("import", "two", pack)
    want = there.files("two")
    there.ok("rm", "two")
    killed = 0
    for number in range(ROUNDS):
        for image in there.images.iterdir():
            (image / "root.erofs").unlink()
        killed += killer.kill("import", "two", pack)
        there.ok("ls")
        assert there.names() in ([], ["two"]), (SEED, number)
        assert all(list(image.iterdir()) for image in there.images.iterdir()), (SEED, number)
        if there.names():
            assert there.files("two") == want, (SEED, number)
            there.ok("rm", "two")
    print(f"{killed} of {ROUNDS} were killed on their way")
    assert killed > ROUNDS / 4
    there.ok("import", "two", pack)
    assert there.files("two") == want


def test_import_replace(host: Host, tmp_path: Path) -> None:
    """The old template or the new one, always whole."""
    pack = str(tmp_path / "one.thaw")
    killer = Killer(host)
    killer.measure("import", "base", pack, "--replace")
    want, before = host.files("base"), state_files(host)
    for number in range(ROUNDS):
        killer.kill("import", "base", pack, "--replace")
        assert host.files("base") == want, (SEED, number)
        host.ok("ls")
        assert state_files(host) == before, (SEED, number)
    host.ok("import", "base", pack, "--replace")


@pytest.mark.parametrize("replace", [False, True])
def test_export(host: Host, tmp_path: Path, replace: bool) -> None:
    out = tmp_path / "out" / "base.thaw"
    out.parent.mkdir()
    options = ["--replace"] if replace else []
    killer = Killer(host)
    killer.measure("export", "base", str(out))
    want, before = out.read_bytes(), state_files(host)
    for number in range(ROUNDS):
        if not replace:
            out.unlink(missing_ok=True)
        killer.kill("export", "base", str(out), *options)
        left = [path.name for path in out.parent.iterdir()]
        assert left == ["base.thaw"] or (not replace and not left), (SEED, number, left)
        if left:
            assert out.read_bytes() == want, (SEED, number)
        assert state_files(host) == before
    out.unlink(missing_ok=True)
    host.ok("export", "base", str(out))
    assert out.read_bytes() == want


def test_pack(host: Host) -> None:
    folder = host.templates / "base"
    killer = Killer(host)
    killer.measure("pack", "base")
    want, before = (folder / "memory.pack").read_bytes(), state_files(host)
    for number in range(ROUNDS):
        killer.kill("pack", "base")
        host.ok("ls")
        # It is replaced in two steps: what is lost in between is only advice.
        assert state_files(host) | {"templates/base/memory.pack"} == before, (SEED, number)
        assert folder.stat().st_mode & 0o777 == 0o500, (SEED, number)
        pack = folder / "memory.pack"
        assert not pack.exists() or pack.read_bytes() == want, (SEED, number)
    host.ok("pack", "base")
    assert (folder / "memory.pack").read_bytes() == want


def test_sweep_leaves_what_is_in_use(host: Host) -> None:
    """A listing while a build and a removal are under way, told by their locks."""
    held = [".two.tmp-1-00000000000000aa", ".three.rm-5"]
    left = [".two.tmp-1-00000000000000bb", ".four.rm-6"]
    for name in held + left:
        (host.templates / name).mkdir()
        (host.templates / name / "memory").write_bytes(b"x")
    for name in (".five.build", ".six.build"):
        (host.templates / name).touch()
    (host.templates / "base").chmod(0o700)
    (host.templates / "base" / ".hot.tmp").write_bytes(b"x")
    (host.images / "empty").mkdir()
    commands = [["flock", str(host.templates / name), "cat"] for name in [*held, ".six.build"]]
    holders = [subprocess.Popen(argv, stdin=subprocess.PIPE) for argv in commands]
    try:
        for name in [*held, ".six.build"]:
            probe = ["flock", "-n", str(host.templates / name), "true"]
            while subprocess.run(probe, check=False).returncode == 0:
                time.sleep(0.01)
        host.ok("ls")
        assert host.names() == sorted([*held, ".six.build", "base"])
        assert (host.templates / "base").stat().st_mode & 0o777 == 0o500
        assert not (host.templates / "base" / ".hot.tmp").exists()
        assert not (host.images / "empty").exists()
    finally:
        for holder in holders:
            holder.communicate(timeout=60)
    host.ok("ls")
    assert host.names() == ["base"]
    assert sorted(host.files("base")) == ["disk", "manifest.json", "memory", "state"]
