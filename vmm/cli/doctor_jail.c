// SPDX-License-Identifier: Apache-2.0
// Checks of `thaw doctor`: what the jail of thawd's sandboxes stands on (vmm/jail).
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vmm/cli/doctor.h"
#include "vmm/jail/internal.h"
#include "vmm/util/util.h"

#define ENTERED	   0
#define NOT_OPENED 1

/** Standard error of a child that is only to try. */
static void be_quiet(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (fd >= 0)
		(void)dup2(fd, STDERR_FILENO);
}

/** In a child, from which there is no way back. Return: its exit status, or -1. */
static int try_jail(void)
{
	struct jail_entry entry = {.uid = JAIL_UID_BASE + JAIL_UID_COUNT - 1, .threads_max = 64};
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		be_quiet();
		if (jail_detach_folder(AT_FDCWD, "/", true) < 0)
			_exit(NOT_OPENED);
		_exit(jail_enter(&entry) ? NOT_OPENED + 1 : ENTERED);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}

/** Does a line "NAME:FIRST:COUNT" (subuid) or "NAME:x:UID" (passwd) meet the jails' range? */
static bool range_taken(const char *path, bool counted)
{
	char line[512];
	bool taken = false;
	FILE *file = fopen(path, "re");

	while (file && !taken && fgets(line, sizeof(line), file)) {
		char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
		u64 from, count = 1;

		if (!second)
			continue;
		from = strtoull(counted ? first + 1 : second + 1, NULL, 10);
		if (counted)
			count = strtoull(second + 1, NULL, 10);
		taken = from < (u64)JAIL_UID_BASE + JAIL_UID_COUNT && from + count > JAIL_UID_BASE;
	}
	if (file)
		(void)fclose(file);
	return taken;
}

void doctor_check_jail(struct doctor *doctor, struct doctor_finding *finding)
{
	int status;

	(void)doctor;
	if (geteuid() != 0) {
		doctor_say(finding, DOCTOR_WARN, "not looked at; only root can make jails");
		finding->fix = "run 'thaw doctor' as root to see whether thawd can run here";
		return;
	}
	status = try_jail();
	if (status == NOT_OPENED) {
		doctor_say(finding, DOCTOR_WARN,
			   "folders can't be handed into a jail (open_tree and mount_setattr)");
		finding->fix = "use Linux 5.12 or later";
		return;
	}
	if (status != ENTERED) {
		doctor_say(finding, DOCTOR_WARN,
			   "a process can't be given namespaces and a user of its own; thawd does "
			   "not start sandboxes without");
		finding->fix = "set sysctl user.max_user_namespaces above 0; in a container, give "
			       "it CAP_SYS_ADMIN and a seccomp profile that allows unshare";
		return;
	}
	if (range_taken("/etc/passwd", false) || range_taken("/etc/subuid", true)) {
		doctor_say(finding, DOCTOR_WARN,
			   "users %u to %u, of which each sandbox has one, are others' as well",
			   JAIL_UID_BASE, JAIL_UID_BASE + JAIL_UID_COUNT - 1);
		finding->fix = "give thawd another range in /etc/thaw/thaw.conf";
		return;
	}
	doctor_say(finding, DOCTOR_OK, "namespaces, an empty root, users %u to %u", JAIL_UID_BASE,
		   JAIL_UID_BASE + JAIL_UID_COUNT - 1);
}

/** A group with limits, made and removed. Return: 0 or -errno. */
static int try_cgroup(const struct doctor *doctor)
{
	const struct jail_limits limits = {.memory_max_bytes = 64 * MIB,
					   .cpu_max_milli = 1000,
					   .cpu_weight = 100,
					   .pids_max = 8};
	struct jail_config config;
	struct jail jail = {.cgroup_fd = -1, .slot_fd = -1};
	bool was_there;
	char name[32];
	int ret, err = dup(STDERR_FILENO);

	jail_config_default(&config);
	was_there = access(config.cgroup_root, F_OK) == 0;
	snprintf(name, sizeof(name), "doctor-%d", (int)getpid());
	be_quiet();
	ret = jail_cgroup_make(&doctor->state, &config, name, &limits, &jail);
	if (!ret)
		ret = jail_remove_path(jail.cgroup_path);
	if (!was_there)
		(void)rmdir(config.cgroup_root);
	(void)dup2(err, STDERR_FILENO);
	fd_close(&err);
	jail_close(&jail);
	return ret;
}

/** Which of those that a jail needs are not in @path? Return: their names in @out, or "". */
static void missing_controllers(const char *path, char *out, size_t max)
{
	static const char *const wanted[] = {"memory", "pids", "cpu", "io"};
	/* Its size is said to be 0. */
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char text[512];
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	fd_close(&fd);
	text[MAX(n, (ssize_t)0)] = '\0';
	out[0] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
		const char *at = strstr(text, wanted[i]);
		size_t used = strlen(out);

		/* "cpu" is also the start of "cpuset". */
		while (at && strchr(" \n", at[strlen(wanted[i])]) == NULL)
			at = strstr(at + 1, wanted[i]);
		if (!at)
			snprintf(out + used, max - used, "%s%s", used ? ", " : "", wanted[i]);
	}
}

void doctor_check_cgroup(struct doctor *doctor, struct doctor_finding *finding)
{
	char missing[64];
	struct statfs fs;
	int ret;

	if (statfs("/sys/fs/cgroup", &fs) < 0 || fs.f_type != CGROUP2_SUPER_MAGIC) {
		doctor_say(finding, DOCTOR_WARN,
			   "/sys/fs/cgroup is %s; thawd does not start sandboxes, which the host "
			   "could not limit, unless it is told to",
			   access("/sys/fs/cgroup/memory", F_OK) == 0 ? "cgroup v1"
								      : "not cgroup v2");
		finding->fix = "boot with systemd.unified_cgroup_hierarchy=1, or mount -t cgroup2 "
			       "none /sys/fs/cgroup";
		return;
	}
	missing_controllers("/sys/fs/cgroup/cgroup.controllers", missing, sizeof(missing));
	if (missing[0]) {
		doctor_say(finding, DOCTOR_WARN,
			   "v2 at /sys/fs/cgroup, but without the controllers %s", missing);
		finding->fix = "boot with cgroup_enable=memory, or give the container all "
			       "controllers";
		return;
	}
	ret = geteuid() == 0 ? try_cgroup(doctor) : 0;
	if (ret) {
		doctor_say(finding, DOCTOR_WARN,
			   "v2 at /sys/fs/cgroup, but %s can't be made with limits: %s",
			   JAIL_CGROUP_ROOT, strerror(-ret));
		finding->fix = "mount /sys/fs/cgroup read-write; in a container, give it a cgroup "
			       "namespace of its own, with its processes in a group below the top";
		return;
	}
	doctor_say(finding, DOCTOR_OK, "v2 at /sys/fs/cgroup%s",
		   geteuid() ? "" : ", with limits below " JAIL_CGROUP_ROOT);
}
