// SPDX-License-Identifier: Apache-2.0
// /v1/sandboxes: get or create, list, inspect, change, delete.
#include <errno.h>
#include <string.h>

#include "vmm/daemon/api_box.h"
#include "vmm/util/log.h"

#define LIST_DEFAULT 100u
#define LIST_MAX     1000u
#define REASON_MAX   256u

void api_refused(struct thawd *thawd, struct http_req *req, const char *action, const char *name,
		 struct box_error *err)
{
	json_t *details = err->details;

	err->details = NULL;
	audit_write(thawd, req, action, name, err->code, NULL);
	if (err->status == 503 && err->retry_s) {
		json_decref(details);
		http_reply_retry(req, err->retry_s, "%s", err->message);
		return;
	}
	http_reply_error(req, err->status, err->code, details, "%s", err->message);
}

static void not_found(struct http_req *req, const char *name)
{
	http_reply_error(req, 404, "not_found", NULL, "no sandbox '%.63s'", name);
}

struct box *api_box(struct thawd *thawd, struct http_req *req)
{
	const char *name = http_param(req, "name");
	struct box *box = boxes_get(thawd->boxes, name);

	if (!box)
		not_found(req, name);
	return box;
}

int api_busy(struct box *box, struct http_req *req)
{
	struct box_error err = {0};
	int ret = box_begin(box, req);

	if (!ret)
		return 0;
	(void)box_refuse_begin(box, ret, &err);
	if (ret == -ECANCELED)
		http_reply_retry(req, err.retry_s, "%s", err.message);
	else
		http_reply_error(req, err.status, err.code, NULL, "%s", err.message);
	return ret;
}

void api_reply_box(struct thawd *thawd, struct http_req *req, const char *action, struct box *box,
		   unsigned int status)
{
	json_t *object = box_json(box);

	audit_write(thawd, req, action, box->name, "ok", NULL);
	if (object)
		http_reply_json(req, status, object);
	else
		http_reply_error(req, 500, "internal", NULL, "out of memory");
}

json_t *api_body(struct http_req *req, const char *const *fields)
{
	json_t *body = http_body_json(req, 0);

	if (body && http_json_known(req, body, fields)) {
		json_decref(body);
		body = NULL;
	}
	return body;
}

static int bad_field(struct http_req *req, const char *field, const char *what)
{
	http_reply_error(req, 400, "invalid_request", json_pack("{s:s}", "field", field),
			 "field '%s': expected %s", field, what);
	return -EINVAL;
}

int api_text(struct http_req *req, const json_t *body, const char *field, size_t max,
	     const char **out)
{
	const json_t *value = json_object_get(body, field);

	if (!value || json_is_null(value))
		return 0;
	if (!json_is_string(value) || json_string_length(value) > max ||
	    strlen(json_string_value(value)) != json_string_length(value))
		return bad_field(req, field, "a string, not too long and without NUL");
	*out = json_string_value(value);
	return 0;
}

int api_number(struct http_req *req, const json_t *body, const char *field, u64 min, u64 max,
	       u64 *out)
{
	const json_t *value = json_object_get(body, field);

	if (!value)
		return 0;
	if (!json_is_integer(value) || json_integer_value(value) < (json_int_t)min ||
	    json_integer_value(value) > (json_int_t)max) {
		http_reply_error(req, 400, "invalid_request", json_pack("{s:s}", "field", field),
				 "field '%s': expected an integer from %llu to %llu", field,
				 (unsigned long long)min, (unsigned long long)max);
		return -EINVAL;
	}
	*out = (u64)json_integer_value(value);
	return 0;
}

int api_labels(struct http_req *req, const json_t *body, const json_t **out)
{
	const json_t *labels = json_object_get(body, "labels");
	struct box_error err = {0};

	if (!labels || !box_labels_check(labels, &err)) {
		*out = labels;
		return 0;
	}
	http_reply_error(req, err.status, err.code, err.details, "%s", err.message);
	return -EINVAL;
}

/** "start" of a body. Return: 0, or -EINVAL: answered. */
static int take_start(struct http_req *req, const json_t *body, bool *start)
{
	const json_t *value = json_object_get(body, "start");

	if (value && !json_is_boolean(value))
		return bad_field(req, "start", "true or false");
	*start = !value || json_is_true(value);
	return 0;
}

static int check_name(struct http_req *req, const char *name)
{
	if (box_name_ok(name))
		return 0;
	http_reply_error(req, 400, "invalid_request", NULL,
			 "'%.80s' can't be a sandbox's name: expected 1 to 63 of a-z, 0-9 and '-', "
			 "which is neither first nor last",
			 name);
	return -EINVAL;
}

