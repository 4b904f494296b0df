// SPDX-License-Identifier: Apache-2.0
// Snapshots of jailed machines: what an owner takes over, and what he does not believe.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tests/unit/snapshot_fixture.h"
#include "vmm/cli/sandbox_jail.h"
#include "vmm/util/log.h"

#define UID  1879048193u
#define NAME "snap.0123456789ab"
#define HEX  "0123456789abcdef0123456789abcdef"

/* Of a diff @parent says of what, and @diff has what belongs to it. */
#define MANIFEST(version, parent, root, diff)                                                     \
	"{\"format\": \"thaw-snapshot\", \"version\": " version ", \"name\": \"" NAME "\", "      \
	"\"created\": \"2025-01-31T12:00:00Z\", \"parent\": " parent ", \"kernel\": \"6.12.0\", " \
	"\"vcpus\": 1, \"memory_bytes\": 134217728, \"memory_digest\": \"" HEX "\", "             \
	"\"disk_bytes\": 4096, \"disk_digest\": \"" HEX "\", \"root_image\": " root ", "          \
	"\"root_bytes\": 7, \"root_digest\": \"" HEX "\"" diff ", \"cpu\": {\"vendor\": "         \
	"\"AuthenticAMD\", \"signature\": 8851216, \"model\": \"Test CPU\", \"features\": []}}\n"

#define DIFF ", \"diff\": {\"parent_state\": \"" HEX "\", \"pages\": 7, \"digest\": \"" HEX "\"}"

static char dir[] = "/tmp/thaw-stage-XXXXXX";
static char path[PATH_MAX], image[64], other[64];
static struct state state;
static struct sandbox sb;
static struct sandbox_stage stage;
static pid_t machine;

static const char *in_templates(const char *name)
{
	snprintf(path, sizeof(path), "%s/templates/%s", dir, name);
	return path;
}

