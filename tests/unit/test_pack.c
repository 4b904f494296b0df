// SPDX-License-Identifier: Apache-2.0
// Packs: round trips through files and pipes, every truncation, a flip in every byte.
#include <sys/wait.h>

#include "tests/unit/pack_rig.h"
#include "vmm/snapshot/mem.h"

/* Every byte of the records at both ends, and so many inside: there, all bytes are alike. */
#ifdef THAW_SANITIZER
#define STRIDE 211
#else
#define STRIDE 29
#endif

/** begin_small() - a pack of some kilobytes. */
static void begin_small(void)
{
	static const u64 pages[][2] = {{0, 4}};

	begin_with(pages, 1);
}

static void remove_target(void)
{
	char command[400];

	snprintf(command, sizeof(command), "chmod u+w '%s' && rm -r '%s'", target, target);
	CHECK_EQ(system(command), 0);
}

static bool same_file(const char *name)
{
	char command[400];

	snprintf(command, sizeof(command), "cmp -s '%s/%s' '%s/%s'", source, name, target, name);
	return system(command) == 0;
}

/** check_target() - a whole snapshot with the source's content. */
static void check_target(void)
{
	struct snap_hot hot;
	struct snap snap;
	struct stat st;

	CHECK_EQ(snap_load(&snap, target), 0);
	CHECK_EQ(snap_verify(&snap), 0);
	CHECK_STR(snap.manifest.name, target_name);
	CHECK_EQ(snap_hot_open(&snap, &hot), 0);
	CHECK_EQ(hot.nruns, 3);
	snap_hot_close(&hot);
	CHECK_EQ(fstat(snap.memory_fd, &st), 0);
	CHECK_EQ(st.st_size, PACK_RAM_BYTES);
	CHECK_EQ(st.st_mode & 07777, 0400);
	CHECK(st.st_blocks * 512 < 16 * (off_t)MIB);
	CHECK(same_file("memory") && same_file("disk"));
	snap_close(&snap);
}

static void test_round_trip(void)
{
	static const char *const names[] = {"manifest.json", "state", "hot"};
	u8 *one, *three;
	size_t len_bytes;

	begin();
	len_bytes = export_buf(&one, 1, true);
	CHECK_EQ(export_buf(&three, 3, true), len_bytes);
	CHECK(!memcmp(one, three, len_bytes)); /* whatever order the threads were in */
	CHECK_EQ(import_buf(one, len_bytes), 0);
	check_target();
	for (unsigned int i = 0; i < ARRAY_SIZE(names); i++)
		CHECK(same_file(names[i]));
	CHECK_EQ(count_entries(images), 1); /* the image was here */
	/* There already. */
	CHECK_EQ(import_buf(one, len_bytes), -EEXIST);
	CHECK_LOGGED(&capture, "already exists");
	free(one);
	free(three);
	end();
}

static void test_replace(void)
{
	char path[160];
	int fd;

	begin();
	snprintf(path, sizeof(path), "%s/pack", folder);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	export_fd(fd, false, 2, true);
	CHECK_EQ(import_fd(fd, false, 2, false), 0);
	CHECK_EQ(import_fd(fd, false, 2, true), 0);
	check_target();
	CHECK_EQ(count_entries(folder), 4);
	close(fd);
	end();
}

/** Large enough for several frames, through a pipe, on several threads, hot ones first. */
static void test_pipe(void)
{
	static const u64 pages[][2] = {{0, 2000}, {20000, 20600}};
	int ends[2], status;
	struct pieces pieces;
	pid_t pid;
	u8 *pack;

	begin_with(pages, 2);
	CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		close(ends[0]);
		export_fd(ends[1], true, 3, true);
		_exit(0);
	}
	close(ends[1]);
	CHECK_EQ(import_fd(ends[0], true, 3, false), 0);
	close(ends[0]);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	check_target();
	export_buf(&pack, 2, true);
	pieces_take(&pieces, pack);
	CHECK_EQ(pieces.frames[2]->part, PACK_HOT);
	CHECK_EQ(pieces.frames[3]->part, PACK_MEMORY);
	CHECK_EQ(pieces.frames[3]->flags, PACK_FRAME_HOT);
	CHECK_EQ(pieces.frames[3]->raw_bytes, 7 * 4096); /* two, one, four; page 263 is zero */
	CHECK_EQ(pieces.frames[4]->flags, 0);
	CHECK(pieces.nframes >= 3 + 1 + 5 + 1 + 1);
	pieces_free(&pieces);
	free(pack);
	end();
}

