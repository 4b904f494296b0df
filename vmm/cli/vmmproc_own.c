// SPDX-License-Identifier: Apache-2.0
// A thaw-vmm that lives on its own (--ctl-listen), controlled for a while.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/cli/vmmproc.h"
#include "vmm/util/usock.h"
#include "vmm/util/util.h"

int vmmproc_own(struct vmmproc *proc, const char *ctl_path, u64 deadline_ns)
{
	struct ucred peer = {.pid = 0};
	socklen_t len = sizeof(peer);
	int fd, ret;

	fd = usock_connect(ctl_path, SOCK_SEQPACKET);
	if (fd < 0)
		return fd == -EAGAIN ? -EBUSY : fd;
	ret = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 ? -errno : 0;
	vmmproc_adopt(proc, peer.pid, fd, ret ? -1 : (int)syscall(SYS_pidfd_open, peer.pid, 0));
	if (!ret && proc->pid_fd < 0)
		ret = -errno;
	/* Its first word comes when it serves us: until then another owner may be there. */
	if (!ret)
		ret = vmmproc_wait(proc, &proc->owned, deadline_ns, -1, NULL, NULL);
	if (ret)
		vmmproc_release(proc);
	return ret == -ETIMEDOUT ? -EBUSY : ret;
}

int vmmproc_snapshot(struct vmmproc *proc, int folder_fd, const char *name, u32 flags,
		     u64 base_inode, u64 deadline_ns)
{
	struct ctl_msg msg = {.version = CTL_VERSION,
			      .type = CTL_SNAPSHOT_REQ,
			      .port = flags,
			      .generation = base_inode};
	int n = snprintf(msg.text, sizeof(msg.text), "%s", name), ret;

	if (n < 0 || (size_t)n >= sizeof(msg.text))
		return -ENAMETOOLONG;
	proc->armed = false;
	ret = ctl_send(proc->ctl_fd, &msg, folder_fd);
	if (!ret)
		ret = vmmproc_wait(proc, &proc->armed, deadline_ns, -1, NULL, NULL);
	return ret ? ret : proc->snapshot_error;
}

int vmmproc_begin(struct vmmproc *proc, const char *hostname, int request_fd, u64 hard_timeout_ms)
{
	struct ctl_msg msg = {
		.version = CTL_VERSION, .type = CTL_START, .generation = hard_timeout_ms};
	int n = snprintf(msg.text, sizeof(msg.text), "%s", hostname ? hostname : "");

	if (n < 0 || (size_t)n >= sizeof(msg.text))
		return -ENAMETOOLONG;
	return ctl_send(proc->ctl_fd, &msg, request_fd);
}

int vmmproc_deadline(struct vmmproc *proc, u64 from_now_ms)
{
	const struct ctl_msg msg = {
		.version = CTL_VERSION, .type = CTL_DEADLINE, .generation = from_now_ms};

	return ctl_send(proc->ctl_fd, &msg, -1);
}

void vmmproc_release(struct vmmproc *proc)
{
	proc->pid = 0;
	if (proc->adopted)
		fd_close(&proc->pid_fd);
	fd_close(&proc->ctl_fd);
	fd_close(&proc->log_fd);
	fd_close(&proc->accept_fd);
}
