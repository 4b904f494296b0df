// SPDX-License-Identifier: Apache-2.0
// Boxes: get or create.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "vmm/daemon/box_internal.h"
#include "vmm/util/log.h"

int box_random_name(char out[BOX_NAME_MAX + 1])
{
	static const char *const adjectives[] = {
		"amber", "bold",  "brisk", "calm",   "clear",  "crisp", "deft",	 "eager",
		"fair",	 "fleet", "fresh", "gentle", "grand",  "keen",	"light", "lucid",
		"merry", "mild",  "neat",  "noble",  "plain",  "prime", "quick", "quiet",
		"ready", "sharp", "sleek", "solid",  "steady", "sunny", "swift", "vivid"};
	static const char *const nouns[] = {
		"ash",	 "bay",	  "beech", "brook", "cedar", "cliff", "cove",  "creek",
		"dale",	 "delta", "dune",  "elm",   "fern",  "field", "fjord", "glade",
		"grove", "heath", "hill",  "isle",  "lake",  "larch", "marsh", "mesa",
		"moor",	 "oak",	  "pine",  "reef",  "ridge", "shore", "vale",  "willow"};
	u8 random[8];

	if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
		log_err("getrandom: %s", strerror(errno));
		return -EIO;
	}
	snprintf(out, BOX_NAME_MAX + 1, "%s-%s-%02x%02x%02x%02x",
		 adjectives[random[0] % ARRAY_SIZE(adjectives)],
		 nouns[random[1] % ARRAY_SIZE(nouns)], random[2], random[3], random[4], random[5]);
	return 0;
}

/** A new one, busy. */
static int create(struct box *box, bool start, struct box_error *err)
{
	struct thawd *thawd = box->boxes->thawd;
	int ret = 0;

	if (!start && !box->spec.snapshot[0])
		ret = template_known(&thawd->state, box->spec.template_name, err);
	ret = ret ? ret : box_enter(box, start ? BOX_CREATING : BOX_STOPPED, err);
	if (ret) {
		boxes_remove(box->boxes, box);
		return ret;
	}
	event_emit(thawd, "sandbox.created", box->name, NULL);
	if (!start)
		return 0;
	ret = box_start(box, err);
	/* It was never there for anybody: what could not be, or not now, leaves no name behind, and
	 * a better specification may have it. */
	if (ret && !box->gone)
		(void)box_remove(box, NULL);
	return ret;
}

static int conflict(struct box *box, json_t *differences, struct box_error *err)
{
	const char *field =
		json_string_value(json_object_get(json_array_get(differences, 0), "field"));

	return box_refuse(err, 409, "conflict", json_pack("{s:O}", "differences", differences),
			  "sandbox '%s' exists with another specification: '%s'%s differ%s",
			  box->name, field, json_array_size(differences) > 1 ? " and others" : "",
			  json_array_size(differences) > 1 ? "" : "s");
}

/** One that is there already. Return: 0; -EAGAIN: it has just been deleted; or -errno with @err. */
static int take_existing(struct box *box, struct http_req *req, const struct box_spec *spec,
			 bool start, struct box_error *err)
{
	json_t *differences;
	int ret = 0;

	pthread_mutex_lock(&box->lock);
	differences = box_spec_differences(&box->spec, spec);
	pthread_mutex_unlock(&box->lock);
	if (!differences)
		return box_refuse(err, 500, "internal", NULL, "out of memory");
	if (json_array_size(differences))
		ret = conflict(box, differences, err);
	json_decref(differences);
	if (ret)
		return ret;
	ret = box_begin(box, req);
	if (ret)
		return ret == -ENOENT ? -EAGAIN : box_refuse_begin(box, ret, err);
	if (start && (box->state == BOX_STOPPED || box->state == BOX_FAILED))
		ret = box_start(box, err);
	box_done(box);
	return ret;
}

int box_create(struct boxes *boxes, const char *name, struct box_spec *spec, bool start,
	       bool exclusive, struct http_req *req, struct box **out, bool *created,
	       struct box_error *err)
{
	struct box *box, *existing;
	struct box_spec copy;
	int ret = snaps_resolve(boxes, spec, err);

	*out = NULL;
	do {
		if (!ret)
			ret = box_spec_copy(spec, &copy);
		if (ret)
			break;
		box = boxes_add(boxes, name, &copy, &existing, err);
		*created = box != NULL;
		if (box) {
			ret = create(box, start, err);
			box_done(box);
		} else if (!existing) {
			ret = -EINVAL;
		} else if (exclusive) {
			ret = box_refuse(err, 409, "conflict", NULL,
					 "there is a sandbox '%s' already", name);
		} else {
			ret = take_existing(existing, req, spec, start, err);
		}
		if (ret)
			box_put(box ? box : existing);
		else
			*out = box ? box : existing;
	} while (ret == -EAGAIN && !(ret = 0));
	box_spec_free(spec);
	if (ret && !err->status)
		box_refuse(err, 500, "internal", NULL, "sandbox '%s': %s", name, strerror(-ret));
	return ret;
}