static void test_other_machine(void)
{
	char path[200], images_path[256], link[200];
	size_t len_bytes, bare_bytes;
	struct snap snap;
	u8 *pack, *bare;

	begin();
	len_bytes = export_buf(&pack, 1, true);
	bare_bytes = export_buf(&bare, 1, false);
	CHECK(bare_bytes < len_bytes);
	/* Here the image is where the manifest says. */
	CHECK_EQ(import_buf(bare, bare_bytes), 0);
	check_target();
	remove_target();
	/* Now it is not. */
	snprintf(path, sizeof(path), "%s/own/root.erofs", images);
	snprintf(link, sizeof(link), "%s/own/elsewhere", images);
	CHECK_EQ(rename(path, link), 0);
	CHECK_EQ(import_buf(bare, bare_bytes), -ENOENT);
	CHECK_LOGGED(&capture, "neither here nor in the pack");
	check_nothing_left();
	target_name = "two";
	CHECK_EQ(import_buf(pack, len_bytes), 0);
	check_target();
	CHECK(!same_file("manifest.json") && !same_file("state") && !same_file("hot"));
	CHECK_EQ(snap_load(&snap, target), 0);
	snprintf(images_path, sizeof(images_path), "%s/%s/root.erofs", images,
		 snap.manifest.root_digest);
	CHECK_STR(snap.manifest.root_image, images_path);
	snap_close(&snap);
	/* The next import uses that one, with or without its own; also when it is not in it. */
	remove_target();
	CHECK_EQ(import_buf(bare, bare_bytes), 0);
	check_target();
	remove_target();
	/* Another file in its place. */
	CHECK_EQ(unlink(images_path), 0);
	root_image_write(images_path, 'x', PACK_ROOT_BYTES);
	CHECK(import_buf(pack, len_bytes) == -EEXIST);
	CHECK_LOGGED(&capture, "root.erofs");
	free(pack);
	free(bare);
	end();
}

static void test_truncation(void)
{
	size_t len_bytes;
	u8 *pack;

	begin_small();
	len_bytes = export_buf(&pack, 1, true);
	for (size_t n = 0; n < len_bytes; n += n < 200 || n + 150 > len_bytes ? 1 : STRIDE) {
		CHECK_EQ(import_buf(pack, n), -ENODATA);
		CHECK_LOGGED(&capture, "pack: truncated");
	}
	check_nothing_left();
	pack = realloc(pack, len_bytes + 1);
	CHECK(pack);
	pack[len_bytes] = 0;
	CHECK_EQ(import_buf(pack, len_bytes + 1), -EINVAL);
	CHECK_LOGGED(&capture, "something follows");
	check_nothing_left();
	free(pack);
	end();
}

/**
 * mark_records() - mark every byte of @pack that is no compressed content: header, frame headers,
 * seek table, end; and so many of the rest. Frames of parts before @first are left out. @marks: the
 * caller frees it. Return: how many are marked.
 */
