// SPDX-License-Identifier: Apache-2.0
// Stands in for the part that is to come: files.
#include "vmm/daemon/http.h"

const struct http_route api_file_routes[] = {{0, NULL, NULL, 0, NULL}};
