# SPDX-License-Identifier: Apache-2.0
"""Strategy uffd with a real guest: content, death of the page fault servers, second generation."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Sandbox, Thaw


def servers(vmm: int) -> list[int]:
    """The page fault servers of a thaw-vmm, the one that serves first."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)
        except OSError:
            continue
        name, rest = fields[0].split("(", 1)[1], fields[1].split()
        if name == "thaw-uffd" and int(rest[1]) == vmm and rest[0] != "Z":
            found.append(int(entry.name))
    return sorted(found)


def are_gone(pids: list[int]) -> bool:
    """Within a minute."""
    for _ in range(3000):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("window", ["4K", "64K"])
def test_command(thaw: Thaw, tmp_path: Path, window: str) -> None:
    report = tmp_path / "r.json"
    proc = thaw.run(
        *("--strategy", "uffd", "--fault-window", window, "--json", str(report)),
        *("--", "sh", "-c", "cat /etc/os-release >/tmp/x && cmp /tmp/x /etc/os-release; exit 5"),
    )
    assert proc.returncode == 5, proc.stderr
    assert json.loads(report.read_text())["strategy"] == "uffd"


def test_servers_killed(sandbox_of: Callable[..., Sandbox]) -> None:
    """Two deaths are survived, under load; the third ends the VM with an error."""
    box = sandbox_of("--strategy", "uffd", "--fault-window", "4K")
    script = "for i in 1 2 3 4 5; do find /usr/lib -type f | head -200 | xargs cat | cksum; done"
    want = box.exec("sh", "-c", script).stdout
    left = servers(box.process.pid)
    assert len(left) == 3
    os.kill(left.pop(0), signal.SIGKILL)
    assert box.exec("sh", "-c", script).stdout == want
    os.kill(left.pop(0), signal.SIGKILL)
    assert box.exec("sh", "-c", "head -c 30000000 /dev/zero | wc -c").stdout.strip() == b"30000000"
    start = time.monotonic()
    os.kill(left.pop(0), signal.SIGKILL)
    assert box.process.wait(timeout=60) == 1
    assert time.monotonic() - start < 30
    assert "the page fault servers died" in box.log()


def test_killed_vmm_leaves_no_server(sandbox_of: Callable[..., Sandbox]) -> None:
    box = sandbox_of("--strategy", "uffd")
    assert box.exec("true").value == 0  # so that they have been started
    left = servers(box.process.pid)
    assert len(left) == 3
    box.process.kill()
    box.process.wait(timeout=60)
    assert are_gone(left)


@pytest.mark.parametrize("whole", [(), ("--whole",)])
def test_second_generation(thaw: Thaw, whole: tuple[str, ...]) -> None:
    """Pages that the clone never touched are in its snapshot; a diff goes on top of uffd."""
    name = "t-uffd"
    proc = thaw(
        *("template", "build", name, "--from", thaw.template, "--strategy", "uffd", "--replace"),
        *(*whole, "--warm", "sh", "-c", "echo second >/root/gen", ";"),
    )
    assert proc.returncode == 0, proc.stderr
    try:
        assert thaw("template", "verify", name).returncode == 0
        for strategy in ("uffd", "mmap"):
            proc = Thaw(name).run("--strategy", strategy, "--", "cat", "/root/gen")
            assert (proc.returncode, proc.stdout) == (0, b"second\n"), proc.stderr
    finally:
        thaw("template", "rm", name)
