# SPDX-License-Identifier: Apache-2.0
"""Machines of thaw that the lab holds itself: a pool, a sandbox that stays, a cold boot."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lab.arms import Context, Template
from lab.measure import Failed, run_good
from lab.model import Sample

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests/vm"))
import shim

CTL_READY = 67  # vmm/util/ctl.h
PATIENCE_S = 120.0
PAGE = 4096


def wait_for(what: str, ready: Callable[[], bool], step_s: float = 0.02) -> None:
    """Outside the clocks only: until @ready() says so."""
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not after {PATIENCE_S:.0f} s")
        time.sleep(step_s)


def command(path: Path | str, argv: list[str]) -> None:
    """One command in the sandbox that listens at @path."""
    result = shim.run(Path(path), argv)
    if result.error is not None or result.kind != shim.EXIT_CODE or result.value != 0:
        raise Failed(f"{argv[0]} in the sandbox: {result.error or result.value}")


def thaw_run(
    ctx: Context, template: Template, options: list[str], argv: list[str], pool: str
) -> tuple[Sample, str]:
    """One `thaw run`: its clocks and counts, and the strategy that its result names.

    @pool: what the result must say of the pool.
    """
    with tempfile.NamedTemporaryFile(prefix="thaw-lab-", suffix=".json") as report:
        ended = run_good(
            [*(ctx.thaw, "run", template.name, *options, "--json", report.name, "--"), *argv]
        )
        data = json.loads(Path(report.name).read_text())
    if data["pool"] != pool:
        raise Failed(f"the result says pool {data['pool']}, expected {pool}")
    sample: Sample = {k: float(v) for k, v in data["clocks_ms"].items() if v is not None}
    sample["wall"] = ended.wall_ms
    # What lies between its result and its end.
    sample["teardown"] = max(0.0, ended.wall_ms - sample["c5"])
    sample["minor"] = float(data["faults"]["minor"])
    sample["major"] = float(data["faults"]["major"])
    sample["bytes_read"] = float(data["bytes_read"])
    return sample, str(data["strategy"])


class Pool:
    """`thaw pool` of one template; only one can be at a time, so arms share it."""

    def __init__(self, ctx: Context, template: Template, size: int = 2) -> None:
        self.ctx = ctx
        self.template = template
        self.size = size
        self.options: list[str] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.asked_ms = 0.0  # processor time that asking for its status took

    def need(self, options: list[str]) -> None:
        """That it runs, with these options, and is filled."""
        if self.process is None or self.options != options or self.process.poll() is not None:
            self.stop()
            self._start(options)
        self.wait_filled()

    def _start(self, options: list[str]) -> None:
        argv = [self.ctx.thaw, "pool", self.template.name, "--size", str(self.size)]
        self.process = subprocess.Popen(
            [*argv, "--idle-timeout", "0", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self.options = options
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise Failed(f"the pool of {self.template.name} did not come up")

    def status(self) -> dict[str, int]:
        ended = run_good([self.ctx.thaw, "pool", self.template.name, "--status", "--json"])
        self.asked_ms += ended.cpu_ms
        data = json.loads(ended.output)
        assert isinstance(data, dict)
        return data

    def wait_filled(self) -> None:
        wait_for("filling the pool", lambda: self.status()["ready"] >= self.size, 0.05)

    def zygote(self) -> int:
        """The process that makes its machines."""
        assert self.process is not None
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if len(children) != 1:
            raise Failed(f"the pool has {len(children)} children, not its zygote alone")
        return int(children[0])

    def hold_refill(self, hold: bool) -> None:
        os.kill(self.zygote(), signal.SIGSTOP if hold else signal.SIGCONT)

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None


class Sandbox:
    """A restored machine that stays."""

    def __init__(self, ctx: Context, template: Template) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="thaw-lab-")
        self.vsock = Path(self.folder.name) / "vsock"
        self.process = subprocess.Popen(
            [
                *(ctx.thaw_vmm, "restore", str(template.folder)),
                *("--disk-dir", str(ctx.state), "--vsock", str(self.vsock)),
            ],
            stdin=subprocess.DEVNULL,
        )

        def listens() -> bool:
            if self.process.poll() is not None:
                raise Failed(f"thaw-vmm ended with status {self.process.returncode}")
            return self.vsock.exists()

        try:
            wait_for("the sandbox", listens)
        except Failed:
            self.stop()
            raise

    def run(self, argv: list[str]) -> None:
        command(self.vsock, argv)

    def timed(self, argv: list[str]) -> float:
        """run(), from the connect to the exit status, in ms."""
        start = time.monotonic()
        self.run(argv)
        return (time.monotonic() - start) * 1e3

    def stop(self) -> float:
        """End it; how long that took, in ms."""
        start = time.monotonic()
        self.process.terminate()
        self.process.wait()
        took = (time.monotonic() - start) * 1e3
        self.folder.cleanup()
        return took


def vmm_private_kib(pid: int) -> int:
    """Private memory of a thaw-vmm without its guest: all but guest RAM and the root image."""
    total, name, size = 0, "", 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0] and not fields[0].endswith(":"):
            name = fields[5] if len(fields) > 5 else ""
            begin, end = (int(x, 16) for x in fields[0].split("-"))
            size = end - begin
        elif fields[0] in ("Private_Dirty:", "Private_Clean:"):
            guest = name.endswith(("/memory", "/root.erofs")) or size >= 64 << 20
            total += 0 if guest else int(fields[1])
    return total


def _receive_start(ctl: socket.socket) -> int:
    """Wait until the shim is ready; when thaw-vmm was started, ns of CLOCK_MONOTONIC."""
    while True:
        data = ctl.recv(4096)
        if not data:
            raise Failed("thaw-vmm ended before its guest was ready")
        if int.from_bytes(data[4:8], "little") == CTL_READY:
            return int.from_bytes(data[32:40], "little")


class ColdBoot:
    """Power-on to the first command's exit status, with the template's kernel, root and disk."""

    def __init__(self, ctx: Context, template: Template) -> None:
        manifest = template.manifest
        cmdline = run_good(
            [ctx.thaw, "run", template.name, "--", "cat", "/proc/cmdline"]
        ).output.strip()
        guest = template.guest
        self.argv = [
            *(ctx.thaw_vmm, "boot"),
            *("--kernel", str(guest / "vmlinux"), "--initramfs", str(guest / "initramfs.cpio")),
            *("--cmdline", cmdline, "--root", str(manifest["root_image"])),
            *("--vcpus", str(manifest["vcpus"]), "--memory", str(manifest["memory_bytes"])),
            *("--disk-base", str(template.folder / "disk")),
            *("--disk-size", str(manifest["disk_bytes"]), "--disk-dir", str(ctx.state)),
        ]

    def sample(self, argv: list[str]) -> Sample:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with tempfile.TemporaryDirectory(prefix="thaw-lab-") as folder, ours, theirs:
            ours.settimeout(PATIENCE_S)
            vsock = Path(folder) / "vsock"
            spawned_ns = time.monotonic_ns()
            process = subprocess.Popen(
                [*self.argv, "--vsock", str(vsock), "--ctl-fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
            try:
                theirs.close()
                start_ns = _receive_start(ours)
                command(vsock, argv)
                done_ns = time.monotonic_ns()
            finally:
                process.terminate()
                process.wait()
            ended_ns = time.monotonic_ns()
        return {
            "c4": (done_ns - start_ns) / 1e6,
            "c5": (done_ns - spawned_ns) / 1e6,
            "teardown": (ended_ns - done_ns) / 1e6,
            "wall": (ended_ns - spawned_ns) / 1e6,
        }


def read_data(path: Path) -> None:
    """All data of a sparse file into the page cache; its holes would only take room there."""
    with path.open("rb", buffering=0) as file:
        size, pos = os.fstat(file.fileno()).st_size, 0
        buf = bytearray(1 << 20)
        while pos < size:
            try:
                start = os.lseek(file.fileno(), pos, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                return
            pos = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            while start < pos:
                part = memoryview(buf)[: min(len(buf), pos - start)]
                start += os.preadv(file.fileno(), [part], start) or pos
