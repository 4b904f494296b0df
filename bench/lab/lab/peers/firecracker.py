# SPDX-License-Identifier: Apache-2.0
"""Firecracker, when FIRECRACKER names its binary: cold boot and snapshot load by its API socket.

What is timed: from the start of firecracker (no jailer), through all API requests, to the result
of the first command on a stream of its vsock, and to its end after a SIGKILL.

cold-boot  machine-config, boot-source, root, vsock, entropy, InstanceStart
restore    snapshot/load with a File memory back end (mapped lazily) and resume_vm, after a full
           snapshot of a warmed and paused guest

Same as thaw: kernel, initramfs, root image (on virtio-pmem with DAX from Firecracker 1.14 on,
before that on virtio-blk), sizes. Not the same: no scratch disk. Firecracker older than 1.8 has no
ACPI tables, without which thaw-shim's modules find no device.

The requests follow Firecracker's API description (swagger) of 1.8 to 1.16.
"""

from __future__ import annotations

from pathlib import Path

from lab.arms import Arm, Context, NotRun
from lab.peers.binary import named_by, version_of
from lab.peers.machine import ColdBoot, Guest, Restored, not_run
from lab.peers.process import Process, dial_unix
from lab.peers.rest import Rest

PEER = "firecracker"
VARIABLE = "FIRECRACKER"
VARIANTS = ["cold-boot", "restore"]
HAS_ACPI = (1, 8)
HAS_PMEM = (1, 14)
GUEST_CID = 3


class Firecracker:
    """The driver."""

    peer = PEER

    def __init__(self, binary: Path) -> None:
        self.binary = binary
        self.version = (0, 0)

    def check(self) -> None:
        self.version = version_of(self.binary)
        if self.version < HAS_ACPI:
            version = ".".join(map(str, self.version))
            raise NotRun(f"{self.binary} is version {version}; 1.8 is needed (ACPI)")

    def _spawn(self, folder: Path) -> Process:
        argv = [str(self.binary), "--api-sock", str(folder / "api"), "--id", "thaw-lab"]
        return Process(argv, folder / "firecracker.log", dial_unix(folder / "vsock"))

    def _configure(self, api: Rest, guest: Guest, folder: Path) -> None:
        pmem = self.version >= HAS_PMEM
        machine = {
            "vcpu_count": guest.template.vcpus,
            "mem_size_mib": guest.template.memory_mib,
        }
        api("PUT", "/machine-config", machine)
        source = {
            "kernel_image_path": str(guest.kernel),
            "initrd_path": str(guest.initramfs),
            "boot_args": guest.kernel_line("/dev/pmem0" if pmem else "/dev/vda"),
        }
        api("PUT", "/boot-source", source)
        if pmem:
            root = {"id": "root", "path_on_host": str(guest.root), "read_only": True}
            api("PUT", "/pmem/root", {**root, "root_device": False})
        else:
            drive = {"drive_id": "root", "path_on_host": str(guest.root), "is_read_only": True}
            api("PUT", "/drives/root", {**drive, "is_root_device": False})
        api("PUT", "/vsock", {"guest_cid": GUEST_CID, "uds_path": str(folder / "vsock")})
        api("PUT", "/entropy", {})
        api("PUT", "/actions", {"action_type": "InstanceStart"})

    def boot(self, guest: Guest, folder: Path) -> Process:
        process = self._spawn(folder)
        try:
            api = Rest(process, folder / "api")
            self._configure(api, guest, folder)
            api.close()
        except BaseException:
            process.kill()
            raise
        return process

    def save(self, process: Process, folder: Path) -> None:
        api = Rest(process, folder / "api")
        api("PATCH", "/vm", {"state": "Paused"})
        snapshot = {
            "snapshot_type": "Full",
            "snapshot_path": str(folder / "state"),
            "mem_file_path": str(folder / "memory"),
        }
        api("PUT", "/snapshot/create", snapshot)
        api.close()

    def prepare(self, folder: Path) -> None:
        # It binds both itself and refuses to when they are there.
        for name in ("api", "vsock"):
            (folder / name).unlink(missing_ok=True)

    def restore(self, guest: Guest, folder: Path) -> Process:
        process = self._spawn(folder)
        try:
            api = Rest(process, folder / "api")
            load = {
                "snapshot_path": str(folder / "state"),
                "mem_backend": {"backend_type": "File", "backend_path": str(folder / "memory")},
                "resume_vm": True,
            }
            api("PUT", "/snapshot/load", load)
            api.close()
        except BaseException:
            process.kill()
            raise
        return process


class FirecrackerAdapter:
    name = PEER

    def arms(self, ctx: Context) -> list[Arm]:
        try:
            driver = Firecracker(named_by(VARIABLE))
        except NotRun as reason:
            return not_run(PEER, VARIANTS, str(reason))
        guest = Guest(ctx)
        return [ColdBoot(ctx, driver, guest), Restored(ctx, driver, guest)]


ADAPTER = FirecrackerAdapter()
