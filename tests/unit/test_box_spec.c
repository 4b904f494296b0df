// SPDX-License-Identifier: Apache-2.0
// What a box is to be: what is taken, refused, compared, written.
#include <errno.h>

#include "test.h"
#include "vmm/daemon/box.h"
#include "vmm/daemon/box_spec.h"

static int parse(const char *text, struct box_spec *spec, struct box_error *err)
{
	json_t *object = json_loads(text, 0, NULL);
	int ret;

	CHECK(object);
	*err = (struct box_error){0};
	ret = box_spec_parse(object, "name", "debian", spec, err);
	json_decref(object);
	return ret;
}

static void refused(const char *text, const char *code, const char *word)
{
	struct box_error err;
	struct box_spec spec;

	CHECK_EQ(parse(text, &spec, &err), -EINVAL);
	CHECK_STR(err.code, code);
	if (!strstr(err.message, word)) {
		fprintf(stderr, "%s: \"%s\" has no \"%s\"\n", text, err.message, word);
		exit(1);
	}
	CHECK(!spec.env && !spec.labels && !spec.entrypoint);
	json_decref(err.details);
}

static void test_defaults(void)
{
	struct box_error err;
	struct box_spec spec;

	CHECK_EQ(parse("{}", &spec, &err), 0);
	CHECK_STR(spec.template_name, "debian");
	CHECK_STR(spec.snapshot, "");
	CHECK_STR(spec.hostname, "name");
	CHECK(!spec.size && !spec.vcpus && !spec.memory_bytes && spec.scratch_bytes == -1);
	CHECK(!spec.inactivity_ms && !spec.hard_ms && !spec.keep_alive && !spec.auto_remove);
	CHECK_EQ(json_object_size(spec.env) + json_object_size(spec.labels), 0);
	CHECK(!spec.entrypoint);
	box_spec_free(&spec);
}

static void test_sizes(void)
{
	struct box_error err;
	struct box_spec spec;

	CHECK_EQ(parse("{\"size\": \"standard-4\"}", &spec, &err), 0);
	CHECK_EQ(spec.vcpus, 4);
	CHECK_EQ(spec.memory_bytes, 12 * GIB);
	CHECK_EQ(spec.size->cpu_max_milli, 4000);
	box_spec_free(&spec);
	CHECK_STR(box_size_of(1, 256 * MIB)->name, "lite");
	CHECK(!box_size_of(2, 256 * MIB) && !box_size_find("Lite"));
	refused("{\"size\": \"big\"}", "invalid_request", "standard-1");
	refused("{\"size\": \"lite\", \"memory_bytes\": 268435456}", "invalid_request", "combined");
	refused("{\"vcpus\": 9}", "invalid_request", "1 to 8");
	refused("{\"memory_bytes\": 134217729}", "invalid_request", "MiB");
	refused("{\"scratch_bytes\": -1}", "invalid_request", "scratch_bytes");
}

static void test_refused(void)
{
	refused("{\"Template\": \"x\"}", "unknown_field", "Template");
	refused("{\"template\": \"a/b\"}", "invalid_request", "template");
	refused("{\"template\": null}", "invalid_request", "template");
	refused("{\"template\": \"a\", \"snapshot\": \"b\"}", "invalid_request", "combined");
	refused("{\"internet\": true}", "unsupported", "internet");
	refused("{\"internet\": \"no\"}", "invalid_request", "internet");
	refused("{\"env\": []}", "invalid_request", "env");
	refused("{\"env\": {\"\": \"x\"}}", "invalid_request", "env");
	refused("{\"env\": {\"x\": null}}", "invalid_request", "env");
	refused("{\"entrypoint\": [\"\"]}", "invalid_request", "entrypoint");
	refused("{\"entrypoint\": [\"a\", 1]}", "invalid_request", "entrypoint");
	refused("{\"inactivity_timeout_ms\": 1.5}", "invalid_request", "inactivity");
	refused("{\"inactivity_timeout_ms\": 21600001}", "invalid_request", "21600000");
	refused("{\"hard_timeout_ms\": -1}", "invalid_request", "hard");
	refused("{\"pids_max\": 0}", "invalid_request", "pids_max");
	refused("{\"hostname\": \"\"}", "invalid_request", "hostname");
	refused("{\"hostname\": \"-\"}", "invalid_request", "hostname");
	refused("{\"labels\": {\"\": \"x\"}}", "invalid_request", "label");
	refused("{\"labels\": {\"x\": \"\\u0001\"}}", "invalid_request", "label");
}

