/* SPDX-License-Identifier: Apache-2.0 */
/* The preview listener: servers in sandboxes under host names of their own, for browsers. */
#ifndef THAW_DAEMON_PREVIEW_H
#define THAW_DAEMON_PREVIEW_H

struct thawd;
struct http_req;

/** preview_serve() - any request of the preview listener. */
void preview_serve(struct thawd *thawd, struct http_req *req);

/** preview_url() - where the servers of sandbox @name are, with "{port}" for the port and @token in
 * it; to be freed. NULL: no memory. */
char *preview_url(struct thawd *thawd, const char *name, const char *token);

#endif