static size_t mark_records(const u8 *pack, size_t len_bytes, u32 first, bool **marks)
{
	size_t at = 0, count = 0;

	*marks = calloc(len_bytes, sizeof(**marks));
	CHECK(*marks);
	while (at < len_bytes) {
		u32 head[8]; /* record, kind, and of a frame: part, flags, runs, bytes, packed */
		size_t record_bytes, content_bytes;
		bool frame;

		CHECK(at + sizeof(head) <= len_bytes);
		memcpy(head, pack + at, sizeof(head));
		CHECK_EQ(head[0], PACK_SKIPPABLE);
		frame = at && head[2] == PACK_RECORD_FRAME;
		record_bytes = 8 + head[1];
		content_bytes = frame ? head[7] : 0;
		CHECK(at + record_bytes + content_bytes <= len_bytes);
		for (size_t n = 0; n < record_bytes + content_bytes; n++) {
			(*marks)[at + n] = (n < record_bytes || n % STRIDE == 0) &&
					   (!frame || head[3] >= first);
			count += (*marks)[at + n];
		}
		at += record_bytes + content_bytes;
	}
	return count;
}

static void test_flips(void)
{
	size_t len_bytes;
	bool *marks;
	u8 *pack;

	begin_small();
	len_bytes = export_buf(&pack, 1, true);
	CHECK(mark_records(pack, len_bytes, 0, &marks) > 500);
	for (size_t n = 0; n < len_bytes; n++) {
		u8 bit = (u8)(1u << (n % 8));

		if (!marks[n])
			continue;

		pack[n] ^= bit;
		CHECK(import_buf(pack, len_bytes) < 0);
		CHECK_LOGGED(&capture, "pack: ");
		pack[n] ^= bit;
	}
	check_nothing_left();
	CHECK_EQ(import_buf(pack, len_bytes), 0);
	free(marks);
	free(pack);
	end();
}

/** The pack that strategy "pack" reads: every byte of its records, and so many of its content. It
 * looks at memory only, and not at the digest of the whole, the last bytes. */
static void test_memory_pack_flips(void)
{
	struct pack_write_opts opts = {.memory_only = true, .threads = 1, .to = "memory.pack"};
	char id[SNAP_DIGEST_HEX];
	struct snap_mem mem = {.id = id};
	struct pack_stats stats;
	struct snap snap;
	bool *marks;
	u8 *pack;
	int fd;

	begin_small();
	CHECK_EQ(snap_load(&snap, source), 0);
	snap_digest_hex(snap.view.header->digest, id);
	fd = memfd_create("memory.pack", MFD_CLOEXEC);
	CHECK(fd >= 0);
	opts.fd = fd;
	CHECK_EQ(pack_write(&snap, &opts, &stats), 0);
	pack = malloc(stats.pack_bytes);
	CHECK(pack);
	CHECK_EQ(fd_pread_full(fd, pack, stats.pack_bytes, 0), 0);
	CHECK(mark_records(pack, stats.pack_bytes, PACK_MEMORY, &marks) > 300);
	mem.pack_fd = fd;
	snap_mem_ranges(&mem, PACK_RAM_BYTES);
	for (u64 at = 0; at < stats.pack_bytes - SNAP_DIGEST_BYTES; at++) {
		u8 byte = (u8)(pack[at] ^ 1u << (at % 8));

		if (!marks[at])
			continue;
		CHECK_EQ(pwrite(fd, &byte, 1, (off_t)at), 1);
		capture_begin(&capture);
		CHECK(snap_mem_pack.map(&mem) < 0);
		capture_end(&capture);
		CHECK_LOGGED(&capture, "memory.pack: ");
		CHECK(!mem.ranges[0].hva);
		CHECK_EQ(pwrite(fd, &pack[at], 1, (off_t)at), 1);
	}
	CHECK_EQ(snap_mem_pack.map(&mem), 0);
	snap_mem_unmap(&mem);
	free(marks);
	free(pack);
	close(fd);
	snap_close(&snap);
	end();
}

static void test_bad_output(void)
{
	struct pack_write_opts opts = {.stream = true, .root = true, .threads = 1, .to = "full"};
	struct pack_stats stats;
	struct snap snap;

	begin();
	opts.fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
	CHECK(opts.fd >= 0);
	CHECK_EQ(snap_load(&snap, source), 0);
	capture_begin(&capture);
	CHECK_EQ(pack_write(&snap, &opts, &stats), -ENOSPC);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "full: export of");
	snap_close(&snap);
	close(opts.fd);
	end();
}

