// SPDX-License-Identifier: Apache-2.0
// Stands in for the part that is to come: sandboxes.
#include "vmm/daemon/http.h"

const struct http_route api_sandbox_routes[] = {{0, NULL, NULL, 0, NULL}};
