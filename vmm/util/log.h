/* SPDX-License-Identifier: Apache-2.0 */
/* Logging to stderr, and the end of the process when an invariant of our own is broken. */
#ifndef THAW_UTIL_LOG_H
#define THAW_UTIL_LOG_H

#include "vmm/util/types.h"

enum log_level {
	LOG_ERROR,
	LOG_WARN,
	LOG_INFO,
	LOG_DEBUG,
};

/**
 * log_set_level() - drop every message above @level.
 *
 * The level is the only mutable global of the project; set it once, before threads start. Default
 * LOG_WARN, or the value of $THAW_LOG (error, warn, info, debug) when log_init() is called.
 */
void log_set_level(enum log_level level);

/** log_init() - name of the program in front of each line (kept by pointer), level from $THAW_LOG.
 */
void log_init(const char *program);

/** log_write() - one line "program: level: message" by a single write(2); adds the newline. errno
 * is kept. */
void log_write(enum log_level level, const char *fmt, ...) __printf(2, 3);

/** What a thread logged last as an error, kept for whoever asked it to do something. */
struct log_keep {
	struct log_keep *outer; /* of log_keep_begin()s within one another */
	bool quiet;
	char text[512]; /* the last line without program and level; "" if there was none */
};

/**
 * log_keep_begin() - from here on @keep has the calling thread's last error.
 * @quiet: and it is not written: for errors that are somebody else's to tell.
 *
 * log_keep_end() is due, in the same thread and in reverse order.
 */
void log_keep_begin(struct log_keep *keep, bool quiet);
void log_keep_end(struct log_keep *keep);

/** log_bug() - say which invariant broke, with write(2) only, then abort(). */
_Noreturn void log_bug(const char *expr, const char *file, int line);

/** State of one rate-limited call site. */
struct log_limit {
	u64 window_start_ns;
	u32 count;
};

/** log_limit_ok() - true for the first 10 calls in any 5 s; used for everything a guest or peer can
 * cause. */
bool log_limit_ok(struct log_limit *limit);

#define log_err(...)   log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

/** Rate-limited warning: the guest, a snapshot or a peer caused it. */
#define log_guest(...)                                    \
	do {                                              \
		static struct log_limit limit_;           \
		if (log_limit_ok(&limit_))                \
			log_write(LOG_WARN, __VA_ARGS__); \
	} while (0)

/** Never compiled out; @cond must have no side effect. */
#define BUG_ON(cond)                                        \
	do {                                                \
		if (__builtin_expect(!!(cond), 0))          \
			log_bug(#cond, __FILE__, __LINE__); \
	} while (0)

#endif
