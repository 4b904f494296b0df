// SPDX-License-Identifier: Apache-2.0
// /v1/snapshots, and those of a sandbox.
#include <errno.h>

#include "vmm/daemon/api_box.h"

static void serve_make(struct thawd *thawd, struct http_req *req)
{
	static const char *const fields[] = {"name", "labels", NULL};
	struct box *box = api_box(thawd, req);
	json_t *body = box ? api_body(req, fields) : NULL, *row = NULL;
	const json_t *labels = NULL;
	const char *name = NULL;
	struct box_error err = {0};

	if (!body || api_text(req, body, "name", 4096, &name) || api_labels(req, body, &labels))
		goto out;
	if (name && !box_name_ok(name))
		box_refuse(&err, 400, "invalid_request", NULL,
			   "field 'name': expected 1 to 63 of a-z, 0-9 and '-', which is neither "
			   "first nor last");
	if (err.status || snaps_make(box, req, name, labels, &row, &err)) {
		api_refused(thawd, req, "snapshot.create", box->name, &err);
		goto out;
	}
	audit_write(thawd, req, "snapshot.create", box->name, "ok", NULL);
	http_reply_json(req, 201, row);
out:
	json_decref(body);
	box_put(box);
}

static void serve_list(struct thawd *thawd, struct http_req *req)
{
	json_t *list = snaps_list(thawd->boxes, http_query(req, "sandbox"));

	http_reply_json(req, 200, json_pack("{s:o}", "snapshots", list));
}

static void serve_get(struct thawd *thawd, struct http_req *req)
{
	const char *id = http_param(req, "id");
	json_t *row = snaps_find(thawd->boxes, id);

	if (row)
		http_reply_json(req, 200, row);
	else
		http_reply_error(req, 404, "not_found", NULL, "no snapshot '%.63s'", id);
}

static void serve_delete(struct thawd *thawd, struct http_req *req)
{
	const char *id = http_param(req, "id");
	struct box_error err = {0};

	if (snaps_remove(thawd->boxes, id, &err)) {
		api_refused(thawd, req, "snapshot.delete", NULL, &err);
		return;
	}
	audit_write(thawd, req, "snapshot.delete", NULL, "ok", json_pack("{s:s}", "id", id));
	http_reply_empty(req, 204);
}

static const char *const list_query[] = {"sandbox", NULL};

const struct http_route api_snapshot_routes[] = {
	{HTTP_POST, "/v1/sandboxes/{name}/snapshots", NULL, 0, serve_make},
	{HTTP_GET, "/v1/snapshots", list_query, 0, serve_list},
	{HTTP_GET, "/v1/snapshots/{id}", NULL, 0, serve_get},
	{HTTP_DELETE, "/v1/snapshots/{id}", NULL, 0, serve_delete},
	{0, NULL, NULL, 0, NULL},
};
