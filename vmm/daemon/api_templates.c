// SPDX-License-Identifier: Apache-2.0
// /v1/templates; the table of routes also has pools and prune.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/lineage.h"
#include "vmm/daemon/api_box.h"
#include "vmm/snapshot/manifest.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** Is @name that of another size of a template? *@base: how long the template's name is. */
static bool is_derived(const struct state *state, const char *name, size_t *base)
{
	char own[STATE_NAME_MAX + 1], path[PATH_MAX];
	const char *at = strrchr(name, '.');
	unsigned int vcpus;
	unsigned long long memory;

	if (!at || at == name || sscanf(at, ".c%um%llu", &vcpus, &memory) != 2)
		return false;
	*base = (size_t)(at - name);
	memcpy(own, name, *base);
	own[*base] = '\0';
	state_path(state, "templates", own, "", path);
	return access(path, F_OK) == 0;
}

/** Names of the named sizes of @name that are there. */
static json_t *sizes_of(const struct state *state, const char *name, u32 vcpus, u64 memory_bytes)
{
	static const char *const all[] = {"lite",	"basic",      "standard-1",
					  "standard-2", "standard-3", "standard-4"};
	json_t *list = json_array();

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		const struct box_size *size = box_size_find(all[i]);
		char derived[STATE_NAME_MAX + 1], path[PATH_MAX];
		bool there = size->vcpus == vcpus && size->memory_bytes == memory_bytes;

		if (!there &&
		    !template_derived(name, size->vcpus, size->memory_bytes, -1, derived)) {
			state_path(state, "templates", derived, "", path);
			there = access(path, F_OK) == 0;
		}
		if (there)
			(void)!json_array_append_new(list, json_string(all[i]));
	}
	return list;
}

