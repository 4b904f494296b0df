// SPDX-License-Identifier: Apache-2.0
// manifest.json: strict reading, and its binding to the state file; what snap_load() refuses and
// says about it.
#include <errno.h>

#include "tests/unit/snapshot_fixture.h"
#include "vmm/snapshot/write.h"

#define RAM_BYTES (128 * MIB)

static const char good[] =
	"{\"format\": \"thaw-snapshot\", \"version\": 1, \"name\": \"debian\", \"created\": \"2025-01-31T12:00:00Z\",\n"
	" \"parent\": null, \"kernel\": \"6.12.0\", \"vcpus\": 1, \"memory_bytes\": 134217728,\n"
	" \"memory_digest\": \"0123456789abcdef0123456789abcdef\", \"disk_bytes\": 4096,\n"
	" \"disk_digest\": \"0123456789abcdef0123456789abcdee\", \"root_image\": \"/srv/root.erofs\", \"root_bytes\": 7,\n"
	" \"root_digest\": \"0123456789abcdef0123456789abcded\",\n"
	" \"cpu\": {\"vendor\": \"AuthenticAMD\", \"signature\": 8851216, \"model\": \"Test CPU\", \"features\": [\"sse2\"]}}\n";

static char why[256];

static int parse(const char *json)
{
	struct snap_manifest manifest;
	int ret = snap_manifest_parse(json, strlen(json), &manifest, why, sizeof(why));

	if (!ret)
		snap_manifest_free(&manifest);
	else
		CHECK(!manifest.name && !manifest.json && *why);
	return ret;
}

/** parse_with() - the good text with @from replaced by @to. */
static int parse_with(const char *from, const char *to)
{
	char text[4096];
	const char *at = strstr(good, from);

	CHECK(at && strlen(good) + strlen(to) < sizeof(text));
	snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
	return parse(text);
}

static void test_good(void)
{
	struct snap_manifest manifest;

	CHECK_EQ(snap_manifest_parse(good, strlen(good), &manifest, why, sizeof(why)), 0);
	CHECK_EQ(manifest.version, 1);
	CHECK_STR(manifest.name, "debian");
	CHECK_STR(manifest.kernel, "6.12.0");
	CHECK_EQ(manifest.vcpus, 1);
	CHECK_EQ(manifest.cpu_signature, 8851216);
	CHECK_STR(manifest.root_image, "/srv/root.erofs");
	CHECK_EQ(manifest.root_bytes, 7);
	CHECK_EQ(manifest.disk_bytes, 4096);
	CHECK(!manifest.parent);
	CHECK_STR(manifest.json, good);
	snap_manifest_free(&manifest);
}

static void test_print(void)
{
	struct snap_manifest manifest, again;
	struct snap_cpuid cpuid;

	fixture_cpuid(&cpuid);
	CHECK_EQ(snap_manifest_parse(good, strlen(good), &manifest, why, sizeof(why)), 0);
	CHECK_EQ(snap_manifest_print(&manifest, &cpuid), 0);
	CHECK_EQ(snap_manifest_parse(manifest.json, manifest.json_len_bytes, &again, why,
				     sizeof(why)),
		 0);
	CHECK_STR(again.name, manifest.name);
	CHECK_STR(again.root_digest, manifest.root_digest);
	CHECK_EQ(again.memory_bytes, manifest.memory_bytes);
	CHECK(strstr(again.json, "\"sse4_2\"") && strstr(again.json, "\"kvmclock\""));
	snap_manifest_free(&again);
	snap_manifest_free(&manifest);
}

