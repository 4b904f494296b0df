// SPDX-License-Identifier: Apache-2.0
// Check a state file in memory. Pure: no file, no allocation that outlives it, no KVM; fuzzed by
// tests/fuzz/fuzz_snapshot.c.
#include <errno.h>
#include <string.h>

#include "vmm/kvm/layout.h"
#include "vmm/snapshot/internal.h"
#include "vmm/virtio/virtq.h"

/*
 * The file has one canonical form (snapshots/FORMAT.md): a fixed order of sections, packed at
 * 64-byte steps, every reserved byte and unused tail zero. So snap_build(snap_parse(x)) is x again,
 * which the fuzzer uses as its oracle, and there is no second way to say the same thing that a
 * check could miss.
 *
 * Checks go from the outside in. Nothing behind the header is looked at before the digest was
 * right, and no section before the table was. Version comes before digest, because a later version
 * may define the digest otherwise.
 *
 * The digest finds damage, not malice: whoever can write the file can write a digest that fits. So
 * every number that this program itself uses (counts, sizes, slots) is bounded here, and what goes
 * to KVM or to a device is checked by KVM or by the device's load function, as for any other
 * hostile input.
 */

#define DISK_MAX_BYTES ((u64)16 << 40)
#define PMEM_MAX_BYTES ((u64)1 << 40)

/* Anything a real x86 counter does; outside of it arithmetic on clocks would overflow somewhere. */
#define TSC_KHZ_MIN ((u64)1000)
#define TSC_KHZ_MAX ((u64)100000000)

/* The XSAVE area: legacy region and header are always there. */
#define XSAVE_MIN_BYTES 576u

_Static_assert(sizeof(struct snap_header) == 64, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct snap_section) == 24, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct snap_machine) == 120, "ABI: snapshots/FORMAT.md");
_Static_assert(offsetof(struct snap_machine, clock) == 64, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct snap_cpuid) == 5128, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct snap_ioapic) == 208, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct snap_vcpu) == 17440, "ABI: snapshots/FORMAT.md");
_Static_assert(offsetof(struct snap_vcpu, sregs) == 144, "ABI: snapshots/FORMAT.md");
_Static_assert(offsetof(struct snap_vcpu, events) == 464, "ABI: snapshots/FORMAT.md");
_Static_assert(offsetof(struct snap_vcpu, lapic) == 1048, "ABI: snapshots/FORMAT.md");
_Static_assert(offsetof(struct snap_vcpu, msrs) == 2080, "ABI: snapshots/FORMAT.md");
_Static_assert(offsetof(struct snap_vcpu, xsave) == 5152, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct snap_virtio) == 224, "ABI: snapshots/FORMAT.md");
_Static_assert(VM_VCPUS_MAX <= ARRAY_SIZE(((struct snap_view *)NULL)->vcpus),
	       "a view holds every vCPU");
_Static_assert(LAYOUT_VIRTIO_SLOTS <= ARRAY_SIZE(((struct snap_view *)NULL)->devs),
	       "a view holds every device");
_Static_assert(SNAP_QUEUES_MAX == VIRTIO_QUEUES_MAX, "a section holds every queue");

/* virtio 1.2 §5: the device type that stands in each slot; ABI with layout.h. */
static const u32 slot_ids[LAYOUT_VIRTIO_SLOTS] = {
	[LAYOUT_VIRTIO_CONSOLE] = 3, [LAYOUT_VIRTIO_RNG] = 4,	 [LAYOUT_VIRTIO_PMEM] = 27,
	[LAYOUT_VIRTIO_BLK] = 2,     [LAYOUT_VIRTIO_VSOCK] = 19,
};

static bool all_zero(const void *data, size_t len_bytes)
{
	const u8 *bytes = data;

	return len_bytes == 0 || (bytes[0] == 0 && !memcmp(bytes, bytes + 1, len_bytes - 1));
}

static const char *check_machine(const struct snap_machine *machine)
{
	if (machine->ram_bytes < VM_RAM_MIN_BYTES || machine->ram_bytes > VM_RAM_MAX_BYTES ||
	    machine->ram_bytes % PAGE_SIZE_BYTES)
		return "machine: memory size out of range";
	if (machine->nvcpus < 1 || machine->nvcpus > VM_VCPUS_MAX)
		return "machine: vCPU count out of range";
	if (machine->checkpoint_vcpu >= machine->nvcpus)
		return "machine: checkpoint vCPU out of range";
	if (machine->pmem_bytes > PMEM_MAX_BYTES || machine->pmem_bytes % HUGE_SIZE_BYTES)
		return "machine: root image size out of range";
	if (machine->disk_bytes > DISK_MAX_BYTES || machine->disk_bytes % PAGE_SIZE_BYTES)
		return "machine: disk size out of range";
	if (machine->generation == 0)
		return "machine: generation is 0";
	if (machine->tsc_khz < TSC_KHZ_MIN || machine->tsc_khz > TSC_KHZ_MAX)
		return "machine: TSC frequency out of range";
	if (machine->realtime_ns > INT64_MAX || machine->clock.clock > INT64_MAX)
		return "machine: clock out of range";
	if (machine->clock.pad0 || !all_zero(machine->clock.pad, sizeof(machine->clock.pad)))
		return "machine: reserved field not zero";
	if (machine->serial_lcr > UINT8_MAX)
		return "machine: serial line control out of range";
	return NULL;
}

