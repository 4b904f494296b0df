/* SPDX-License-Identifier: Apache-2.0 */
/* docs/openapi.yaml as JSON, made at build time by scripts/openapi-c. */
#ifndef THAW_DAEMON_OPENAPI_H
#define THAW_DAEMON_OPENAPI_H

#include <stddef.h>

extern const unsigned char openapi_json[];
extern const size_t openapi_json_bytes;

#endif
