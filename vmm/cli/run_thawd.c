// SPDX-License-Identifier: Apache-2.0
// `thaw run` where thawd listens: a sandbox of its, for one command or to stay.
//
// One that is for a command alone is removed here when the command has ended. Should this process
// be killed first, thawd does it: it removes the sandbox when it stops (auto_remove), and stops it
// when nobody has used it for a minute. That is also what becomes of one whose terminal was left.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/exec_cmd.h"
#include "vmm/cli/exec_status.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/verb.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define EPHEMERAL_IDLE_NS 60000000000ull

/** Of -d, the entrypoint knows no other user and folder than its sandbox's. */
static int check_detached(const struct run_opts *opts)
{
	const char *option = opts->cwd				? "--workdir"
			     : opts->user.uid || opts->user.gid ? "--user"
								: NULL;

	if (!option || !opts->argv[0])
		return 0;
	log_err("option %s: can't be combined with --detach: 'thaw exec -d' has it", option);
	return -EINVAL;
}

static int create(struct client *client, const struct run_opts *opts, bool removed, json_t **box)
{
	const bool has_entrypoint = opts->detach && opts->argv[0];
	struct client_target target;
	struct spec_opts spec = opts->spec;
	json_t *body;

	if (!opts->detach && !spec.name && !spec.idle_ns && !spec.keep_alive)
		spec.idle_ns = EPHEMERAL_IDLE_NS;
	body = spec_json(&spec, opts->template_name, has_entrypoint ? opts->env.vars : NULL,
			 has_entrypoint ? opts->argv : NULL, opts->hostname);
	if (!body || (removed && json_object_set_new(body, "auto_remove", json_true()))) {
		log_err("run: the request can't be made: is all of it UTF-8?");
		json_decref(body);
		return -EINVAL;
	}
	client_target(&target, "/v1/sandboxes");
	return client_call(client, "POST", &target, body, box);
}

static void remove_box(struct client *client, const char *name)
{
	struct client_target target;

	client_target_box(&target, name, NULL);
	/* After an upgrade the connection is another protocol's. */
	client_close(client);
	if (client_call(client, "DELETE", &target, NULL, NULL))
		log_warn("sandbox %s: thawd removes it when it is idle", name);
}

int run_by_thawd(struct client *client, const struct run_opts *opts, u64 start_ns)
{
	const bool removed = opts->remove || (!opts->detach && !opts->spec.name);
	char name[CLIENT_NAME_BYTES];
	int status = CLI_RUN_FAILED, signal_fd = -1, ret;
	json_t *box = NULL;
	bool left;

	if (opts->detach && check_detached(opts))
		return CLI_RUN_FAILED;
	/* Before there is a sandbox: a signal then ends the command, and the sandbox is removed. */
	if (!opts->detach) {
		signal_fd = exec_open_signals(opts->tty);
		if (signal_fd < 0)
			return CLI_RUN_FAILED;
	}
	client->http.deadline_ns = opts->timeout_ns ? start_ns + opts->timeout_ns : 0;
	ret = create(client, opts, removed, &box);
	client->http.deadline_ns = 0;
	if (ret) {
		status = ret == -ETIMEDOUT ? CLI_RUN_TIMEOUT : CLI_RUN_FAILED;
		goto out;
	}
	snprintf(name, sizeof(name), "%s", client_string(box, "name"));
	if (opts->detach) {
		ret = opts->json ? json_print(box) : printf("%s\n", name);
		status = ret < 0 || cli_flush() ? CLI_RUN_FAILED : CLI_OK;
	} else {
		status = exec_by_thawd(client, name, opts, start_ns, signal_fd, &left);
		if (removed && !left)
			remove_box(client, name);
	}
out:
	json_decref(box);
	fd_close(&signal_fd);
	return status;
}
