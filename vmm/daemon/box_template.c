// SPDX-License-Identifier: Apache-2.0
// Templates by size: which one a box starts from, and building it when it is wanted first.
//
// A template has one size, that of its recipe. Every other (vCPUs, memory, scratch disk) of it is a
// template of its own, named NAME.cVmM[sS] (vCPUs, MiB, MiB of disk), built by a `thaw template
// build` of the same recipe with other numbers. Who needs one that is being built waits for it; a
// build that failed is tried again by whoever asks next.
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vmm/cli/cli.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/recipe.h"
#include "vmm/daemon/box_internal.h"
#include "vmm/daemon/pools.h"
#include "vmm/snapshot/manifest.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

extern char **environ;

struct numbers {
	u32 vcpus;
	u64 memory_bytes, scratch_bytes;
};

/** Return: 0, -ENOENT (no such template), or -errno. */
static int read_numbers(const struct state *state, const char *name, struct numbers *out)
{
	struct snap_manifest manifest;
	char path[PATH_MAX];
	int fd, ret;

	state_path(state, "templates", name, "", path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = snap_manifest_read(fd, path, &manifest);
	fd_close(&fd);
	if (ret)
		return ret;
	*out = (struct numbers){.vcpus = manifest.vcpus,
				.memory_bytes = manifest.memory_bytes,
				.scratch_bytes = manifest.disk_bytes};
	snap_manifest_free(&manifest);
	return 0;
}

int template_derived(const char *base, u32 vcpus, u64 memory_bytes, s64 scratch_bytes,
		     char out[STATE_NAME_MAX + 1])
{
	char text[2 * STATE_NAME_MAX + 80];
	int n = snprintf(text, sizeof(text), "%s.c%um%llu", base, vcpus,
			 (unsigned long long)(memory_bytes / MIB));

	if (scratch_bytes >= 0)
		n += snprintf(text + n, sizeof(text) - (size_t)n, "s%llu",
			      (unsigned long long)((u64)scratch_bytes / MIB));
	if (n > STATE_NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(out, text, (size_t)n + 1);
	return 0;
}

/** The recipe that template @name is built from: one that was given with it, or the one of its very
 * name. Return: its object, or NULL. */
static json_t *read_recipe(const struct state *state, const char *name)
{
	char path[PATH_MAX], *text = NULL;
	struct log_keep keep;
	json_t *recipe;
	int ret;

	state_path(state, "recipes", name, "", path);
	ret = file_read_all(AT_FDCWD, path, RECIPE_MAX_BYTES, &text, NULL);
	log_keep_begin(&keep, true);
	if (ret && !recipe_find(name, path) && !strcmp(strrchr(path, '/') + 1, name))
		ret = file_read_all(AT_FDCWD, path, RECIPE_MAX_BYTES, &text, NULL);
	log_keep_end(&keep);
	if (ret)
		return NULL;
	recipe = json_loads(text, 0, NULL);
	free(text);
	return recipe;
}

/** Into recipes/@name, from where its build reads it. Return: 0 or -errno (logged). */
static int write_recipe(const struct state *state, const char *name, const json_t *recipe,
			char path[PATH_MAX])
{
	state_path(state, "recipes", NULL, NULL, path);
	if (mkdir(path, 0700) < 0 && errno != EEXIST) {
		log_err("%s: %s", path, strerror(errno));
		return -errno;
	}
	state_path(state, "recipes", name, "", path);
	return json_write_file(path, recipe);
}

static int find_thaw(char out[PATH_MAX])
{
	static const char *const places[] = {"thaw", "../bin/thaw"};

	return cli_find_near_exe(places, ARRAY_SIZE(places), out);
}

/** Return: fd of what it says on stderr, or -errno. */
static int spawn_build(const char *name, const char *recipe_path, bool replace, pid_t *pid)
{
	const char *argv[10] = {"thaw", "template", "build", name};
	posix_spawn_file_actions_t actions;
	char path[PATH_MAX];
	int fds[2], n = 4, ret;

	ret = find_thaw(path);
	if (ret)
		return ret;
	if (recipe_path) {
		argv[n++] = "--recipe";
		argv[n++] = recipe_path;
	}
	if (replace)
		argv[n++] = "--replace";
	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	posix_spawn_file_actions_init(&actions);
	ret = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	ret = ret ? ret : posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
	ret = ret ? ret : posix_spawn_file_actions_adddup2(&actions, fds[1], 2);
	ret = ret ? ret : posix_spawn(pid, path, &actions, NULL, (char *const *)argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	fd_close(&fds[1]);
	if (ret)
		fd_close(&fds[0]);
	return ret ? -ret : fds[0];
}

/** Pass on what it says; the last line that is an error stays in @last. */
static void read_lines(int fd, bool (*progress)(void *opaque, const char *line), void *opaque,
		       char *last, size_t last_bytes)
{
	FILE *file = fdopen(fd, "r");
	size_t room = 0;
	char *line = NULL;

	if (!file)
		fd_close(&fd);
	while (file && getline(&line, &room, file) > 0) {
		line[strcspn(line, "\r\n")] = '\0';
		if (strstr(line, "error: "))
			snprintf(last, last_bytes, "%s", strstr(line, "error: ") + 7);
		if (progress && *line && !progress(opaque, line))
			progress = NULL;
	}
	free(line);
	if (file)
		(void)fclose(file);
}

static int run_build(const char *name, const char *recipe_path, bool replace,
		     bool (*progress)(void *opaque, const char *line), void *opaque,
		     struct box_error *err)
{
	char last[400] = "";
	int fd, status = -1;
	pid_t pid;

	fd = spawn_build(name, recipe_path, replace, &pid);
	if (fd < 0)
		return box_refuse(err, 500, "internal", NULL,
				  "template '%s': thaw can't be run: %s", name, strerror(-fd));
	read_lines(fd, progress, opaque, last, sizeof(last));
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	return box_refuse(err, 500, "internal", NULL, "template '%s' can't be built: %s", name,
			  last[0] ? last : "thaw template build failed; see its log in logs/");
}

/** One at a time for each name. Return: 0: ours to build; -EALREADY: somebody else just did. */
static int claim_build(struct boxes *boxes, const char *name)
{
	bool waited = false;

	pthread_mutex_lock(&boxes->build_lock);
	while (json_object_get(boxes->building, name)) {
		waited = true;
		pthread_cond_wait(&boxes->build_done, &boxes->build_lock);
	}
	if (!waited)
		(void)!json_object_set_new(boxes->building, name, json_true());
	pthread_mutex_unlock(&boxes->build_lock);
	return waited ? -EALREADY : 0;
}

static void build_over(struct boxes *boxes, const char *name)
{
	pthread_mutex_lock(&boxes->build_lock);
	(void)json_object_del(boxes->building, name);
	pthread_cond_broadcast(&boxes->build_done);
	pthread_mutex_unlock(&boxes->build_lock);
}

int template_build(struct boxes *boxes, const char *name, const char *recipe, bool replace,
		   bool (*progress)(void *opaque, const char *line), void *opaque,
		   struct box_error *err)
{
	const struct state *state = &boxes->thawd->state;
	char path[PATH_MAX], why[200] = "", *recipe_path = NULL;
	struct numbers numbers;
	struct recipe parsed;
	json_t *object;
	int ret = 0;

	if (recipe) {
		ret = recipe_parse(recipe, strlen(recipe), &parsed, why, sizeof(why));
		if (ret)
			return box_refuse(err, 400, "invalid_request", NULL,
					  "recipe of template '%s': %s", name, why);
		recipe_free(&parsed);
	}
	while (claim_build(boxes, name) == -EALREADY) {
		if (!replace && !read_numbers(state, name, &numbers))
			return 0;
	}
	if (recipe) {
		object = json_loads(recipe, 0, NULL);
		ret = object ? write_recipe(state, name, object, path) : -EINVAL;
		json_decref(object);
		recipe_path = path;
	}
	if (ret)
		box_refuse(err, 500, "internal", NULL, "template '%s': its recipe can't be kept",
			   name);
	else
		ret = run_build(name, recipe_path, replace, progress, opaque, err);
	if (replace)
		pools_flush(boxes, name);
	build_over(boxes, name);
	audit_write(boxes->thawd, NULL, "template.build", name, ret ? err->code : "ok", NULL);
	return ret;
}

char *template_recipe(const struct state *state, const char *name, const struct box_size *size,
		      struct box_error *err)
{
	json_t *recipe = read_recipe(state, name);
	char *text;

	if (!recipe) {
		box_refuse(err, 404, "not_found", NULL, "no recipe '%s'", name);
		return NULL;
	}
	if (size) {
		(void)!json_object_set_new(recipe, "vcpus", json_integer(size->vcpus));
		(void)!json_object_set_new(recipe, "memory_mib",
					   json_integer((json_int_t)(size->memory_bytes / MIB)));
	}
	text = json_dumps(recipe, 0);
	json_decref(recipe);
	if (!text)
		box_refuse(err, 500, "internal", NULL, "out of memory");
	return text;
}

/** The recipe of @base with other numbers, as text. NULL: with @err. */
static char *resized(const struct state *state, const char *base, const struct numbers *numbers,
		     struct box_error *err)
{
	json_t *recipe = read_recipe(state, base);
	char *text;

	if (!recipe) {
		box_refuse(err, 400, "unsupported", NULL,
			   "template '%s' has no recipe here, and can be had in its own size only",
			   base);
		return NULL;
	}
	(void)!json_object_set_new(recipe, "vcpus", json_integer(numbers->vcpus));
	(void)!json_object_set_new(recipe, "memory_mib",
				   json_integer((json_int_t)(numbers->memory_bytes / MIB)));
	(void)!json_object_set_new(recipe, "scratch_mib",
				   json_integer((json_int_t)(numbers->scratch_bytes / MIB)));
	text = json_dumps(recipe, 0);
	json_decref(recipe);
	if (!text)
		box_refuse(err, 500, "internal", NULL, "out of memory");
	return text;
}

/** With the defaults where it says nothing. Return: 0 or -errno. */
static int recipe_numbers(const json_t *recipe, struct numbers *out)
{
	char *text = json_dumps(recipe, 0), why[100];
	struct recipe parsed;
	int ret = text ? recipe_parse(text, strlen(text), &parsed, why, sizeof(why)) : -ENOMEM;

	free(text);
	if (ret)
		return ret;
	*out = (struct numbers){.vcpus = parsed.vcpus,
				.memory_bytes = parsed.memory_bytes,
				.scratch_bytes = parsed.scratch_bytes};
	recipe_free(&parsed);
	return 0;
}

/** Numbers of template @name as it is, or as its recipe would make it. Return: 0, 1: it has to be
 * built first; or -errno with @err. */
static int base_numbers(const struct state *state, const char *name, struct numbers *out,
			struct box_error *err)
{
	struct log_keep keep;
	json_t *recipe;
	int ret;

	log_keep_begin(&keep, false);
	ret = read_numbers(state, name, out);
	log_keep_end(&keep);
	if (!ret)
		return 0;
	if (ret != -ENOENT)
		return box_refuse(err, 500, "internal", NULL, "template '%s': %s", name, keep.text);
	recipe = sandbox_is_snap(name) ? NULL : read_recipe(state, name);
	if (!recipe)
		return box_refuse(
			err, 404, "not_found", NULL,
			"no template '%s', and no recipe of that name: 'thaw template ls' "
			"lists templates, 'thaw template build' makes one",
			name);
	ret = recipe_numbers(recipe, out);
	json_decref(recipe);
	if (ret)
		return box_refuse(err, 500, "internal", NULL, "recipe '%s' can't be read", name);
	return 1;
}

int template_known(const struct state *state, const char *name, struct box_error *err)
{
	struct numbers numbers;

	return base_numbers(state, name, &numbers, err) < 0 ? -EINVAL : 0;
}

static void set_base(struct box *box, const char *base, const struct numbers *numbers)
{
	pthread_mutex_lock(&box->lock);
	snprintf(box->base, sizeof(box->base), "%s", base);
	box->vcpus = numbers->vcpus;
	box->memory_bytes = numbers->memory_bytes;
	box->scratch_bytes = numbers->scratch_bytes;
	pthread_mutex_unlock(&box->lock);
}

static int snapshot_numbers(struct box *box, struct box_error *err)
{
	const struct box_spec *spec = &box->spec;
	struct numbers numbers = {0};
	struct log_keep keep;
	int ret;

	log_keep_begin(&keep, false);
	ret = read_numbers(&box->boxes->thawd->state, spec->snapshot, &numbers);
	log_keep_end(&keep);
	if (ret == -ENOENT)
		return box_refuse(err, 410, "gone", NULL, "snapshot '%s' is gone", spec->snapshot);
	if (ret)
		return box_refuse(err, 500, "internal", NULL, "snapshot '%s': %s", spec->snapshot,
				  keep.text);
	if (!box->forked && ((spec->vcpus && spec->vcpus != numbers.vcpus) ||
			     (spec->memory_bytes && spec->memory_bytes != numbers.memory_bytes)))
		return box_refuse(err, 400, "invalid_request", NULL,
				  "snapshot '%s' has %u vCPUs and %llu MiB of memory: a sandbox of "
				  "it can't have another size",
				  spec->snapshot, numbers.vcpus,
				  (unsigned long long)(numbers.memory_bytes / MIB));
	set_base(box, spec->template_name, &numbers);
	return 0;
}

int box_template(struct box *box, struct box_error *err)
{
	struct boxes *boxes = box->boxes;
	const struct state *state = &boxes->thawd->state;
	const struct box_spec *spec = &box->spec;
	char name[STATE_NAME_MAX + 1], *recipe = NULL;
	struct numbers own = {0}, want, got;
	bool same;
	int ret;

	if (spec->snapshot[0])
		return snapshot_numbers(box, err);
	ret = base_numbers(state, spec->template_name, &own, err);
	if (ret < 0)
		return ret;
	want.vcpus = spec->vcpus ? spec->vcpus : own.vcpus;
	want.memory_bytes = spec->memory_bytes ? spec->memory_bytes : own.memory_bytes;
	want.scratch_bytes =
		spec->scratch_bytes >= 0 ? (u64)spec->scratch_bytes : own.scratch_bytes;
	same = want.vcpus == own.vcpus && want.memory_bytes == own.memory_bytes &&
	       want.scratch_bytes == own.scratch_bytes;
	if (same)
		snprintf(name, sizeof(name), "%s", spec->template_name);
	else if (template_derived(
			 spec->template_name, want.vcpus, want.memory_bytes,
			 want.scratch_bytes == own.scratch_bytes ? -1 : spec->scratch_bytes, name))
		return box_refuse(err, 400, "invalid_request", NULL,
				  "template '%s': its name is too long for other sizes of it",
				  spec->template_name);
	if (same && !ret) {
		set_base(box, name, &own);
		return 0;
	}
	if (read_numbers(state, name, &got)) {
		recipe = resized(state, spec->template_name, &want, err);
		ret = recipe ? template_build(boxes, name, recipe, false, NULL, NULL, err)
			     : -EINVAL;
		free(recipe);
		if (ret)
			return ret;
	}
	set_base(box, name, &want);
	return 0;
}
