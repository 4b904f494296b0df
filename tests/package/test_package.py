# SPDX-License-Identifier: Apache-2.0
"""The Debian packages in a fresh test host whose init is systemd; `make deb` has made them.

    THAW_TEST_HOST_INIT=systemd tests/host/run -- python3 -m pytest tests/package

The cases build on each other: install, use, upgrade, remove, purge. Nothing of the checkout is used
but the packages.
"""

from __future__ import annotations

import grp
import json
import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
TRIMMED = ("/usr/share/man", "/usr/share/doc")  # the host's tree has none of these
SOCKET = Path("/run/thaw/thaw.sock")
ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}

pytestmark = pytest.mark.skipif(
    not Path("/run/systemd/system").exists() or os.geteuid() != 0,
    reason="changes the system it runs on: only for a test host with systemd",
)


def packages() -> list[str]:
    return sorted(str(path) for path in (TOP / "build/deb").glob("*.deb"))


def sh(*argv: str, check: bool = True, timeout_s: float = 200) -> str:
    """Output of a command, both streams."""
    done = subprocess.run(
        argv,
        env=ENV,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if check and done.returncode != 0:
        log = "" if argv[0] == "journalctl" else sh("journalctl", "-u", "thawd", check=False)
        raise AssertionError(f"{argv}: status {done.returncode}\n{done.stdout}\n{log[-3000:]}")
    return done.stdout


def shown(name: str) -> str:
    """A property of the unit."""
    return sh("systemctl", "show", "--value", "-p", name, "thawd").strip()


def test_install() -> None:
    assert len(packages()) == 2, "make deb comes first"
    sh("dpkg", "--force-unsafe-io", "--install", *packages())
    assert "ii  thaw " in sh("dpkg", "--list", "thaw")
    lines = sh("dpkg", "--verify", "thaw").splitlines()
    assert [line for line in lines if not any(path in line for path in TRIMMED)] == []
    conffiles = sh("dpkg-query", "-W", "-f", "${Conffiles}", "thaw")
    assert "/etc/thaw/thaw.conf" in conffiles


def test_the_unit_is_sound() -> None:
    said = sh("systemd-analyze", "verify", "--man=no", "/usr/lib/systemd/system/thawd.service")
    assert "thawd" not in said, said
    assert sh("systemctl", "is-enabled", "thawd").strip() == "enabled"


def test_it_was_started() -> None:
    assert shown("ActiveState") == "active"
    assert shown("Type") == "notify"
    assert shown("KillMode") == "process"
    info = SOCKET.stat()
    assert stat.S_IMODE(info.st_mode) == 0o660
    assert grp.getgrgid(info.st_gid).gr_name == "thaw"


def test_start_and_stop() -> None:
    pid = shown("MainPID")
    sh("systemctl", "stop", "thawd")
    assert shown("ActiveState") == "inactive"
    with pytest.raises(OSError):
        socket.socket(socket.AF_UNIX).connect(str(SOCKET))
    sh("systemctl", "start", "thawd")
    assert shown("ActiveState") == "active"
    assert shown("MainPID") not in ("0", pid)
    sh("systemctl", "reload", "thawd")
    assert shown("ActiveState") == "active"


def test_doctor_is_green() -> None:
    said = sh("thaw", "doctor")
    assert "FAIL" not in said, said


def test_the_client_finds_it() -> None:
    code = "import thaw; c = thaw.Client(); print(c.version()['version'], c.info()['jail'])"
    version = sh("dpkg-query", "-W", "-f", "${Version}", "thaw")
    assert sh("python3", "-c", code).split() == [version, "True"]


SANDBOX = """
import json, os, pathlib, sys, thaw
sandbox = thaw.Sandbox.get_or_create("packaged", keep_alive=True)
result = sandbox.commands.run(["sh", "-c", "id -u; uname -r"], check=True)
print(json.dumps([sandbox.info.id, result.stdout.split()]))
"""


def machine(ident: str) -> Path:
    """/proc folder of a machine."""
    return Path("/proc", Path("/var/lib/thaw/run", ident, "pid").read_text().split()[0])


def test_a_sandbox_in_its_jail() -> None:
    """The unit's hardening leaves what a jail needs."""
    sh("thaw", "template", "build", "debian", "--hot-runs", "1", timeout_s=900)
    ident, said = json.loads(sh("python3", "-c", SANDBOX))
    assert said[0] == "0"
    status = dict(
        line.split(":\t", 1) for line in (machine(ident) / "status").read_text().splitlines()
    )
    assert int(status["Uid"].split()[0]) >= 1879048192
    assert status["CapEff"].strip("0") == ""
    assert status["NoNewPrivs"] == "1"
    assert (machine(ident) / "cgroup").read_text().startswith("0::/thaw/")


def test_an_upgrade_leaves_sandboxes_alone() -> None:
    before = json.loads(sh("python3", "-c", SANDBOX))[0]
    daemon = shown("MainPID")
    pid = machine(before).name
    sh("dpkg", "--force-unsafe-io", "--install", *packages())
    assert shown("ActiveState") == "active"
    assert shown("MainPID") != daemon
    after = json.loads(sh("python3", "-c", SANDBOX))[0]
    assert (after, machine(after).name) == (before, pid)


def test_nothing_was_denied() -> None:
    """What the hardening forbids would be in the journal."""
    log = sh("journalctl", "-u", "thawd", "-p", "err", "--no-pager", "-q")
    assert log.strip() == "", log


def test_remove_and_purge() -> None:
    built = Path("/var/lib/thaw/templates/debian").exists()  # not when this case runs alone
    place = machine(json.loads(sh("python3", "-c", SANDBOX))[0]) if built else None
    sh("dpkg", "--remove", "python3-thaw", "thaw")
    if place is not None and place.exists():
        assert (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    assert Path("/etc/thaw/thaw.conf").exists()
    assert Path("/var/lib/thaw").exists()
    assert not Path("/usr/sbin/thawd").exists()
    sh("dpkg", "--purge", "thaw", "python3-thaw")
    for path in ("/etc/thaw", "/var/lib/thaw", "/run/thaw", "/usr/share/thaw", "/usr/libexec/thaw"):
        assert not Path(path).exists(), path
    assert not Path("/sys/fs/cgroup/thaw").exists()
    with pytest.raises(KeyError):
        grp.getgrnam("thaw")
    assert "thaw" not in sh("systemctl", "list-unit-files", "thawd.service", check=False).split()