static void write_file(int at_fd, const char *name, const char *text, uid_t uid)
{
	int fd = openat(at_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	CHECK_EQ(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	CHECK_EQ(fchown(fd, uid, uid), 0);
	close(fd);
}

/** A process of the jail's user that has the image open. */
static void start_machine(void)
{
	int pair[2];
	char byte;

	CHECK_EQ(pipe(pair), 0);
	machine = fork();
	CHECK(machine >= 0);
	if (machine == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (open(image, O_RDONLY) < 0 || setresgid(UID, UID, UID) ||
		    setresuid(UID, UID, UID) || write(pair[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			(void)!poll(NULL, 0, -1);
	}
	CHECK_EQ(read(pair[0], &byte, 1), 1);
	close(pair[0]);
	close(pair[1]);
}

static void set_up(void)
{
	CHECK(mkdtemp(dir));
	CHECK_EQ(setenv("THAW_STATE", dir, 1), 0);
	CHECK_EQ(state_init(&state), 0);
	CHECK_EQ(mkdir(in_templates(""), 0700), 0);
	CHECK_EQ(mkdir(in_templates("base"), 0700), 0);
	snprintf(image, sizeof(image), "%s/image", dir);
	snprintf(other, sizeof(other), "%s/other", dir);
	write_file(AT_FDCWD, image, "image", 0);
	write_file(AT_FDCWD, other, "other", 0);
	sb = (struct sandbox){.lock_fd = -1};
	snprintf(sb.id, sizeof(sb.id), "0123456789ab");
	snprintf(sb.snapshot, sizeof(sb.snapshot), "base");
	snprintf(sb.next, sizeof(sb.next), NAME);
	start_machine();
}

/** @text with @of_image in the place of IMAGE. */
static void fill_in(char out[2048], const char *text, const char *of_image)
{
	const char *at = strstr(text, "IMAGE");

	snprintf(out, 2048, "%.*s%s%s", (int)(at ? at - text : (ssize_t)strlen(text)), text,
		 at ? of_image : "", at ? at + strlen("IMAGE") : "");
}

/** A stage with a whole snapshot in it, whose manifest is @manifest, about @of_image. */
static void begin(const char *manifest, const char *of_image)
{
	char text[2048];

	fill_in(text, manifest, of_image);
	CHECK_EQ(sandbox_stage_make(&state, &sb, machine, NAME, &stage), 0);
	CHECK_EQ(stage.uid, UID);
	write_file(stage.fd, "manifest.json", text, UID);
	write_file(stage.fd, "state", "state", UID);
	write_file(stage.fd, "memory", "memory", UID);
}

/** Return: what publishing says; a refused one leaves nothing. */
static int publish(void)
{
	struct capture capture;
	int ret;

	capture_begin(&capture);
	ret = sandbox_stage_publish(&state, &stage, false);
	sandbox_stage_drop(&stage);
	capture_end(&capture);
	CHECK_EQ(access(in_templates(NAME), F_OK), ret ? -1 : 0);
	CHECK_EQ(access(in_templates("." NAME ".tmp-own"), F_OK), -1);
	return ret;
}

static void remove_published(void)
{
	struct stat st;

	CHECK_EQ(stat(in_templates(NAME), &st), 0);
	CHECK(st.st_uid == 0 && (st.st_mode & 07777) == 0500);
	CHECK_EQ(stat(in_templates(NAME "/memory"), &st), 0);
	CHECK(st.st_uid == 0 && (st.st_mode & 07777) == 0400);
	CHECK_EQ(unlink(in_templates(NAME "/memory")), 0);
	CHECK_EQ(unlink(in_templates(NAME "/state")), 0);
	CHECK_EQ(unlink(in_templates(NAME "/manifest.json")), 0);
	CHECK_EQ(rmdir(in_templates(NAME)), 0);
}

static const char whole[] = MANIFEST("1", "null", "\"IMAGE\"", "");
static const char diff[] = MANIFEST("2", "\"base\"", "\"IMAGE\"", DIFF);

static void test_whole(void)
{
	begin(whole, image);
	CHECK_EQ(publish(), 0);
	remove_published();
}

static void test_diff(void)
{
	begin(diff, image);
	CHECK(stage.base_inode);
	CHECK_EQ(publish(), 0);
	remove_published();
}

/** What the machine gets leads nowhere else. */
static void test_folder(void)
{
	int fd;

	begin(whole, image);
	fd = sandbox_stage_fd(&stage);
	CHECK(fd >= 0);
	CHECK_EQ(openat(fd, "../base", O_RDONLY), -1);
	CHECK_EQ(errno, ENOENT);
	CHECK(faccessat(fd, "manifest.json", F_OK, 0) == 0);
	close(fd);
	sandbox_stage_drop(&stage);
}

static void test_lies(void)
{
	begin(whole, other);
	CHECK_EQ(publish(), -EPERM);
	begin(whole, "/etc/passwd");
	CHECK_EQ(publish(), -EPERM);
	begin(MANIFEST("2", "\"elsewhere\"", "\"IMAGE\"", DIFF), image);
	CHECK_EQ(publish(), -EPERM);
	begin("{", "");
	CHECK(publish() < 0);
	/* A parent that was replaced meanwhile. */
	begin(diff, image);
	CHECK_EQ(mkdir(in_templates("new"), 0700), 0);
	{
		char from[PATH_MAX];

		snprintf(from, sizeof(from), "%s", in_templates("new"));
		CHECK_EQ(rename(from, in_templates("base")), 0);
	}
	CHECK_EQ(publish(), -EPERM);
}

static void test_foreign_files(void)
{
	begin(whole, image);
	write_file(stage.fd, "more", "x", UID);
	CHECK_EQ(publish(), -EPERM);
	begin(whole, image);
	CHECK_EQ(unlinkat(stage.fd, "memory", 0), 0);
	CHECK_EQ(symlinkat("/etc/passwd", stage.fd, "memory"), 0);
	CHECK_EQ(publish(), -ELOOP);
	begin(whole, image);
	CHECK_EQ(unlinkat(stage.fd, "memory", 0), 0);
	CHECK_EQ(mkfifoat(stage.fd, "memory", 0600), 0);
	CHECK_EQ(publish(), -EPERM);
	begin(whole, image);
	CHECK_EQ(linkat(stage.fd, "memory", AT_FDCWD, in_templates("link"), 0), 0);
	CHECK_EQ(publish(), -EPERM);
	CHECK_EQ(unlink(in_templates("link")), 0);
	/* Of another machine's user. */
	begin(whole, image);
	write_file(stage.fd, "memory", "x", UID + 1);
	CHECK_EQ(publish(), -EPERM);
}

/** Its owner was killed when it was written, but not yet in its place. */
static void test_recover(void)
{
	struct capture capture;
	char text[2048];

	CHECK_EQ(sandbox_stage_recover(&state, &sb), -ENOENT);
	begin(whole, image);
	close(stage.fd);
	capture_begin(&capture);
	CHECK_EQ(sandbox_stage_recover(&state, &sb), -ENOENT); /* not whole yet */
	CHECK_EQ(chmod(in_templates("." NAME ".tmp-own"), 0500), 0);
	/* What it ran from has no manifest here, so that nothing vouches for the image. */
	CHECK_EQ(sandbox_stage_recover(&state, &sb), -EPERM);
	fill_in(text, whole, image);
	write_file(AT_FDCWD, in_templates("base/manifest.json"), text, 0);
	CHECK_EQ(sandbox_stage_recover(&state, &sb), 0);
	capture_end(&capture);
	close(stage.parent_fd);
	remove_published();
}

/** One of the caller's own user is in no jail. */
static void test_unjailed(void)
{
	CHECK_EQ(sandbox_stage_make(&state, &sb, getpid(), NAME, &stage), 0);
	CHECK_EQ(stage.uid, 0);
	sandbox_stage_drop(&stage);
}

int main(void)
{
	static const struct test_case cases[] = {
		{"whole", test_whole},
		{"diff", test_diff},
		{"folder", test_folder},
		{"lies", test_lies},
		{"foreign files", test_foreign_files},
		{"recover", test_recover},
		{"unjailed", test_unjailed},
	};
	char command[64];

	log_init("test_stage");
	if (geteuid() != 0)
		SKIP("only root can make a jail");
	set_up();
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		printf("  %s\n", cases[i].name);
		fflush(stdout);
		cases[i].fn();
	}
	kill(machine, SIGKILL);
	CHECK_EQ(waitpid(machine, NULL, 0), machine);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	CHECK_EQ(system(command), 0);
	printf("ok %zu\n", ARRAY_SIZE(cases));
	return 0;
}
