// SPDX-License-Identifier: Apache-2.0
// Can a guest that was shown one CPU go on with another?
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vmm/snapshot/internal.h"

/*
 * A guest kernel patches its code by CPU feature at boot, and C libraries choose vector code at
 * program start; both are in the snapshot's memory. A CPU that lacks one of the features makes them
 * fault at some later moment, and one of another model can need another errata path. So: same
 * vendor, family, model and stepping, and every feature bit that was shown must be there. More
 * features than shown do no harm, because the clone is shown the snapshot's own CPUID.
 */

const struct kvm_cpuid_entry2 *snap_cpu_find(const struct snap_cpuid *cpuid, u32 function,
					     u32 index)
{
	for (u32 i = 0; i < cpuid->nent; i++) {
		const struct kvm_cpuid_entry2 *entry = &cpuid->entries[i];

		if (entry->function != function)
			continue;
		if (!(entry->flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX) || entry->index == index)
			return entry;
	}
	return NULL;
}

u32 snap_cpu_word_get(const struct snap_cpuid *cpuid, const struct snap_cpu_word *word)
{
	const struct kvm_cpuid_entry2 *entry = snap_cpu_find(cpuid, word->function, word->index);

	if (!entry)
		return 0;
	switch (word->reg) {
	case SNAP_EAX:
		return entry->eax;
	case SNAP_EBX:
		return entry->ebx;
	case SNAP_ECX:
		return entry->ecx;
	case SNAP_EDX:
		return entry->edx;
	}
	return 0;
}

void snap_cpu_vendor(const struct snap_cpuid *cpuid, char vendor[13])
{
	const struct kvm_cpuid_entry2 *entry = snap_cpu_find(cpuid, 0, 0);

	memset(vendor, 0, 13);
	if (!entry)
		return;
	memcpy(vendor, &entry->ebx, 4);
	memcpy(vendor + 4, &entry->edx, 4);
	memcpy(vendor + 8, &entry->ecx, 4);
	for (unsigned int i = 0; i < 12; i++) {
		if (vendor[i] < 0x20 || vendor[i] > 0x7e)
			vendor[i] = '?';
	}
}

void snap_cpu_model(const struct snap_cpuid *cpuid, char model[49])
{
	char text[49] = "";
	size_t used = 0;

	for (u32 i = 0; i < 3; i++) {
		const struct kvm_cpuid_entry2 *entry = snap_cpu_find(cpuid, 0x80000002 + i, 0);
		u32 words[4] = {0};

		if (entry) {
			words[0] = entry->eax;
			words[1] = entry->ebx;
			words[2] = entry->ecx;
			words[3] = entry->edx;
		}
		memcpy(text + i * sizeof(words), words, sizeof(words));
	}
	/* Brand strings are padded with blanks, in front or behind. */
	for (size_t i = 0; text[i]; i++) {
		if (text[i] < 0x20 || text[i] > 0x7e ||
		    (text[i] == ' ' && (used == 0 || model[used - 1] == ' ')))
			continue;
		model[used++] = text[i];
	}
	while (used && model[used - 1] == ' ')
		used--;
	model[used] = '\0';
	if (!used)
		memcpy(model, "unknown", sizeof("unknown"));
}

u32 snap_cpu_signature(const struct snap_cpuid *cpuid)
{
	const struct kvm_cpuid_entry2 *entry = snap_cpu_find(cpuid, 1, 0);

	return entry ? entry->eax : 0;
}

/** signature_text() - family, model and stepping as people count them (extended fields added: AMD
 * APM vol. 3 §E.3.2, Intel SDM vol. 2A). */
static void signature_text(u32 signature, char *out, size_t out_bytes)
{
	unsigned int family = (signature >> 8) & 0xf, model = (signature >> 4) & 0xf;

	if (family == 6 || family == 15)
		model |= ((signature >> 16) & 0xf) << 4;
	if (family == 15)
		family += (signature >> 20) & 0xff;
	snprintf(out, out_bytes, "family %u model %u stepping %u", family, model, signature & 0xf);
}

