// SPDX-License-Identifier: Apache-2.0
// thaw-vmm's command line.
#include <errno.h>

#include "tests/unit/test.h"
#include "vmm/opts.h"

static char why[256];

static int parse(struct opts *opts, char *const *words)
{
	int argc = 0;

	while (words[argc])
		argc++;
	why[0] = '\0';
	return opts_parse(opts, argc, words, why, sizeof(why));
}

#define PARSE(opts, ...) parse(opts, (char *[]){"thaw-vmm", __VA_ARGS__, NULL})

static void test_boot(void)
{
	struct opts o;

	CHECK_EQ(PARSE(&o, "boot", "--kernel", "k", "--cmdline=a b=c", "--vcpus", "8",
		       "--memory=64G", "--serial", "--ctl-fd", "3", "--disk-size", "1G",
		       "--disk-dir", "d"),
		 0);
	CHECK_EQ(o.command, OPTS_BOOT);
	CHECK_STR(o.kernel, "k");
	CHECK_STR(o.cmdline, "a b=c");
	CHECK_EQ(o.vcpus, 8);
	CHECK_EQ(o.memory_bytes, 64 * GIB);
	CHECK_EQ(o.disk_bytes, GIB);
	CHECK(o.serial && !o.replace);
	CHECK_EQ(o.ctl_fd, 3);
	CHECK_EQ(o.request_fd, -1);
	CHECK_EQ(PARSE(&o, "boot", "--kernel", "k", "--cmdline", "x"), 0);
	CHECK_EQ(o.vcpus, 1);
	CHECK_EQ(o.memory_bytes, 512 * MIB);
}

static void test_jail(void)
{
	struct opts o;

	CHECK_EQ(PARSE(&o, "restore", "d", "--jail", "1879048192", "--parents", "a:b",
		       "--root-image=/r", "--file-max", "1G", "--hard-timeout", "1500"),
		 0);
	CHECK_EQ(o.jail_uid, 1879048192u);
	CHECK_STR(o.parents, "a:b");
	CHECK_STR(o.root_image, "/r");
	CHECK_EQ(o.file_max_bytes, GIB);
	CHECK_EQ(o.hard_timeout_ms, 1500);
}

static void test_restore(void)
{
	struct opts o;

	CHECK_EQ(PARSE(&o, "restore", "folder", "--strategy", "copy", "--snapshot", "s", "--name",
		       "n", "--replace", "--keep-running"),
		 0);
	CHECK_EQ(o.command, OPTS_RESTORE);
	CHECK_STR(o.folder, "folder");
	CHECK_STR(o.strategy, "copy");
	CHECK(o.replace && o.keep_running);
	CHECK(!o.populate && !o.prefault && !o.huge && !o.threads && !o.memory_fd);
	CHECK_EQ(PARSE(&o, "restore", "folder", "--populate", "read", "--prefault=on", "--huge",
		       "thp", "--threads", "64", "--strategy", "memfd", "--memory-fd", "3"),
		 0);
	CHECK(!o.jail_uid && !o.hard_timeout_ms);
	CHECK_EQ(o.populate, SNAP_POPULATE_READ);
	CHECK_EQ(o.prefault, SNAP_PREFAULT_ON);
	CHECK_EQ(o.huge, SNAP_HUGE_PAGES_THP);
	CHECK_EQ(o.threads, 64);
	CHECK_EQ(o.memory_fd, 3);
	CHECK_EQ(PARSE(&o, "restore", "folder", "--strategy=uffd", "--fault-window", "64K"), 0);
	CHECK_EQ(o.fault_window_bytes, 65536);
	CHECK_EQ(PARSE(&o, "--help"), 0);
	CHECK_EQ(o.command, OPTS_HELP);
	CHECK_EQ(PARSE(&o, "restore", "--help"), 0);
	CHECK_EQ(o.command, OPTS_HELP);
	CHECK_EQ(PARSE(&o, "--version"), 0);
	CHECK_EQ(o.command, OPTS_VERSION);
}

/** Refused, and the message has @text. */
#define REFUSE(text, ...)                                      \
	do {                                                   \
		struct opts o_;                                \
		CHECK_EQ(PARSE(&o_, __VA_ARGS__), -EINVAL);    \
		if (!strstr(why, text))                        \
			fprintf(stderr, "message: %s\n", why); \
		CHECK(strstr(why, text));                      \
	} while (0)