static const char *check_cpuid(const struct snap_cpuid *cpuid)
{
	if (cpuid->nent < 1 || cpuid->nent > SNAP_CPUID_MAX)
		return "cpuid: entry count out of range";
	if (cpuid->reserved)
		return "cpuid: reserved field not zero";
	for (u32 i = 0; i < cpuid->nent; i++) {
		if (!all_zero(cpuid->entries[i].padding, sizeof(cpuid->entries[i].padding)))
			return "cpuid: reserved field not zero";
	}
	if (!all_zero(&cpuid->entries[cpuid->nent],
		      (SNAP_CPUID_MAX - cpuid->nent) * sizeof(cpuid->entries[0])))
		return "cpuid: unused entries not zero";
	return NULL;
}

static const char *check_ioapic(const struct snap_ioapic *ioapic)
{
	return ioapic->reserved ? "ioapic: reserved field not zero" : NULL;
}

static const char *check_vcpu(const struct snap_vcpu *vcpu)
{
	if (vcpu->nmsrs > SNAP_MSRS_MAX)
		return "vcpu: MSR count out of range";
	if (vcpu->xsave_bytes < XSAVE_MIN_BYTES || vcpu->xsave_bytes > SNAP_XSAVE_BYTES)
		return "vcpu: XSAVE size out of range";
	if (vcpu->xcrs.nr_xcrs > KVM_MAX_XCRS)
		return "vcpu: XCR count out of range";
	if (vcpu->pad0)
		return "vcpu: reserved field not zero";
	for (u32 i = 0; i < vcpu->nmsrs; i++) {
		if (vcpu->msrs[i].reserved)
			return "vcpu: reserved field not zero";
	}
	if (!all_zero(&vcpu->msrs[vcpu->nmsrs],
		      (SNAP_MSRS_MAX - vcpu->nmsrs) * sizeof(vcpu->msrs[0])))
		return "vcpu: unused MSRs not zero";
	if (!all_zero(&vcpu->xsave[vcpu->xsave_bytes], SNAP_XSAVE_BYTES - vcpu->xsave_bytes))
		return "vcpu: unused XSAVE bytes not zero";
	return NULL;
}

static const char *check_virtio(const struct snap_virtio *dev)
{
	if (dev->slot >= LAYOUT_VIRTIO_SLOTS)
		return "virtio: slot out of range";
	if (dev->id != slot_ids[dev->slot])
		return "virtio: device type does not belong in its slot";
	for (unsigned int i = 0; i < SNAP_QUEUES_MAX; i++) {
		const struct snap_virtq *queue = &dev->queues[i];

		if (queue->size > VIRTQ_SIZE_MAX || (queue->size & (queue->size - 1)))
			return "virtio: queue size is no power of two up to 256";
		if (queue->ready > 1 || (queue->ready && !queue->size))
			return "virtio: queue ready flag malformed";
		if (!all_zero(queue->reserved, sizeof(queue->reserved)))
			return "virtio: reserved field not zero";
	}
	return NULL;
}

/** check_devices() - the devices are those that the machine's shape calls for. */
static const char *check_devices(const struct snap_view *view)
{
	bool has_pmem = false, has_blk = false, has_vsock = false;

	for (unsigned int i = 0; i < view->ndevs; i++) {
		if (i > 0 && view->devs[i]->slot <= view->devs[i - 1]->slot)
			return "virtio: slots not in ascending order";
		has_pmem |= view->devs[i]->slot == LAYOUT_VIRTIO_PMEM;
		has_blk |= view->devs[i]->slot == LAYOUT_VIRTIO_BLK;
		has_vsock |= view->devs[i]->slot == LAYOUT_VIRTIO_VSOCK;
	}
	if (has_pmem != (view->machine->pmem_bytes != 0))
		return "virtio: pmem device and root image size disagree";
	if (has_blk != (view->machine->disk_bytes != 0))
		return "virtio: block device and disk size disagree";
	if (view->machine->vsock_connections && !has_vsock)
		return "virtio: streams without a vsock device";
	return NULL;
}

