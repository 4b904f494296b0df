// SPDX-License-Identifier: Apache-2.0
// `thaw exec`: a command in a sandbox that stays.
//
// In one of thawd's: by an upgraded connection (exec_api.c). Without it the stream is a connection
// of its own to the machine's vsock socket, so that any number of them run side by side and none of
// them needs the control channel.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/exec_api.h"
#include "vmm/cli/exec_cmd.h"
#include "vmm/cli/exec_status.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/sandbox.h"
#include "vmm/cli/tty.h"
#include "vmm/cli/verb.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** How long a machine that has dropped the command's stream gets to end. */
#define EXEC_LAST_WORDS_MS 1000

static void explain_lost(const struct state *state, const struct sandbox *sb,
			 const struct exec_result *result)
{
	pid_t pid;
	struct pollfd gone = {.fd = sandbox_pidfd(state, sb->id, &pid), .events = POLLIN};

	/* A machine that ends closes its streams first. */
	if (gone.fd < 0 || poll(&gone, 1, EXEC_LAST_WORDS_MS) == 1)
		log_err("sandbox %s ended, or was paused, before the command ended", sb->id);
	else
		log_err("the guest closed the command's stream%s%s", result->text[0] ? ": " : "",
			result->text);
	fd_close(&gone.fd);
}

static void explain_error(int ret)
{
	if (ret == -E2BIG)
		log_err("the command and its environment are too long: at most %u KiB and %u words",
			SHIM_EXEC_MAX_BYTES / 1024, SHIM_ARGS_MAX);
	else if (ret)
		log_err("exec: %s", strerror(-ret));
}

static int run_in_sandbox(const struct state *state, const struct sandbox *sb,
			  const struct run_opts *opts, u64 start_ns)
{
	struct exec_request request;
	struct exec_result result;
	struct shim_exec_ext ext;
	struct exec_io io;
	int fd, ret, signal_number;

	exec_prepare(opts, start_ns, false, &request, &ext, &io);
	fd = sandbox_stream(state, sb);
	if (fd < 0)
		return CLI_RUN_FAILED;
	io.signal_fd = exec_open_signals(io.tty);
	ret = io.signal_fd < 0 ? io.signal_fd : exec_begin_tty(&io);
	if (!ret)
		ret = exec_run(fd, &request, &io, &result);
	tty_restore();
	fd_close(&io.signal_fd);
	fd_close(&fd);
	explain_error(ret);
	if (ret)
		return CLI_RUN_FAILED;
	if (result.kind == EXEC_LOST)
		explain_lost(state, sb, &result);
	if (result.kind == EXEC_TIMEOUT)
		log_err("time-out: the command was killed");
	return exec_exit_status(&request, &result, &signal_number);
}

static int exec_local(const struct run_opts *opts, u64 start_ns)
{
	struct sandbox sb;
	struct state state;

	if (opts->detach && opts->timeout_ns) {
		log_err("option --timeout: can't be combined with --detach without thawd");
		return CLI_RUN_FAILED;
	}
	if (state_init(&state) || sandbox_find(&state, opts->template_name, &sb) ||
	    sandbox_want_running(&state, &sb, "exec"))
		return CLI_RUN_FAILED;
	return run_in_sandbox(&state, &sb, opts, start_ns);
}

int exec_by_thawd(struct client *client, const char *box, const struct run_opts *opts, u64 start_ns,
		  int signal_fd, bool *left)
{
	struct exec_api api = {.client = client, .box = box};
	struct exec_request request;
	struct exec_result result = {.kind = EXEC_LOST};
	struct shim_exec_ext ext;
	struct exec_io io;
	int ret, signal_number;

	exec_prepare(opts, start_ns, true, &request, &ext, &io);
	io.signal_fd = signal_fd;
	ret = exec_begin_tty(&io);
	if (!ret)
		ret = exec_api_run(&api, &request, &io, &result);
	tty_restore();
	*left = !ret && result.kind == EXEC_DETACHED;
	if (ret == -E2BIG)
		explain_error(ret);
	if (ret)
		return CLI_RUN_FAILED;
	if (result.kind == EXEC_TIMEOUT)
		log_err("time-out: the command was killed");
	if (*left)
		fprintf(stderr, "detached: thaw attach %s --exec %s\n", box, api.id);
	return exec_exit_status(&request, &result, &signal_number);
}

/** -d: thawd keeps what it prints. */
static int exec_detached(struct client *client, const char *box, const struct run_opts *opts)
{
	json_t *body, *answer, *env = env_json(opts->env.vars), *argv = argv_json(opts->argv);
	char user[32];
	int ret;

	snprintf(user, sizeof(user), "%u:%u", opts->user.uid, opts->user.gid);
	body = json_pack("{s:o, s:o, s:s, s:b}", "argv", argv, "env", env, "user", user, "detach",
			 1);
	if (!body) {
		log_err("exec: the request can't be made: is all of it UTF-8?");
		return CLI_RUN_FAILED;
	}
	if (opts->cwd)
		json_object_set_new(body, "cwd", json_string(opts->cwd));
	if (opts->timeout_ns)
		json_object_set_new(body, "timeout_ms",
				    json_integer((json_int_t)(opts->timeout_ns / 1000000) + 1));
	ret = verb_post(client, box, "exec", body, &answer);
	if (ret && !strcmp(client->stage, "exec"))
		return strcmp(client->error_name, "ENOENT") == 0 ? CLI_RUN_NOT_FOUND
								 : CLI_RUN_NOT_EXECUTABLE;
	if (ret)
		return CLI_RUN_FAILED;
	ret = opts->json ? json_print(answer) : printf("%s\n", client_string(answer, "id"));
	json_decref(answer);
	return ret < 0 || cli_flush() ? CLI_RUN_FAILED : CLI_OK;
}

/** Return: exit status. */
static int exec_somewhere(struct client *client, const struct run_opts *opts, u64 start_ns)
{
	char name[CLIENT_NAME_BYTES];
	json_t *box = NULL;
	int ret, signal_fd, status;
	bool left;

	ret = client_find(client, opts->template_name, &box);
	if (ret == -ENOENT && verb_is_local_id(opts->template_name))
		return exec_local(opts, start_ns);
	if (ret == -ENOENT)
		log_err("no sandbox '%.60s': 'thaw ps -a' lists them", opts->template_name);
	if (ret)
		return CLI_RUN_FAILED;
	snprintf(name, sizeof(name), "%s", client_string(box, "name"));
	json_decref(box);
	if (opts->detach)
		return exec_detached(client, name, opts);
	signal_fd = exec_open_signals(opts->tty);
	if (signal_fd < 0)
		return CLI_RUN_FAILED;
	status = exec_by_thawd(client, name, opts, start_ns, signal_fd, &left);
	fd_close(&signal_fd);
	return status;
}

int exec_main(struct cli *cli, int argc, char **argv)
{
	struct optparse_result result;
	struct run_opts opts;
	struct client client;
	int status = CLI_RUN_FAILED, ret;

	ret = exec_opts_parse(&opts, argc, argv, &result);
	if (ret) {
		log_err("%s", ret == -EINVAL ? result.error : strerror(-ret));
	} else if (result.help) {
		optparse_help(&exec_command, stdout);
		status = cli_flush() ? CLI_RUN_FAILED : CLI_OK;
	} else {
		ret = client_open(&client);
		if (!ret) {
			status = exec_somewhere(&client, &opts, cli->start_ns);
			client_close(&client);
		} else if (ret == -ENOENT) {
			status = exec_local(&opts, cli->start_ns);
		}
	}
	run_opts_free(&opts);
	return status;
}
