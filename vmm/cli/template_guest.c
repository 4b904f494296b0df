// SPDX-License-Identifier: Apache-2.0
// `thaw template build`, the guest's part: boot or restore, warm-up, checkpoint.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/exec.h"
#include "vmm/cli/lineage.h"
#include "vmm/cli/template_build.h"
#include "vmm/snapshot/mem.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * The stock kernel without what a microVM does not have. The console is virtio's: a serial port
 * costs an exit a byte. What is switched off are self-tests and key loading of the boot;
 * mitigations stay on, since the guest's own processes may not trust each other.
 */
#define BUILD_CMDLINE                                                                           \
	"console=hvc0 quiet loglevel=4 pci=off nokaslr tsc=reliable panic=-1 reboot=t audit=0 " \
	"cryptomgr.notests "                                                                    \
	"initcall_blacklist=jent_mod_init,load_system_certificate_list,init_ima,init_evm,"      \
	"blacklist_init"

static void log_step(const struct build *build, const char *text)
{
	char line[256];
	int n = snprintf(line, sizeof(line), "thaw: %s\n", text);

	if (n > 0 && write(build->log_fd, line, MIN((size_t)n, sizeof(line) - 1)) < 0)
		log_debug("%s: %s", build->log_path, strerror(errno));
}

/** Words of thaw-vmm's command line; numbers are kept in @text. */
struct words {
	const char *argv[48];
	size_t count;
	char text[3][32];
	char kernel[PATH_MAX], initramfs[PATH_MAX], scratch[PATH_MAX];
};

static void add(struct words *words, const char *word)
{
	BUG_ON(words->count + 1 >= ARRAY_SIZE(words->argv));
	words->argv[words->count++] = word;
	words->argv[words->count] = NULL;
}

static void add_option(struct words *words, const char *option, const char *value)
{
	add(words, option);
	add(words, value);
}

static const char *number(char text[32], u64 value)
{
	snprintf(text, 32, "%llu", (unsigned long long)value);
	return text;
}

static int add_boot(struct build *build, struct words *words)
{
	const struct recipe *recipe = &build->recipe;
	int n;

	n = snprintf(build->cmdline, sizeof(build->cmdline), "%s%s%s%s%s", BUILD_CMDLINE,
		     build->opts.serial ? " console=ttyS0 8250.nr_uarts=1 loglevel=7"
					: " 8250.nr_uarts=0",
		     recipe->scratch_bytes ? "" : " thaw.scratch=none",
		     recipe->cmdline_extra[0] ? " " : "", recipe->cmdline_extra);
	if (n < 0 || n >= (int)sizeof(build->cmdline)) {
		log_err("cmdline_extra: too long");
		return -E2BIG;
	}
	guest_files_path(&build->guest, "vmlinux", words->kernel);
	guest_files_path(&build->guest, "initramfs.cpio", words->initramfs);
	add(words, "boot");
	add_option(words, "--kernel", words->kernel);
	add_option(words, "--initramfs", words->initramfs);
	add_option(words, "--cmdline", build->cmdline);
	add_option(words, "--vcpus", number(words->text[0], recipe->vcpus));
	add_option(words, "--memory", number(words->text[1], recipe->memory_bytes));
	add_option(words, "--root", build->image);
	if (recipe->scratch_bytes) {
		add_option(words, "--disk-size", number(words->text[2], recipe->scratch_bytes));
		add_option(words, "--disk-dir", words->scratch);
		add_option(words, "--disk-base", VMMPROC_FILE_PATH);
	}
	if (build->opts.serial)
		add(words, "--serial");
	add_option(words, "--guest-kernel", build->guest.kernel);
	return 0;
}

static void add_restore(struct build *build, struct words *words)
{
	add(words, "restore");
	add(words, build->from_folder);
	add_option(words, "--strategy", snap_mem_find(build->opts.strategy)->name);
	add_option(words, "--disk-dir", words->scratch);
	add_option(words, "--parent", build->opts.from);
	if (!build->opts.whole)
		add(words, "--diff");
}

static int start(struct build *build)
{
	struct vmmproc_opts vmm_opts = {
		.output_fd = build->log_fd, .log_fd = build->log_fd, .file_fd = build->disk_fd};
	struct words words = {.count = 0};
	int ret;

	state_path(&build->state, "scratch", NULL, NULL, words.scratch);
	add(&words, "thaw-vmm");
	if (build->opts.from) {
		add_restore(build, &words);
	} else {
		ret = add_boot(build, &words);
		if (ret)
			return ret;
	}
	add_option(&words, "--console", "-");
	add_option(&words, "--ctl-fd", VMMPROC_CTL_TEXT);
	add_option(&words, "--snapshot", build->folder);
	add_option(&words, "--name", build->name);
	if (build->opts.replace)
		add(&words, "--replace");
	vmm_opts.argv = words.argv;
	progress_phase(&build->progress, build->opts.from ? "restore" : "boot");
	log_step(build, build->opts.from ? "restore" : "boot");
	return vmmproc_start(&build->vmm, &vmm_opts);
}

/** Say why thaw-vmm is gone, or what else @ret means. */
static void explain(struct build *build, const char *phase, int ret)
{
	char why[320];

	progress_break(&build->progress);
	if (ret == -ETIMEDOUT) {
		log_err("%s: time-out: --timeout TIME allows more", phase);
		return;
	}
	if (ret != -EPIPE)
		return;
	if (!build->vmm.exit_seen)
		vmmproc_reap(&build->vmm);
	vmmproc_why(&build->vmm, why, sizeof(why));
	log_err("%s: %s", phase, why);
}

