// SPDX-License-Identifier: Apache-2.0
// Snapshots that can't be written, are not wanted any more, or meet what others left or hold.
#include <errno.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>

#include "tests/unit/snap_write_rig.h"

static void test_failed_write(void)
{
	struct rlimit limit, small;
	struct snap_write_opts opts = make_opts();
	struct snap snap;
	u8 *ram, byte;
	int ret;

	begin();
	ram = ram_new();
	memset(ram, 1, 8 * MIB);
	CHECK_EQ(write_one(&opts, NULL, true), 0);
	memset(ram, 2, 8 * MIB);
	opts.replace = true;
	/* The file size limit stands for a full disk: both fail the write in the middle. */
	signal(SIGXFSZ, SIG_IGN);
	CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
	small = limit;
	small.rlim_cur = 2 * MIB;
	capture_begin(&capture);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
	ret = write_one(&opts, NULL, true);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	capture_end(&capture);
	CHECK_EQ(ret, -EFBIG);
	CHECK_LOGGED(&capture, "one/memory: File too large");
	CHECK_EQ(count_entries(), 1);
	CHECK_EQ(snap_load(&snap, target), 0);
	CHECK_EQ(snap_verify(&snap), 0);
	CHECK_EQ(pread(snap.memory_fd, &byte, 1, 0), 1);
	CHECK_EQ(byte, 1);
	snap_close(&snap);
	end(ram);
}

/* A checkpoint that failed and is asked for again: nothing of the first attempt shows through. */
static void test_second_attempt(void)
{
	struct snap_write_opts opts = make_opts();
	struct snap_writer *writer;
	struct snap snap;
	u8 *ram, byte;
	int state_fd;

	begin();
	ram = ram_new();
	memset(ram, 1, MIB);
	CHECK_EQ(snap_write_prepare(&opts, &writer), 0);
	/* Memory and manifest are written, the state file is not. */
	state_fd = writer->state_fd;
	writer->state_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	capture_begin(&capture);
	CHECK(snap_writer_store(writer, &fix.parts, &gmem, NULL) < 0);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "one/state: ");
	close(writer->state_fd);
	writer->state_fd = state_fd;

	memset(ram, 0, MIB);
	ram[MIB - 1] = 2;
	CHECK_EQ(snap_writer_store(writer, &fix.parts, &gmem, NULL), 0);
	snap_write_abort(writer);
	CHECK_EQ(snap_load(&snap, target), 0);
	CHECK_EQ(pread(snap.memory_fd, &byte, 1, 0), 1);
	CHECK_EQ(byte, 0);
	CHECK_EQ(snap_verify(&snap), 0);
	snap_close(&snap);
	end(ram);
}

static void test_full_disk(void)
{
	struct snap_write_opts opts = make_opts();
	char small[96], command[256];
	u8 *ram;
	int ret;

	begin();
	snprintf(small, sizeof(small), "%s/small", folder);
	CHECK_EQ(mkdir(small, 0700), 0);
	snprintf(command, sizeof(command), "mount -t tmpfs -o size=2m none %s 2>/dev/null", small);
	if (geteuid() != 0 || system(command) != 0) {
		printf("  (no tmpfs can be mounted here: full disk not tested)\n");
		end(NULL);
		return;
	}
	ram = ram_new();
	memset(ram, 1, 8 * MIB);
	snprintf(target, sizeof(target), "%s/one", small);
	capture_begin(&capture);
	ret = write_one(&opts, NULL, true);
	capture_end(&capture);
	snprintf(command, sizeof(command), "test -z \"$(ls -A %s)\"", small);
	CHECK_EQ(system(command), 0);
	/* -l: the kernel lets go of a ring's files some time after the ring. */
	snprintf(command, sizeof(command), "umount -l %s", small);
	CHECK_EQ(system(command), 0);
	CHECK_EQ(ret, -ENOSPC);
	CHECK_LOGGED(&capture, "one/memory: No space left on device");
	end(ram);
}

static bool not_wanted(void *opaque)
{
	*(unsigned int *)opaque += 1;
	return false;
}

static void test_not_wanted(void)
{
	struct snap_write_opts opts = make_opts();
	unsigned int asked = 0;
	struct snap snap;
	u8 *ram;

	begin();
	ram = ram_new();
	opts.wanted = not_wanted;
	opts.opaque = &asked;
	CHECK_EQ(write_one(&opts, NULL, true), -ECANCELED);
	CHECK_EQ(asked, 1);
	CHECK_EQ(count_entries(), 0);
	/* Nor does it take the old one away. */
	opts.wanted = NULL;
	CHECK_EQ(write_one(&opts, NULL, true), 0);
	opts.wanted = not_wanted;
	opts.replace = true;
	CHECK_EQ(write_one(&opts, NULL, true), -ECANCELED);
	CHECK_EQ(count_entries(), 1);
	CHECK_EQ(snap_load(&snap, target), 0);
	snap_close(&snap);
	end(ram);
}

static void test_leftovers(void)
{
	struct snap_write_opts opts = make_opts();
	char dead[128], alive[128], other[128], file[160];
	int lock_fd;
	u8 *ram;

	begin();
	snprintf(dead, sizeof(dead), "%s/.one.tmp-1-dead", folder);
	snprintf(alive, sizeof(alive), "%s/.one.tmp-2-alive", folder);
	snprintf(other, sizeof(other), "%s/.another.tmp-3-x", folder);
	CHECK_EQ(mkdir(dead, 0700) | mkdir(alive, 0700) | mkdir(other, 0700), 0);
	snprintf(file, sizeof(file), "%s/memory", dead);
	file_write(file, "x", 1);
	lock_fd = open(alive, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK_EQ(flock(lock_fd, LOCK_EX), 0);
	ram = ram_new();
	CHECK_EQ(write_one(&opts, NULL, true), 0);
	CHECK(access(dead, F_OK) < 0);
	CHECK_EQ(access(alive, F_OK), 0);
	CHECK_EQ(access(other, F_OK), 0);
	close(lock_fd);
	end(ram);
}

static void test_locks(void)
{
	struct snap_write_opts opts = make_opts();
	struct snap snap;
	int fd;
	u8 *ram;

	begin();
	ram = ram_new();
	CHECK_EQ(write_one(&opts, NULL, true), 0);
	CHECK_EQ(snap_load(&snap, target), 0);
	fd = open(target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(flock(fd, LOCK_EX | LOCK_NB) < 0);
	snap_close(&snap);
	CHECK_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
	capture_begin(&capture);
	CHECK_EQ(snap_load(&snap, target), -EBUSY);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "is being written or removed");
	snap_close(&snap);
	close(fd);
	end(ram);
}

TEST_MAIN({"failed_write", test_failed_write}, {"second_attempt", test_second_attempt},
	  {"full_disk", test_full_disk}, {"not_wanted", test_not_wanted},
	  {"leftovers", test_leftovers}, {"locks", test_locks})
