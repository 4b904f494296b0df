// SPDX-License-Identifier: Apache-2.0
// manifest.json: what a snapshot is, for people and for tools, and what a restore needs to find its
// parts.
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "vmm/kvm/layout.h"
#include "vmm/snapshot/internal.h"

/*
 * Strict on purpose: a field too many is as wrong as one too few, for the reader was written for
 * exactly this version. The text is bound to the state file by digest (FORMAT.md), but not signed:
 * values are checked as hostile.
 */

#define NAME_MAX_CHARS 63

static int fail(char *why, size_t why_bytes, int error, const char *text)
{
	if (why)
		snprintf(why, why_bytes, "%s", text);
	return error;
}

/** text_ok() - no control characters: these strings are printed on terminals. */
static bool text_ok(const char *text, size_t max_chars)
{
	size_t len = strlen(text);

	for (size_t i = 0; i < len; i++) {
		if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
			return false;
	}
	return len <= max_chars;
}

static bool name_ok(const char *name)
{
	size_t len = name ? strlen(name) : 0;

	if (len < 1 || len > NAME_MAX_CHARS ||
	    !strchr("abcdefghijklmnopqrstuvwxyz0123456789", name[0]))
		return false;
	return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") == len;
}

static bool hex_digest_ok(const char *digest)
{
	return strlen(digest) == SNAP_DIGEST_HEX - 1 &&
	       strspn(digest, "0123456789abcdef") == SNAP_DIGEST_HEX - 1;
}

/** created_ok() - RFC 3339 in UTC with whole seconds: 2025-01-31T12:00:00Z. */
static bool created_ok(const char *text)
{
	static const char shape[] = "dddd-dd-ddTdd:dd:ddZ";

	if (strlen(text) != sizeof(shape) - 1)
		return false;
	for (size_t i = 0; i < sizeof(shape) - 1; i++) {
		bool digit = text[i] >= '0' && text[i] <= '9';

		if (shape[i] == 'd' ? !digit : text[i] != shape[i])
			return false;
	}
	return true;
}

static const char *check_values(const struct snap_manifest *manifest)
{
	if (!name_ok(manifest->name))
		return "field \"name\" is not a template name";
	if (manifest->parent && !name_ok(manifest->parent))
		return "field \"parent\" is not a template name";
	if (!created_ok(manifest->created))
		return "field \"created\" is not a time";
	if (!text_ok(manifest->kernel, 128))
		return "field \"kernel\" is not plain text";
	if (strlen(manifest->cpu_vendor) != 12 || !text_ok(manifest->cpu_vendor, 12))
		return "field \"cpu.vendor\" is not a CPU vendor";
	if (!text_ok(manifest->cpu_model, 64))
		return "field \"cpu.model\" is not plain text";
	if (!hex_digest_ok(manifest->memory_digest))
		return "field \"memory_digest\" is not a digest";
	if (!manifest->disk_bytes != !manifest->disk_digest)
		return "fields \"disk_bytes\" and \"disk_digest\" disagree";
	if (manifest->disk_digest && !hex_digest_ok(manifest->disk_digest))
		return "field \"disk_digest\" is not a digest";
	if (!manifest->root_bytes != !manifest->root_image ||
	    !manifest->root_image != !manifest->root_digest)
		return "fields \"root_image\", \"root_bytes\" and \"root_digest\" disagree";
	if (manifest->root_image &&
	    (manifest->root_image[0] != '/' || !text_ok(manifest->root_image, 4095)))
		return "field \"root_image\" is not an absolute path";
	if (manifest->root_digest && !hex_digest_ok(manifest->root_digest))
		return "field \"root_digest\" is not a digest";
	if (manifest->diff_digest && !manifest->parent)
		return "field \"diff\" without a \"parent\"";
	if (manifest->diff_digest &&
	    (!hex_digest_ok(manifest->diff_digest) || !hex_digest_ok(manifest->diff_parent_state)))
		return "field \"diff\" holds something else than digests";
	return NULL;
}

/** dup_or_null() - copy of @text into *@out; a NULL stays one. Return: false without memory. */
static bool dup_or_null(char **out, const char *text)
{
	*out = text ? strdup(text) : NULL;
	return !text || *out;
}

static const char *check_features(json_t *features)
{
	size_t index;
	json_t *item;

	if (!json_is_array(features))
		return "field \"cpu.features\" is not a list";
	json_array_foreach(features, index, item)
	{
		if (!json_is_string(item) || !text_ok(json_string_value(item), 64))
			return "field \"cpu.features\" holds something else than names";
	}
	return NULL;
}

/** nullable() - the text of @value, or NULL for a JSON null; clears *@ok for anything else. */
static const char *nullable(const json_t *value, bool *ok)
{
	if (json_is_null(value))
		return NULL;
	if (!json_is_string(value))
		*ok = false;
	return json_string_value(value);
}