static int check_model(const struct snap_cpuid *cpuid, const struct snap_cpuid *host, char *why,
		       size_t why_bytes)
{
	char was_vendor[13], is_vendor[13], was_text[64], is_text[64];
	u32 was = snap_cpu_signature(cpuid), is = snap_cpu_signature(host);

	snap_cpu_vendor(cpuid, was_vendor);
	snap_cpu_vendor(host, is_vendor);
	if (strcmp(was_vendor, is_vendor)) {
		snprintf(why, why_bytes,
			 "CPU vendor differs: the snapshot is of %s, this machine is %s",
			 was_vendor, is_vendor);
		return -ENOTSUP;
	}
	if (was != is) {
		signature_text(was, was_text, sizeof(was_text));
		signature_text(is, is_text, sizeof(is_text));
		snprintf(why, why_bytes,
			 "CPU model differs: the snapshot is of %s %s, this machine is %s",
			 was_vendor, was_text, is_text);
		return -ENOTSUP;
	}
	return 0;
}

static void missing_text(const struct snap_cpu_word *word, unsigned int bit, char *why,
			 size_t why_bytes)
{
	static const char *const regs[] = {"EAX", "EBX", "ECX", "EDX"};

	if (word->names && word->names[bit])
		snprintf(why, why_bytes, "CPU feature %s is missing here (leaf %#x %s bit %u)",
			 word->names[bit], word->function, regs[word->reg], bit);
	else
		snprintf(why, why_bytes, "CPU feature leaf %#x.%u %s bit %u is missing here",
			 word->function, word->index, regs[word->reg], bit);
}

/** check_xsave() - a component that the guest may save must have the same place in the standard
 * layout: its programs have sizes in memory. */
static int check_xsave(const struct snap_cpuid *cpuid, const struct snap_cpuid *host, char *why,
		       size_t why_bytes)
{
	for (u32 i = 0; i < cpuid->nent; i++) {
		const struct kvm_cpuid_entry2 *was = &cpuid->entries[i];
		const struct kvm_cpuid_entry2 *is;

		if (was->function != 0xd || was->index < 2 || was->index > 62 || was->eax == 0)
			continue;
		is = snap_cpu_find(host, 0xd, was->index);
		if (is && is->eax == was->eax && is->ebx == was->ebx)
			continue;
		snprintf(why, why_bytes, "CPU state layout differs: XSAVE component %u",
			 was->index);
		return -ENOTSUP;
	}
	return 0;
}

/** check_addresses() - page tables and pointers in the guest were made for these widths. */
static int check_addresses(const struct snap_cpuid *cpuid, const struct snap_cpuid *host, char *why,
			   size_t why_bytes)
{
	const struct kvm_cpuid_entry2 *was = snap_cpu_find(cpuid, 0x80000008, 0);
	const struct kvm_cpuid_entry2 *is = snap_cpu_find(host, 0x80000008, 0);

	if (!was)
		return 0;
	if (!is || (was->eax & 0xff) > (is->eax & 0xff) ||
	    ((was->eax >> 8) & 0xff) > ((is->eax >> 8) & 0xff)) {
		snprintf(why, why_bytes,
			 "CPU address width differs: %u/%u bits in the snapshot, %u/%u here",
			 was->eax & 0xff, (was->eax >> 8) & 0xff, is ? is->eax & 0xff : 0,
			 is ? (is->eax >> 8) & 0xff : 0);
		return -ENOTSUP;
	}
	return 0;
}

int snap_cpu_check(const struct snap_cpuid *cpuid, const struct snap_cpuid *host, char *why,
		   size_t why_bytes)
{
	int ret;

	ret = check_model(cpuid, host, why, why_bytes);
	if (ret)
		return ret;
	for (unsigned int w = 0; w < snap_cpu_nwords; w++) {
		const struct snap_cpu_word *word = &snap_cpu_words[w];
		u32 missing = snap_cpu_word_get(cpuid, word) & ~snap_cpu_word_get(host, word) &
			      ~word->dynamic;

		if (!missing)
			continue;
		missing_text(word, (unsigned int)__builtin_ctz(missing), why, why_bytes);
		return -ENOTSUP;
	}
	ret = check_xsave(cpuid, host, why, why_bytes);
	if (ret)
		return ret;
	return check_addresses(cpuid, host, why, why_bytes);
}
