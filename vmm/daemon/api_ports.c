// SPDX-License-Identifier: Apache-2.0
// Stands in for the part that is to come: ports.
#include "vmm/daemon/http_internal.h"

const struct http_route api_port_routes[] = {{0, NULL, NULL, 0, NULL}};

void preview_serve(struct thawd *thawd, struct http_req *req)
{
	(void)thawd;
	http_reply_error(req, 404, "not_found", NULL, "no such preview");
}
