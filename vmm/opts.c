// SPDX-License-Identifier: Apache-2.0
// Command line of thaw-vmm.
#include "vmm/opts.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "vmm/kvm/layout.h"
#include "vmm/kvm/vm.h"
#include "vmm/util/util.h"

/** Parse @text into @field. Return: NULL, or what would have been right. */
typedef const char *opts_parser(void *field, const char *text);

struct opts_option {
	const char *name;
	const char *arg;       /* name of the value in the help; NULL: a flag */
	unsigned int commands; /* enum opts_command, those that know it */
	opts_parser *parse;
	size_t offset;
	const char *help;
};

static const char *opts_parse_text(void *field, const char *text)
{
	if (!*text)
		return "must not be empty";
	*(const char **)field = text;
	return NULL;
}

static const char *opts_parse_fd(void *field, const char *text)
{
	u64 fd;

	if (parse_u64(text, 0, INT_MAX, &fd))
		return "must be a file descriptor's number";
	*(int *)field = (int)fd;
	return NULL;
}

static const char *opts_parse_vcpus(void *field, const char *text)
{
	if (parse_u64(text, 1, VM_VCPUS_MAX, field))
		return "must be 1 to 8";
	return NULL;
}

static const char *opts_parse_memory(void *field, const char *text)
{
	u64 bytes;

	if (parse_size(text, &bytes) || bytes < VM_RAM_MIN_BYTES || bytes > VM_RAM_MAX_BYTES ||
	    bytes % HUGE_SIZE_BYTES)
		return "must be 128M to 64G and a multiple of 2M";
	*(u64 *)field = bytes;
	return NULL;
}

static const char *opts_parse_disk(void *field, const char *text)
{
	u64 bytes;

	if (parse_size(text, &bytes) || !bytes || bytes > INT64_MAX || bytes % PAGE_SIZE_BYTES)
		return "must be a size that is a multiple of 4K";
	*(u64 *)field = bytes;
	return NULL;
}

static const char *opts_parse_window(void *field, const char *text)
{
	return snap_fault_window_parse(text, field) ? NULL : "must be " SNAP_WINDOW_WORDS;
}

static const char *opts_parse_populate(void *field, const char *text)
{
	return snap_populate_parse(text, field) ? NULL : "must be " SNAP_POPULATE_WORDS;
}

static const char *opts_parse_prefault(void *field, const char *text)
{
	return snap_prefault_parse(text, field) ? NULL : "must be " SNAP_PREFAULT_WORDS;
}

static const char *opts_parse_huge(void *field, const char *text)
{
	return snap_huge_parse(text, field) ? NULL : "must be " SNAP_HUGE_WORDS;
}

static const char *opts_parse_threads(void *field, const char *text)
{
	if (parse_u64(text, 1, SNAP_THREADS_MAX, field))
		return "must be 1 to 64";
	return NULL;
}

static const char *opts_parse_memory_fd(void *field, const char *text)
{
	u64 fd;

	if (parse_u64(text, 3, INT_MAX, &fd))
		return "must be a file descriptor's number above 2";
	*(int *)field = (int)fd;
	return NULL;
}

static const char *opts_parse_uid(void *field, const char *text)
{
	u64 uid;

	/* The highest one means "none" to many calls. */
	if (parse_u64(text, 1, UINT32_MAX - 1, &uid))
		return "must be a user's number above 0";
	*(u32 *)field = (u32)uid;
	return NULL;
}

static const char *opts_parse_bytes(void *field, const char *text)
{
	if (parse_size(text, field) || !*(u64 *)field)
		return "must be a size";
	return NULL;
}

static const char *opts_parse_ms(void *field, const char *text)
{
	if (parse_u64(text, 1, VM_DEADLINE_MAX_MS, field))
		return "must be milliseconds, at least 1";
	return NULL;
}

#define BOTH	    (OPTS_BOOT | OPTS_RESTORE)
#define FIELD(name) offsetof(struct opts, name)

