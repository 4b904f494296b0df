// SPDX-License-Identifier: Apache-2.0
// `thaw run`: a machine that waits in a pool instead of a new one.
#include "vmm/cli/run_pool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** A machine can die between the pool's last look at it and its start. Once is bad luck. */
#define RUN_POOL_TRIES 2

static bool passes_by(const struct run_opts *opts)
{
	return opts->no_pool || opts->strategy || opts->populate || opts->prefault || opts->huge ||
	       opts->threads || opts->console_path;
}

static int start(struct vmmproc *vmm, const char *hostname, int request_fd)
{
	struct ctl_msg msg = {.version = CTL_VERSION, .type = CTL_START};

	if (hostname)
		snprintf(msg.text, sizeof(msg.text), "%s", hostname);
	return ctl_send(vmm->ctl_fd, &msg, request_fd);
}

/** Return: 1 on a hit, 0 when no machine is ready, -ENOENT without a pool, or -errno. */
static int try_claim(const struct state *state, const struct run_opts *opts, int request_fd,
		     struct vmmproc *vmm, struct run_pool *out)
{
	struct pool_shell_claim claim;
	int fd, ret;

	fd = pool_connect(state, opts->template_name);
	if (fd < 0)
		return fd;
	ret = pool_claim(fd, &claim);
	fd_close(&fd);
	if (ret <= 0)
		return ret;
	vmmproc_adopt(vmm, claim.pid, claim.ctl_fd, claim.pid_fd);
	ret = start(vmm, opts->hostname, request_fd);
	if (ret) {
		vmmproc_end(vmm);
		return ret;
	}
	memcpy(out->strategy, claim.strategy, sizeof(out->strategy));
	out->counters = claim.counters;
	return 1;
}

bool run_pool_start(const struct state *state, const struct run_opts *opts, int request_fd,
		    struct vmmproc *vmm, struct run_pool *out)
{
	int ret = -EPIPE;

	*out = (struct run_pool){.outcome = "none"};
	if (passes_by(opts))
		return false;
	for (unsigned int i = 0; i < RUN_POOL_TRIES && ret == -EPIPE; i++)
		ret = try_claim(state, opts, request_fd, vmm, out);
	if (ret == -ENOENT)
		return false;
	if (ret < 0)
		log_warn("pool of '%s': %s: a new machine is made", opts->template_name,
			 strerror(-ret));
	out->outcome = ret == 1 ? "hit" : "miss";
	return ret == 1;
}
