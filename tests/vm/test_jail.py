# SPDX-License-Identifier: Apache-2.0
"""Sandboxes in a jail, with real guests and cgroup v2: they work as others do, and their processes
are what docs/threat-model.md says."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import BIN, STATE, Thaw

CGROUPS = Path("/sys/fs/cgroup/thaw")
UID_BASE = 1879048192
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts")

pytestmark = pytest.mark.skipif(
    not Path("/sys/fs/cgroup/cgroup.controllers").exists(), reason="no cgroup v2"
)


class Jails:
    def __init__(self, thaw: Thaw) -> None:
        self.thaw = thaw

    def ok(self, *args: str) -> str:
        proc = self.thaw(*args)
        assert proc.returncode == 0, proc.stderr.decode()
        return proc.stdout.decode().strip()

    def start(self, *args: str) -> str:
        return self.ok("run", "-d", "--jail", "full", *args, self.thaw.template)

    def sh(self, box: str, script: str) -> str:
        return self.ok("exec", box, "--", "sh", "-c", script)

    def boxes(self) -> list[str]:
        return [box["id"] for box in json.loads(self.ok("ps", "-o", "json"))]


@pytest.fixture
def jails(thaw: Thaw) -> Iterator[Jails]:
    made = Jails(thaw)
    yield made
    for box in made.boxes():
        assert thaw("rm", "--force", box).returncode == 0
    assert not made.boxes()
    assert not [p.name for p in (STATE / "templates").iterdir() if "snap." in p.name]
    assert not CGROUPS.exists() or not [p for p in CGROUPS.iterdir() if p.is_dir()]


def pid_of(box: str) -> int:
    return int((STATE / "run" / box / "pid").read_text().split()[0])


def check_process(pid: int, box: str) -> int:
    """All that /proc tells of the machine's process. Return: its uid."""
    proc = Path(f"/proc/{pid}")
    status = dict(re.findall(r"^(\w+):\t(.*)$", (proc / "status").read_text(), re.M))
    uid = int(status["Uid"].split()[0])
    assert UID_BASE <= uid < UID_BASE + 65536
    assert status["Uid"].split() == [str(uid)] * 4 == status["Gid"].split()
    assert not status["Groups"].strip()
    for caps in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[caps], 16) == 0, caps
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    assert status["NSpid"].split()[-1] == "1"
    for name in NAMESPACES:
        assert (proc / "ns" / name).readlink() != Path(f"/proc/self/ns/{name}").readlink(), name
    assert not list((proc / "root").iterdir())
    assert (proc / "cgroup").read_text().strip() == f"0::/thaw/{box}"
    assert (proc / "uid_map").read_text().split() == [str(uid), str(uid), "1"]
    limits = (proc / "limits").read_text()
    assert re.search(r"Max core file size +0 +0 ", limits)
    assert re.search(r"Max open files +8192 +8192 ", limits)
    for fd in (proc / "fd").iterdir():
        if stat.S_ISDIR(fd.stat().st_mode):
            # A mount of its own, at whose root it is.
            assert str(fd.readlink()) == "/"
    group = CGROUPS / box
    assert int((group / "memory.max").read_text()) > int((group / "memory.current").read_text())
    assert (group / "memory.oom.group").read_text().strip() == "1"
    assert int((group / "pids.max").read_text()) < 1000
    return uid


def test_a_jailed_sandbox_works(jails: Jails) -> None:
    box = jails.start()
    uid = check_process(pid_of(box), box)
    jails.sh(box, "echo disk > /root/f && sync && echo ram > /run/g")
    result = json.loads(jails.ok("fork", box, "-o", "json"))
    clone = result["clones"][0]["id"]
    assert result["diff"]
    assert jails.sh(clone, "cat /root/f /run/g").split() == ["disk", "ram"]
    assert check_process(pid_of(clone), clone) != uid
    # What the clone runs from is root's alone.
    snap = STATE / "templates" / result["snapshot"]
    for path in (snap, *snap.iterdir()):
        assert path.stat().st_uid == 0 and not path.stat().st_mode & 0o277, path
    jails.sh(clone, "echo clone > /root/f")
    jails.ok("pause", clone)
    assert jails.ok("resume", clone) == clone
    assert jails.sh(clone, "cat /root/f /run/g").split() == ["clone", "ram"]
    check_process(pid_of(clone), clone)
    assert jails.sh(box, "cat /root/f") == "disk"


@pytest.mark.parametrize("strategy", ["copy", "memfd", "uring", "uffd", "ws"])
def test_every_strategy(jails: Jails, strategy: str) -> None:
    box = jails.start("--strategy", strategy)
    check_process(pid_of(box), box)
    assert jails.sh(box, "echo x > /root/x; cat /root/x") == "x"


def test_a_jailed_pool(jails: Jails, tmp_path: Path) -> None:
    pool = subprocess.Popen(
        [str(BIN / "thaw"), "pool", jails.thaw.template, "--size", "1", "--jail", "full"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert pool.stdout is not None
        assert "1 ready" in pool.stdout.readline()
        result = tmp_path / "result.json"
        proc = jails.thaw.run("--json", str(result), "--", "cat", "/proc/sys/kernel/hostname")
        assert proc.returncode == 0, proc.stderr.decode()
        assert json.loads(result.read_text())["pool"] == "hit"
    finally:
        pool.terminate()
    assert pool.wait(60) == 0


def test_misbehaviour_is_stopped() -> None:
    """tests/unit/test_jail.c, here with the limits of the cgroup as well."""
    test = BIN / "unit/test_jail"
    if not test.exists():
        test = Path(__file__).resolve().parent.parent.parent / "build/release/unit/test_jail"
    proc = subprocess.run([str(test)], capture_output=True, text=True, check=False, timeout=300)
    assert proc.returncode == 0, proc.stdout + proc.stderr
    assert "controllers: yes" in proc.stdout