static const struct opts_option opts_table[] = {
	{"--kernel", "VMLINUX", OPTS_BOOT, opts_parse_text, FIELD(kernel),
	 "uncompressed ELF kernel (required)"},
	{"--initramfs", "FILE", OPTS_BOOT, opts_parse_text, FIELD(initramfs),
	 "initial file system"},
	{"--cmdline", "TEXT", OPTS_BOOT, opts_parse_text, FIELD(cmdline),
	 "kernel command line (required)"},
	{"--vcpus", "N", OPTS_BOOT, opts_parse_vcpus, FIELD(vcpus), "1 to 8; default 1"},
	{"--memory", "SIZE", OPTS_BOOT, opts_parse_memory, FIELD(memory_bytes),
	 "128M to 64G; default 512M"},
	{"--root", "EROFS", OPTS_BOOT, opts_parse_text, FIELD(root),
	 "read-only root image, seen as persistent memory"},
	{"--disk-size", "SIZE", OPTS_BOOT, opts_parse_disk, FIELD(disk_bytes),
	 "give the guest a scratch disk"},
	{"--disk-base", "FILE", OPTS_BOOT, opts_parse_text, FIELD(disk_base),
	 "what the scratch disk holds at first; never written"},
	{"--serial", NULL, OPTS_BOOT, NULL, FIELD(serial),
	 "a serial port that prints to the console's file"},
	{"--strategy", "NAME", OPTS_RESTORE, opts_parse_text, FIELD(strategy),
	 "how guest memory comes back"},
	{"--fault-window", "SIZE", OPTS_RESTORE, opts_parse_window, FIELD(fault_window_bytes),
	 "with --strategy uffd: how much is brought at a page fault, 4K to 2M"},
	{"--populate", "WHAT", OPTS_RESTORE, opts_parse_populate, FIELD(populate),
	 "of the hot set, ahead: " SNAP_POPULATE_WORDS "; default: the strategy's habit"},
	{"--prefault", "on|off", OPTS_RESTORE, opts_parse_prefault, FIELD(prefault),
	 "map the hot set into the guest ahead; default: the strategy's habit"},
	{"--huge", "none|thp", OPTS_RESTORE, opts_parse_huge, FIELD(huge),
	 "transparent huge pages; default none"},
	{"--threads", "N", OPTS_RESTORE, opts_parse_threads, FIELD(threads),
	 "that populate, 1 to 64; default 1"},
	{"--memory-fd", "N", OPTS_RESTORE, opts_parse_memory_fd, FIELD(memory_fd),
	 "sealed memfd with the snapshot's memory; needs --strategy memfd"},
	{"--hot-fd", "N", OPTS_RESTORE, opts_parse_fd, FIELD(hot_fd),
	 "record which pages are touched, and write that there at the end; needs --strategy mmap"},
	{"--wait", NULL, OPTS_RESTORE, NULL, FIELD(wait),
	 "do all but run, then wait for the start on the control channel"},
	{"--zygote-fd", "N", OPTS_RESTORE, opts_parse_fd, FIELD(zygote_fd),
	 "open the snapshot, then make a waiting VM for each request that comes there"},
	{"--hard-timeout", "MS", OPTS_RESTORE, opts_parse_ms, FIELD(hard_timeout_ms),
	 "end the VM when it has run for so long"},
	{"--jail", "UID", OPTS_RESTORE, opts_parse_uid, FIELD(jail_uid),
	 "enter a jail with this uid, after all is open and before any of it is read"},
	{"--parents", "A:B...", OPTS_RESTORE, opts_parse_text, FIELD(parents),
	 "with --jail: the snapshots beside DIR that it stands on, the next one first"},
	{"--root-image", "FILE", OPTS_RESTORE, opts_parse_text, FIELD(root_image),
	 "with --jail: the root image that it was made with"},
	{"--file-max", "SIZE", OPTS_RESTORE, opts_parse_bytes, FIELD(file_max_bytes),
	 "with --jail: no file that it writes gets larger"},
	{"--parent", "NAME", OPTS_RESTORE, opts_parse_text, FIELD(parent),
	 "with --snapshot: the template this one was made from"},
	{"--diff", NULL, OPTS_RESTORE, NULL, FIELD(diff),
	 "with --parent: keep only the pages that differ from it"},
	{"--disk-dir", "DIR", BOTH, opts_parse_text, FIELD(disk_dir),
	 "where the scratch disk's unnamed file lives"},
	{"--console", "FILE|-", BOTH, opts_parse_text, FIELD(console),
	 "what the guest's console prints goes there; - is standard output"},
	{"--ctl-fd", "N", BOTH, opts_parse_fd, FIELD(ctl_fd),
	 "control channel; the VM ends when its other end closes"},
	{"--ctl-listen", "PATH", OPTS_RESTORE, opts_parse_text, FIELD(ctl_listen),
	 "Unix socket for owners, one at a time: the VM goes on when one leaves, and writes\n"
	 "                           snapshots when one asks for it"},
	{"--vsock", "PATH", BOTH, opts_parse_text, FIELD(vsock),
	 "Unix socket for streams to the guest; those from it go to PATH_<port>"},
	{"--hostname", "NAME", BOTH, opts_parse_text, FIELD(hostname), "default: thaw"},
	{"--request-fd", "N", BOTH, opts_parse_fd, FIELD(request_fd),
	 "first request for the guest's shim, read to its end"},
	{"--snapshot", "DIR", BOTH, opts_parse_text, FIELD(snapshot),
	 "write a snapshot there at the guest's checkpoint call"},
	{"--name", "NAME", BOTH, opts_parse_text, FIELD(name),
	 "with --snapshot: its name (required)"},
	{"--guest-kernel", "RELEASE", BOTH, opts_parse_text, FIELD(guest_kernel),
	 "with --snapshot: the guest kernel's release, for its manifest"},
	{"--replace", NULL, BOTH, NULL, FIELD(replace),
	 "with --snapshot: replace DIR if it exists"},
	{"--keep-running", NULL, BOTH, NULL, FIELD(keep_running),
	 "with --snapshot: go on after it is written"},
};

