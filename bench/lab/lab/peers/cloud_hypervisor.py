# SPDX-License-Identifier: Apache-2.0
"""Cloud Hypervisor, when CLOUD_HYPERVISOR names its binary: cold boot and restore by its REST API.

What is timed: from the start of cloud-hypervisor, through all API requests, to the result of the
first command on a stream of its vsock, and to its end after a SIGKILL.

cold-boot         vm.create, vm.boot
restore           vm.restore (memory is copied from the snapshot before the guest runs), vm.resume
restore-ondemand  the same with memory_restore_mode OnDemand (userfaultfd), where the version has it

The snapshot is one of a warmed and paused guest. Same as thaw: kernel, initramfs, root image (on
virtio-pmem with DAX, writes discarded), sizes. Not the same: no scratch disk; devices are on PCI,
so the kernel line is without pci=off.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from lab.arms import Arm, Context, NotRun
from lab.peers.binary import named_by, version_of
from lab.peers.machine import ColdBoot, Guest, Restored, not_run
from lab.peers.process import Process, dial_unix
from lab.peers.rest import Rest

PEER = "cloud-hypervisor"
VARIABLE = "CLOUD_HYPERVISOR"
VARIANTS = ["cold-boot", "restore", "restore-ondemand"]
PREFIX = "/api/v1"
GUEST_CID = 3


class CloudHypervisor:
    """The driver; @on_demand: memory by userfaultfd when it is touched."""

    peer = PEER

    def __init__(self, binary: Path, on_demand: bool = False) -> None:
        self.binary = binary
        self.on_demand = on_demand

    def check(self) -> None:
        version_of(self.binary)

    def _spawn(self, folder: Path) -> Process:
        argv = [str(self.binary), "--api-socket", f"path={folder / 'api'}"]
        return Process(argv, folder / "cloud-hypervisor.log", dial_unix(folder / "vsock"))

    @staticmethod
    def _config(guest: Guest, folder: Path) -> dict[str, object]:
        vcpus = guest.template.vcpus
        return {
            "cpus": {"boot_vcpus": vcpus, "max_vcpus": vcpus},
            "memory": {"size": guest.template.memory_mib << 20},
            "payload": {
                "kernel": str(guest.kernel),
                "initramfs": str(guest.initramfs),
                "cmdline": guest.kernel_line("/dev/pmem0", without=("pci=off",)),
            },
            "pmem": [{"file": str(guest.root), "discard_writes": True}],
            "vsock": {"cid": GUEST_CID, "socket": str(folder / "vsock")},
            "rng": {"src": "/dev/urandom"},
            "serial": {"mode": "Null"},
            "console": {"mode": "Off"},
        }

    def boot(self, guest: Guest, folder: Path) -> Process:
        process = self._spawn(folder)
        try:
            api = Rest(process, folder / "api", PREFIX)
            api("PUT", "/vm.create", self._config(guest, folder))
            api("PUT", "/vm.boot")
            api.close()
        except BaseException:
            process.kill()
            raise
        return process

    def save(self, process: Process, folder: Path) -> None:
        snapshot = folder / "snapshot"
        shutil.rmtree(snapshot, ignore_errors=True)
        snapshot.mkdir()
        api = Rest(process, folder / "api", PREFIX)
        api("PUT", "/vm.pause")
        api("PUT", "/vm.snapshot", {"destination_url": f"file://{snapshot}"})
        api.close()

    def prepare(self, folder: Path) -> None:
        for name in ("api", "vsock"):
            (folder / name).unlink(missing_ok=True)

    def restore(self, guest: Guest, folder: Path) -> Process:
        request: dict[str, object] = {"source_url": f"file://{folder / 'snapshot'}"}
        if self.on_demand:
            request["memory_restore_mode"] = "OnDemand"
        process = self._spawn(folder)
        try:
            api = Rest(process, folder / "api", PREFIX)
            api("PUT", "/vm.restore", request)
            api("PUT", "/vm.resume")
            api.close()
        except BaseException:
            process.kill()
            raise
        return process


class CloudHypervisorAdapter:
    name = PEER

    def arms(self, ctx: Context) -> list[Arm]:
        try:
            binary = named_by(VARIABLE)
        except NotRun as reason:
            return not_run(PEER, VARIANTS, str(reason))
        guest = Guest(ctx)
        driver = CloudHypervisor(binary)
        return [
            ColdBoot(ctx, driver, guest),
            Restored(ctx, driver, guest),
            Restored(ctx, CloudHypervisor(binary, on_demand=True), guest, "restore-ondemand"),
        ]


ADAPTER = CloudHypervisorAdapter()