static void create(struct thawd *thawd, struct http_req *req, const char *name, const json_t *body,
		   bool exclusive)
{
	struct box_error err = {0};
	struct box_spec spec;
	struct box *box = NULL;
	bool start, created = false;

	if (check_name(req, name) || take_start(req, body, &start))
		return;
	if (box_spec_parse(body, name, thawd->conf.default_template, &spec, &err) ||
	    box_create(thawd->boxes, name, &spec, start, exclusive, req, &box, &created, &err))
		api_refused(thawd, req, "sandbox.create", name, &err);
	else
		api_reply_box(thawd, req, created ? "sandbox.create" : "sandbox.get", box,
			      created ? 201 : 200);
	box_put(box);
}

static void serve_put(struct thawd *thawd, struct http_req *req)
{
	json_t *body = http_body_json(req, 0);

	if (!body)
		return;
	if (json_object_get(body, "name"))
		http_reply_error(req, 400, "unknown_field", json_pack("{s:s}", "field", "name"),
				 "unknown field 'name': the path has it");
	else
		create(thawd, req, http_param(req, "name"), body, false);
	json_decref(body);
}

static void serve_post(struct thawd *thawd, struct http_req *req)
{
	json_t *body = http_body_json(req, 0);
	char generated[BOX_NAME_MAX + 1];
	const char *name = NULL;

	if (!body)
		return;
	if (api_text(req, body, "name", 4096, &name))
		goto out;
	if (!name && box_random_name(generated)) {
		http_reply_error(req, 500, "internal", NULL, "no random bytes");
		goto out;
	}
	create(thawd, req, name ? name : generated, body, true);
out:
	json_decref(body);
}

static void serve_get(struct thawd *thawd, struct http_req *req)
{
	struct box *box = api_box(thawd, req);
	json_t *object = box ? box_json(box) : NULL;

	if (object)
		http_reply_json(req, 200, object);
	else if (box)
		http_reply_error(req, 500, "internal", NULL, "out of memory");
	box_put(box);
}

/** The machine ends by itself at its hard time-out, thawd there or not. */
static void set_deadline(struct box *box)
{
	s64 left_ms = box->started_ms + (s64)box->spec.hard_ms - utc_now_ms();
	u64 deadline_ms = box->spec.hard_ms ? (u64)MAX(left_ms, (s64)1) : 0;

	if (box->state != BOX_RUNNING)
		return;
	pthread_mutex_lock(&box->lock);
	box->hard_due_ms = deadline_ms ? box->boxes->now_ms() + deadline_ms : 0;
	pthread_mutex_unlock(&box->lock);
	if (vmmproc_deadline(&box->vmm, deadline_ms))
		log_warn("sandbox '%s': its machine does not know of its new hard time-out",
			 box->name);
}

static void swap_spec(struct box *box, struct box_spec *other)
{
	struct box_spec spec;

	pthread_mutex_lock(&box->lock);
	spec = box->spec;
	box->spec = *other;
	*other = spec;
	pthread_mutex_unlock(&box->lock);
}

static int patch(struct box *box, const json_t *body, struct box_error *err)
{
	struct box_spec other;
	int ret;

	if (box_spec_copy(&box->spec, &other))
		return box_refuse(err, 500, "internal", NULL, "out of memory");
	ret = box_spec_patch(&other, body, err);
	if (!ret) {
		swap_spec(box, &other);
		ret = box_save(box);
		if (ret) {
			swap_spec(box, &other);
			(void)box_refuse_row(ret, err,
					     "sandbox '%s': the change can't be written down: %s",
					     box->name, strerror(-ret));
		}
	}
	if (!ret && other.hard_ms != box->spec.hard_ms)
		set_deadline(box);
	box_spec_free(&other);
	return ret;
}

static void serve_patch(struct thawd *thawd, struct http_req *req)
{
	struct box *box = api_box(thawd, req);
	json_t *body = box ? http_body_json(req, 0) : NULL;
	struct box_error err = {0};
	int ret;

	if (body && !api_busy(box, req)) {
		ret = patch(box, body, &err);
		box_done(box);
		if (ret)
			api_refused(thawd, req, "sandbox.patch", box->name, &err);
		else
			api_reply_box(thawd, req, "sandbox.patch", box, 200);
	}
	json_decref(body);
	box_put(box);
}

static void serve_delete(struct thawd *thawd, struct http_req *req)
{
	const char *name = http_param(req, "name"), *reason = http_query(req, "reason");
	struct box *box = boxes_get(thawd->boxes, name);
	struct box_error err = {0};
	int ret = 0;

	if (reason && strlen(reason) > REASON_MAX) {
		http_reply_error(req, 400, "invalid_request", NULL, "reason: at most 256 bytes");
		box_put(box);
		return;
	}
	if (box)
		box_hurry(box);
	if (box)
		ret = box_begin(box, req);
	if (box && !ret) {
		ret = box_delete(box, reason, &err);
		box_done(box);
	} else if (ret == -ECANCELED) {
		(void)box_refuse_begin(box, ret, &err);
	} else {
		/* There is none, or another has deleted it meanwhile. */
		ret = 0;
	}
	box_put(box);
	if (ret) {
		api_refused(thawd, req, "sandbox.delete", name, &err);
		return;
	}
	audit_write(thawd, req, "sandbox.delete", name, "ok", NULL);
	http_reply_empty(req, 204);
}

