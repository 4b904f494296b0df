// SPDX-License-Identifier: Apache-2.0
// How many sandboxes there may be, and how much of them may run at once.
#include "vmm/daemon/quota.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "vmm/util/util.h"

static u64 host_memory_bytes(void)
{
	struct sysinfo info;

	return sysinfo(&info) ? 0 : (u64)info.totalram * info.mem_unit;
}

static u64 percent_of(u64 value, u64 percent)
{
	u64 product;

	return __builtin_mul_overflow(value, percent, &product) ? UINT64_MAX : product / 100;
}

void quota_init(struct quota *quota, u64 max_sandboxes, u64 max_vcpus, u64 max_memory_bytes,
		u64 cpu_percent, u64 memory_percent)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	*quota = (struct quota){0};
	quota->of[BOX_QUOTA_SANDBOXES].max = max_sandboxes;
	quota->of[BOX_QUOTA_VCPUS].max =
		max_vcpus ? max_vcpus : percent_of(cpus > 0 ? (u64)cpus : 1, cpu_percent);
	quota->of[BOX_QUOTA_MEMORY].max = max_memory_bytes
						  ? max_memory_bytes
						  : percent_of(host_memory_bytes(), memory_percent);
}

/** Return: 0, or -EDQUOT with @why. */
static int check(const struct quota *quota, enum box_quota_kind kind, u64 wanted, char *why,
		 size_t why_bytes)
{
	static const char *const names[] = {
		[BOX_QUOTA_SANDBOXES] = "sandboxes (setting max_sandboxes)",
		[BOX_QUOTA_VCPUS] = "vCPUs (settings max_vcpus, cpu_overcommit)",
		[BOX_QUOTA_MEMORY] = "bytes of memory (settings max_memory, memory_overcommit)",
	};
	const struct box_quota *q = &quota->of[kind];

	if (!q->max || (q->used <= q->max && wanted <= q->max - q->used))
		return 0;
	snprintf(why, why_bytes, "%llu of %llu %s are in use, %llu more are wanted",
		 (unsigned long long)q->used, (unsigned long long)q->max, names[kind],
		 (unsigned long long)wanted);
	return -EDQUOT;
}

int quota_add(struct quota *quota, char *why, size_t why_bytes)
{
	int ret = check(quota, BOX_QUOTA_SANDBOXES, 1, why, why_bytes);

	if (!ret)
		quota_add_force(quota);
	return ret;
}

void quota_add_force(struct quota *quota)
{
	quota->of[BOX_QUOTA_SANDBOXES].used++;
}

void quota_drop(struct quota *quota)
{
	quota->of[BOX_QUOTA_SANDBOXES].used--;
}

int quota_take(struct quota *quota, u32 vcpus, u64 memory_bytes, char *why, size_t why_bytes)
{
	int ret = check(quota, BOX_QUOTA_VCPUS, vcpus, why, why_bytes);

	ret = ret ? ret : check(quota, BOX_QUOTA_MEMORY, memory_bytes, why, why_bytes);
	if (!ret)
		quota_force(quota, vcpus, memory_bytes);
	return ret;
}

void quota_force(struct quota *quota, u32 vcpus, u64 memory_bytes)
{
	quota->of[BOX_QUOTA_VCPUS].used += vcpus;
	quota->of[BOX_QUOTA_MEMORY].used += memory_bytes;
}

void quota_give(struct quota *quota, u32 vcpus, u64 memory_bytes)
{
	quota->of[BOX_QUOTA_VCPUS].used -= vcpus;
	quota->of[BOX_QUOTA_MEMORY].used -= memory_bytes;
}

int psi_some_avg10(const char *text, u64 *out)
{
	unsigned int whole, hundredths;

	if (sscanf(text, "some avg10=%3u.%2u", &whole, &hundredths) != 2 || whole > 100)
		return -EINVAL;
	*out = whole * 100u + hundredths;
	return 0;
}

u64 psi_memory(void)
{
	char text[256];
	u64 value = 0;
	ssize_t n;
	int fd = open("/proc/pressure/memory", O_RDONLY | O_CLOEXEC);

	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	fd_close(&fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	return psi_some_avg10(text, &value) ? 0 : value;
}
