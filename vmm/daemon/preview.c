// SPDX-License-Identifier: Apache-2.0
// The preview listener. Host "{port}-{name}.{domain}" says what is meant; the sandbox's own token
// lets one in: in the header X-Thaw-Token, the query parameter thaw_token, or the cookie of that
// name. From the query it becomes a cookie, by a redirect, so that it does not stay in the
// address, where it would be shown, shared and sent on as a referrer. The server in the sandbox
// never sees it.
#include "vmm/daemon/preview.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/daemon/auth.h"
#include "vmm/daemon/http_internal.h"
#include "vmm/daemon/proxy.h"
#include "vmm/daemon/thawd.h"

#define TOKEN_NAME "thaw_token"
#define TOKEN_LEN  32u

char *preview_url(struct thawd *thawd, const char *name, const char *token)
{
	const struct conf *conf = &thawd->conf;
	const char *format = conf->preview_url, *at = strstr(format, "{host}");
	const char *colon = strrchr(conf->preview_listen, ':');
	char *url = NULL;
	int len;

	if (at)
		len = asprintf(&url, "%.*s{port}-%s.%s%s/?" TOKEN_NAME "=%s", (int)(at - format),
			       format, name, conf->preview_domain, at + strlen("{host}"), token);
	else
		len = asprintf(&url, "%s://{port}-%s.%s%s/?" TOKEN_NAME "=%s",
			       *conf->preview_tls_cert ? "https" : "http", name,
			       conf->preview_domain, colon ? colon : "", token);
	return len < 0 ? NULL : url;
}

/** given_token() - what the client shows, into @out; *@in_query: it is in the address. "": none. */
static void given_token(struct http_req *req, char out[TOKEN_LEN + 2], bool *in_query)
{
	const char *text = http_header(req, "X-Thaw-Token"), *cookies, *at;
	ssize_t len = text ? (ssize_t)strlen(text) : -1;

	*in_query = false;
	if (!text) {
		text = http_query(req, TOKEN_NAME);
		len = text ? (ssize_t)strlen(text) : -1;
		*in_query = text != NULL;
	}
	cookies = http_header(req, "Cookie");
	if (!text && cookies) {
		len = proxy_cookie(cookies, TOKEN_NAME, &at);
		text = len >= 0 ? at : NULL;
	}
	/* One that is too long is wrong whatever it begins with. */
	snprintf(out, TOKEN_LEN + 2, "%.*s",
		 text ? (int)MIN((size_t)len, (size_t)TOKEN_LEN + 1) : 0, text ? text : "");
}

/** redirect() - to the same address without the token, which the browser keeps as a cookie. */
static void redirect(struct http_req *req, const char *token, const char *target)
{
	char cookie[160];

	snprintf(cookie, sizeof(cookie), TOKEN_NAME "=%s; Path=/; HttpOnly; SameSite=Lax%s", token,
		 http_over_tls(req) ? "; Secure" : "");
	/* "//host/" and "/\host/" would be other hosts. */
	while (target[0] == '/' && (target[1] == '/' || target[1] == '\\'))
		target++;
	if (*target == '\\')
		target = "/";
	http_add_header(req, "Set-Cookie", cookie);
	http_add_header(req, "Location", target);
	http_add_header(req, "Cache-Control", "no-store");
	http_add_header(req, "Referrer-Policy", "no-referrer");
	http_reply_empty(req, 307);
}

/** check_token() - Return: 0, or -EACCES: answered. */
static int check_token(struct http_req *req, const char *token, bool *in_query)
{
	char given[TOKEN_LEN + 2];

	given_token(req, given, in_query);
	if (strlen(token) == TOKEN_LEN && auth_same(token, given))
		return 0;
	http_reply_error(req, 401, "unauthorized", NULL,
			 "this preview needs the sandbox's token: in the header X-Thaw-Token, or "
			 "once as ?" TOKEN_NAME "=");
	return -EACCES;
}

/** find_box() - @use without counting activity: nobody has shown a token. Return: 0, or -errno:
 * answered. */
static int find_box(struct thawd *thawd, struct http_req *req, struct preview_host *host,
		    struct box_use *use)
{
	const char *text = http_header(req, "Host");
	int ret = -ENOENT;

	if (text && !preview_host_parse(text, thawd->conf.preview_domain, host))
		ret = box_use_quiet(thawd, host->name, use);
	if (ret == -ENODEV)
		http_reply_error(req, 410, "gone", NULL,
				 "the sandbox of this preview does not run");
	else if (ret)
		http_reply_error(req, 404, "not_found", NULL,
				 "there is no such preview; expected the host PORT-NAME.%s",
				 thawd->conf.preview_domain);
	return ret;
}

/** target_of() - path and query without the token; to be freed. */
static char *target_of(const struct http_req *req)
{
	const struct route_target *target = &req->target;
	char *text = NULL, *out;

	if (asprintf(&text, "%s%s%s", target->path, target->query ? "?" : "",
		     target->query ? target->query : "") < 0)
		return NULL;
	out = malloc(strlen(text) + 1);
	if (out)
		proxy_strip_query(text, TOKEN_NAME, out);
	free(text);
	return out;
}

static void serve_box(struct thawd *thawd, struct http_req *req, const struct preview_host *host,
		      const char *token, bool in_query)
{
	struct proxy_call call = {.port = host->port, .cookie = TOKEN_NAME, .keep_auth = true};
	bool get = !strcmp(req->method, "GET") || req->is_head;
	char *target = target_of(req);
	struct box_use use;

	if (!target) {
		http_reply_error(req, 500, "internal", NULL, "out of memory");
		return;
	}
	if (in_query && get && !http_wants_upgrade(req, "websocket")) {
		redirect(req, token, target);
	} else {
		call.target = target;
		call.host = http_header(req, "Host");
		/* For box_use(), which takes the name from the route. */
		req->target.params[0] = (struct route_pair){"name}", host->name};
		req->target.nparams = 1;
		if (!box_use(thawd, req, &use)) {
			proxy_http(thawd, req, &use, &call);
			box_use_end(thawd, &use);
		}
	}
	free(target);
}

void preview_serve(struct thawd *thawd, struct http_req *req)
{
	struct preview_host host;
	struct box_use use;
	bool in_query;
	char token[33];
	int ret;

	ret = route_query_parse(&req->target);
	if (ret) /* the server's own notation; the token is elsewhere then */
		req->target.nqueries = 0;
	if (find_box(thawd, req, &host, &use))
		return;
	box_preview_token(thawd, &use, token);
	box_use_end(thawd, &use);
	if (!check_token(req, token, &in_query))
		serve_box(thawd, req, &host, token, in_query);
}
