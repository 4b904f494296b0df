// SPDX-License-Identifier: Apache-2.0
// What kind of KVM this machine has.
#include "vmm/cli/kvmkind.h"

#include <cpuid.h>
#include <string.h>

bool kvm_cpu_emulated(void)
{
	u32 eax, ebx, ecx, edx;
	char vendor[12];

	/* CPUID.1:ECX[31] is set by every hypervisor; without it leaf 0x40000000 means nothing. */
	if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & (1u << 31)))
		return false;
	__cpuid(0x40000000, eax, ebx, ecx, edx);
	memcpy(vendor, &ebx, 4);
	memcpy(vendor + 4, &ecx, 4);
	memcpy(vendor + 8, &edx, 4);
	return !memcmp(vendor, "TCGTCGTCGTCG", sizeof(vendor));
}

/** The text behind "flags :" of the first such line, or NULL. */
static const char *find_flags(const char *cpuinfo)
{
	for (const char *line = cpuinfo; *line; line += line[0] == '\n') {
		if (!strncmp(line, "flags", 5)) {
			const char *colon = line + 5 + strspn(line + 5, " \t");

			if (*colon == ':')
				return colon + 1;
		}
		line = strchrnul(line, '\n');
	}
	return NULL;
}

bool cpuinfo_has_flag(const char *cpuinfo, const char *flag)
{
	const char *word = find_flags(cpuinfo);
	size_t flag_len = strlen(flag);

	while (word) {
		size_t len;

		word += strspn(word, " \t");
		len = strcspn(word, " \t\n");
		if (!len)
			return false;
		if (len == flag_len && !memcmp(word, flag, len))
			return true;
		word += len;
	}
	return false;
}
