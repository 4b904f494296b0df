// SPDX-License-Identifier: Apache-2.0
// Stands in for the part that is to come: boxes.
#include <errno.h>
#include <string.h>

#include "vmm/daemon/box.h"
#include "vmm/daemon/http.h"
#include "vmm/daemon/thawd.h"

int boxes_start(struct thawd *thawd)
{
	(void)thawd;
	return 0;
}

void boxes_stop(struct thawd *thawd)
{
	(void)thawd;
}

int box_use(struct thawd *thawd, struct http_req *req, struct box_use *use)
{
	(void)thawd, (void)use;
	http_reply_error(req, 404, "not_found", NULL, "no such sandbox");
	return -ENOENT;
}

void box_use_end(struct thawd *thawd, struct box_use *use)
{
	(void)thawd, (void)use;
}

int box_use_quiet(struct thawd *thawd, const char *name, struct box_use *use)
{
	(void)thawd, (void)name, (void)use;
	return -ENOENT;
}

bool box_name_ok(const char *name)
{
	return *name;
}

const char *box_name(const struct box *box)
{
	(void)box;
	return "";
}

void box_run_path(const struct box_use *use, const char *file, char *out)
{
	(void)use, (void)file;
	*out = 0;
}

int box_stream(struct thawd *thawd, const struct box_use *use)
{
	(void)thawd, (void)use;
	return -ENODEV;
}

void box_limits(const struct box_use *use, struct box_limits *out)
{
	(void)use;
	memset(out, 0, sizeof(*out));
}

void box_preview_token(struct thawd *thawd, const struct box_use *use, char out[33])
{
	(void)thawd, (void)use;
	*out = 0;
}

void box_entrypoint_ended(struct thawd *thawd, const char *name, u64 incarnation, int exit_code)
{
	(void)thawd, (void)name, (void)incarnation, (void)exit_code;
}