static void test_versions(void)
{
	CHECK_EQ(parse_with("\"version\": 1", "\"version\": 3"), -EPROTONOSUPPORT);
	CHECK_EQ(parse_with("\"version\": 1", "\"version\": 0"), -EPROTONOSUPPORT);
	CHECK_EQ(parse_with("\"version\": 1", "\"version\": 1, \"new\": 1"), -EINVAL);
	CHECK_EQ(parse_with("\"version\": 1,", ""), -EINVAL);
	CHECK_EQ(parse_with("\"version\": 1", "\"version\": \"1\""), -EINVAL);
	CHECK_EQ(parse_with("\"version\": 1", "\"version\": 1.0"), -EINVAL);
	CHECK_EQ(parse_with("thaw-snapshot", "other"), -EINVAL);
	/* A later version is named as such, whatever other fields it has. */
	CHECK_EQ(parse("{\"format\": \"thaw-snapshot\", \"version\": 7, \"all\": \"new\"}"),
		 -EPROTONOSUPPORT);
	CHECK(strstr(why, "unknown format version"));
}

static void test_fields(void)
{
	static const char *const fields[] = {
		"name",		"created",	 "parent",     "kernel",      "vcpus",
		"memory_bytes", "memory_digest", "disk_bytes", "disk_digest", "root_image",
		"root_bytes",	"root_digest",	 "cpu",	       "vendor",      "signature",
		"model",	"features"};
	char from[64], to[64];

	for (unsigned int i = 0; i < ARRAY_SIZE(fields); i++) {
		/* Missing, of another name, and twice. */
		snprintf(from, sizeof(from), "\"%s\":", fields[i]);
		snprintf(to, sizeof(to), "\"%sx\":", fields[i]);
		CHECK_EQ(parse_with(from, to), -EINVAL);
		snprintf(to, sizeof(to), "\"%s\": 1, \"%s\":", fields[i], fields[i]);
		CHECK_EQ(parse_with(from, to), -EINVAL);
		/* A list is right for none of them but one. */
		snprintf(to, sizeof(to), "\"%s\": [1], \"x\":", fields[i]);
		CHECK_EQ(parse_with(from, to), -EINVAL);
	}
	CHECK_EQ(parse_with("\"cpu\": {", "\"cpu\": {\"more\": 1, "), -EINVAL);
}

static void test_values(void)
{
	CHECK_EQ(parse_with("\"debian\"", "\"\""), -EINVAL);
	CHECK_EQ(parse_with("\"debian\"", "\"../x\""), -EINVAL);
	CHECK_EQ(parse_with("\"debian\"", "\".x\""), -EINVAL);
	CHECK_EQ(parse_with("\"debian\"", "\"a/b\""), -EINVAL);
	CHECK_EQ(parse_with("\"debian\"", "\"a\\u001b[2J\""), -EINVAL);
	CHECK_EQ(parse_with("\"debian\"", "\"a\\u0000b\""), -EINVAL);
	CHECK_EQ(parse_with("\"parent\": null", "\"parent\": \"base-1.0\""), 0);
	CHECK_EQ(parse_with("\"parent\": null", "\"parent\": \"/\""), -EINVAL);
	CHECK_EQ(parse_with("\"parent\": null", "\"parent\": 1"), -EINVAL);
	CHECK_EQ(parse_with("2025-01-31T12:00:00Z", "2025-01-31 12:00:00"), -EINVAL);
	CHECK_EQ(parse_with("\"6.12.0\"", "\"6\\u001b\""), -EINVAL);
	CHECK_EQ(parse_with("\"vcpus\": 1", "\"vcpus\": 0"), -EINVAL);
	CHECK_EQ(parse_with("\"vcpus\": 1", "\"vcpus\": 9"), -EINVAL);
	CHECK_EQ(parse_with("134217728", "-1"), -EINVAL);
	CHECK_EQ(parse_with("134217728", "99999999999999999999"), -EINVAL);
	CHECK_EQ(parse_with("0123456789abcdef0123456789abcdef", "0123456789ABCDEF0123456789abcdef"),
		 -EINVAL);
	CHECK_EQ(parse_with("0123456789abcdef0123456789abcdef", "0123"), -EINVAL);
	CHECK_EQ(parse_with("\"disk_bytes\": 4096", "\"disk_bytes\": 0"), -EINVAL);
	CHECK_EQ(parse_with("\"/srv/root.erofs\"", "\"root.erofs\""), -EINVAL);
	CHECK_EQ(parse_with("\"/srv/root.erofs\"", "null"), -EINVAL);
	CHECK_EQ(parse_with("\"root_bytes\": 7", "\"root_bytes\": 0"), -EINVAL);
	CHECK_EQ(parse_with("8851216", "4294967296"), -EINVAL);
	CHECK_EQ(parse_with("[\"sse2\"]", "{}"), -EINVAL);
	CHECK_EQ(parse_with("[\"sse2\"]", "[1]"), -EINVAL);
}

