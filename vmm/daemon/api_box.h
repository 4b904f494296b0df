/* SPDX-License-Identifier: Apache-2.0 */
/* What the handlers of sandboxes, snapshots, templates and pools share. */
#ifndef THAW_DAEMON_API_BOX_H
#define THAW_DAEMON_API_BOX_H

#include "vmm/daemon/box_internal.h"
#include "vmm/daemon/http.h"

/** api_refused() - answer with @err, whose details are taken, and audit it. */
void api_refused(struct thawd *thawd, struct http_req *req, const char *action, const char *name,
		 struct box_error *err);
/** api_box() - the box of the request's {name}, with a reference; NULL: 404 has been answered. */
struct box *api_box(struct thawd *thawd, struct http_req *req);
/** api_busy() - box_begin(), or it has been answered. */
int __must_check api_busy(struct box *box, struct http_req *req);
/** api_reply_box() - with the object, and audit that @action was done. */
void api_reply_box(struct thawd *thawd, struct http_req *req, const char *action, struct box *box,
		   unsigned int status);
/** api_body() - the JSON object of the request with fields in @fields only. NULL: answered. */
json_t *api_body(struct http_req *req, const char *const *fields);
/** api_text() - field @field of at most @max bytes; *@out stays when it is not given. Return: 0, or
 * -EINVAL: answered. */
int __must_check api_text(struct http_req *req, const json_t *body, const char *field, size_t max,
			  const char **out);
/** api_number() - the same. */
int __must_check api_number(struct http_req *req, const json_t *body, const char *field, u64 min,
			    u64 max, u64 *out);
/** api_labels() - field "labels"; *@out stays NULL when it is not given. */
int __must_check api_labels(struct http_req *req, const json_t *body, const json_t **out);

/* api_lifecycle.c */
void api_start(struct thawd *thawd, struct http_req *req);
void api_stop(struct thawd *thawd, struct http_req *req);
void api_destroy(struct thawd *thawd, struct http_req *req);
void api_signal(struct thawd *thawd, struct http_req *req);
void api_touch(struct thawd *thawd, struct http_req *req);
void api_pause(struct thawd *thawd, struct http_req *req);
void api_resume(struct thawd *thawd, struct http_req *req);
void api_fork(struct thawd *thawd, struct http_req *req);
void api_wait(struct thawd *thawd, struct http_req *req);
void api_stats(struct thawd *thawd, struct http_req *req);

/* api_pools.c */
void api_pool_list(struct thawd *thawd, struct http_req *req);
void api_pool_put(struct thawd *thawd, struct http_req *req);
void api_pool_delete(struct thawd *thawd, struct http_req *req);
void api_prune(struct thawd *thawd, struct http_req *req);

#endif
