/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `thaw run`, apart from what it does, so that they can be tested. */
#ifndef THAW_CLI_RUN_OPTS_H
#define THAW_CLI_RUN_OPTS_H

#include "vmm/cli/optparse.h"
#include "vmm/cli/sandbox.h"
#include "vmm/cli/spec_opts.h"
#include "vmm/util/types.h"

/** What of the environment a command gets when -e does not say otherwise; PATH is the shim's
 * default. */
struct run_env {
	char **vars; /* owned array, NULL-terminated; strings are owned too */
	size_t count;
};

struct run_user {
	u32 uid, gid;
};

struct run_opts {
	const char *template_name;
	const char *strategy; /* NULL: the default */
	/* Handed on to thaw-vmm, as words; NULL: not given. */
	const char *populate, *prefault, *huge, *threads, *fault_window;
	const char *cwd; /* NULL: / */
	const char *json_path;
	const char *hostname;
	const char *console_path;
	u64 timeout_ns; /* 0: none */
	struct run_user user;
	bool with_stdin;
	bool tty; /* a terminal for the command */
	bool no_pool;
	enum sandbox_jail_kind jail; /* with @detach */
	bool local;		     /* not by thawd */
	bool remove;		     /* when it stops, also if it has a name */
	bool json;   /* with @detach: print the sandbox's (run) or the command's (exec) object */
	bool is_run; /* of `thaw run` */
	struct spec_opts spec;
	bool detach; /* start a sandbox that stays; then @argv may be empty */
	struct run_env env;
	char **argv; /* NULL-terminated: the tail of main's argv */
};

/** optparse_env() - struct run_env: NAME=VALUE, or NAME alone: its value here. A NAME that is not
 * set here is not set there. */
optparse_fn optparse_env;
void run_env_free(struct run_env *env);

/**
 * run_opts_parse() - @argv without "thaw run". Fills @opts; run_opts_free() is due in every case.
 * @result: holds the error text, or says that help is wanted.
 *
 * Return: 0, -EINVAL (usage error) or -ENOMEM.
 */
int __must_check run_opts_parse(struct run_opts *opts, int argc, char **argv,
				struct optparse_result *result);

/** exec_opts_parse() - the same for `thaw exec`: template_name is the sandbox's id. */
int __must_check exec_opts_parse(struct run_opts *opts, int argc, char **argv,
				 struct optparse_result *result);

/** run_restore_words() - the options of the restore that were given, as words for thaw-vmm: at most
 * 10 into @argv. Return: how many. */
size_t run_restore_words(const struct run_opts *opts, const char **argv);
void run_opts_free(struct run_opts *opts);

/** run_local_option() - an option that was given and can only be done without thawd, as "--json";
 * NULL: none was. */
const char *run_local_option(const struct run_opts *opts);

#endif