#define DIFF_DIGEST "0123456789abcdef0123456789abcde0"

/** diff_with() - the good text as that of a diff, with @field for its field "diff". */
static int diff_with(const char *parent, const char *field)
{
	char text[4096];
	const char *at = strstr(good, "\"version\": 1"), *null = strstr(good, "\"parent\": null");
	const char *after = null + strlen("\"parent\": null");

	CHECK(at && null && at < null);
	snprintf(text, sizeof(text), "%.*s\"version\": 2, \"diff\": %s%.*s\"parent\": %s%s",
		 (int)(at - good), good, field, (int)(null - at) - 12, at + 12, parent, after);
	return parse(text);
}

static void test_diff(void)
{
	static const char parent[] = "\"base\"";
	struct snap_manifest manifest, again;
	struct snap_cpuid cpuid;

#define DIFF(state, pages, digest) \
	"{\"parent_state\": " state ", \"pages\": " pages ", \"digest\": " digest "}"
#define HEX "\"" DIFF_DIGEST "\""
	CHECK_EQ(diff_with(parent, DIFF(HEX, "7", HEX)), 0);
	CHECK_EQ(diff_with(parent, DIFF(HEX, "0", HEX)), 0);
	CHECK_EQ(diff_with(parent, DIFF(HEX, "32768", HEX)), 0);
	CHECK_EQ(diff_with(parent, DIFF(HEX, "32769", HEX)), -EINVAL);
	CHECK_EQ(diff_with(parent, DIFF(HEX, "-1", HEX)), -EINVAL);
	CHECK_EQ(diff_with(parent, DIFF(HEX, "\"7\"", HEX)), -EINVAL);
	CHECK_EQ(diff_with(parent, DIFF("null", "7", HEX)), -EINVAL);
	CHECK_EQ(diff_with(parent, DIFF(HEX, "7", "null")), -EINVAL);
	CHECK_EQ(diff_with(parent, DIFF("\"0123\"", "7", HEX)), -EINVAL);
	CHECK_EQ(diff_with(parent, DIFF(HEX, "7", "\"0123\"")), -EINVAL);
	CHECK_EQ(diff_with(parent, DIFF(HEX, "7", HEX ", \"more\": 1")), -EINVAL);
	CHECK_EQ(diff_with(parent, "{}"), -EINVAL);
	CHECK_EQ(diff_with(parent, "null"), -EINVAL);
	CHECK_EQ(diff_with(parent, "1"), -EINVAL);
	CHECK_EQ(diff_with("null", DIFF(HEX, "7", HEX)), -EINVAL);
	CHECK_EQ(diff_with("\"../x\"", DIFF(HEX, "7", HEX)), -EINVAL);
	/* A version for each kind, and no mixture. */
	CHECK_EQ(parse_with("\"version\": 1", "\"version\": 2"), -EINVAL);
	CHECK_EQ(parse_with("\"version\": 1", "\"version\": 1, \"diff\": " DIFF(HEX, "7", HEX)),
		 -EINVAL);
	CHECK(strstr(why, "disagree"));

	/* And back into text. */
	CHECK_EQ(snap_manifest_parse(good, strlen(good), &manifest, why, sizeof(why)), 0);
	manifest.version = 2;
	manifest.parent = strdup("base");
	manifest.diff_parent_state = strdup(DIFF_DIGEST);
	manifest.diff_digest = strdup(DIFF_DIGEST);
	manifest.diff_pages = 7;
	fixture_cpuid(&cpuid);
	CHECK_EQ(snap_manifest_print(&manifest, &cpuid), 0);
	CHECK_EQ(snap_manifest_parse(manifest.json, manifest.json_len_bytes, &again, why,
				     sizeof(why)),
		 0);
	CHECK_EQ(again.diff_pages, 7);
	CHECK_STR(again.diff_digest, DIFF_DIGEST);
	CHECK_STR(again.diff_parent_state, DIFF_DIGEST);
	snap_manifest_free(&again);
	snap_manifest_free(&manifest);
#undef HEX
#undef DIFF
}

