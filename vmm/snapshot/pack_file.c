// SPDX-License-Identifier: Apache-2.0
// Packs that are files: found in a snapshot's folder, and their table.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/snapshot/pack_check.h"
#include "vmm/util/util.h"

int snap_pack_open(const struct snap *snap, int *fd)
{
	u64 len_bytes;

	*fd = -1;
	if (!snap_part_there(snap->dirfd, SNAP_FILE_PACK))
		return 0;
	*fd = snap_part_open(snap->dirfd, snap->path, SNAP_FILE_PACK, &len_bytes);
	return MIN(*fd, 0);
}

int pack_table_load(int fd, struct pack_header *header, struct pack_table **out, const char **why)
{
	struct pack_table *table = NULL;
	u64 offset_bytes, len_bytes;
	struct pack_end end;
	struct stat st;
	int ret;

	*out = NULL;
	*why = "can't be read";
	if (fstat(fd, &st) < 0)
		return -errno;
	*why = "truncated";
	if ((u64)st.st_size < sizeof(*header) + sizeof(*table) + sizeof(end))
		return -ENODATA;
	*why = "can't be read";
	ret = fd_pread_full(fd, header, sizeof(*header), 0);
	if (!ret)
		ret = fd_pread_full(fd, &end, sizeof(end), (u64)st.st_size - sizeof(end));
	if (!ret)
		ret = pack_header_check(header, why);
	if (ret)
		return ret;
	*why = "end: malformed, or the file is truncated";
	len_bytes = pack_table_bytes(end.nframes);
	if (end.nframes > PACK_FRAMES_MAX || len_bytes > (u64)st.st_size - sizeof(end))
		return -EINVAL;
	offset_bytes = (u64)st.st_size - sizeof(end) - len_bytes;
	ret = pack_end_check(&end, end.nframes, offset_bytes, why);
	if (ret)
		return ret;
	*why = "can't be read";
	table = malloc(len_bytes);
	ret = table ? fd_pread_full(fd, table, len_bytes, offset_bytes) : -ENOMEM;
	if (!ret)
		ret = pack_table_check(table, len_bytes, offset_bytes, why);
	if (ret)
		free(table);
	else
		*out = table;
	return ret;
}

bool pack_header_is_of(const struct pack_header *header, const char *id)
{
	char hex[SNAP_DIGEST_HEX];

	snap_digest_hex(header->state_digest, hex);
	return id && !strcmp(hex, id);
}
