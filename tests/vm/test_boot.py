# SPDX-License-Identifier: Apache-2.0
"""Cold boots of the stock kernel over the range of machines, and a clone of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import STATE, TOP, Thaw, build_template

RECIPE = str(TOP / "snapshots/recipes/debian")


def available_mib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    raise AssertionError("no MemAvailable")


@pytest.mark.parametrize(
    ("name", "vcpus", "memory_mib"),
    [("t-small", 1, 128), ("t-smp2", 2, 0), ("t-smp8", 8, 512), ("t-big", 1, 5120)],
)
def test_machine(thaw: Thaw, name: str, vcpus: int, memory_mib: int) -> None:
    args = ["--vcpus", str(vcpus)]
    if memory_mib:
        args += ["--memory", f"{memory_mib}M"]
    build_template(name, *args, "--recipe", RECIPE)
    proc = thaw(
        "run", name, "--", "sh", "-c", "nproc; grep MemTotal /proc/meminfo; cat /proc/iomem"
    )
    assert proc.returncode == 0, proc.stderr
    lines = proc.stdout.decode().splitlines()
    assert int(lines[0]) == vcpus
    if memory_mib:
        total_mib = int(lines[1].split()[1]) // 1024
        # The kernel keeps some for itself before it counts.
        assert memory_mib * 0.60 < total_mib < memory_mib
    high = [
        line for line in lines if "System RAM" in line and int(line.split("-")[0], 16) >= 4 << 30
    ]
    assert bool(high) == (memory_mib > 3072)


def test_memory_above_the_pci_hole_is_memory(thaw: Thaw) -> None:
    """Written and read back: more than what fits below 4 GiB, where the host can hold it."""
    if available_mib() < 4600:
        pytest.skip(f"needs 4600 MiB of free host memory, {available_mib()} are there")
    build_template("t-big", "--vcpus", "1", "--memory", "5120M", "--recipe", RECIPE)
    script = (
        "import mmap,sys\n"
        "m=mmap.mmap(-1,3500<<20); step=1<<20\n"
        "for o in range(0,len(m),step): m[o:o+8]=o.to_bytes(8,'little')\n"
        "print(all(int.from_bytes(m[o:o+8],'little')==o for o in range(0,len(m),step)))\n"
    )
    proc = thaw("run", "t-big", "--", "python3", "-c", script)
    assert proc.stdout == b"True\n", proc.stderr


def test_the_guest_is_what_it_should_be(thaw: Thaw) -> None:
    proc = thaw.sh(
        "uname -r; cat /etc/debian_version; id -u; tr '\\0' ' ' </proc/1/cmdline; echo; "
        "cat /proc/mounts; lsmod 2>/dev/null | head -n 1 >/dev/null; cat /proc/modules; "
        "cat /sys/devices/system/clocksource/clocksource0/current_clocksource"
    )
    text = proc.stdout.decode()
    lines = text.splitlines()
    assert "deb13-cloud-amd64" in lines[0], text
    assert lines[1].startswith("13"), text
    assert lines[2] == "0"
    mounts = {fields[1]: fields for fields in (line.split() for line in lines) if len(fields) == 6}
    assert mounts["/"][2] == "overlay" and "rw" in mounts["/"][3].split(",")
    assert mounts["/proc"][2] == "proc" and mounts["/sys"][2] == "sysfs"
    assert mounts["/dev"][2] == "devtmpfs" and mounts["/sys/fs/cgroup"][2] == "cgroup2"
    assert any(line.startswith("thaw ") for line in lines), "thaw.ko is loaded"
    assert lines[-1] in ("tsc", "kvm-clock")
    assert thaw.sh("dmesg | grep -iE 'BUG:|WARNING: CPU|Oops|Call Trace|rcu.*stall'").stdout == b""


def test_root_is_shared_and_read_only_below(thaw: Thaw, template: Path) -> None:
    proc = thaw.sh("grep -c . /proc/mounts; touch /etc/x && rm /etc/x && echo writable")
    assert b"writable" in proc.stdout
    images = list((STATE / "images").glob("*/root.erofs"))
    assert images and not images[0].stat().st_mode & 0o222