static int wait_up(struct build *build)
{
	const bool *up = build->opts.from ? &build->vmm.resumed : &build->vmm.ready;
	int ret;

	ret = vmmproc_wait(&build->vmm, up, build->deadline_ns, -1, progress_tick,
			   &build->progress);
	if (ret)
		explain(build, build->opts.from ? "restore" : "boot", ret);
	return ret;
}

static int watch_vmm(void *opaque)
{
	struct build *build = opaque;
	int ret = vmmproc_receive(&build->vmm);

	return ret == -EPIPE ? 1 : ret;
}

static int conclude_warm(struct build *build, const struct exec_result *result)
{
	progress_break(&build->progress);
	switch (result->kind) {
	case EXEC_EXITED:
		if (result->value == 0)
			return 0;
		log_err("warm-up: exit status %u", result->value);
		return -EIO;
	case EXEC_SIGNALLED:
		log_err("warm-up: ended by signal %u (%s)", result->value,
			strsignal((int)result->value));
		return -EIO;
	case EXEC_SPAWN_ERROR:
		log_err("warm-up: %s%s%s", strerror(result->error), result->text[0] ? ": " : "",
			result->text);
		return -EIO;
	case EXEC_TIMEOUT:
		log_err("warm-up: time-out: --timeout TIME allows more");
		return -ETIMEDOUT;
	case EXEC_LOST:
		if (vmmproc_wait(&build->vmm, &build->vmm.exit_seen, clock_now_ns() + 1000000000ull,
				 -1, NULL, NULL) == -ETIMEDOUT)
			log_err("warm-up: the guest closed the command's stream");
		else
			explain(build, "warm-up", -EPIPE);
		return -EIO;
	case EXEC_DETACHED:
	case EXEC_PROTOCOL:
	case EXEC_OUTPUT_ERROR:
	case EXEC_ABORTED:
		log_err("warm-up: %s",
			result->text[0] ? result->text : strerror(abs(result->error)));
		return -EIO;
	}
	return -EIO;
}

static int warm_up(struct build *build, char *const *argv)
{
	static const char *const env[] = {"HOME=/root", "LANG=C.UTF-8", NULL};
	struct exec_request request = {.argv = argv, .env = (char *const *)env};
	struct exec_io io = {.stdin_fd = -1,
			     .stdout_fd = build->log_fd,
			     .stderr_fd = build->log_fd,
			     .signal_fd = -1,
			     .watch_fd = build->vmm.ctl_fd,
			     .watch = watch_vmm,
			     .opaque = build,
			     .deadline_ns = build->deadline_ns};
	struct exec_result result = {.kind = EXEC_LOST};
	int fd, ret = 0;

	fd = vmmproc_connect(&build->vmm, SHIM_PORT);
	if (fd >= 0)
		ret = exec_run(fd, &request, &io, &result);
	else if (fd != -EPIPE)
		ret = fd;
	fd_close(&fd);
	if (!ret)
		return conclude_warm(build, &result);
	progress_break(&build->progress);
	log_err("warm-up: %s", strerror(-ret));
	return ret;
}

static int warm_all(struct build *build)
{
	const struct warm_list *lists[] = {&build->recipe.warm, &build->opts.warm};
	size_t total = lists[0]->count + lists[1]->count, done = 0;
	int ret = 0;

	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		for (size_t j = 0; !ret && j < lists[i]->count; j++) {
			char *const *argv = lists[i]->commands[j];
			char line[160];
			size_t used = 0;

			for (size_t k = 0; argv[k] && used < sizeof(line); k++)
				used += (size_t)snprintf(line + used, sizeof(line) - used, "%s%s",
							 k ? " " : "", argv[k]);
			progress_phase(&build->progress, "warm-up %zu/%zu: %s", ++done, total,
				       line);
			log_step(build, line);
			ret = warm_up(build, argv);
		}
	}
	return ret;
}

static int checkpoint(struct build *build)
{
	int fd, ret = 0;

	/* The first look is minutes old. From then on sandboxes are kept whole (vmm/snapreq.c), but
	 * what was under way is published by now. */
	if (build->opts.replace && access(build->folder, F_OK) == 0) {
		progress_break(&build->progress);
		ret = lineage_refuse(&build->state, build->name, "replaced");
	}
	if (ret)
		return ret;
	progress_phase(&build->progress, "snapshot");
	log_step(build, "snapshot");
	fd = vmmproc_connect(&build->vmm, SHIM_PORT);
	ret = fd < 0 ? fd : exec_checkpoint(fd, build->deadline_ns);
	/* The shim waits for the end of this stream before it checkpoints: no connection is open in
	 * the snapshot. */
	fd_close(&fd);
	if (ret && ret != -EPIPE) {
		progress_break(&build->progress);
		log_err("snapshot: the guest refused: %s", strerror(-ret));
		return ret;
	}
	ret = vmmproc_wait(&build->vmm, &build->vmm.snapshot_seen, build->deadline_ns, -1,
			   progress_tick, &build->progress);
	if (ret) {
		explain(build, "snapshot", ret);
		return ret;
	}
	if (build->vmm.snapshot_error) {
		progress_break(&build->progress);
		log_err("snapshot: %s", build->vmm.text[0] ? build->vmm.text
							   : strerror(-build->vmm.snapshot_error));
		return -EIO;
	}
	/* Published. What is left is the VMM's own end; it has been told to end after the snapshot.
	 */
	ret = vmmproc_wait(&build->vmm, &build->vmm.exit_seen, build->deadline_ns, -1,
			   progress_tick, &build->progress);
	if (ret && ret != -EPIPE)
		log_warn("thaw-vmm did not end by itself after the snapshot");
	return 0;
}

int build_guest(struct build *build)
{
	int ret = start(build);

	if (!ret)
		ret = wait_up(build);
	if (!ret)
		ret = warm_all(build);
	return ret ? ret : checkpoint(build);
}
