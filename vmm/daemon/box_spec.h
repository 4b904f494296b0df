/* SPDX-License-Identifier: Apache-2.0 */
/* What a box is to be: parsed from a request or a row of the database, compared, written. */
#ifndef THAW_DAEMON_BOX_SPEC_H
#define THAW_DAEMON_BOX_SPEC_H

#include <jansson.h>

#include "vmm/cli/state.h"
#include "vmm/util/types.h"

#define BOX_LABELS_MAX	      10
#define BOX_LABEL_KEY_MAX     16
#define BOX_LABEL_VALUE_MAX   64
#define BOX_INACTIVITY_MAX_MS 21600000u
#define BOX_HARD_MAX_MS	      (366ull * 86400000ull)
#define BOX_VCPUS_MAX	      8
#define BOX_MEMORY_MIN	      (128 * MIB)
#define BOX_MEMORY_MAX	      (64 * GIB)
#define BOX_SCRATCH_MAX	      (1024 * GIB)

/** Why a request is refused: the answer to it. */
struct box_error {
	unsigned int status; /* of HTTP; 0: none yet */
	const char *code;
	char message[600];
	json_t *details;
	unsigned int retry_s; /* with 503 */
};

/** box_refuse() - fill in @err, if nothing is there yet. @details: stolen, may be NULL. Return:
 * -EINVAL, for callers to pass on. */
int box_refuse(struct box_error *err, unsigned int status, const char *code, json_t *details,
	       const char *fmt, ...) __printf(5, 6);

/** One of the named sizes. */
struct box_size {
	const char *name;
	u32 vcpus;
	u64 memory_bytes;
	u32 cpu_max_milli; /* its share of processors, if that is a hard limit */
	u32 cpu_weight;	   /* and against others that want them, too */
};

/** box_size_find() - NULL: there is none of that name. */
const struct box_size *box_size_find(const char *name);
/** box_size_of() - the named one that has just these; NULL: none. */
const struct box_size *box_size_of(u32 vcpus, u64 memory_bytes);

struct box_spec {
	char template_name[STATE_NAME_MAX + 1];
	char snapshot[STATE_NAME_MAX + 1]; /* "": starts from the template */
	const struct box_size *size;	   /* NULL: none of the named ones */
	u32 vcpus;			   /* 0: the template's own */
	u64 memory_bytes;		   /* 0: the template's own */
	s64 scratch_bytes;		   /* -1: the template's own */
	json_t *env, *labels;		   /* objects of strings */
	json_t *entrypoint;		   /* array of strings, or NULL */
	u64 inactivity_ms;		   /* 0: the setting's */
	u64 hard_ms;			   /* 0: none */
	bool keep_alive, auto_remove;
	u32 pids_max, nofile; /* 0: none of its own */
	char hostname[64];
};

/**
 * box_spec_parse() - @object by the rules of the API: an unknown field, a wrong type or value is
 * refused. Fields "start" and "name" are known and left to the caller.
 * @name: the box's; NULL: not known yet. @default_template: where neither template nor snapshot is
 * given; NULL: then it is refused.
 *
 * Return: 0 (box_spec_free() is due), or -EINVAL or -ENOMEM with @err.
 */
int __must_check box_spec_parse(const json_t *object, const char *name,
				const char *default_template, struct box_spec *out,
				struct box_error *err);
void box_spec_free(struct box_spec *spec);
/** box_spec_copy() - Return: 0 or -ENOMEM. */
int __must_check box_spec_copy(const struct box_spec *spec, struct box_spec *out);

/** box_spec_json() - such that box_spec_parse() reads the same back. Return: NULL without memory.
 */
json_t *box_spec_json(const struct box_spec *spec);

/** box_spec_differences() - [{"field","have","want"}], empty when they are the same. Return: NULL
 * without memory. */
json_t *box_spec_differences(const struct box_spec *have, const struct box_spec *want);

/** box_spec_patch() - labels, inactivity_timeout_ms, hard_timeout_ms, keep_alive of @object.
 * Return: 0, or -EINVAL with @err; @spec is unchanged then. */
int __must_check box_spec_patch(struct box_spec *spec, const json_t *object, struct box_error *err);

/** box_labels_check() - Return: 0, or -EINVAL with @err. */
int __must_check box_labels_check(const json_t *labels, struct box_error *err);

#endif