static void test_text(void)
{
	char cut[sizeof(good)];

	CHECK_EQ(parse(""), -EINVAL);
	CHECK_EQ(parse("[]"), -EINVAL);
	CHECK_EQ(parse("null"), -EINVAL);
	for (size_t len = 0; len < strlen(good) - 1; len++) {
		memcpy(cut, good, len);
		cut[len] = '\0';
		CHECK_EQ(parse(cut), -EINVAL);
	}
	memcpy(cut, good, sizeof(good));
	cut[strlen(good) - 1] = 'x';
	CHECK_EQ(parse(cut), -EINVAL);
}

/* --- a whole snapshot in a folder
 * ----------------------------------------------------------------------------- */

static char folder[64], target[80], path[128];
static struct fixture fix;
static struct capture capture;

static const char *part(const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", target, name);
	return path;
}

/** make() - a valid snapshot that can be damaged. */
static void make(void)
{
	struct snap_write_opts opts = {.path = target, .name = "test", .kernel = "6.12.0-test"};
	struct snap_writer *writer;
	struct gmem gmem = {0};
	u8 *ram = mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(ram != MAP_FAILED);
	ram[4096] = 1;
	temp_folder(folder);
	snprintf(target, sizeof(target), "%s/one", folder);
	fixture_init(&fix, 1, 0, 0);
	CHECK_EQ(gmem_add(&gmem, 0, RAM_BYTES, ram), 0);
	CHECK_EQ(snap_write_prepare(&opts, &writer), 0);
	CHECK_EQ(snap_writer_store(writer, &fix.parts, &gmem, NULL), 0);
	snap_write_abort(writer);
	munmap(ram, RAM_BYTES);
	CHECK_EQ(chmod(target, 0700), 0);
	CHECK_EQ(chmod(part("manifest.json"), 0600), 0);
	CHECK_EQ(chmod(part("state"), 0600), 0);
	CHECK_EQ(chmod(part("memory"), 0600), 0);
}

/** load() - snap_load() of the damaged snapshot, silently. */
static int load(void)
{
	struct snap snap;
	int ret;

	capture_begin(&capture);
	ret = snap_load(&snap, target);
	capture_end(&capture);
	CHECK((ret == 0) == (*capture.text == '\0'));
	snap_close(&snap);
	return ret;
}

static void flip_all(const char *name)
{
	int fd = open(part(name), O_RDWR | O_CLOEXEC);
	struct stat st;

	CHECK(fd >= 0 && fstat(fd, &st) == 0);
	for (off_t i = 0; i < st.st_size; i++) {
		u8 byte, flipped;
		char where[160];

		CHECK_EQ(pread(fd, &byte, 1, i), 1);
		flipped = byte ^ (u8)(1u << (i % 8));
		CHECK_EQ(pwrite(fd, &flipped, 1, i), 1);
		CHECK(load() < 0);
		/* The message names the file. */
		snprintf(where, sizeof(where), "%s/%s: ", target, name);
		CHECK_LOGGED(&capture, where);
		CHECK_EQ(pwrite(fd, &byte, 1, i), 1);
	}
	close(fd);
	CHECK_EQ(load(), 0);
}

