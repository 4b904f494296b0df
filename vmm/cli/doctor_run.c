// SPDX-License-Identifier: Apache-2.0
// Checks of `thaw doctor`: what `thaw run` and `thaw template build` stand on.
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "vmm/cli/assets.h"
#include "vmm/cli/doctor.h"
#include "vmm/cli/vmmproc.h"
#include "vmm/util/util.h"

/** The start of a file of /proc, which has no size; enough for the first processor of
 * /proc/cpuinfo. Return: 0 or -errno. */
static int read_start(const char *path, char *buf, size_t buf_bytes)
{
	size_t used = 0;
	ssize_t n = 1;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (n > 0 && used + 1 < buf_bytes) {
		n = read(fd, buf + used, buf_bytes - 1 - used);
		used += n > 0 ? (size_t)n : 0;
	}
	close(fd);
	buf[used] = '\0';
	return n < 0 ? -EIO : 0;
}

void doctor_check_cpu(struct doctor *doctor, struct doctor_finding *finding)
{
	char cpuinfo[16384];
	bool vmx, svm;

	if (read_start("/proc/cpuinfo", cpuinfo, sizeof(cpuinfo))) {
		doctor_say(finding, DOCTOR_FAIL, "/proc/cpuinfo can't be read");
		finding->fix = "mount /proc";
		return;
	}
	vmx = cpuinfo_has_flag(cpuinfo, "vmx");
	svm = cpuinfo_has_flag(cpuinfo, "svm");
	doctor->cpu_has_virt = vmx || svm;
	if (!doctor->cpu_has_virt) {
		doctor_say(finding, DOCTOR_FAIL, "x86-64 without vmx or svm");
		finding->fix = "switch virtualisation on in the firmware or, in a VM, nested "
			       "virtualisation; to try thaw without: tests/host/run thaw ...";
		return;
	}
	doctor_say(finding, DOCTOR_OK, "x86-64 with %s%s", svm ? "svm" : "vmx",
		   kvm_cpu_emulated() ? ", emulated in software: 20-50 times slower than hardware"
				      : "");
}

void doctor_check_kvm(struct doctor *doctor, struct doctor_finding *finding)
{
	int version;

	doctor->kvm_fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (doctor->kvm_fd < 0) {
		doctor_say(finding, DOCTOR_FAIL, "/dev/kvm: %s", strerror(errno));
		finding->fix = errno == EACCES
				       ? "run as root, or add the user to the group of /dev/kvm"
				       : "load the module: modprobe kvm_intel or kvm_amd";
		return;
	}
	version = ioctl(doctor->kvm_fd, KVM_GET_API_VERSION, 0);
	if (version != KVM_API_VERSION) {
		doctor_say(finding, DOCTOR_FAIL, "/dev/kvm has API version %d, not %d", version,
			   KVM_API_VERSION);
		return;
	}
	if (!doctor->cpu_has_virt) {
		doctor->kind = KVM_KIND_PVM;
		doctor_say(
			finding, DOCTOR_FAIL,
			"/dev/kvm opens, but there is no vmx or svm behind it: a paravirtual KVM "
			"(PVM), which can't run a Linux guest here");
		finding->fix = "tests/host/run thaw ... runs thaw in the emulated test host";
		return;
	}
	doctor->kind = kvm_cpu_emulated() ? KVM_KIND_EMULATED : KVM_KIND_HARDWARE;
	doctor_say(finding, DOCTOR_OK, "%s, /dev/kvm opens",
		   doctor->kind == KVM_KIND_EMULATED ? "emulated" : "hardware");
}

