/* SPDX-License-Identifier: Apache-2.0 */
/* Commands in sandboxes of thawd: exec_run() over an upgraded connection, and over the next one if
 * thawd goes away in the middle. */
#ifndef THAW_CLI_EXEC_API_H
#define THAW_CLI_EXEC_API_H

#include "vmm/cli/client.h"
#include "vmm/cli/exec.h"
#include "vmm/cli/run_opts.h"

/** How long a thawd that has gone is waited for. */
#define EXEC_API_RETURN_NS 30000000000ull

struct exec_api {
	struct client *client;
	const char *box;
	char id[64]; /* of the command, once it is known */
};

/** exec_api_run() - exec_run() of @request in api->box. Return: 0 with @result, -EREMOTEIO or
 * -errno (logged). A lost connection has been explained. */
int __must_check exec_api_run(struct exec_api *api, const struct exec_request *request,
			      const struct exec_io *io, struct exec_result *result);

/** exec_api_attach() - the same for command api->id. @cursor: where its output begins; -1: a little
 * before now. */
int __must_check exec_api_attach(struct exec_api *api, s64 cursor, const struct exec_io *io,
				 struct exec_result *result);

/**
 * exec_prepare() - what @opts mean for a request and its fds. A terminal is only measured.
 * @ext: becomes part of @request; with @by_thawd also its time-out is in it.
 */
void exec_prepare(const struct run_opts *opts, u64 start_ns, bool by_thawd,
		  struct exec_request *request, struct shim_exec_ext *ext, struct exec_io *io);

/** exec_begin_tty() - make the terminal raw if there is one, right before exec_run();
 * tty_restore() is due. Return: 0 or -errno (logged). */
int __must_check exec_begin_tty(const struct exec_io *io);

#endif
