// SPDX-License-Identifier: Apache-2.0
// What keeps a published snapshot as it is: one name a file, flips in every file found, fs-verity.
#include "tests/unit/pack_rig.h"
#include "vmm/snapshot/seal.h"

static char part_path[160];

static const char *part(const char *name)
{
	snprintf(part_path, sizeof(part_path), "%s/%s", source, name);
	return part_path;
}

/** load() - open and, with @verify, read all. Return: 0 or -errno; what was logged is in `capture`.
 */
static int load(bool verify)
{
	struct snap_hot hot = {0};
	struct snap snap;
	int ret;

	capture_begin(&capture);
	ret = snap_load(&snap, source);
	if (!ret)
		ret = snap_hot_open(&snap, &hot);
	if (!ret && verify)
		ret = snap_verify(&snap);
	capture_end(&capture);
	snap_hot_close(&hot);
	snap_close(&snap);
	return ret;
}

/** A second name is refused, whatever the file. */
static void test_links(void)
{
	static const char *const names[] = {"manifest.json", "state", "memory", "disk", "hot"};
	char other[160], text[256];

	begin();
	CHECK_EQ(load(false), 0);
	snprintf(other, sizeof(other), "%s/other", folder);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		CHECK_EQ(link(part(names[i]), other), 0);
		CHECK_EQ(load(false), -EMLINK);
		snprintf(text, sizeof(text), "one/%s: has another name", names[i]);
		CHECK_LOGGED(&capture, text);
		CHECK_EQ(unlink(other), 0);
		CHECK_EQ(load(false), 0);
	}
	end();
}

static void flip(int fd, off_t at, u8 bit)
{
	u8 byte;

	CHECK_EQ(pread(fd, &byte, 1, at), 1);
	byte ^= bit;
	CHECK_EQ(pwrite(fd, &byte, 1, at), 1);
}

static int open_part(const char *name, off_t *len_bytes)
{
	struct stat st;
	int fd;

	CHECK_EQ(chmod(part(name), 0600), 0);
	fd = open(part(name), O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && fstat(fd, &st) == 0);
	*len_bytes = st.st_size;
	return fd;
}

/** Every byte of the small files, in the file itself: refused when it is opened. */
static void test_small_flips(void)
{
	static const char *const names[] = {"manifest.json", "hot"};

	begin();
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		char text[64];
		off_t len_bytes;
		int fd = open_part(names[i], &len_bytes);

		CHECK(len_bytes > 100);
		snprintf(text, sizeof(text), "one/%s: ", names[i]);
		for (off_t at = 0; at < len_bytes; at++) {
			flip(fd, at, (u8)(1u << at % 8));
			CHECK(load(false) < 0);
			CHECK_LOGGED(&capture, text);
			flip(fd, at, (u8)(1u << at % 8));
		}
		CHECK_EQ(load(false), 0);
		close(fd);
	}
	end();
}

/** One byte of every page that holds data, and of pages that are holes: found by verify. */
static void test_large_flips(void)
{
	static const struct {
		const char *name;
		u64 pages[4];
	} files[] = {{"memory", {0, 8, 257, 30000}}, {"disk", {0, 1, 1, 1}}};

	begin();
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		off_t len_bytes;
		int fd = open_part(files[i].name, &len_bytes);
		char text[64];

		snprintf(text, sizeof(text), "one/%s: digest mismatch", files[i].name);
		for (unsigned int j = 0; j < 4; j++) {
			off_t at = (off_t)(files[i].pages[j] * 4096 + j * 1023) % len_bytes;

			flip(fd, at, (u8)(1u << j));
			/* Too much to be looked at by every restore. */
			CHECK_EQ(load(false), 0);
			CHECK_EQ(load(true), -EBADMSG);
			CHECK_LOGGED(&capture, text);
			flip(fd, at, (u8)(1u << j));
		}
		flip(fd, len_bytes - 1, 0x80);
		CHECK_EQ(load(true), -EBADMSG);
		flip(fd, len_bytes - 1, 0x80);
		CHECK_EQ(load(true), 0);
		close(fd);
	}
	end();
}

/** Where the file system has no fs-verity, nothing breaks; tests/vm has one that does. */
static void test_seal(void)
{
	char text[SNAP_SEAL_TEXT] = "x";
	int dirfd, ret;

	begin();
	ret = snap_seal(source);
	CHECK(ret == 0 || ret == 1);
	dirfd = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(dirfd >= 0);
	CHECK_EQ(snap_seal_digest(dirfd, "state", text), 0);
	CHECK(ret ? !strncmp(text, "sha256:", 7) && strlen(text) == 7 + 64 : !*text);
	CHECK_EQ(snap_seal_digest(dirfd, "nothing", text), -ENOENT);
	/* Three stretches in 128 MiB: left out anywhere. */
	CHECK_EQ(snap_seal_digest(dirfd, "memory", text), 0);
	CHECK(!*text);
	CHECK_EQ(load(true), 0);
	close(dirfd);
	/* Not there: nothing to seal. */
	CHECK_EQ(snap_seal(target), 0);
	end();
}

TEST_MAIN({"links", test_links}, {"small_flips", test_small_flips},
	  {"large_flips", test_large_flips}, {"seal", test_seal})
