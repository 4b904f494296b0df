# SPDX-License-Identifier: Apache-2.0
"""Inside the test host: machines that never run, so that KVM need not rewrite its own code.

KVM keeps static keys (code that is patched while it runs) for what few machines need: a local APIC
that is disabled by hardware or by software, a vCPU without one, preemption notifiers. Every vCPU
starts with a disabled APIC, so with no other machine around each start patches the kernel twice,
while other processors run it. Real processors are made for that. The emulator is not: it was seen
to run a breakpoint that had been taken out already ("Oops: int3" in kvm_arch_vcpu_ioctl_run). These
machines hold every key on, as they are on a host that is busy.
"""

import fcntl
import os
import struct

KVM_CREATE_VM = 0xAE01
KVM_CREATE_VCPU = 0xAE41
KVM_ENABLE_CAP = 0x4068AEA3
KVM_GET_SREGS = 0x8138AE83
KVM_SET_SREGS = 0x4138AE84
KVM_CAP_SPLIT_IRQCHIP = 121
IOAPIC_PINS = 24
SREGS_BYTES = 312
APIC_BASE_OFFSET = 272


def disable_apic(vcpu: int) -> None:
    sregs = bytearray(SREGS_BYTES)
    fcntl.ioctl(vcpu, KVM_GET_SREGS, sregs)
    struct.pack_into("<Q", sregs, APIC_BASE_OFFSET, 0)
    fcntl.ioctl(vcpu, KVM_SET_SREGS, bytes(sregs))


def hold() -> list[int]:
    """Makes the machines; they last as long as the descriptors returned are open."""
    kvm = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    with_apic = fcntl.ioctl(kvm, KVM_CREATE_VM, 0)
    cap = struct.pack("<IIQQQQ64x", KVM_CAP_SPLIT_IRQCHIP, 0, IOAPIC_PINS, 0, 0, 0)
    fcntl.ioctl(with_apic, KVM_ENABLE_CAP, cap)
    by_software = fcntl.ioctl(with_apic, KVM_CREATE_VCPU, 0)
    by_hardware = fcntl.ioctl(with_apic, KVM_CREATE_VCPU, 1)
    disable_apic(by_hardware)
    without = fcntl.ioctl(kvm, KVM_CREATE_VM, 0)
    no_apic = fcntl.ioctl(without, KVM_CREATE_VCPU, 0)
    return [kvm, with_apic, by_software, by_hardware, without, no_apic]
