/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of thawd: /etc/thaw/thaw.conf, lines "name = value", thaw.conf(5).
 *
 * Every setting is a row of the table in conf_table.c, with its default (in the same notation as in
 * the file), its kind and its bounds; a part that needs one adds a member here, a row there and an
 * entry in docs/man/thaw.conf.5.
 */
#ifndef THAW_DAEMON_CONF_H
#define THAW_DAEMON_CONF_H

#include <stdio.h>

#include "vmm/util/types.h"

#define CONF_DEFAULT_PATH   "/etc/thaw/thaw.conf"
#define CONF_FILE_MAX_BYTES (256 * KIB)

/** Strings are owned and never NULL; "" means: none. Durations are in ms, sizes in bytes. */
struct conf {
	/* where */
	char *state_folder; /* "": $THAW_STATE, else /var/lib/thaw */
	char *socket_path;
	u64 socket_mode;
	char *socket_group;
	/* TCP */
	char *listen; /* ADDRESS:PORT; "": none */
	char *tls_cert, *tls_key, *token_file;
	/* previews */
	char *preview_listen, *preview_domain, *preview_url;
	char *preview_tls_cert, *preview_tls_key;
	/* limits of the HTTP side */
	u64 max_connections, max_requests, max_header_bytes, max_json_bytes;
	u64 header_timeout_ms, body_timeout_ms, idle_timeout_ms, send_timeout_ms, stop_timeout_ms;
	u64 io_threads;
	/* ports */
	u64 port_connect_timeout_ms, port_head_timeout_ms, guest_timeout_ms;
	/* sandboxes */
	char *default_template, *pools, *cgroup_root;
	u64 inactivity_timeout_ms;			/* 0: none */
	u64 max_sandboxes, max_vcpus, max_memory_bytes; /* 0: what the host has, by these: */
	u64 cpu_overcommit, memory_overcommit;		/* percent */
	u64 memory_pressure_max;			/* percent of the time; 0: not looked at */
	bool jail, require_cgroup, cpu_hard_limit;
	u64 jail_uid_base, jail_uid_count;
	/* execs */
	u64 exec_max, exec_log_bytes;
	/* notes */
	char *audit_log;
	bool audit_argv;
	u64 event_ring;
};

enum conf_kind {
	CONF_TEXT,
	CONF_PATH,     /* absolute, or empty */
	CONF_BOOL,     /* on, off, yes, no, true, false */
	CONF_NUMBER,   /* decimal */
	CONF_SIZE,     /* 64KiB, 1G */
	CONF_DURATION, /* 500ms, 10s, 5m, 6h; a number alone is refused */
	CONF_MODE,     /* octal */
};

/** struct conf_row - one setting. @min and @max bound numbers, sizes and durations; of a text @max
 * is the greatest length. @reload: a new value counts at SIGHUP without a restart. */
struct conf_row {
	const char *name;
	enum conf_kind kind;
	size_t offset; /* in struct conf: char *, bool or u64 by @kind */
	u64 min, max;
	const char *otherwise; /* the default */
	bool reload;
};

/** conf_rows - the table, ended by a row without name. */
extern const struct conf_row conf_rows[];

/** conf_init() - all defaults. Return: 0 or -ENOMEM. */
int __must_check conf_init(struct conf *conf);

/**
 * conf_parse() - settings of @text over what @conf has.
 * @why: on failure "line N: what is wrong and how to fix it".
 * Return: 0, -EINVAL, or -ENOMEM; @conf is half changed after a failure.
 */
int __must_check conf_parse(struct conf *conf, const char *text, size_t len_bytes, char *why,
			    size_t why_bytes);

/**
 * conf_load() - defaults, then the file @path. @must_exist: its absence is an error, otherwise the
 * defaults are it. Also checks what settings demand of each other.
 * Return: 0 or -errno (logged as "PATH:LINE: ..."); conf_free() is due after success only.
 */
int __must_check conf_load(struct conf *conf, const char *path, bool must_exist);

/** conf_set() - one setting from outside the file (--socket). Return: 0 or -EINVAL with @why. */
int __must_check conf_set(struct conf *conf, const char *name, const char *value, char *why,
			  size_t why_bytes);

/** conf_check() - what settings demand of each other. Return: 0, or -EINVAL with @why. */
int __must_check conf_check(const struct conf *conf, char *why, size_t why_bytes);

/** conf_reload() - read @path again; rows that say so take their new value, of others that changed
 * it is logged that they need a restart. Strings are not among those. Return: 0 or -errno (logged;
 * @conf unchanged). */
int __must_check conf_reload(struct conf *conf, const char *path);

/** conf_print() - the settings with their values, a line each, as the file would have them. */
void conf_print(const struct conf *conf, FILE *out);

void conf_free(struct conf *conf);

#endif
