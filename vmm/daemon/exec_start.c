// SPDX-License-Identifier: Apache-2.0
// The beginning of an exec: written down before the guest hears of it.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "vmm/daemon/exec_spec.h"
#include "vmm/daemon/exec_table.h"
#include "vmm/daemon/exec_text.h"
#include "vmm/daemon/notes.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

static void take_spec(struct kept *kept, const struct exec_spec *spec)
{
	json_decref(kept->argv);
	kept->argv = json_incref(spec->argv);
	kept->pty = spec->pty;
	kept->combined = spec->combined;
	kept->detached = spec->detached;
	kept->entrypoint = spec->entrypoint;
	kept->with_stdin = spec->with_stdin;
	kept->in.open = spec->with_stdin;
	kept->timeout_ms = spec->timeout_ms;
	kept->started_ns = exec_now_ns();
}

int kept_start(struct thawd *thawd, const struct box_use *use, const struct exec_spec *spec,
	       int stop_fd, struct kept **out)
{
	struct execs *execs = thawd_execs(thawd);
	struct kept *kept;
	int fd, ret;

	kept = kept_new(execs, use, spec->id);
	if (!kept)
		return -ENOMEM;
	take_spec(kept, spec);
	ret = kept_add(kept, execs_settings(execs)->running_max);
	if (ret)
		goto out_put;
	fd = box_stream(thawd, use, 0, stop_fd);
	if (fd < 0) {
		ret = fd;
		goto out_remove;
	}
	ret = kept_meta_save(kept);
	if (ret) {
		close(fd);
		goto out_remove;
	}
	ret = kept_pull_start(kept, spec->payload, spec->payload_bytes, fd, false);
	if (ret) {
		log_err("sandbox %s: a thread for an exec: %s", kept->box, strerror(-ret));
		goto out_remove;
	}
	metric_add(thawd, METRIC_EXECS, 1);
	event_emit(thawd, "exec.started", kept->box,
		   json_pack("{s:s, s:b, s:b}", "id", kept->id, "detached", kept->detached, "pty",
			     kept->pty));
	*out = kept;
	return 0;
out_remove:
	kept_remove(kept);
out_put:
	kept_put(kept);
	return ret;
}