static int map_pack(struct snap_mem *mem, int fd)
{
	int ret;

	mem->pack_fd = fd;
	capture_begin(&capture);
	ret = snap_mem_pack.map(mem);
	capture_end(&capture);
	return ret;
}

/** Strategy "pack", and what it refuses. */
static void test_strategy(void)
{
	static const u64 pages[][2] = {{0, 9}, {2000, 3500}, {32767, 32768}};
	struct pack_write_opts opts = {.memory_only = true, .threads = 2, .to = "memory.pack"};
	char path[160], id[SNAP_DIGEST_HEX];
	struct snap_mem mem = {.id = id};
	struct pack_stats stats;
	struct snap snap;
	u8 *want, byte;

	begin_with(pages, 3);
	CHECK_EQ(snap_load(&snap, source), 0);
	snprintf(path, sizeof(path), "%s/memory.pack", source);
	opts.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK_EQ(pack_write(&snap, &opts, &stats), 0);
	snap_digest_hex(snap.view.header->digest, id);
	snap_mem_ranges(&mem, PACK_RAM_BYTES);
	want = mmap(NULL, PACK_RAM_BYTES, PROT_READ, MAP_PRIVATE, snap.memory_fd, 0);
	CHECK(want != MAP_FAILED);
	CHECK_EQ(map_pack(&mem, opts.fd), 0);
	CHECK(!memcmp(mem.ranges[0].hva, want, PACK_RAM_BYTES));
	CHECK(mem.bytes_read > 2 * MIB && mem.bytes_read < stats.pack_bytes);
	snap_mem_unmap(&mem);
	CHECK_EQ(snap_verify(&snap), 0);

	id[0] ^= 1;
	CHECK_EQ(map_pack(&mem, opts.fd), -EINVAL);
	CHECK_LOGGED(&capture, "memory.pack: of another snapshot");
	id[0] ^= 1;
	mem.ranges[0].len_bytes -= 4096;
	CHECK_EQ(map_pack(&mem, opts.fd), -EINVAL);
	CHECK_LOGGED(&capture, "memory.pack: of another snapshot");
	mem.ranges[0].len_bytes += 4096;
	for (u64 at = 0; at < stats.pack_bytes; at += stats.pack_bytes / 20 + 1) {
		/* Header, small parts and frames of memory; the small parts are not looked at. */
		CHECK_EQ(pread(opts.fd, &byte, 1, (off_t)at), 1);
		byte ^= 4;
		CHECK_EQ(pwrite(opts.fd, &byte, 1, (off_t)at), 1);
		CHECK(map_pack(&mem, opts.fd) < 0);
		CHECK_LOGGED(&capture, "memory.pack: ");
		CHECK(!mem.ranges[0].hva);
		capture_begin(&capture);
		CHECK(snap_verify(&snap) < 0);
		capture_end(&capture);
		byte ^= 4;
		CHECK_EQ(pwrite(opts.fd, &byte, 1, (off_t)at), 1);
	}
	CHECK_EQ(ftruncate(opts.fd, (off_t)stats.pack_bytes - 1), 0);
	CHECK(map_pack(&mem, opts.fd) < 0);
	CHECK_LOGGED(&capture, "memory.pack: end");
	CHECK_EQ(ftruncate(opts.fd, 100), 0);
	CHECK_EQ(map_pack(&mem, opts.fd), -ENODATA);
	CHECK_LOGGED(&capture, "memory.pack: truncated");
	munmap(want, PACK_RAM_BYTES);
	close(opts.fd);
	snap_close(&snap);
	end();
}

TEST_MAIN({"strategy", test_strategy}, {"round_trip", test_round_trip}, {"replace", test_replace},
	  {"pipe", test_pipe}, {"other_machine", test_other_machine},
	  {"truncation", test_truncation}, {"flips", test_flips}, {"bad_output", test_bad_output},
	  {"memory_pack_flips", test_memory_pack_flips})