static void test_every_byte_flipped(void)
{
	make();
	flip_all("manifest.json");
	flip_all("state");
	temp_folder_remove(folder);
}

static void test_manifest_swapped(void)
{
	char *text;
	size_t len_bytes;
	int fd;

	/* Valid, equal in meaning, and not the one that belongs to this state file. */
	make();
	text = calloc(1, 65536);
	fd = open(part("manifest.json"), O_RDWR | O_CLOEXEC);
	len_bytes = (size_t)read(fd, text, 65536);
	text[len_bytes] = ' ';
	file_write(part("manifest.json"), text, len_bytes + 1);
	CHECK_EQ(load(), -EBADMSG);
	CHECK_LOGGED(
		&capture,
		"one/manifest.json: digest mismatch: the file was changed or is damaged; build the template again");
	file_write(part("manifest.json"), text, len_bytes);
	CHECK_EQ(load(), 0);
	close(fd);
	free(text);
	temp_folder_remove(folder);
}

static void test_files(void)
{
	char other[160];

	make();
	CHECK_EQ(truncate(part("memory"), RAM_BYTES - 1), 0);
	CHECK_EQ(load(), -EINVAL);
	CHECK_LOGGED(
		&capture,
		"one/memory: truncated: it has 134217727 bytes, the snapshot was made with 134217728");
	CHECK_EQ(truncate(part("memory"), RAM_BYTES + 1), 0);
	CHECK_EQ(load(), -EINVAL);
	CHECK_LOGGED(&capture, "one/memory: changed");
	CHECK_EQ(truncate(part("memory"), RAM_BYTES), 0);
	CHECK_EQ(load(), 0);

	CHECK_EQ(chmod(part("state"), 0622), 0);
	CHECK_EQ(load(), -EPERM);
	CHECK_LOGGED(&capture, "one/state: writable by others");
	CHECK_EQ(chmod(part("state"), 0600), 0);
	CHECK_EQ(chmod(target, 0777), 0);
	CHECK_EQ(load(), -EPERM);
	CHECK_EQ(chmod(target, 0700), 0);
	if (geteuid() == 0) {
		CHECK_EQ(chown(part("state"), 12345, 0), 0);
		CHECK_EQ(load(), -EPERM);
		CHECK_LOGGED(&capture, "one/state: owned by another user");
		CHECK_EQ(chown(part("state"), 0, 0), 0);
	}

	snprintf(other, sizeof(other), "%s/elsewhere", folder);
	CHECK_EQ(rename(part("state"), other), 0);
	CHECK_EQ(load(), -ENOENT);
	CHECK_LOGGED(&capture, "one/state: No such file or directory");
	CHECK_EQ(symlink(other, part("state")), 0);
	CHECK_EQ(load(), -ELOOP);
	CHECK_LOGGED(&capture, "one/state: is a symbolic link");
	CHECK_EQ(unlink(part("state")), 0);
	CHECK_EQ(mkfifo(part("state"), 0600), 0);
	CHECK_EQ(load(), -EINVAL);
	CHECK_LOGGED(&capture, "one/state: not a regular file");
	CHECK_EQ(unlink(part("state")), 0);
	CHECK_EQ(rename(other, part("state")), 0);
	CHECK_EQ(load(), 0);

	CHECK_EQ(truncate(part("manifest.json"), 100 * KIB), 0);
	CHECK_EQ(load(), -EFBIG);
	CHECK_EQ(truncate(part("state"), 0), 0);
	CHECK(load() < 0);
	temp_folder_remove(folder);
	CHECK_EQ(load(), -ENOENT);
}

TEST_MAIN({"good", test_good}, {"print", test_print}, {"versions", test_versions},
	  {"fields", test_fields}, {"values", test_values}, {"diff", test_diff},
	  {"text", test_text}, {"every_byte_flipped", test_every_byte_flipped},
	  {"manifest_swapped", test_manifest_swapped}, {"files", test_files})