/** unpack_diff() - @diff is the field of that name. Return: as unpack_root(). */
static int unpack_diff(json_t *diff, struct snap_manifest *out, json_error_t *error)
{
	const char *parent_state, *digest;
	json_int_t pages;

	if (json_unpack_ex(diff, error, 0, "{s:s, s:I, s:s !}", "parent_state", &parent_state,
			   "pages", &pages, "digest", &digest))
		return -EINVAL;
	if (pages < 0 || (u64)pages > out->memory_bytes / PAGE_SIZE_BYTES) {
		snprintf(error->text, sizeof(error->text), "a number is out of range");
		return -EINVAL;
	}
	out->diff_pages = (u64)pages;
	if (!dup_or_null(&out->diff_parent_state, parent_state) ||
	    !dup_or_null(&out->diff_digest, digest))
		return -ENOMEM;
	return 0;
}

/** unpack_root() - take every field out of @root. Return: 0, -EINVAL with @error filled, or
 * -ENOMEM. */
static int unpack_root(json_t *root, struct snap_manifest *out, json_t **features,
		       json_error_t *error)
{
	const char *format, *name, *created, *kernel, *vendor, *model, *memory_digest;
	json_t *parent, *root_image, *root_digest, *disk_digest, *diff = NULL;
	json_int_t version, vcpus, signature, root_bytes, memory_bytes, disk_bytes;
	bool ok = true;

	/* "!" closes an object: all of these fields and no others. */
	if (json_unpack_ex(root, error, 0,
			   "{s:s, s:I, s:s, s:s, s:o, s:s, s:I, s:I, s:s, s:I, s:o, s:o, s:I, s:o, "
			   "s:{s:s, s:I, s:s, s:o !}, s?:o !}",
			   "format", &format, "version", &version, "name", &name, "created",
			   &created, "parent", &parent, "kernel", &kernel, "vcpus", &vcpus,
			   "memory_bytes", &memory_bytes, "memory_digest", &memory_digest,
			   "disk_bytes", &disk_bytes, "disk_digest", &disk_digest, "root_image",
			   &root_image, "root_bytes", &root_bytes, "root_digest", &root_digest,
			   "cpu", "vendor", &vendor, "signature", &signature, "model", &model,
			   "features", features, "diff", &diff))
		return -EINVAL;
	if ((version == SNAP_VERSION_DIFF) != (diff != NULL)) {
		snprintf(error->text, sizeof(error->text),
			 "field \"diff\" and field \"version\" disagree");
		return -EINVAL;
	}
	if (vcpus < 1 || vcpus > VM_VCPUS_MAX || signature < 0 || signature > UINT32_MAX ||
	    root_bytes < 0 || memory_bytes < 1 || disk_bytes < 0) {
		snprintf(error->text, sizeof(error->text), "a number is out of range");
		return -EINVAL;
	}
	out->version = (u32)version;
	out->vcpus = (u32)vcpus;
	out->cpu_signature = (u32)signature;
	out->root_bytes = (u64)root_bytes;
	out->memory_bytes = (u64)memory_bytes;
	out->disk_bytes = (u64)disk_bytes;
	if (!dup_or_null(&out->name, name) || !dup_or_null(&out->created, created) ||
	    !dup_or_null(&out->kernel, kernel) || !dup_or_null(&out->cpu_vendor, vendor) ||
	    !dup_or_null(&out->cpu_model, model) ||
	    !dup_or_null(&out->memory_digest, memory_digest) ||
	    !dup_or_null(&out->parent, nullable(parent, &ok)) ||
	    !dup_or_null(&out->root_image, nullable(root_image, &ok)) ||
	    !dup_or_null(&out->root_digest, nullable(root_digest, &ok)) ||
	    !dup_or_null(&out->disk_digest, nullable(disk_digest, &ok)))
		return -ENOMEM;
	if (!ok) {
		snprintf(error->text, sizeof(error->text),
			 "an optional field is neither text nor null");
		return -EINVAL;
	}
	return diff ? unpack_diff(diff, out, error) : 0;
}

/** check_version() - before any other field, since another version may have others. */
static int check_version(json_t *root, char *why, size_t why_bytes)
{
	const char *format = json_string_value(json_object_get(root, "format"));
	json_t *version = json_object_get(root, "version");

	if (!format || strcmp(format, SNAP_FORMAT_NAME))
		return fail(why, why_bytes, -EINVAL,
			    "not a snapshot's manifest (field \"format\")");
	if (!json_is_integer(version))
		return fail(why, why_bytes, -EINVAL, "field \"version\" is missing or no number");
	if (json_integer_value(version) != SNAP_VERSION &&
	    json_integer_value(version) != SNAP_VERSION_DIFF)
		return fail(why, why_bytes, -EPROTONOSUPPORT,
			    "unknown format version; build the template again with this thaw");
	return 0;
}

/** seed_hashes() - jansson would read /dev/urandom for this once, which costs time and is not there
 * for a confined process. */
