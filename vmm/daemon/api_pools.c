// SPDX-License-Identifier: Apache-2.0
// /v1/pools, and /v1/prune.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/daemon/api_box.h"
#include "vmm/daemon/pools.h"

void api_pool_list(struct thawd *thawd, struct http_req *req)
{
	http_reply_json(req, 200, json_pack("{s:o}", "pools", pools_json(thawd->boxes, NULL)));
}

void api_pool_put(struct thawd *thawd, struct http_req *req)
{
	static const char *const fields[] = {"size", "populate", NULL};
	const char *name = http_param(req, "template");
	json_t *body = api_body(req, fields), *pool;
	char path[PATH_MAX];
	u64 size = 0;

	if (!body)
		return;
	if (api_number(req, body, "size", 1, POOLS_SIZE_MAX, &size))
		goto out;
	if (!size || json_is_true(json_object_get(body, "populate"))) {
		http_reply_error(req, 400, size ? "unsupported" : "invalid_request", NULL,
				 size ? "field 'populate': machines of thawd's pools are not "
					"populated ahead: leave it out, or false"
				      : "field 'size': expected an integer from 1 to 128");
		goto out;
	}
	if (state_name_ok(name))
		state_path(&thawd->state, "templates", name, "", path);
	if (!state_name_ok(name) || access(path, F_OK) < 0) {
		http_reply_error(req, 404, "not_found", NULL, "no template '%.63s'", name);
		goto out;
	}
	pool = pools_set(thawd->boxes, name, (u32)size) ? NULL : pools_json(thawd->boxes, name);
	audit_write(thawd, req, "pool.set", NULL, pool ? "ok" : "internal",
		    json_pack("{s:s, s:I}", "template", name, "size", (json_int_t)size));
	if (pool)
		http_reply_json(req, 200, pool);
	else
		http_reply_error(req, 500, "internal", NULL, "out of memory");
out:
	json_decref(body);
}

void api_pool_delete(struct thawd *thawd, struct http_req *req)
{
	const char *name = http_param(req, "template");

	if (state_name_ok(name) && pools_set(thawd->boxes, name, 0)) {
		http_reply_error(req, 500, "internal", NULL, "out of memory");
		return;
	}
	audit_write(thawd, req, "pool.delete", NULL, "ok", json_pack("{s:s}", "template", name));
	http_reply_empty(req, 204);
}

struct prune {
	bool stopped, snapshots, logs;
	json_t *removed;
};

static void told(struct prune *prune, const char *kind, const char *name)
{
	(void)!json_array_append_new(prune->removed,
				     json_pack("{s:s, s:s}", "kind", kind, "name", name));
}

static bool prune_one(void *opaque, struct box *box)
{
	struct prune *prune = opaque;
	struct box_error err = {0};

	/* One that somebody is at work on is in use. */
	if (box_try_begin(box))
		return true;
	if (box->state == BOX_STOPPED || box->state == BOX_FAILED) {
		if (prune->stopped && !box_delete(box, NULL, &err)) {
			told(prune, "sandbox", box->name);
		} else if (prune->logs && box->machine[0]) {
			box_drop_folder(box);
			(void)!box_save(box);
			told(prune, "log", box->name);
		}
	}
	box_done(box);
	return true;
}

void api_prune(struct thawd *thawd, struct http_req *req)
{
	static const char *const fields[] = {"what", NULL};
	json_t *body = api_body(req, fields), *what = json_object_get(body, "what"), *word;
	struct prune prune = {0};
	bool ok = json_is_array(what) && json_array_size(what);
	size_t i;

	if (!body)
		return;
	json_array_foreach(what, i, word)
	{
		const char *text = json_is_string(word) ? json_string_value(word) : "";

		prune.stopped |= !strcmp(text, "stopped");
		prune.snapshots |= !strcmp(text, "snapshots");
		prune.logs |= !strcmp(text, "logs");
		ok &= !strcmp(text, "stopped") || !strcmp(text, "snapshots") ||
		      !strcmp(text, "logs");
	}
	json_decref(body);
	if (!ok) {
		http_reply_error(req, 400, "invalid_request", json_pack("{s:s}", "field", "what"),
				 "field 'what': expected an array of \"stopped\", \"snapshots\", "
				 "\"logs\"");
		return;
	}
	prune.removed = json_array();
	if (prune.stopped || prune.logs)
		boxes_each(thawd->boxes, prune_one, &prune);
	if (prune.snapshots)
		snaps_prune(thawd->boxes, prune.removed);
	audit_write(thawd, req, "prune", NULL, "ok",
		    json_pack("{s:I}", "removed", (json_int_t)json_array_size(prune.removed)));
	http_reply_json(req, 200, json_pack("{s:o}", "removed", prune.removed));
}
