# SPDX-License-Identifier: Apache-2.0
"""Nothing of a run stays behind when its client or its VMM is killed; more of it: test_kill.py,
soak.py."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from conftest import BIN, Sandbox, Thaw
from leftovers import processes


def test_killed_client_takes_its_vm_along(thaw: Thaw) -> None:
    before = processes()
    client = subprocess.Popen(
        [str(BIN / "thaw"), "run", thaw.template, "--", "sh", "-c", "echo up; sleep 1000"],
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None and client.stdout.readline() == b"up\n"
    assert len(processes() - before) == 2
    client.send_signal(signal.SIGKILL)
    client.wait()
    deadline = time.monotonic() + 30
    while processes() != before:
        assert time.monotonic() < deadline, processes() - before
        time.sleep(0.05)


def test_killed_vmm_is_noticed(thaw: Thaw) -> None:
    before = processes()
    client = subprocess.Popen(
        [str(BIN / "thaw"), "run", thaw.template, "--", "sh", "-c", "echo up; sleep 1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert client.stdout is not None and client.stdout.readline() == b"up\n"
    vmm = next(name for name in processes() - before if "thaw-vmm" in name)
    os.kill(int(vmm.split()[0]), signal.SIGKILL)
    _, stderr = client.communicate(timeout=60)
    assert client.returncode == 125 and stderr
    assert processes() == before


def test_private_memory_of_the_vmm(sandbox: Sandbox) -> None:
    """What thaw-vmm itself needs, guest excluded: every private mapping that is not guest RAM."""
    assert sandbox.exec("true").value == 0
    text = Path(f"/proc/{sandbox.process.pid}/smaps").read_text()
    private, name, size = 0, "", 0
    for line in text.splitlines():
        fields = line.split()
        if "-" in fields[0] and not fields[0].endswith(":"):
            name = fields[5] if len(fields) > 5 else ""
            start, end = (int(x, 16) for x in fields[0].split("-"))
            size = end - start
        elif (
            fields[0] in ("Private_Dirty:", "Private_Clean:")
            and not name.endswith(("/memory", "/root.erofs"))
            and size < 64 << 20
        ):
            private += int(fields[1])
    assert 0 < private <= 2048, f"{private} KiB"