static int check_header(const void *buf, size_t len_bytes, const char **why)
{
	const struct snap_header *header = buf;
	u8 digest[SNAP_DIGEST_BYTES];

	*why = "not a state file (too short)";
	if (len_bytes < sizeof(*header))
		return -EINVAL;
	*why = "not a state file (wrong magic)";
	if (header->magic != SNAP_MAGIC)
		return -EINVAL;
	*why = "unknown format version; build the template again with this thaw";
	if (header->version != SNAP_VERSION)
		return -EPROTONOSUPPORT;
	*why = "truncated or overlong: its size is not the one in its header";
	if (header->total_bytes != len_bytes || len_bytes > SNAP_STATE_MAX_BYTES)
		return -EINVAL;
	*why = "digest mismatch: the file was changed or is damaged; build the template again";
	snap_digest_state(buf, len_bytes, digest);
	if (memcmp(digest, header->digest, sizeof(digest)))
		return -EBADMSG;
	*why = "header: reserved field not zero";
	if (header->reserved)
		return -EINVAL;
	*why = "header: section count out of range";
	if (header->nsections < 4 || header->nsections > SNAP_SECTIONS_MAX ||
	    len_bytes < sizeof(*header) + header->nsections * sizeof(struct snap_section))
		return -EINVAL;
	return 0;
}

/** section_size() - bytes of the structure behind @id, 0 for an unknown one. */
static size_t section_size(u32 id)
{
	switch (id) {
	case SNAP_SECTION_MACHINE:
		return sizeof(struct snap_machine);
	case SNAP_SECTION_CPUID:
		return sizeof(struct snap_cpuid);
	case SNAP_SECTION_IOAPIC:
		return sizeof(struct snap_ioapic);
	case SNAP_SECTION_VCPU:
		return sizeof(struct snap_vcpu);
	case SNAP_SECTION_VIRTIO:
		return sizeof(struct snap_virtio);
	default:
		return 0;
	}
}

/** view_add() - section @index of the canonical order; checked for itself. Return: NULL or what is
 * wrong. */
static const char *view_add(struct snap_view *view, unsigned int index, u32 id, const void *data)
{
	static const u32 fixed[] = {SNAP_SECTION_MACHINE, SNAP_SECTION_CPUID, SNAP_SECTION_IOAPIC};

	if (index < ARRAY_SIZE(fixed)) {
		if (id != fixed[index])
			return "section table: sections missing or out of order";
		if (id == SNAP_SECTION_MACHINE)
			return check_machine(view->machine = data);
		if (id == SNAP_SECTION_CPUID)
			return check_cpuid(view->cpuid = data);
		return check_ioapic(view->ioapic = data);
	}
	if (id == SNAP_SECTION_VCPU && view->ndevs == 0) {
		if (view->nvcpus >= view->machine->nvcpus)
			return "section table: more vCPUs than the machine has";
		return check_vcpu(view->vcpus[view->nvcpus++] = data);
	}
	if (id == SNAP_SECTION_VIRTIO) {
		if (view->ndevs >= LAYOUT_VIRTIO_SLOTS)
			return "section table: too many devices";
		return check_virtio(view->devs[view->ndevs++] = data);
	}
	return "section table: sections out of order";
}

int snap_parse(const void *buf, size_t len_bytes, struct snap_view *view, const char **why)
{
	const u8 *bytes = buf;
	const struct snap_section *table;
	u64 end_bytes, table_bytes;
	int ret;

	memset(view, 0, sizeof(*view));
	ret = check_header(buf, len_bytes, why);
	if (ret)
		return ret;
	view->header = buf;
	table = (const struct snap_section *)(view->header + 1);
	table_bytes = sizeof(*view->header) + view->header->nsections * sizeof(*table);
	end_bytes = ALIGN_UP(table_bytes, (u64)SNAP_SECTION_ALIGN);
	*why = "section table: gap not zero";
	if (end_bytes > len_bytes || !all_zero(bytes + table_bytes, end_bytes - table_bytes))
		return -EINVAL;
	for (unsigned int i = 0; i < view->header->nsections; i++) {
		const struct snap_section *section = &table[i];
		size_t size_bytes = section_size(section->id);
		u64 next_bytes;

		*why = "section table: unknown section";
		if (!size_bytes)
			return -EINVAL;
		*why = "section table: unknown section version; build the template again with this thaw";
		if (section->version != 1)
			return -EPROTONOSUPPORT;
		/* One place is right; overlap, overflow, misalignment and holes are all "another
		 * place". */
		*why = "section table: a section has the wrong place or size";
		next_bytes = ALIGN_UP(end_bytes + size_bytes, (u64)SNAP_SECTION_ALIGN);
		if (section->offset_bytes != end_bytes || section->len_bytes != size_bytes ||
		    next_bytes > len_bytes)
			return -EINVAL;
		*why = "section table: gap not zero";
		if (!all_zero(bytes + end_bytes + size_bytes, next_bytes - end_bytes - size_bytes))
			return -EINVAL;
		*why = view_add(view, i, section->id, bytes + end_bytes);
		if (*why)
			return -EINVAL;
		end_bytes = next_bytes;
	}
	*why = "bytes behind the last section";
	if (end_bytes != len_bytes)
		return -EINVAL;
	*why = "section table: fewer vCPUs than the machine has";
	if (view->nvcpus != view->machine->nvcpus)
		return -EINVAL;
	*why = check_devices(view);
	if (*why)
		return -EINVAL;
	return 0;
}