/** What vmm/kvm needs of KVM, beyond what every KVM since Linux 4.9 has. */
static const struct {
	int number;
	const char *name;
} kvm_needs[] = {
	{KVM_CAP_USER_MEMORY, "USER_MEMORY"},
	{KVM_CAP_READONLY_MEM, "READONLY_MEM"},
	{KVM_CAP_SPLIT_IRQCHIP, "SPLIT_IRQCHIP"},
	{KVM_CAP_SIGNAL_MSI, "SIGNAL_MSI"},
	{KVM_CAP_IOEVENTFD, "IOEVENTFD"},
	{KVM_CAP_TSC_DEADLINE_TIMER, "TSC_DEADLINE_TIMER"},
	{KVM_CAP_ADJUST_CLOCK, "ADJUST_CLOCK"},
	{KVM_CAP_GET_TSC_KHZ, "GET_TSC_KHZ"},
	{KVM_CAP_IMMEDIATE_EXIT, "IMMEDIATE_EXIT"},
	{KVM_CAP_EXT_CPUID, "EXT_CPUID"},
	{KVM_CAP_MP_STATE, "MP_STATE"},
	{KVM_CAP_VCPU_EVENTS, "VCPU_EVENTS"},
	{KVM_CAP_DEBUGREGS, "DEBUGREGS"},
	{KVM_CAP_XSAVE, "XSAVE"},
	{KVM_CAP_XCRS, "XCRS"},
	{KVM_CAP_GET_MSR_FEATURES, "GET_MSR_FEATURES"},
};

void doctor_check_kvm_features(struct doctor *doctor, struct doctor_finding *finding)
{
	char missing[256] = "";
	size_t used = 0;

	if (doctor->kvm_fd < 0) {
		doctor_say(finding, DOCTOR_FAIL, "not known without /dev/kvm");
		return;
	}
	for (size_t i = 0; i < ARRAY_SIZE(kvm_needs); i++) {
		if (ioctl(doctor->kvm_fd, KVM_CHECK_EXTENSION, kvm_needs[i].number) > 0)
			continue;
		if (used < sizeof(missing))
			used += (size_t)snprintf(missing + used, sizeof(missing) - used, " %s",
						 kvm_needs[i].name);
	}
	if (missing[0]) {
		doctor_say(finding, DOCTOR_FAIL, "KVM lacks%s", missing);
		finding->fix = "use a newer kernel, or hardware KVM";
		return;
	}
	doctor_say(finding, DOCTOR_OK, "all %zu needed capabilities are there",
		   ARRAY_SIZE(kvm_needs));
}

void doctor_check_kernel(struct doctor *doctor, struct doctor_finding *finding)
{
	unsigned int major, minor;
	struct utsname name;

	(void)doctor;
	if (uname(&name) < 0 || sscanf(name.release, "%u.%u", &major, &minor) != 2) {
		doctor_say(finding, DOCTOR_WARN, "release not understood");
		return;
	}
	if (major < 5 || (major == 5 && minor < 10)) {
		doctor_say(finding, DOCTOR_WARN, "Linux %s: tested with 5.10 and later",
			   name.release);
		finding->fix = "use a newer kernel";
		return;
	}
	doctor_say(finding, DOCTOR_OK, "Linux %s", name.release);
}

void doctor_check_vmm(struct doctor *doctor, struct doctor_finding *finding)
{
	char path[PATH_MAX];

	(void)doctor;
	if (vmmproc_find(path)) {
		doctor_say(finding, DOCTOR_FAIL, "thaw-vmm is not beside this executable");
		finding->fix = "install it there, or name it in THAW_VMM";
		return;
	}
	if (access(path, X_OK) < 0) {
		doctor_say(finding, DOCTOR_FAIL, "%.300s: %s", path, strerror(errno));
		finding->fix = "install thaw-vmm, or name it in THAW_VMM";
		return;
	}
	doctor_say(finding, DOCTOR_OK, "%.350s", path);
}

/** The state folder or, until it exists, the folder it will be made in. */
static void nearest_folder(const struct state *state, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%s", state->root);
	while (access(out, F_OK) < 0) {
		char *slash = strrchr(out, '/');

		if (!slash || slash == out) {
			memcpy(out, "/", 2);
			return;
		}
		*slash = '\0';
	}
}

