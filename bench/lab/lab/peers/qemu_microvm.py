# SPDX-License-Identifier: Apache-2.0
"""QEMU's microvm machine: cold boot, restore from a migration file, restore over shared memory.

What is timed: from the start of qemu-system-x86_64, by this process, to the result of the first
command on a vsock stream (vhost-vsock), and to the end of QEMU after a SIGKILL.

restore         the guest was saved by `migrate` to a file, in mapped-ram form where this QEMU has
                it, else as a stream; loaded by -incoming file:. QEMU reads all of the saved memory
                before the guest runs.
restore-shared  guest memory is a file; it was saved with the capability x-ignore-shared, so that
                the migration file holds device state only, and each clone maps the memory file
                privately (copy on write). Several QMP commands before the guest runs are part of
                it: the capability can't be set on the command line. This is QEMU's fastest way.

Same as thaw: kernel, initramfs, root image, sizes, /dev/kvm. Not the same: the root is on
virtio-blk without DAX (microvm has no slot for virtio-pmem), no scratch disk. The guest's context
id is that of the save, for a clone whose id changed would drop the first packets. A stream that
is opened before the guest runs waits in vhost-vsock until it does, so no time is lost by polling.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from lab.arms import Arm, Context, NotRun
from lab.measure import Failed
from lab.peers.machine import ColdBoot, Driver, Guest, Restored
from lab.peers.process import BOOT_PATIENCE_S, RESTORE_STEP_S, Process, dial_vsock

PEER = "qemu-microvm"
QEMU = "qemu-system-x86_64"
FIRST_CID = 0x7_0000  # far from what libvirt and others hand out; one for each lab and arm
MACHINE = "microvm,pit=off,pic=off,rtc=off,isa-serial=off,memory-backend=ram"
SAVE_PATIENCE_S = 300.0


class Qmp:
    """QEMU's control socket."""

    def __init__(self, process: Process, path: Path) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(BOOT_PATIENCE_S)
        process.until("its QMP socket", lambda: self._sock.connect(str(path)), RESTORE_STEP_S)
        self._file = self._sock.makefile("rwb")
        self._read()  # the greeting
        self("qmp_capabilities")

    def _read(self) -> dict[str, object]:
        line = self._file.readline()
        if not line:
            raise Failed("QEMU closed its QMP socket")
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def __call__(self, name: str, **arguments: object) -> object:
        request = {"execute": name, "arguments": arguments}
        self._file.write(json.dumps(request).encode() + b"\n")
        self._file.flush()
        while True:
            message = self._read()
            if "error" in message:
                raise Failed(f"QMP {name}: {message['error']}")
            if "return" in message:
                return message["return"]  # what else comes are events

    def enable(self, capability: str) -> None:
        wanted = [{"capability": capability, "state": True}]
        self("migrate-set-capabilities", capabilities=wanted)

    def has(self, capability: str) -> bool:
        known = self("query-migrate-capabilities")
        assert isinstance(known, list)
        return any(one["capability"] == capability for one in known)

    def migrate(self, path: Path) -> None:
        self("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        self("migrate", uri=f"file:{path}")
        deadline = time.monotonic() + SAVE_PATIENCE_S
        while True:
            info = self("query-migrate")
            assert isinstance(info, dict)
            if info.get("status") == "completed":
                return
            if info.get("status") in ("failed", "cancelled") or time.monotonic() > deadline:
                raise Failed(f"QEMU could not save the guest: {info}")
            time.sleep(0.05)

    def close(self) -> None:
        self._file.close()
        self._sock.close()


def escaped(path: Path) -> str:
    """A path inside a QEMU option, where a comma ends the value unless doubled."""
    return str(path).replace(",", ",,")


def require_vsock() -> None:
    """vhost-vsock, loaded if it is a module."""
    if not Path("/dev/vhost-vsock").exists():
        subprocess.run(
            ["modprobe", "vhost_vsock"], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    try:
        os.close(os.open("/dev/vhost-vsock", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise NotRun(f"/dev/vhost-vsock: {error.strerror} (kernel module vhost_vsock)") from error


class Qemu:
    """The driver; @shared: guest memory in a file that clones map privately."""

    peer = PEER

    def __init__(self, number: int, shared: bool = False) -> None:
        self.cid = FIRST_CID + 8 * (os.getpid() % 0x8000) + number
        self.shared = shared
        self.mapped = False

    def check(self) -> None:
        if not shutil.which(QEMU):
            raise NotRun(f"{QEMU} is not installed")
        require_vsock()

    def _argv(self, guest: Guest, folder: Path, private: bool) -> list[str]:
        memory = f"id=ram,size={guest.template.memory_mib}M"
        if self.shared:
            share = "off" if private else "on"
            backend = f"memory-backend-file,mem-path={escaped(folder / 'memory')},share={share}"
        else:
            backend = "memory-backend-ram"
        return [
            *(QEMU, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
            *("-M", MACHINE, "-accel", "kvm", "-cpu", "host"),
            *("-smp", str(guest.template.vcpus), "-m", f"{guest.template.memory_mib}M"),
            *("-object", f"{backend},{memory}"),
            *("-kernel", str(guest.kernel), "-initrd", str(guest.initramfs)),
            *("-append", guest.kernel_line("/dev/vda", without=("console=hvc0",))),
            *("-drive", f"id=root,if=none,format=raw,readonly=on,file={escaped(guest.root)}"),
            *("-device", "virtio-blk-device,drive=root"),
            *("-device", f"vhost-vsock-device,guest-cid={self.cid}"),
            *("-device", "virtio-rng-device"),
        ]

    def _spawn(self, argv: list[str], folder: Path) -> Process:
        return Process(argv, folder / "qemu.log", dial_vsock(self.cid))

    @staticmethod
    def _control(folder: Path) -> list[str]:
        return ["-qmp", f"unix:{escaped(folder / 'qmp')},server=on,wait=off"]

    def boot(self, guest: Guest, folder: Path) -> Process:
        argv = self._argv(guest, folder, private=False)
        return self._spawn([*argv, *self._control(folder)], folder)

    def save(self, process: Process, folder: Path) -> None:
        qmp = Qmp(process, folder / "qmp")
        if self.shared:
            qmp.enable("x-ignore-shared")
        elif qmp.has("mapped-ram"):
            qmp.enable("mapped-ram")
            self.mapped = True
        qmp.migrate(folder / "state")
        qmp.close()

    def prepare(self, folder: Path) -> None:
        (folder / "qmp").unlink(missing_ok=True)

    def restore(self, guest: Guest, folder: Path) -> Process:
        argv = self._argv(guest, folder, private=True)
        incoming = f"file:{folder / 'state'}"
        if not self.shared:
            mapped = ["-global", "migration.mapped-ram=on"] if self.mapped else []
            return self._spawn([*argv, *mapped, "-incoming", incoming], folder)
        process = self._spawn([*argv, *self._control(folder), "-incoming", "defer"], folder)
        try:
            qmp = Qmp(process, folder / "qmp")
            qmp.enable("x-ignore-shared")
            qmp("migrate-incoming", uri=incoming)
            qmp.close()
        except BaseException:
            process.kill()
            raise
        return process


class QemuMicrovm:
    name = PEER

    def arms(self, ctx: Context) -> list[Arm]:
        guest = Guest(ctx)
        drivers: list[Driver] = [Qemu(0), Qemu(1), Qemu(2, shared=True)]
        return [
            ColdBoot(ctx, drivers[0], guest),
            Restored(ctx, drivers[1], guest),
            Restored(ctx, drivers[2], guest, "restore-shared"),
        ]


ADAPTER = QemuMicrovm()