struct list {
	struct http_req *req;
	json_t *boxes;
	const char *after, *state;
	u64 limit;
	bool more;
};

static int label_matches(void *opaque, const char *wanted)
{
	const json_t *labels = opaque;
	size_t len = strcspn(wanted, "=");
	char key[BOX_LABEL_KEY_MAX + 1];
	const char *value;

	if (!len || len > BOX_LABEL_KEY_MAX)
		return 1;
	memcpy(key, wanted, len);
	key[len] = '\0';
	value = json_string_value(json_object_get(labels, key));
	return !value || (wanted[len] && strcmp(value, wanted + len + 1) != 0);
}

static bool list_one(void *opaque, struct box *box)
{
	struct list *list = opaque;
	bool matches;
	json_t *object;

	if (list->after && strcmp(box->name, list->after) <= 0)
		return true;
	pthread_mutex_lock(&box->lock);
	matches = !box->gone &&
		  (!list->state || !strcmp(box_state_name(box->state), list->state)) &&
		  !http_query_all(list->req, "label", label_matches, box->spec.labels);
	pthread_mutex_unlock(&box->lock);
	if (!matches)
		return true;
	if (json_array_size(list->boxes) == list->limit) {
		list->more = true;
		return false;
	}
	object = box_json(box);
	return !json_array_append_new(list->boxes, object);
}

static bool state_known(const char *text)
{
	for (int i = 0; i < BOX_STATES; i++) {
		if (!strcmp(text, box_state_name((enum box_state)i)))
			return true;
	}
	return false;
}

static void serve_list(struct thawd *thawd, struct http_req *req)
{
	struct list list = {
		.req = req, .after = http_query(req, "cursor"), .state = http_query(req, "state")};
	const char *last = NULL;

	if (http_query_u64(req, "limit", 1, LIST_MAX, LIST_DEFAULT, &list.limit))
		return;
	if (list.state && !state_known(list.state)) {
		http_reply_error(req, 400, "invalid_request", NULL, "state: '%.40s' is none",
				 list.state);
		return;
	}
	list.boxes = json_array();
	boxes_each(thawd->boxes, list_one, &list);
	/* The name of the last one: who is deleted or made meanwhile moves nothing. */
	if (list.more)
		last = json_string_value(json_object_get(
			json_array_get(list.boxes, json_array_size(list.boxes) - 1), "name"));
	http_reply_json(req, 200,
			json_pack("{s:o, s:o}", "sandboxes", list.boxes, "next_cursor",
				  last ? json_string(last) : json_null()));
}

static const char *const list_query[] = {"label", "state", "limit", "cursor", NULL};
static const char *const delete_query[] = {"reason", NULL};
static const char *const wait_query[] = {"timeout_ms", NULL};

#define BOX "/v1/sandboxes/{name}"

const struct http_route api_sandbox_routes[] = {
	{HTTP_GET, "/v1/sandboxes", list_query, HTTP_RESERVED, serve_list},
	{HTTP_POST, "/v1/sandboxes", NULL, 0, serve_post},
	{HTTP_GET, BOX, NULL, HTTP_RESERVED, serve_get},
	{HTTP_PUT, BOX, NULL, 0, serve_put},
	{HTTP_PATCH, BOX, NULL, 0, serve_patch},
	{HTTP_DELETE, BOX, delete_query, HTTP_RESERVED, serve_delete},
	{HTTP_POST, BOX "/start", NULL, 0, api_start},
	{HTTP_POST, BOX "/stop", NULL, 0, api_stop},
	{HTTP_POST, BOX "/destroy", NULL, HTTP_RESERVED, api_destroy},
	{HTTP_POST, BOX "/signal", NULL, 0, api_signal},
	{HTTP_POST, BOX "/touch", NULL, 0, api_touch},
	{HTTP_POST, BOX "/pause", NULL, 0, api_pause},
	{HTTP_POST, BOX "/resume", NULL, 0, api_resume},
	{HTTP_POST, BOX "/fork", NULL, 0, api_fork},
	{HTTP_GET, BOX "/wait", wait_query, 0, api_wait},
	{HTTP_GET, BOX "/stats", NULL, 0, api_stats},
	{0, NULL, NULL, 0, NULL},
};
