# SPDX-License-Identifier: Apache-2.0
"""What an idle clone costs: slope and intercept over how many there are; and how fast one ends.

A clone here is `thaw run TEMPLATE -- sh -c 'echo up; exec sleep'`, which has said "up" and sleeps.
PSS and private memory are those of its thaw-vmm; the client is told apart. MemAvailable sees
everything, the kernel's own memory for it included.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import time
from pathlib import Path

from lab.arms import Context, Template
from lab.measure import Failed, run_good
from lab.sandbox import vmm_private_kib
from lab.stats import fit_line

SETTLE_S = 2.0
SLEEP = ["sh", "-c", "echo up; exec sleep 100000"]


class Clone:
    def __init__(self, ctx: Context, template: Template) -> None:
        self.client = subprocess.Popen(
            [ctx.thaw, "run", template.name, "--no-pool", "--", *SLEEP],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self.client.stdout is not None
        if self.client.stdout.readline() != b"up\n":
            raise Failed("an idle clone did not come up")
        pid = self.client.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self.vmm = int(children[0])

    def stop(self) -> float:
        """Kill the client without warning; ms until its machine is gone."""
        pid_fd = os.pidfd_open(self.vmm)
        poll = select.poll()
        poll.register(pid_fd, select.POLLIN)
        start = time.monotonic()
        self.client.kill()
        gone = poll.poll(60_000)
        took = (time.monotonic() - start) * 1e3
        os.close(pid_fd)
        self.client.wait()
        assert self.client.stdout is not None
        self.client.stdout.close()
        if not gone:
            raise Failed(f"thaw-vmm {self.vmm} outlives its client")
        return took


def rollup_kib(pid: int) -> tuple[int, int]:
    """PSS and private memory: dirty pages. A clean one that only this process maps is the page
    cache's, and the next clone shares it."""
    values: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        values[name.rstrip(":")] = int(value)
    return values["Pss"], values["Private_Dirty"]


def available_kib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1])
    raise Failed("/proc/meminfo has no MemAvailable")


def _point(clones: list[Clone]) -> dict[str, object]:
    time.sleep(SETTLE_S)
    machines = [rollup_kib(clone.vmm) for clone in clones]
    clients = [rollup_kib(clone.client.pid) for clone in clones]
    return {
        "clones": len(clones),
        "pss_kib": sum(pss for pss, _ in machines),
        "private_kib": sum(private for _, private in machines),
        "client_private_kib": sum(private for _, private in clients),
        "memavailable_kib": available_kib(),
    }


def _slope(points: list[dict[str, object]], key: str) -> tuple[float, float]:
    return fit_line([(float(str(one["clones"])), float(str(one[key]))) for one in points])


def hot_write_kib(ctx: Context, template: Template) -> int | None:
    """What the template's hot set says that a first command writes."""
    text = run_good([ctx.thaw, "template", "inspect", template.name, "--json"]).output
    hot = json.loads(text)["hot"]
    return None if hot is None else int(hot["write_pages"]) * 4


def run(ctx: Context, numbers: dict[str, object]) -> dict[str, object]:
    """{"points", "slope_pss_kib", "intercept_pss_kib", "slope_private_kib", ...}."""
    counts = numbers["clones"]
    assert isinstance(counts, tuple)
    template = ctx.templates[0]
    clones: list[Clone] = []
    Clone(ctx, template).stop()  # what only the first one brings into the page cache
    time.sleep(SETTLE_S)
    before_kib = available_kib()
    points = []
    try:
        for count in sorted(counts):
            while len(clones) < count:
                clones.append(Clone(ctx, template))
            points.append(_point(clones))
        vmm_kib = statistics.median(vmm_private_kib(clone.vmm) for clone in clones)
        ends = []
        while clones:
            ends.append(clones.pop().stop())
    finally:
        for clone in clones:
            clone.client.kill()
            clone.client.wait()
    pss, available = _slope(points, "pss_kib"), _slope(points, "memavailable_kib")
    return {
        "points": points,
        "slope_pss_kib": pss[0],
        "intercept_pss_kib": pss[1],
        "slope_private_kib": _slope(points, "private_kib")[0],
        "slope_client_private_kib": _slope(points, "client_private_kib")[0],
        "slope_memavailable_kib": -available[0],  # what one clone takes
        "memavailable_without_kib": before_kib,
        "hot_write_kib": hot_write_kib(ctx, template),
        "vmm_private_kib": vmm_kib,
        "teardown_ms": ends,
    }
