/* SPDX-License-Identifier: Apache-2.0 */
/* What commands that ask thawd share. */
#ifndef THAW_CLI_VERB_H
#define THAW_CLI_VERB_H

#include <jansson.h>

#include "vmm/cli/cli.h"
#include "vmm/cli/client.h"
#include "vmm/cli/optparse.h"

/**
 * struct verb - one command that does something to each sandbox that is named
 * @run: for one of them; @object gets what -o json prints of it (a new reference), or stays NULL.
 * Return: 0 or -errno (logged).
 * @local: the same for a sandbox of `thaw run -d` without a daemon; NULL: there is no such thing.
 */
struct verb {
	const char *name;
	int (*run)(struct client *client, const char *box, void *opts, json_t **object);
	int (*local)(const char *prefix, void *opts, json_t **object);
};

/**
 * verb_each() - run @verb for every positional argument of @result; goes on after an error. Prints
 * each name once it is done; with @json the object, of several sandboxes a list of them.
 * Return: exit status.
 */
int verb_each(const struct verb *verb, const struct optparse_result *result, void *opts, bool json);

/** verb_is_local_id() - could @text be the start of the id of a sandbox without thawd? */
bool verb_is_local_id(const char *text);

/** verb_post() - POST @box/@verb with @steal; @object as above. Return: 0 or -errno (logged). */
int __must_check verb_post(struct client *client, const char *box, const char *verb, json_t *steal,
			   json_t **object);

/** verb_age() - RFC 3339 @text as "3 minutes", into @out. Return: @out. */
const char *verb_age(const char *time, char *out, size_t out_bytes);
/** verb_bytes() - "1.5G". Return: @out. */
const char *verb_bytes(u64 bytes, char *out, size_t out_bytes);
/** verb_time() - RFC 3339 to seconds since 1970, or -1. */
s64 verb_time(const char *time);

#endif
