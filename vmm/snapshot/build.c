// SPDX-License-Identifier: Apache-2.0
// The state file from its parts: the reverse of parse.c.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/snapshot/internal.h"
#include "vmm/util/log.h"

struct builder {
	u8 *buf;
	struct snap_section *table;
	unsigned int nsections, used_sections;
	u64 end_bytes;
};

static void *builder_add(struct builder *builder, enum snap_section_id id, size_t len_bytes)
{
	struct snap_section *section = &builder->table[builder->used_sections++];

	BUG_ON(builder->used_sections > builder->nsections);
	section->id = id;
	section->version = 1;
	section->offset_bytes = builder->end_bytes;
	section->len_bytes = len_bytes;
	builder->end_bytes = ALIGN_UP(builder->end_bytes + len_bytes, (u64)SNAP_SECTION_ALIGN);
	return builder->buf + section->offset_bytes;
}

static void add_cpuid(struct builder *builder, const struct snap_cpuid *cpuid)
{
	struct snap_cpuid *out = builder_add(builder, SNAP_SECTION_CPUID, sizeof(*out));

	BUG_ON(cpuid->nent > SNAP_CPUID_MAX);
	out->nent = cpuid->nent;
	for (u32 i = 0; i < cpuid->nent; i++) {
		out->entries[i] = cpuid->entries[i];
		memset(out->entries[i].padding, 0, sizeof(out->entries[i].padding));
	}
}

static void add_vcpu(struct builder *builder, const struct snap_vcpu *vcpu)
{
	struct snap_vcpu *out = builder_add(builder, SNAP_SECTION_VCPU, sizeof(*out));

	BUG_ON(vcpu->nmsrs > SNAP_MSRS_MAX || vcpu->xsave_bytes > SNAP_XSAVE_BYTES);
	/* Everything up to the arrays, then only what is used of them: the file holds nothing but
	 * state. */
	memcpy(out, vcpu, offsetof(struct snap_vcpu, msrs));
	out->pad0 = 0;
	for (u32 i = 0; i < vcpu->nmsrs; i++) {
		out->msrs[i].index = vcpu->msrs[i].index;
		out->msrs[i].value = vcpu->msrs[i].value;
	}
	memcpy(out->xsave, vcpu->xsave, vcpu->xsave_bytes);
}

int snap_build(const struct snap_view *parts, const u8 manifest_digest[SNAP_DIGEST_BYTES],
	       void **out, size_t *len_bytes)
{
	struct builder builder = {.nsections = 3 + parts->nvcpus + parts->ndevs};
	size_t table_end =
		sizeof(struct snap_header) + builder.nsections * sizeof(struct snap_section);
	size_t total = ALIGN_UP(table_end, (size_t)SNAP_SECTION_ALIGN);
	struct snap_header *header;

	BUG_ON(builder.nsections > SNAP_SECTIONS_MAX);
	builder.end_bytes = total;
	total += ALIGN_UP(sizeof(struct snap_machine), (size_t)SNAP_SECTION_ALIGN) +
		 ALIGN_UP(sizeof(struct snap_cpuid), (size_t)SNAP_SECTION_ALIGN) +
		 ALIGN_UP(sizeof(struct snap_ioapic), (size_t)SNAP_SECTION_ALIGN) +
		 parts->nvcpus * ALIGN_UP(sizeof(struct snap_vcpu), (size_t)SNAP_SECTION_ALIGN) +
		 parts->ndevs * ALIGN_UP(sizeof(struct snap_virtio), (size_t)SNAP_SECTION_ALIGN);
	builder.buf = calloc(1, total);
	if (!builder.buf)
		return -ENOMEM;
	header = (struct snap_header *)builder.buf;
	builder.table = (struct snap_section *)(header + 1);

	memcpy(builder_add(&builder, SNAP_SECTION_MACHINE, sizeof(*parts->machine)), parts->machine,
	       sizeof(*parts->machine));
	add_cpuid(&builder, parts->cpuid);
	memcpy(builder_add(&builder, SNAP_SECTION_IOAPIC, sizeof(*parts->ioapic)), parts->ioapic,
	       sizeof(*parts->ioapic));
	for (unsigned int i = 0; i < parts->nvcpus; i++)
		add_vcpu(&builder, parts->vcpus[i]);
	for (unsigned int i = 0; i < parts->ndevs; i++)
		memcpy(builder_add(&builder, SNAP_SECTION_VIRTIO, sizeof(*parts->devs[i])),
		       parts->devs[i], sizeof(*parts->devs[i]));
	BUG_ON(builder.end_bytes != total);

	header->magic = SNAP_MAGIC;
	header->version = SNAP_VERSION;
	header->nsections = builder.nsections;
	header->total_bytes = total;
	memcpy(header->manifest_digest, manifest_digest, SNAP_DIGEST_BYTES);
	snap_digest_state(builder.buf, total, header->digest);
	*out = builder.buf;
	*len_bytes = total;
	return 0;
}