/** NULL: there is none, or it can't be read. */
static json_t *template_json(const struct state *state, const char *name)
{
	struct snap_manifest manifest;
	struct log_keep keep;
	char path[PATH_MAX];
	u64 disk_bytes = 0;
	json_t *object;
	int fd, ret;

	if (!state_name_ok(name) || sandbox_is_snap(name))
		return NULL;
	state_path(state, "templates", name, "", path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	log_keep_begin(&keep, false);
	ret = snap_manifest_read(fd, path, &manifest);
	log_keep_end(&keep);
	fd_close(&fd);
	if (ret)
		return NULL;
	(void)!state_disk_usage(path, &disk_bytes);
	object = json_pack("{s:s, s:o, s:i, s:I, s:I, s:o}", "name", name, "created",
			   manifest.created ? json_string(manifest.created) : json_null(), "vcpus",
			   (int)manifest.vcpus, "memory_bytes", (json_int_t)manifest.memory_bytes,
			   "disk_bytes", (json_int_t)disk_bytes, "sizes",
			   sizes_of(state, name, manifest.vcpus, manifest.memory_bytes));
	snap_manifest_free(&manifest);
	return object;
}

static void serve_list(struct thawd *thawd, struct http_req *req)
{
	json_t *list = json_array(), *one;
	struct state_names names;
	size_t base;

	if (state_list_templates(&thawd->state, &names)) {
		json_decref(list);
		http_reply_error(req, 500, "internal", NULL, "templates can't be listed");
		return;
	}
	for (size_t i = 0; i < names.count; i++) {
		/* Sizes are told of with their template. */
		if (is_derived(&thawd->state, names.names[i], &base))
			continue;
		one = template_json(&thawd->state, names.names[i]);
		if (one)
			(void)!json_array_append_new(list, one);
	}
	state_names_free(&names);
	http_reply_json(req, 200, json_pack("{s:o}", "templates", list));
}

static void no_template(struct http_req *req, const char *name)
{
	http_reply_error(req, 404, "not_found", NULL,
			 "no template '%.63s': GET /v1/templates lists them", name);
}

static void serve_get(struct thawd *thawd, struct http_req *req)
{
	const char *name = http_param(req, "name");
	json_t *object = template_json(&thawd->state, name);

	if (object)
		http_reply_json(req, 200, object);
	else
		no_template(req, name);
}

struct users {
	const char *name;
	json_t *list;
};

static bool uses_template(void *opaque, struct box *box)
{
	struct users *users = opaque;
	bool uses;

	pthread_mutex_lock(&box->lock);
	uses = !box->gone && (!strcmp(box->spec.template_name, users->name) ||
			      !strcmp(box->base, users->name) || !strcmp(box->from, users->name));
	pthread_mutex_unlock(&box->lock);
	return !uses || !json_array_append_new(users->list, json_string(box->name));
}

static int remove_template(struct thawd *thawd, const char *name, struct box_error *err)
{
	struct users users = {.name = name, .list = json_array()};
	struct state_names dependents = {0};
	int fd;

	boxes_each(thawd->boxes, uses_template, &users);
	if (!lineage_dependents(&thawd->state, name, &dependents)) {
		for (size_t i = 0; i < dependents.count; i++)
			(void)!json_array_append_new(users.list, json_string(dependents.names[i]));
		state_names_free(&dependents);
	}
	if (json_array_size(users.list))
		return box_refuse(err, 409, "conflict",
				  json_pack("{s:o}", "dependents", users.list),
				  "template '%s' is needed by others: delete those first", name);
	json_decref(users.list);
	fd = state_lock_template(&thawd->state, name, true);
	if (fd < 0)
		return box_refuse(
			err, 409, "conflict", json_pack("{s:[]}", "dependents"),
			"template '%s' is in use: by a machine of a pool, or of a sandbox "
			"without thawd",
			name);
	if (state_remove_template(&thawd->state, name, fd))
		box_refuse(err, 500, "internal", NULL, "template '%s' can't be removed", name);
	fd_close(&fd);
	return err->status ? -EINVAL : 0;
}

static void serve_delete(struct thawd *thawd, struct http_req *req)
{
	const char *name = http_param(req, "name");
	json_t *object = template_json(&thawd->state, name);
	struct box_error err = {0};
	struct log_keep keep;

	json_decref(object);
	if (!object) {
		no_template(req, name);
		return;
	}
	log_keep_begin(&keep, false);
	(void)!remove_template(thawd, name, &err);
	log_keep_end(&keep);
	if (err.status) {
		api_refused(thawd, req, "template.delete", NULL, &err);
		return;
	}
	audit_write(thawd, req, "template.delete", NULL, "ok", json_pack("{s:s}", "name", name));
	http_reply_empty(req, 204);
}

struct progress {
	struct http_req *req;
	u64 start_ns;
	bool gone;
};

static bool send_progress(void *opaque, const char *line)
{
	struct progress *progress = opaque;
	u64 ms = (clock_now_ns() - progress->start_ns) / 1000000;

	/* Who left misses nothing: the template is built all the same. */
	progress->gone = progress->gone || http_sse_send(progress->req, "progress", NULL,
							 json_pack("{s:s, s:I}", "message", line,
								   "elapsed_ms", (json_int_t)ms));
	return !progress->gone;
}

static void build(struct thawd *thawd, struct http_req *req, const char *name, const char *recipe,
		  bool replace)
{
	struct progress progress = {.req = req, .start_ns = clock_now_ns()};
	struct box_error err = {0};
	json_t *details;

	http_sse_begin(req);
	if (!template_build(thawd->boxes, name, recipe, replace, send_progress, &progress, &err)) {
		progress.gone = progress.gone ||
				http_sse_send(req, "done", NULL,
					      json_pack("{s:o}", "template",
							template_json(&thawd->state, name)));
		return;
	}
	details = err.details ? err.details : json_object();
	progress.gone = progress.gone ||
			http_sse_send(req, "error", NULL,
				      json_pack("{s:{s:s, s:s, s:o}}", "error", "code", err.code,
						"message", err.message, "details", details));
}

static int take_size(struct http_req *req, const char *text, const struct box_size **size)
{
	*size = text ? box_size_find(text) : NULL;
	if (!text || *size)
		return 0;
	http_reply_error(req, 400, "invalid_request", json_pack("{s:s}", "field", "size"),
			 "field 'size': no size '%.40s'", text);
	return -EINVAL;
}

static void serve_post(struct thawd *thawd, struct http_req *req)
{
	static const char *const fields[] = {"name", "recipe", "size", "replace", NULL};
	json_t *body = api_body(req, fields), *there = NULL;
	const char *name = NULL, *recipe = NULL, *size_name = NULL;
	const struct box_size *size;
	struct box_error err = {0};
	char *text = NULL;
	bool replace;

	if (!body)
		return;
	replace = json_is_true(json_object_get(body, "replace"));
	if (api_text(req, body, "name", STATE_NAME_MAX, &name) ||
	    api_text(req, body, "recipe", STATE_NAME_MAX, &recipe) ||
	    api_text(req, body, "size", 40, &size_name) || take_size(req, size_name, &size))
		goto out;
	if (!name || !state_name_ok(name) || sandbox_is_snap(name) ||
	    (recipe && !state_name_ok(recipe))) {
		http_reply_error(req, 400, "invalid_request", NULL, "a template's name: %s",
				 STATE_NAME_RULE);
		goto out;
	}
	there = template_json(&thawd->state, name);
	if (there && !replace) {
		http_reply_error(req, 409, "conflict", json_pack("{s:[]}", "dependents"),
				 "there is a template '%s' already: with \"replace\": true it is "
				 "replaced",
				 name);
		goto out;
	}
	text = template_recipe(&thawd->state, recipe ? recipe : name, size, &err);
	if (!text)
		api_refused(thawd, req, "template.create", NULL, &err);
	else
		build(thawd, req, name, text, replace);
out:
	free(text);
	json_decref(there);
	json_decref(body);
}

const struct http_route api_template_routes[] = {
	{HTTP_GET, "/v1/templates", NULL, 0, serve_list},
	{HTTP_POST, "/v1/templates", NULL, 0, serve_post},
	{HTTP_GET, "/v1/templates/{name}", NULL, 0, serve_get},
	{HTTP_DELETE, "/v1/templates/{name}", NULL, 0, serve_delete},
	{HTTP_GET, "/v1/pools", NULL, 0, api_pool_list},
	{HTTP_PUT, "/v1/pools/{template}", NULL, 0, api_pool_put},
	{HTTP_DELETE, "/v1/pools/{template}", NULL, 0, api_pool_delete},
	{HTTP_POST, "/v1/prune", NULL, 0, api_prune},
	{0, NULL, NULL, 0, NULL},
};