static const struct {
	const char *name;
	enum opts_command command;
	const char *help;
} opts_commands[] = {
	{"boot", OPTS_BOOT, "boot --kernel VMLINUX --cmdline TEXT [OPTION]..."},
	{"restore", OPTS_RESTORE, "restore DIR [OPTION]..."},
	{"--help", OPTS_HELP, NULL},
	{"--version", OPTS_VERSION, NULL},
};

static const struct opts_option *opts_find(const char *name, size_t len_bytes)
{
	for (size_t i = 0; i < ARRAY_SIZE(opts_table); i++) {
		if (strlen(opts_table[i].name) == len_bytes &&
		    !strncmp(opts_table[i].name, name, len_bytes))
			return &opts_table[i];
	}
	return NULL;
}

/** Parse the option at argv[*@at], and its value, which may be behind a '=' or be the next word. */
static int opts_parse_one(struct opts *opts, int argc, char *const *argv, int *at, char *why,
			  size_t why_bytes)
{
	const char *word = argv[*at], *equals = strchr(word, '='), *text, *wrong;
	const struct opts_option *option;

	option = opts_find(word, equals ? (size_t)(equals - word) : strlen(word));
	if (!option || !(option->commands & opts->command)) {
		snprintf(why, why_bytes, "%s: unknown option of this command; try --help", word);
		return -EINVAL;
	}
	if (!option->arg) {
		if (equals) {
			snprintf(why, why_bytes, "%s takes no value", option->name);
			return -EINVAL;
		}
		*(bool *)((char *)opts + option->offset) = true;
		return 0;
	}
	text = equals ? equals + 1 : *at + 1 < argc ? argv[++*at] : NULL;
	if (!text) {
		snprintf(why, why_bytes, "%s needs a value: %s", option->name, option->arg);
		return -EINVAL;
	}
	wrong = option->parse((char *)opts + option->offset, text);
	if (wrong) {
		snprintf(why, why_bytes, "%s %s: %s", option->name, text, wrong);
		return -EINVAL;
	}
	return 0;
}

