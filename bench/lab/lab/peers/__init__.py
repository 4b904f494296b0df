# SPDX-License-Identifier: Apache-2.0
"""What thaw is measured beside, one file a peer. README.md beside it says how to add one."""

from __future__ import annotations

from lab.arms import Adapter
from lab.peers import bubblewrap, cloud_hypervisor, firecracker, qemu_microvm, runsc

ADAPTERS: list[Adapter] = [
    qemu_microvm.ADAPTER,
    firecracker.ADAPTER,
    cloud_hypervisor.ADAPTER,
    bubblewrap.ADAPTER,
    runsc.ADAPTER,
]
