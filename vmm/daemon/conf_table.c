// SPDX-License-Identifier: Apache-2.0
// The table of settings; thaw.conf(5) says what each is for.
#include <limits.h>
#include <stddef.h>

#include "vmm/daemon/conf.h"

#define SECOND	   ((u64)1000)
#define MINUTE	   (60 * SECOND)
#define HOUR	   (60 * MINUTE)
#define AT(member) offsetof(struct conf, member)

const struct conf_row conf_rows[] = {
	/* where */
	{"state_folder", CONF_PATH, AT(state_folder), 0, PATH_MAX / 2 - 1, "", false},
	{"socket", CONF_PATH, AT(socket_path), 1, 90, "/run/thaw/thaw.sock", false},
	{"socket_mode", CONF_MODE, AT(socket_mode), 0, 0777, "0660", false},
	{"socket_group", CONF_TEXT, AT(socket_group), 0, 64, "thaw", false},
	/* TCP */
	{"listen", CONF_TEXT, AT(listen), 0, 300, "", false},
	{"tls_cert", CONF_PATH, AT(tls_cert), 0, PATH_MAX - 1, "", false},
	{"tls_key", CONF_PATH, AT(tls_key), 0, PATH_MAX - 1, "", false},
	{"token_file", CONF_PATH, AT(token_file), 0, PATH_MAX - 1, "", false},
	/* previews */
	{"preview_listen", CONF_TEXT, AT(preview_listen), 0, 300, "", false},
	{"preview_domain", CONF_TEXT, AT(preview_domain), 0, 180, "", false},
	{"preview_url", CONF_TEXT, AT(preview_url), 0, 400, "", false},
	{"preview_tls_cert", CONF_PATH, AT(preview_tls_cert), 0, PATH_MAX - 1, "", false},
	{"preview_tls_key", CONF_PATH, AT(preview_tls_key), 0, PATH_MAX - 1, "", false},
	/* limits of the HTTP side */
	{"max_connections", CONF_NUMBER, AT(max_connections), 16, 200000, "4096", false},
	{"max_requests", CONF_NUMBER, AT(max_requests), 4, 20000, "1024", false},
	{"max_header_size", CONF_SIZE, AT(max_header_bytes), 1024, 1 * MIB, "32KiB", false},
	{"max_json_size", CONF_SIZE, AT(max_json_bytes), 1024, 256 * MIB, "4MiB", true},
	{"header_timeout", CONF_DURATION, AT(header_timeout_ms), 100, HOUR, "10s", true},
	{"body_timeout", CONF_DURATION, AT(body_timeout_ms), 100, HOUR, "30s", true},
	{"idle_timeout", CONF_DURATION, AT(idle_timeout_ms), 100, HOUR, "75s", true},
	{"send_timeout", CONF_DURATION, AT(send_timeout_ms), 100, 24 * HOUR, "2m", true},
	{"stop_timeout", CONF_DURATION, AT(stop_timeout_ms), 100, HOUR, "10s", true},
	{"io_threads", CONF_NUMBER, AT(io_threads), 1, 64, "2", false},
	/* ports */
	{"port_connect_timeout", CONF_DURATION, AT(port_connect_timeout_ms), 10, HOUR, "10s", true},
	{"port_head_timeout", CONF_DURATION, AT(port_head_timeout_ms), 10, 24 * HOUR, "5m", true},
	/* sandboxes */
	{"guest_timeout", CONF_DURATION, AT(guest_timeout_ms), 100, HOUR, "60s", true},
	{"default_template", CONF_TEXT, AT(default_template), 0, 63, "debian", false},
	{"inactivity_timeout", CONF_DURATION, AT(inactivity_timeout_ms), 0, 6 * HOUR, "10m", true},
	{"pools", CONF_TEXT, AT(pools), 0, 1000, "", false},
	{"max_sandboxes", CONF_NUMBER, AT(max_sandboxes), 0, 1000000, "10000", false},
	{"max_vcpus", CONF_NUMBER, AT(max_vcpus), 0, 1000000, "0", false},
	{"max_memory", CONF_SIZE, AT(max_memory_bytes), 0, 1ull << 50, "0", false},
	{"cpu_overcommit", CONF_NUMBER, AT(cpu_overcommit), 1, 1000000, "6400", false},
	{"memory_overcommit", CONF_NUMBER, AT(memory_overcommit), 1, 1000000, "300", false},
	{"memory_pressure_max", CONF_NUMBER, AT(memory_pressure_max), 0, 100, "40", true},
	{"jail", CONF_BOOL, AT(jail), 0, 0, "on", false},
	{"cpu_hard_limit", CONF_BOOL, AT(cpu_hard_limit), 0, 0, "off", false},
	{"require_cgroup", CONF_BOOL, AT(require_cgroup), 0, 0, "on", false},
	{"cgroup_root", CONF_PATH, AT(cgroup_root), 1, PATH_MAX / 4, "/sys/fs/cgroup/thaw", false},
	{"jail_uid_base", CONF_NUMBER, AT(jail_uid_base), 1000, 4294000000, "1879048192", false},
	{"jail_uid_count", CONF_NUMBER, AT(jail_uid_count), 1, 10000000, "65536", false},
	/* execs */
	{"exec_max", CONF_NUMBER, AT(exec_max), 1, 4096, "128", false},
	{"exec_log_size", CONF_SIZE, AT(exec_log_bytes), 1 * MIB, 16 * GIB, "16MiB", false},
	/* notes */
	{"audit_log", CONF_PATH, AT(audit_log), 0, PATH_MAX - 1, "", false},
	{"audit_argv", CONF_BOOL, AT(audit_argv), 0, 0, "off", true},
	{"event_ring", CONF_NUMBER, AT(event_ring), 16, 1000000, "4096", false},
	{NULL, CONF_TEXT, 0, 0, 0, NULL, false},
};