static void seed_hashes(void)
{
	size_t seed = 0;

	if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) == sizeof(seed))
		json_object_seed(seed | 1);
}

int snap_manifest_parse(const char *json, size_t len_bytes, struct snap_manifest *out, char *why,
			size_t why_bytes)
{
	json_error_t error = {0};
	json_t *root, *features;
	const char *wrong;
	int ret;

	memset(out, 0, sizeof(*out));
	seed_hashes();
	root = json_loadb(json, len_bytes, JSON_REJECT_DUPLICATES, &error);
	if (!root)
		return fail(why, why_bytes, -EINVAL, error.text);
	ret = check_version(root, why, why_bytes);
	if (ret)
		goto out_free;
	ret = unpack_root(root, out, &features, &error);
	if (ret) {
		fail(why, why_bytes, ret, ret == -ENOMEM ? "out of memory" : error.text);
		goto out_free;
	}
	wrong = check_values(out);
	if (!wrong)
		wrong = check_features(features);
	if (wrong) {
		ret = fail(why, why_bytes, -EINVAL, wrong);
		goto out_free;
	}
	out->json = malloc(len_bytes + 1);
	if (!out->json) {
		ret = fail(why, why_bytes, -ENOMEM, "out of memory");
		goto out_free;
	}
	memcpy(out->json, json, len_bytes);
	out->json[len_bytes] = '\0';
	out->json_len_bytes = len_bytes;
out_free:
	json_decref(root);
	if (ret)
		snap_manifest_free(out);
	return ret;
}

void snap_manifest_free(struct snap_manifest *manifest)
{
	free(manifest->name);
	free(manifest->kernel);
	free(manifest->cpu_vendor);
	free(manifest->cpu_model);
	free(manifest->root_image);
	free(manifest->root_digest);
	free(manifest->memory_digest);
	free(manifest->disk_digest);
	free(manifest->created);
	free(manifest->parent);
	free(manifest->diff_parent_state);
	free(manifest->diff_digest);
	free(manifest->json);
	memset(manifest, 0, sizeof(*manifest));
}

static json_t *feature_list(const struct snap_cpuid *cpuid)
{
	json_t *list = json_array();

	for (unsigned int w = 0; list && w < snap_cpu_nwords; w++) {
		const struct snap_cpu_word *word = &snap_cpu_words[w];
		u32 bits = snap_cpu_word_get(cpuid, word);

		for (unsigned int bit = 0; word->names && bit < 32; bit++) {
			if ((bits >> bit) & 1 && word->names[bit])
				json_array_append_new(list, json_string(word->names[bit]));
		}
	}
	return list;
}

/** diff_json() - the field of that name, or NULL when it is left out. */
static json_t *diff_json(const struct snap_manifest *manifest)
{
	if (!manifest->diff_digest)
		return NULL;
	return json_pack("{s:s, s:I, s:s}", "parent_state", manifest->diff_parent_state, "pages",
			 (json_int_t)manifest->diff_pages, "digest", manifest->diff_digest);
}

int snap_manifest_print(struct snap_manifest *manifest, const struct snap_cpuid *cpuid)
{
	json_t *root, *diff;
	char *text;
	size_t len;

	seed_hashes();
	diff = diff_json(manifest);
	if (manifest->diff_digest && !diff)
		return -ENOMEM;
	root = json_pack(
		"{s:s, s:I, s:s, s:s, s:s?, s:s, s:I, s:I, s:s, s:I, s:s?, s:s?, s:I, s:s?, "
		"s:{s:s, s:I, s:s, s:o}, s:o*}",
		"format", SNAP_FORMAT_NAME, "version", (json_int_t)manifest->version, "name",
		manifest->name, "created", manifest->created, "parent", manifest->parent, "kernel",
		manifest->kernel, "vcpus", (json_int_t)manifest->vcpus, "memory_bytes",
		(json_int_t)manifest->memory_bytes, "memory_digest", manifest->memory_digest,
		"disk_bytes", (json_int_t)manifest->disk_bytes, "disk_digest",
		manifest->disk_digest, "root_image", manifest->root_image, "root_bytes",
		(json_int_t)manifest->root_bytes, "root_digest", manifest->root_digest, "cpu",
		"vendor", manifest->cpu_vendor, "signature", (json_int_t)manifest->cpu_signature,
		"model", manifest->cpu_model, "features", feature_list(cpuid), "diff", diff);
	if (!root)
		return -ENOMEM;
	text = json_dumps(root, JSON_INDENT(2) | JSON_ENSURE_ASCII);
	json_decref(root);
	if (!text)
		return -ENOMEM;
	len = strlen(text);
	free(manifest->json);
	manifest->json = malloc(len + 2);
	if (manifest->json) {
		memcpy(manifest->json, text, len);
		memcpy(manifest->json + len, "\n", 2);
		manifest->json_len_bytes = len + 1;
	}
	free(text);
	return manifest->json ? 0 : -ENOMEM;
}
