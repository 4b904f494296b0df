// SPDX-License-Identifier: Apache-2.0
// What thawd says about itself: /healthz, /version, /metrics, /openapi.json, /v1/info, /v1/events.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "vmm/cli/kvmkind.h"
#include "vmm/daemon/box.h"
#include "vmm/daemon/http.h"
#include "vmm/daemon/notes_internal.h"
#include "vmm/daemon/openapi.h"
#include "vmm/daemon/thawd.h"
#include "vmm/util/util.h"

static void serve_healthz(struct thawd *thawd, struct http_req *req)
{
	(void)thawd;
	http_reply_json(req, 200, json_pack("{s:b}", "ok", 1));
}

static void serve_version(struct thawd *thawd, struct http_req *req)
{
	(void)thawd;
	http_reply_json(req, 200, json_pack("{s:s, s:s}", "version", THAW_VERSION, "api", "v1"));
}

static void serve_metrics(struct thawd *thawd, struct http_req *req)
{
	char *text = metrics_print(thawd);

	if (!text) {
		http_reply_error(req, 500, "internal", NULL, "out of memory");
		return;
	}
	http_reply_text(req, 200, "text/plain; version=0.0.4; charset=utf-8", text, strlen(text));
	free(text);
}

static void serve_openapi(struct thawd *thawd, struct http_req *req)
{
	(void)thawd;
	http_reply_text(req, 200, "application/json", (const char *)openapi_json,
			openapi_json_bytes);
}

/** kvm_kind_text() - what thaw doctor says of it. */
static const char *kvm_kind_text(void)
{
	const char *kind = "none";
	char *cpuinfo = NULL;

	if (access("/dev/kvm", R_OK | W_OK) < 0 ||
	    file_read_all(AT_FDCWD, "/proc/cpuinfo", 16 * MIB, &cpuinfo, NULL))
		return kind;
	if (!cpuinfo_has_flag(cpuinfo, "vmx") && !cpuinfo_has_flag(cpuinfo, "svm"))
		kind = "pvm";
	else
		kind = kvm_cpu_emulated() ? "emulated" : "hardware";
	free(cpuinfo);
	return kind;
}

/** quota_json() - how much of one of thawd's limits is used. */
static json_t *quota_json(const struct box_quota *quota)
{
	return json_pack("{s:I, s:o}", "used", (json_int_t)quota->used, "limit",
			 quota->max ? json_integer((json_int_t)quota->max) : json_null());
}

/** text_json() - "" is none. */
static json_t *text_json(const char *text)
{
	return *text ? json_string(text) : json_null();
}

static void serve_info(struct thawd *thawd, struct http_req *req)
{
	const struct conf *conf = &thawd->conf;
	struct sysinfo info = {.mem_unit = 1};
	struct box_quota quotas[3];
	json_t *quota;

	sysinfo(&info);
	boxes_quota(thawd, quotas);
	quota = json_pack("{s:o, s:o, s:o}", "sandboxes", quota_json(&quotas[0]), "vcpus",
			  quota_json(&quotas[1]), "memory_bytes", quota_json(&quotas[2]));
	http_reply_json(req, 200,
			json_pack("{s:s, s:s, s:s, s:s, s:o, s:b, s:o, s:i, s:I, s:o}", "version",
				  THAW_VERSION, "api", "v1", "kvm", kvm_kind_text(), "state_folder",
				  thawd->state.root, "default_template",
				  text_json(conf->default_template), "jail", (int)conf->jail,
				  "preview_domain", text_json(conf->preview_domain), "cpus",
				  (int)sysconf(_SC_NPROCESSORS_ONLN), "memory_total_bytes",
				  (json_int_t)info.totalram * info.mem_unit, "quotas", quota));
}

static const char *const events_query[] = {"sandbox", "since", NULL};

const struct http_route api_core_routes[] = {
	{HTTP_GET, "/healthz", NULL, HTTP_NO_AUTH | HTTP_RESERVED, serve_healthz},
	{HTTP_GET, "/version", NULL, HTTP_RESERVED, serve_version},
	{HTTP_GET, "/metrics", NULL, HTTP_RESERVED, serve_metrics},
	{HTTP_GET, "/openapi.json", NULL, 0, serve_openapi},
	{HTTP_GET, "/v1/info", NULL, HTTP_RESERVED, serve_info},
	{HTTP_GET, "/v1/events", events_query, 0, events_serve},
	{0, NULL, NULL, 0, NULL},
};
