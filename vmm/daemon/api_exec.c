// SPDX-License-Identifier: Apache-2.0
// Stands in for the part that is to come: execs.
#include "vmm/daemon/box.h"
#include "vmm/daemon/http.h"
#include "vmm/daemon/thawd.h"

const struct http_route api_exec_routes[] = {{0, NULL, NULL, 0, NULL}};

int execs_start(struct thawd *thawd)
{
	(void)thawd;
	return 0;
}

void execs_stop(struct thawd *thawd)
{
	(void)thawd;
}

int exec_box_started(struct thawd *thawd, const struct box_use *use, const json_t *entrypoint,
		     const json_t *env, char *why, size_t why_bytes)
{
	(void)thawd, (void)use, (void)entrypoint, (void)env, (void)why, (void)why_bytes;
	return 0;
}

void exec_box_stopped(struct thawd *thawd, const char *name, u64 incarnation)
{
	(void)thawd, (void)name, (void)incarnation;
}

int exec_box_signal_entrypoint(struct thawd *thawd, const struct box_use *use, u32 signal)
{
	(void)thawd, (void)use, (void)signal;
	return -3;
}