void doctor_check_state(struct doctor *doctor, struct doctor_finding *finding)
{
	char path[PATH_MAX];
	int fd;

	nearest_folder(&doctor->state, path);
	fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0) {
		int error = errno;

		doctor_say(finding, DOCTOR_FAIL, "%.300s: no unnamed file there: %s", path,
			   strerror(error));
		finding->fix = error == EACCES || error == EROFS || error == EPERM
				       ? "run as root, or set THAW_STATE to a folder of your own"
				       : "set THAW_STATE to a folder on ext4, xfs, btrfs or tmpfs";
		return;
	}
	close(fd);
	doctor_say(finding, DOCTOR_OK, "%.300s%s", doctor->state.root,
		   strcmp(path, doctor->state.root) != 0 ? " (not made yet)" : "");
}

void doctor_check_guest(struct doctor *doctor, struct doctor_finding *finding)
{
	struct state_names names = {0};
	struct guest_files guest;
	char why[384];
	bool templates;

	if (!guest_files_open(&guest, why, sizeof(why))) {
		doctor_say(finding, DOCTOR_OK, "%.200s: image %.50s, Linux %.60s", guest.folder,
			   guest.image, guest.kernel);
		doctor->guest_found = true;
		guest_files_free(&guest);
		return;
	}
	/* Templates that are there run without it. */
	templates = !state_list_templates(&doctor->state, &names) && names.count;
	state_names_free(&names);
	doctor_say(finding, templates ? DOCTOR_WARN : DOCTOR_FAIL, "%s", why);
	finding->fix = templates ? "needed to build more templates" : "needed to build a template";
}

void doctor_check_templates(struct doctor *doctor, struct doctor_finding *finding)
{
	struct state_names names;

	if (state_list_templates(&doctor->state, &names)) {
		doctor_say(finding, DOCTOR_FAIL, "%.300s/templates can't be read",
			   doctor->state.root);
		finding->fix = "run as root, or set THAW_STATE to a folder of your own";
		return;
	}
	if (names.count) {
		doctor_say(finding, DOCTOR_OK, "%zu in %.300s/templates", names.count,
			   doctor->state.root);
	} else {
		doctor_say(finding, DOCTOR_WARN, "none yet");
		finding->fix = "thaw template build debian";
	}
	state_names_free(&names);
}

void doctor_check_space(struct doctor *doctor, struct doctor_finding *finding)
{
	struct statvfs fs;
	char path[PATH_MAX];
	u64 free_bytes;

	nearest_folder(&doctor->state, path);
	if (statvfs(path, &fs) < 0) {
		doctor_say(finding, DOCTOR_WARN, "%.300s: %s", path, strerror(errno));
		return;
	}
	free_bytes = (u64)fs.f_bavail * fs.f_frsize;
	doctor_say(finding, free_bytes < GIB ? DOCTOR_WARN : DOCTOR_OK, "%llu MiB free in %.300s",
		   (unsigned long long)(free_bytes / MIB), path);
	finding->fix = "make room: a template takes some 100 MiB, a root image some 200, a sandbox "
		       "what it writes";
}

void doctor_check_memory(struct doctor *doctor, struct doctor_finding *finding)
{
	char meminfo[4096];
	unsigned long long kib;
	const char *line;

	(void)doctor;
	line = read_start("/proc/meminfo", meminfo, sizeof(meminfo))
		       ? NULL
		       : strstr(meminfo, "MemAvailable:");
	if (!line || sscanf(line, "MemAvailable: %llu", &kib) != 1) {
		doctor_say(finding, DOCTOR_WARN, "/proc/meminfo not understood");
		return;
	}
	doctor_say(finding, kib < 512 * KIB ? DOCTOR_WARN : DOCTOR_OK, "%llu MiB available",
		   kib / KIB);
	finding->fix = "a build takes the template's whole memory, 256 MiB by default";
}

void doctor_check_mke2fs(struct doctor *doctor, struct doctor_finding *finding)
{
	char path[PATH_MAX];

	(void)doctor;
	if (disk_find_mke2fs(path)) {
		doctor_say(finding, DOCTOR_WARN, "mke2fs not found");
		finding->fix = "'thaw template build' needs it: install e2fsprogs";
		return;
	}
	doctor_say(finding, DOCTOR_OK, "%.350s", path);
}
