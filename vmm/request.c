// SPDX-License-Identifier: Apache-2.0
// The guest's first request, as its owner passes it.
#include "vmm/request.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "vmm/util/log.h"

int request_read(int fd, bool is_file, char out[THAW_REQUEST_BYTES], u32 *len_bytes)
{
	size_t used = 0;
	ssize_t n;

	if (fd < 0)
		return 0;
	do {
		char *to = out + used;
		size_t room = THAW_REQUEST_BYTES - used;

		n = is_file ? pread(fd, to, room, (off_t)used) : read(fd, to, room);
		if (n < 0 && errno != EINTR) {
			log_err("first request, fd %d: %s", fd, strerror(errno));
			return -EIO;
		}
		used += n > 0 ? (size_t)n : 0;
		if (used == THAW_REQUEST_BYTES) {
			log_err("first request, fd %d: more than %zu bytes", fd, used - 1);
			return -E2BIG;
		}
	} while (n);
	*len_bytes = (u32)used;
	return 0;
}