/** What only all options together can show. Return: the message, or NULL. */
static const char *opts_check(const struct opts *opts)
{
	if (opts->command == OPTS_BOOT && (!opts->kernel || !opts->cmdline))
		return "boot needs --kernel and --cmdline";
	if (opts->command == OPTS_RESTORE && !opts->folder)
		return "restore needs the snapshot's folder";
	if (opts->command == OPTS_BOOT && (opts->disk_bytes != 0) != (opts->disk_dir != NULL))
		return "--disk-size and --disk-dir belong together";
	if (opts->disk_base && !opts->disk_bytes)
		return "--disk-base needs --disk-size";
	if (opts->hot_fd >= 0 && (!opts->strategy || strcmp(opts->strategy, "mmap") != 0))
		return "--hot-fd needs --strategy mmap";
	if (opts->fault_window_bytes && (!opts->strategy || strcmp(opts->strategy, "uffd") != 0))
		return "--fault-window needs --strategy uffd";
	if (opts->wait && opts->ctl_fd < 0)
		return "--wait needs --ctl-fd";
	if (opts->zygote_fd >= 0 &&
	    (opts->wait || opts->ctl_fd >= 0 || opts->ctl_listen || opts->vsock || opts->console))
		return "--zygote-fd goes without --wait, --ctl-fd, --ctl-listen, --vsock and "
		       "--console";
	if (opts->ctl_listen && opts->snapshot)
		return "--ctl-listen and --snapshot can't be combined: owners ask for snapshots";
	if ((opts->wait || opts->zygote_fd >= 0) &&
	    (opts->request_fd >= 0 || opts->hostname || opts->snapshot || opts->hot_fd >= 0))
		return "a VM that waits takes no --request-fd, --hostname, --snapshot or --hot-fd";
	if (opts->jail_uid &&
	    (opts->zygote_fd >= 0 || opts->snapshot || opts->hot_fd >= 0 || opts->memory_fd))
		return "--jail goes without --zygote-fd, --snapshot, --hot-fd and --memory-fd";
	if (!opts->jail_uid && (opts->parents || opts->root_image || opts->file_max_bytes))
		return "--parents, --root-image and --file-max need --jail";
	if (opts->wait && opts->hard_timeout_ms)
		return "a VM that waits gets its hard time-out at its start";
	if (opts->diff && !opts->parent)
		return "--diff needs --parent";
	if (opts->memory_fd && (!opts->strategy || strcmp(opts->strategy, "memfd") != 0))
		return "--memory-fd needs --strategy memfd";
	if (opts->snapshot && !opts->name)
		return "--snapshot needs --name";
	if (!opts->snapshot && (opts->name || opts->guest_kernel || opts->parent || opts->replace ||
				opts->keep_running))
		return "--name, --guest-kernel, --parent, --replace and --keep-running need --snapshot";
	return NULL;
}

int opts_parse(struct opts *opts, int argc, char *const *argv, char *why, size_t why_bytes)
{
	const char *wrong;
	int ret;

	*opts = (struct opts){.vcpus = 1,
			      .memory_bytes = 512 * MIB,
			      .ctl_fd = -1,
			      .request_fd = -1,
			      .hot_fd = -1,
			      .zygote_fd = -1};
	for (size_t i = 0; argc >= 2 && i < ARRAY_SIZE(opts_commands); i++) {
		if (!strcmp(argv[1], opts_commands[i].name))
			opts->command = opts_commands[i].command;
	}
	if (!opts->command) {
		snprintf(why, why_bytes, "%s: not a command; try --help",
			 argc >= 2 ? argv[1] : "(nothing)");
		return -EINVAL;
	}
	if (opts->command & (OPTS_HELP | OPTS_VERSION))
		return 0;
	for (int i = 2; i < argc; i++) {
		if (!strcmp(argv[i], "--help")) {
			opts->command = OPTS_HELP;
			return 0;
		}
		if (argv[i][0] == '-') {
			ret = opts_parse_one(opts, argc, argv, &i, why, why_bytes);
			if (ret)
				return ret;
		} else if (opts->command == OPTS_RESTORE && !opts->folder && *argv[i]) {
			opts->folder = argv[i];
		} else {
			snprintf(why, why_bytes, "%s: unexpected argument", argv[i]);
			return -EINVAL;
		}
	}
	wrong = opts_check(opts);
	if (wrong)
		snprintf(why, why_bytes, "%s", wrong);
	return wrong ? -EINVAL : 0;
}

static void opts_help_options(FILE *out, const char *title, unsigned int commands)
{
	fprintf(out, "\n%s:\n", title);
	for (size_t i = 0; i < ARRAY_SIZE(opts_table); i++) {
		const struct opts_option *option = &opts_table[i];
		char left[40];

		if (option->commands != commands)
			continue;
		snprintf(left, sizeof(left), "%s %s", option->name, option->arg ? option->arg : "");
		fprintf(out, "  %-24s %s\n", left, option->help);
	}
}

void opts_help(FILE *out)
{
	fputs("thaw-vmm runs one virtual machine: a cold boot, or a clone of a snapshot.\n\nUsage:\n",
	      out);
	for (size_t i = 0; i < ARRAY_SIZE(opts_commands); i++)
		fprintf(out, "  thaw-vmm %s\n",
			opts_commands[i].help ? opts_commands[i].help : opts_commands[i].name);
	opts_help_options(out, "Options of boot", OPTS_BOOT);
	opts_help_options(out, "Options of restore", OPTS_RESTORE);
	opts_help_options(out, "Options of both", BOTH);
	fputs("\nExit status: 0 the guest powered off, was stopped, or its snapshot is written;\n"
	      "3 the guest reset or crashed; 4 its hard time-out was over; 2 wrong usage; 1 any "
	      "other error.\n",
	      out);
}
