# SPDX-License-Identifier: Apache-2.0
"""The arms of a peer that is a VMM: cold boot and restore of thaw's own guest.

A driver (one class a VMM) knows how its process is started, saved and restored; the clocks are
here, so that they are the same for all:

    c5        start of the VMM's process -> result of the first command at this client
    wall      start of the VMM's process -> its end, by SIGKILL after the result
    teardown  the difference

Same kernel, initramfs (thaw-shim), root image, size and commands that warmed the guest as the
template that thaw restores. Not the same: no scratch disk (the overlay's upper layer is a tmpfs:
one device less to make and to restore, in the peer's favour), and no new identity, entropy or
clock in the clone (thaw's start includes them). A restored guest is pinged before the command is
sent, since the VMM makes it reset its streams (Process.greet()); that is on the clock.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Protocol

from lab.arms import Arm, Context, NotRun, Template
from lab.measure import run_good
from lab.model import ArmRow, Sample
from lab.peers.process import BOOT_STEP_S, Process
from lab.sandbox import read_data

SOCKET_PATH_BYTES = 107  # sun_path, less its NUL


class Guest:
    """What a peer boots: files of the first template's guest, and its kernel line."""

    def __init__(self, ctx: Context) -> None:
        if not ctx.templates:
            raise NotRun("no template whose guest it could start")
        self.ctx = ctx
        self.template: Template = ctx.templates[0]
        self.kernel = Path()
        self.initramfs = Path()
        self.root = Path()
        self._line: str | None = None

    def lay_out(self) -> None:
        """Copies on the measured disk: the checkout may be on a file system without a cache."""
        folder = self.ctx.work / "peer-guest"
        folder.mkdir(exist_ok=True)
        for name in ("vmlinux", "initramfs.cpio", "root.erofs"):
            target = folder / name
            if not target.exists():
                partial = target.with_name(f".{name}.partial")
                shutil.copyfile(self.template.guest / name, partial)
                partial.rename(target)
        self.kernel, self.initramfs, self.root = (
            folder / name for name in ("vmlinux", "initramfs.cpio", "root.erofs")
        )

    def kernel_line(self, root: str, without: tuple[str, ...] = ()) -> str:
        """The line that the template was booted with; the root on device @root, no scratch disk."""
        if self._line is None:
            argv = [self.ctx.thaw, "run", self.template.name, "--no-pool", "--"]
            self._line = run_good([*argv, "cat", "/proc/cmdline"]).output.strip()
        ours = ("thaw.root=", "thaw.scratch=")
        words = [w for w in self._line.split() if w not in without and not w.startswith(ours)]
        return " ".join([*words, f"thaw.root={root}", "thaw.scratch=none"])

    def warm_commands(self) -> list[list[str]]:
        """What the template's recipe runs before its snapshot."""
        recipe = self.ctx.top / "snapshots/recipes" / self.template.name
        if recipe.exists():
            warm = json.loads(recipe.read_text()).get("warm", [])
            return [[str(word) for word in argv] for argv in warm]
        return [self.template.command]


class Driver(Protocol):
    """How one VMM is used. @folder is the arm's own, on the measured disk."""

    peer: str

    def check(self) -> None:
        """NotRun when this VMM can't be had here."""
        ...

    def boot(self, guest: Guest, folder: Path) -> Process:
        """Start the VMM and the guest; returns as soon as the guest runs, or before."""
        ...

    def save(self, process: Process, folder: Path) -> None:
        """The state of the running guest into files of @folder; the process is killed after it."""
        ...

    def prepare(self, folder: Path) -> None:
        """Before each restore, outside the clocks: what an earlier one left in @folder."""
        ...

    def restore(self, guest: Guest, folder: Path) -> Process:
        """Start the VMM from the files of save(); returns as soon as the guest runs, or before."""
        ...


def private_folder(ctx: Context, name: str) -> Path:
    folder = ctx.work / f"peer-{name}"
    if len(os.fsencode(folder / "vsock")) > SOCKET_PATH_BYTES:
        raise NotRun(f"{folder}: too long for a socket; set THAW_STATE to a shorter path")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def require_kvm() -> None:
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise NotRun(f"/dev/kvm: {error.strerror}") from error


class MachineArm(Arm):
    """What the two kinds share."""

    def __init__(self, ctx: Context, driver: Driver, guest: Guest, variant: str) -> None:
        template = guest.template
        super().__init__(
            ArmRow(
                id=f"peer/{driver.peer}/{variant}",
                kind="peer",
                peer=driver.peer,
                variant=variant,
                template=template.label,
                cache="hot",
                vcpus=template.vcpus,
                memory_mib=template.memory_mib,
                command=template.command,
            )
        )
        self.ctx = ctx
        self.driver = driver
        self.guest = guest
        self.folder = Path()

    def setup(self) -> None:
        require_kvm()
        self.driver.check()
        self.guest.lay_out()
        self.folder = private_folder(self.ctx, f"{self.driver.peer}-{self.row.variant}")

    def start(self) -> Process:
        raise NotImplementedError

    def first_command(self, process: Process) -> None:
        process.command(self.row.command, BOOT_STEP_S)

    def sample(self) -> Sample:
        start = time.monotonic()
        process = self.start()
        try:
            self.first_command(process)
            c5 = (time.monotonic() - start) * 1e3
        finally:
            process.kill()
        wall = (time.monotonic() - start) * 1e3
        return {"c5": c5, "wall": wall, "teardown": wall - c5}

    def teardown(self) -> None:
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)


class ColdBoot(MachineArm):
    """Power-on to the first command's result."""

    def __init__(self, ctx: Context, driver: Driver, guest: Guest) -> None:
        super().__init__(ctx, driver, guest, "cold-boot")

    def warm(self) -> None:
        # Not a whole boot: the VMM's own program is read back in tenths of a second.
        for path in (self.guest.kernel, self.guest.initramfs, self.guest.root):
            read_data(path)

    def prepare(self) -> None:
        self.driver.prepare(self.folder)

    def start(self) -> Process:
        return self.driver.boot(self.guest, self.folder)


class Restored(MachineArm):
    """A warmed guest, saved once; each sample restores it and runs a first command."""

    def __init__(
        self, ctx: Context, driver: Driver, guest: Guest, variant: str = "restore"
    ) -> None:
        super().__init__(ctx, driver, guest, variant)

    def setup(self) -> None:
        super().setup()
        self.driver.prepare(self.folder)
        process = self.driver.boot(self.guest, self.folder)
        try:
            for argv in self.guest.warm_commands():
                process.command(argv, BOOT_STEP_S)
            process.command(self.row.command, BOOT_STEP_S)
            self.driver.save(process, self.folder)
        finally:
            process.kill()

    def prepare(self) -> None:
        self.driver.prepare(self.folder)

    def start(self) -> Process:
        return self.driver.restore(self.guest, self.folder)

    def first_command(self, process: Process) -> None:
        process.greet()
        process.command(self.row.command)


def not_run(peer: str, variants: list[str], reason: str) -> list[Arm]:
    """Rows of a peer that can't be had: their cells stay empty, with the reason."""
    return [
        Arm(
            ArmRow(
                id=f"peer/{peer}/{variant}",
                kind="peer",
                peer=peer,
                variant=variant,
                not_run=reason,
            )
        )
        for variant in variants
    ]
