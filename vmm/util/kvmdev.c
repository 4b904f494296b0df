// SPDX-License-Identifier: Apache-2.0
// /dev/kvm, also where there is no /dev.
#include "vmm/util/kvmdev.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

static int kept_fd = -1;

int kvm_keep(void)
{
	int ret;

	kept_fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kept_fd >= 0)
		return 0;
	ret = -errno;
	log_err("/dev/kvm: %s", strerror(-ret));
	return ret;
}

int kvm_open(void)
{
	int fd = kept_fd >= 0 ? fcntl(kept_fd, F_DUPFD_CLOEXEC, 3)
			      : open("/dev/kvm", O_RDWR | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

void kvm_forget(void)
{
	fd_close(&kept_fd);
}