static const char everything[] =
	"{\"template\": \"t\", \"size\": \"basic\", \"scratch_bytes\": 1048576, \"env\": {\"A\": \"b\"},"
	" \"entrypoint\": [\"sh\", \"-c\", \"x\"], \"labels\": {\"l\": \"m\"},"
	" \"inactivity_timeout_ms\": 5, \"hard_timeout_ms\": 6, \"keep_alive\": true,"
	" \"auto_remove\": true, \"pids_max\": 7, \"nofile\": 8, \"hostname\": \"h\"}";

static void test_round_trip(void)
{
	struct box_spec spec, again, copy;
	struct box_error err;
	json_t *written, *differences;

	CHECK_EQ(parse(everything, &spec, &err), 0);
	written = box_spec_json(&spec);
	CHECK_EQ(box_spec_parse(written, "other", NULL, &again, &err), 0);
	differences = box_spec_differences(&spec, &again);
	CHECK_EQ(json_array_size(differences), 0);
	json_decref(differences);
	CHECK_EQ(box_spec_copy(&spec, &copy), 0);
	differences = box_spec_differences(&copy, &again);
	CHECK_EQ(json_array_size(differences), 0);
	json_decref(differences);
	json_decref(written);
	box_spec_free(&spec);
	box_spec_free(&again);
	box_spec_free(&copy);
}

static void test_differences(void)
{
	struct box_spec have, want;
	struct box_error err;
	json_t *list, *one;

	CHECK_EQ(parse(everything, &have, &err), 0);
	CHECK_EQ(parse("{\"template\": \"t\", \"vcpus\": 1, \"memory_bytes\": 1073741824,"
		       " \"scratch_bytes\": 1048576, \"env\": {\"A\": \"c\"},"
		       " \"entrypoint\": [\"sh\", \"-c\", \"x\"], \"labels\": {\"l\": \"m\"},"
		       " \"inactivity_timeout_ms\": null, \"hard_timeout_ms\": 6,"
		       " \"keep_alive\": true, \"auto_remove\": true, \"pids_max\": 7,"
		       " \"nofile\": 8, \"hostname\": \"h\"}",
		       &want, &err),
		 0);
	list = box_spec_differences(&have, &want);
	/* A size has a share of processors, which its numbers alone do not. */
	CHECK_EQ(json_array_size(list), 3);
	one = json_array_get(list, 0);
	CHECK_STR(json_string_value(json_object_get(one, "field")), "size");
	CHECK(json_is_null(json_object_get(one, "want")));
	one = json_array_get(list, 1);
	CHECK_STR(json_string_value(json_object_get(one, "field")), "env");
	one = json_array_get(list, 2);
	CHECK_STR(json_string_value(json_object_get(one, "field")), "inactivity_timeout_ms");
	CHECK_EQ(json_integer_value(json_object_get(one, "have")), 5);
	CHECK(json_is_null(json_object_get(one, "want")));
	json_decref(list);
	box_spec_free(&have);
	box_spec_free(&want);
}

static void test_patch(void)
{
	struct box_error err;
	struct box_spec spec;
	json_t *change;

	CHECK_EQ(parse(everything, &spec, &err), 0);
	change = json_loads("{\"hard_timeout_ms\": null, \"labels\": {}}", 0, NULL);
	CHECK_EQ(box_spec_patch(&spec, change, &err), 0);
	CHECK_EQ(spec.hard_ms, 0);
	CHECK_EQ(spec.inactivity_ms, 5);
	CHECK_EQ(json_object_size(spec.labels), 0);
	json_decref(change);
	change = json_loads("{\"keep_alive\": false, \"inactivity_timeout_ms\": 0}", 0, NULL);
	CHECK_EQ(box_spec_patch(&spec, change, &err), -EINVAL);
	CHECK(spec.keep_alive && spec.inactivity_ms == 5);
	json_decref(change);
	json_decref(err.details);
	box_spec_free(&spec);
}

static void test_names(void)
{
	CHECK(box_name_ok("a") && box_name_ok("user-123") && box_name_ok("0--0"));
	CHECK(!box_name_ok("") && !box_name_ok("-a") && !box_name_ok("a-") && !box_name_ok("A"));
	CHECK(!box_name_ok("a.b") && !box_name_ok("a/b") && !box_name_ok("a\n"));
	CHECK(box_name_ok("123456789012345678901234567890123456789012345678901234567890123"));
	CHECK(!box_name_ok("1234567890123456789012345678901234567890123456789012345678901234"));
}

TEST_MAIN({"defaults", test_defaults}, {"sizes", test_sizes}, {"refused", test_refused},
	  {"round trip", test_round_trip}, {"differences", test_differences}, {"patch", test_patch},
	  {"names", test_names})
