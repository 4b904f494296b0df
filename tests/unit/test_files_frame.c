// SPDX-License-Identifier: Apache-2.0
// Frames of thaw-files: what is written is what is read, and nothing else is accepted.
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "guest/files/frame.h"
#include "tests/unit/test.h"

static u8 frame[FILES_FRAME_MAX_BYTES];

static struct files_str str(const char *text)
{
	return (struct files_str){.bytes = text, .len_bytes = strlen(text)};
}

static struct files_message entry(void)
{
	struct files_message m = {.type = FILES_ENTRY, .path = str("a/b"), .to = str("target")};

	m.entry.stat.mode = S_IFLNK | 0777;
	m.entry.stat.mtime_ns = 999999999;
	m.entry.stat.mtime_s = -5;
	m.entry.error = EACCES;
	return m;
}

static bool same(struct files_str a, struct files_str b)
{
	return a.len_bytes == b.len_bytes &&
	       (!a.len_bytes || !memcmp(a.bytes, b.bytes, a.len_bytes));
}

static void test_round_trips(void)
{
	struct files_message messages[] = {
		{.type = FILES_OPENED, .opened.stat.mode = S_IFREG, .opened.length_bytes = 7},
		entry(),
		{.type = FILES_EVENT, .event.kind = FILES_MOVED, .path = str("a"), .to = str("b")},
		{.type = FILES_NOTE, .note.error = 2, .path = str("a"), .text = str("gone")},
		{.type = FILES_DONE, .done.bytes = ~0ull, .done.count = 3},
		{.type = FILES_ERROR,
		 .error.error = EXDEV,
		 .path = str("a"),
		 .to = str("b"),
		 .text = str("text")},
	};

	for (size_t i = 0; i < ARRAY_SIZE(messages); i++) {
		size_t len = files_frame_put(frame, &messages[i]);
		struct files_message back;

		/* Complete or not at all. */
		for (size_t part = 0; part < len; part++)
			CHECK(files_frame_get(frame, part, &back) == 0);
		CHECK(files_frame_get(frame, len, &back) == (ssize_t)len);
		CHECK(files_frame_get(frame, len + 1, &back) == (ssize_t)len);
		CHECK(back.type == messages[i].type);
		CHECK(same(back.path, messages[i].path));
		CHECK(same(back.to, messages[i].to));
		CHECK(same(back.text, messages[i].text));
	}
}

static void test_long_strings_are_cut(void)
{
	static char long_name[FILES_NAME_MAX_BYTES + 100];
	struct files_message m = {.type = FILES_ERROR, .error.error = 1}, back;
	size_t len;

	memset(long_name, 'n', sizeof(long_name));
	m.path = m.to = m.text = (struct files_str){long_name, sizeof(long_name)};
	len = files_frame_put(frame, &m);
	CHECK(len <= sizeof(frame));
	CHECK(files_frame_get(frame, len, &back) == (ssize_t)len);
	CHECK(back.path.len_bytes == FILES_NAME_MAX_BYTES);
	CHECK(back.text.len_bytes == FILES_TEXT_MAX_BYTES);
}

/* One byte of a good entry is changed. */
static ssize_t changed(size_t at, u8 value)
{
	struct files_message m = entry(), back;
	size_t len = files_frame_put(frame, &m);

	frame[at] = value;
	return files_frame_get(frame, len, &back);
}

#define STAT_AT(member) (FILES_HEADER_BYTES + offsetof(struct files_stat, member))

static void test_refusals(void)
{
	size_t path = FILES_HEADER_BYTES + sizeof(struct files_entry);

	CHECK(changed(offsetof(struct files_frame, version), 2) == -EPROTONOSUPPORT);
	CHECK(changed(offsetof(struct files_frame, type), 0) == -EPROTO);
	CHECK(changed(offsetof(struct files_frame, type), FILES_ERROR + 1) == -EPROTO);
	CHECK(changed(offsetof(struct files_frame, reserved), 1) == -EPROTO);
	CHECK(changed(offsetof(struct files_frame, len_bytes) + 3, 1) == -EMSGSIZE);
	CHECK(changed(offsetof(struct files_frame, len_bytes), 10) == -EPROTO);
	CHECK(changed(STAT_AT(mode) + 1, 0) == -EPROTO);
	CHECK(changed(STAT_AT(mode) + 2, 1) == -EPROTO);
	CHECK(changed(STAT_AT(mtime_ns) + 3, 0xff) == -EPROTO);
	CHECK(changed(STAT_AT(reserved), 1) == -EPROTO);
	CHECK(changed(FILES_HEADER_BYTES + offsetof(struct files_entry, error) + 1, 0x10) ==
	      -EPROTO);
	CHECK(changed(FILES_HEADER_BYTES + offsetof(struct files_entry, path_bytes), 4) == -EPROTO);
	CHECK(changed(FILES_HEADER_BYTES + offsetof(struct files_entry, target_bytes), 5) ==
	      -EPROTO);
	CHECK(changed(path, 0) == -EPROTO);
	CHECK(changed(path, 'z') > 0);
}

TEST_MAIN({"round trips", test_round_trips}, {"long strings are cut", test_long_strings_are_cut},
	  {"refusals", test_refusals})
