// SPDX-License-Identifier: Apache-2.0
// thaw-vmm's half of a jail.
//
// Theory of operation
//
// The process is root of the host, alone in a pid namespace of its own, has one thread and has
// looked at nothing but its command line. What it will need of the host is open. Then:
//
// 1. Namespaces: mount, net, ipc, uts. They belong to the host's user namespace, so that not even
//    somebody who regained every capability in the jail's own could set an interface up or mount.
// 2. An empty root: a tmpfs that is read-only and has no room, pivoted to; all that the host has
//    mounted is let go. Folders that are still open are detached mounts with nothing above.
// 3. uid and gid of the slot, no other groups. The capabilities are kept over that for one step:
// 4. A user namespace, in which the uid is the only one and means itself. It is made after the
//    uid was taken, because then the process may write its own map and nobody needs to be waited
//    for. It is made with capabilities, because hosts refuse it to those who have none.
// 5. No capability, none that could come back (bounding set, ambient set, secure bits,
//    no_new_privs), and no system call that only those who have some, or who attack, would make.
//
// /proc is not there afterwards. Two things of it are needed on the way and are reached through an
// O_PATH descriptor that is closed at the end: the maps of the user namespace, and pagemap, which
// has to be opened when there are no capabilities any more: else it would tell where in physical
// memory the guest's pages lie.
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <linux/securebits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/jail/filter.h"
#include "vmm/jail/jail.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define JAIL_FILES_MAX 8192
#define JAIL_HOST_NAME "jail"
#define CAPS_MAX       64

/** Say what failed. Return: -errno. */
static int failed(const char *what)
{
	int ret = -errno;

	log_err("jail: %s: %s", what, strerror(-ret));
	return ret;
}

static int leave_namespaces(void)
{
	if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) < 0)
		return failed("namespaces");
	if (sethostname(JAIL_HOST_NAME, sizeof(JAIL_HOST_NAME) - 1) < 0)
		return failed("host name");
	return 0;
}

/** Any folder that is there on every host will do to put the new root on. */
static int empty_root(void)
{
	static const char place[] = "/proc";

	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return failed("mounts of its own");
	if (mount("thaw-jail", place, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
		  "size=4k,nr_inodes=1,mode=0555") < 0)
		return failed("an empty root");
	if (chdir(place) < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
		return failed("the empty root in its place");
	/* The old one lies on top of the new one. */
	if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return failed("letting go of the host's files");
	(void)umask(077);
	return 0;
}

/** Lower what may be used; a root without CAP_SYS_RESOURCE can't raise it, and goes with less. */
static int limit_one(int resource, rlim_t value, const char *name)
{
	struct rlimit limit = {.rlim_cur = value, .rlim_max = value}, had;

	if (setrlimit((__rlimit_resource_t)resource, &limit) == 0)
		return 0;
	if (errno != EPERM || getrlimit((__rlimit_resource_t)resource, &had) < 0)
		return failed(name);
	limit.rlim_cur = limit.rlim_max = MIN(value, had.rlim_max);
	return setrlimit((__rlimit_resource_t)resource, &limit) < 0 ? failed(name) : 0;
}

static int limit_resources(const struct jail_entry *entry)
{
	int ret;

	ret = limit_one(RLIMIT_CORE, 0, "RLIMIT_CORE");
	ret = ret ?: limit_one(RLIMIT_NOFILE, JAIL_FILES_MAX, "RLIMIT_NOFILE");
	ret = ret ?: limit_one(RLIMIT_MSGQUEUE, 0, "RLIMIT_MSGQUEUE");
	ret = ret ?: limit_one(RLIMIT_NICE, 0, "RLIMIT_NICE");
	ret = ret ?: limit_one(RLIMIT_RTPRIO, 0, "RLIMIT_RTPRIO");
	ret = ret ?: limit_one(RLIMIT_NPROC, entry->threads_max, "RLIMIT_NPROC");
	/* Guest memory is pinned by strategies that read into it; memory.max bounds it. */
	ret = ret ?: limit_one(RLIMIT_MEMLOCK, RLIM_INFINITY, "RLIMIT_MEMLOCK");
	if (entry->file_max_bytes)
		ret = ret ?: limit_one(RLIMIT_FSIZE, entry->file_max_bytes, "RLIMIT_FSIZE");
	return ret;
}

/** All capabilities that are permitted take effect, or, with @none, there are none. */
static int set_caps(bool none)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};

	if (!none && syscall(SYS_capget, &header, data) < 0)
		return failed("capabilities");
	for (size_t i = 0; i < ARRAY_SIZE(data); i++) {
		data[i].effective = data[i].permitted;
		data[i].inheritable = 0;
	}
	return syscall(SYS_capset, &header, data) < 0 ? failed("capabilities") : 0;
}

static int take_ids(u32 uid)
{
	if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0)
		return failed("gid");
	if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 || setresuid(uid, uid, uid) < 0)
		return failed("uid");
	/* Its files in /proc are its own's again, until the maps are written. */
	if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0)
		return failed("dumpable");
	return set_caps(false);
}

static int write_proc(int proc_fd, const char *name, const char *text)
{
	int fd = openat(proc_fd, name, O_WRONLY | O_CLOEXEC), ret = 0;

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		ret = failed(name);
	fd_close(&fd);
	return ret;
}

static int leave_users(int proc_fd, u32 uid)
{
	char map[40];
	int ret;

	if (unshare(CLONE_NEWUSER) < 0)
		return failed("user namespace (is user.max_user_namespaces 0?)");
	snprintf(map, sizeof(map), "%u %u 1\n", uid, uid);
	ret = write_proc(proc_fd, "setgroups", "deny");
	ret = ret ?: write_proc(proc_fd, "gid_map", map);
	return ret ?: write_proc(proc_fd, "uid_map", map);
}

static int drop_caps(void)
{
	const unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
				   SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
				   SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;

	for (unsigned long cap = 0; cap < CAPS_MAX; cap++) {
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0)
			continue;
		if (errno == EINVAL && cap > 0) /* the kernel knows no more */
			break;
		return failed("capability bounding set");
	}
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECUREBITS, bits, 0, 0, 0) < 0)
		return failed("capabilities that come back");
	return set_caps(true);
}

static int forgo_privileges(const struct jail_entry *entry)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return failed("no_new_privs");
	/* No core, no debugger, and its files in /proc are root's. */
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return failed("dumpable");
	return entry->no_filter ? 0 : jail_filter_apply();
}

int jail_enter(struct jail_entry *entry)
{
	int proc_fd, ret;

	entry->pagemap_fd = -1;
	if (geteuid() != 0) {
		log_err("jail: only root can enter one");
		return -EPERM;
	}
	proc_fd = open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (proc_fd < 0)
		return failed("/proc/self");
	/* A host without keys has nothing to hide. */
	ret = syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS
		      ? failed("keyring")
		      : 0;
	ret = ret ?: leave_namespaces();
	ret = ret ?: empty_root();
	ret = ret ?: limit_resources(entry);
	ret = ret ?: take_ids(entry->uid);
	ret = ret ?: leave_users(proc_fd, entry->uid);
	ret = ret ?: drop_caps();
	if (!ret)
		entry->pagemap_fd = openat(proc_fd, "pagemap", O_RDONLY | O_CLOEXEC);
	fd_close(&proc_fd);
	return ret ?: forgo_privileges(entry);
}