static void test_refusals(void)
{
	struct opts o;

	CHECK_EQ(parse(&o, (char *[]){"thaw-vmm", NULL}), -EINVAL);
	REFUSE("fly", "fly");
	REFUSE("--kernel and --cmdline", "boot", "--kernel", "k");
	REFUSE("folder", "restore");
	REFUSE("--bogus", "restore", "d", "--bogus");
	REFUSE("--kernel", "restore", "d", "--kernel", "k"); /* of the other command */
	REFUSE("--strategy", "boot", "--strategy", "mmap");
	REFUSE("--strategy", "restore", "d", "--strategy"); /* no value */
	REFUSE("takes no value", "restore", "d", "--replace=1");
	REFUSE("second", "restore", "d", "second");
	REFUSE("--vcpus 9", "boot", "--vcpus", "9");
	REFUSE("--vcpus 0", "boot", "--vcpus", "0");
	REFUSE("--memory 127M", "boot", "--memory", "127M");
	REFUSE("--memory 65G", "boot", "--memory", "65G");
	REFUSE("--memory 129M", "boot", "--memory", "129M"); /* not a multiple of 2M */
	REFUSE("--ctl-fd -1", "restore", "d", "--ctl-fd", "-1");
	REFUSE("--disk-size 1000", "boot", "--disk-size", "1000");
	REFUSE("--disk-dir", "boot", "--kernel", "k", "--cmdline", "c", "--disk-size", "1G");
	REFUSE("--disk-base", "boot", "--kernel", "k", "--cmdline", "c", "--disk-base", "b");
	REFUSE("--name", "restore", "d", "--snapshot", "s");
	REFUSE("--snapshot", "restore", "d", "--keep-running");
	REFUSE("--diff needs --parent", "restore", "d", "--diff");
	REFUSE("--diff needs --parent", "restore", "d", "--diff", "--snapshot", "s", "--name", "n");
	REFUSE("need --snapshot", "restore", "d", "--diff", "--parent", "p");
	REFUSE("--diff", "boot", "--kernel", "k", "--cmdline", "c", "--diff");
	REFUSE("--strategy mmap", "restore", "d", "--hot-fd", "3");
	REFUSE("--strategy mmap", "restore", "d", "--hot-fd", "3", "--strategy", "ws");
	REFUSE("--hostname", "restore", "d", "--hostname", "");
	REFUSE("off, read, write or both", "restore", "d", "--populate", "all");
	REFUSE("on or off", "restore", "d", "--prefault", "1");
	REFUSE("none or thp", "restore", "d", "--huge", "1G");
	REFUSE("1 to 64", "restore", "d", "--threads", "65");
	REFUSE("power of two", "restore", "d", "--strategy", "uffd", "--fault-window", "2K");
	REFUSE("power of two", "restore", "d", "--strategy", "uffd", "--fault-window", "12K");
	REFUSE("--strategy uffd", "restore", "d", "--fault-window", "4K");
	REFUSE("--strategy uffd", "restore", "d", "--strategy", "ws", "--fault-window", "4K");
	REFUSE("above 2", "restore", "d", "--strategy", "memfd", "--memory-fd", "2");
	REFUSE("--strategy memfd", "restore", "d", "--memory-fd", "3");
	REFUSE("--populate", "boot", "--populate", "off");
	REFUSE("--wait needs --ctl-fd", "restore", "d", "--wait");
	REFUSE("--wait", "boot", "--wait");
	REFUSE("--hard-timeout 0", "restore", "d", "--hard-timeout", "0");
	REFUSE("--hard-timeout", "boot", "--hard-timeout", "1");
	REFUSE("a VM that waits", "restore", "d", "--wait", "--ctl-fd", "3", "--hard-timeout", "1");
	REFUSE("--jail 0", "restore", "d", "--jail", "0");
	REFUSE("--jail 4294967295", "restore", "d", "--jail", "4294967295");
	REFUSE("--jail root", "restore", "d", "--jail", "root");
	REFUSE("--jail", "boot", "--jail", "5");
	REFUSE("--jail goes", "restore", "d", "--jail", "5", "--zygote-fd", "3");
	REFUSE("--jail goes", "restore", "d", "--jail", "5", "--snapshot", "s", "--name", "n");
	REFUSE("need --jail", "restore", "d", "--parents", "a:b");
	REFUSE("need --jail", "restore", "d", "--root-image", "r");
	REFUSE("need --jail", "restore", "d", "--file-max", "1G");
	REFUSE("--file-max 0", "restore", "d", "--jail", "5", "--file-max", "0");
	REFUSE("a VM that waits", "restore", "d", "--wait", "--ctl-fd", "3", "--request-fd", "4");
	REFUSE("a VM that waits", "restore", "d", "--zygote-fd", "3", "--hostname", "h");
	REFUSE("a VM that waits", "restore", "d", "--zygote-fd", "3", "--snapshot", "s", "--name",
	       "n");
	REFUSE("--zygote-fd goes", "restore", "d", "--zygote-fd", "3", "--ctl-fd", "4");
	REFUSE("--zygote-fd goes", "restore", "d", "--zygote-fd", "3", "--vsock", "v");
	REFUSE("--zygote-fd goes", "restore", "d", "--zygote-fd", "3", "--ctl-listen", "c");
	REFUSE("--ctl-listen and --snapshot", "restore", "d", "--ctl-listen", "c", "--snapshot",
	       "s", "--name", "n");
	REFUSE("--ctl-listen", "boot", "--ctl-listen", "c");
	REFUSE("--zygote-fd goes", "restore", "d", "--zygote-fd", "3", "--wait", "--ctl-fd", "4");
}

static void test_help_names_every_option(void)
{
	static const char *const names[] = {"--kernel",	  "--strategy", "--ctl-fd", "--request-fd",
					    "--snapshot", "--vsock",	"boot",	    "restore DIR"};
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	CHECK(f);
	opts_help(f);
	CHECK_EQ(fclose(f), 0);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		CHECK(strstr(text, names[i]));
	free(text);
}

TEST_MAIN({"boot", test_boot}, {"restore", test_restore}, {"jail", test_jail},
	  {"refusals", test_refusals}, {"help", test_help_names_every_option})
