// SPDX-License-Identifier: Apache-2.0
// Which headers pass a proxy, cookies and host names of previews. Pure functions over hostile text.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "vmm/daemon/proxy.h"
#include "vmm/daemon/route.h"
#include "vmm/util/util.h"

/** names() - is @name one of the comma-separated words of @list? */
static bool names(const char *list, const char *name)
{
	size_t len = strlen(name);

	while (*list) {
		size_t word;

		list += strspn(list, " \t,");
		word = strcspn(list, " \t,");
		if (word == len && !strncasecmp(list, name, len))
			return true;
		list += word;
	}
	return false;
}

bool proxy_header_passes(const char *name, const char *connection)
{
	static const char *const own[] = {
		"Connection",
		"Keep-Alive",
		"Proxy-Connection",
		"Proxy-Authenticate",
		"Proxy-Authorization",
		"TE",
		"Trailer",
		"Transfer-Encoding",
		"Upgrade",
		"Content-Length",
		"Expect",
		"HTTP2-Settings",
	};

	for (size_t i = 0; i < ARRAY_SIZE(own); i++) {
		if (!strcasecmp(own[i], name))
			return false;
	}
	return !connection || !names(connection, name);
}

/** next_cookie() - the cookie at @at: its whole length, and that of its name. Blanks before it have
 * been skipped. */
static size_t next_cookie(const char *at, size_t *name_len)
{
	size_t len = strcspn(at, ";");

	*name_len = strcspn(at, "=;");
	while (*name_len && strchr(" \t", at[*name_len - 1]))
		--*name_len;
	return len;
}

size_t proxy_strip_cookie(const char *value, const char *name, char *out)
{
	size_t used = 0;

	while (*value) {
		size_t len, name_len;

		value += strspn(value, " \t;");
		len = next_cookie(value, &name_len);
		if (len && (name_len != strlen(name) || memcmp(value, name, name_len) != 0)) {
			if (used) {
				memcpy(out + used, "; ", 2);
				used += 2;
			}
			memcpy(out + used, value, len);
			used += len;
		}
		value += len;
	}
	out[used] = '\0';
	return used;
}

ssize_t proxy_cookie(const char *value, const char *name, const char **out)
{
	while (*value) {
		size_t len, name_len, at;

		value += strspn(value, " \t;");
		len = next_cookie(value, &name_len);
		at = strcspn(value, "=");
		if (at < len && name_len == strlen(name) && !memcmp(value, name, name_len)) {
			*out = value + at + 1;
			return (ssize_t)(len - at - 1);
		}
		value += len;
	}
	return -ENOENT;
}

/** is_named() - is the decoded name of the query parameter @at @name? */
static bool is_named(const char *at, size_t len, const char *name)
{
	size_t name_len = strcspn(at, "=&");
	char decoded[64];

	name_len = MIN(name_len, len);
	if (name_len >= sizeof(decoded) || route_decode(at, name_len, decoded, true) < 0)
		return false;
	return !strcmp(decoded, name);
}

void proxy_strip_query(const char *target, const char *name, char *out)
{
	size_t used = strcspn(target, "?");
	char first = '?';

	memcpy(out, target, used);
	target += used;
	target += *target == '?';
	while (*target) {
		size_t len = strcspn(target, "&");

		if (len && !is_named(target, len, name)) {
			out[used++] = first;
			first = '&';
			memcpy(out + used, target, len);
			used += len;
		}
		target += len;
		target += *target == '&';
	}
	out[used] = '\0';
}

int preview_host_parse(const char *host, const char *domain, struct preview_host *out)
{
	size_t host_len = strcspn(host, ":"), domain_len = strlen(domain), name_len, digits;
	char port[8];
	u64 number;

	digits = strcspn(host, "-");
	if (!digits || digits >= sizeof(port) || host_len <= digits + 1)
		return -EINVAL;
	memcpy(port, host, digits);
	port[digits] = '\0';
	/* One notation for each: no leading zero. */
	if (*port == '0' || parse_u64(port, 1, 65535, &number))
		return -EINVAL;
	host += digits + 1;
	host_len -= digits + 1;
	if (host_len <= domain_len + 1 || host[host_len - domain_len - 1] != '.' ||
	    strncasecmp(host + host_len - domain_len, domain, domain_len) != 0)
		return -EINVAL;
	name_len = host_len - domain_len - 1;
	if (name_len > BOX_NAME_MAX)
		return -EINVAL;
	for (size_t i = 0; i < name_len; i++)
		out->name[i] = (char)(host[i] >= 'A' && host[i] <= 'Z' ? host[i] + 32 : host[i]);
	out->name[name_len] = '\0';
	out->port = (u32)number;
	return box_name_ok(out->name) ? 0 : -EINVAL;
}
