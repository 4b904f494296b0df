/* SPDX-License-Identifier: Apache-2.0 */
/* What the handlers of .../exec and .../execs share. */
#ifndef THAW_DAEMON_API_EXEC_H
#define THAW_DAEMON_API_EXEC_H

#include "vmm/daemon/exec_kept.h"
#include "vmm/daemon/exec_spec.h"
#include "vmm/daemon/http.h"

#define EXEC_PING_MS 10000
#define EXEC_STALL_NS                                                                            \
	(120ull * 1000000000u)		     /* a client that takes nothing for so long has left \
					      */
#define EXEC_FIRST_NS  (30ull * 1000000000u) /* for the request of an upgraded connection */
#define EXEC_ID_HEADER "X-Thaw-Exec"

/** One request about one exec. */
struct exec_call {
	struct thawd *thawd;
	struct http_req *req;
	const char *name; /* of the box */
	struct box_use use;
	struct kept *kept;	   /* a reference; NULL: none yet */
	struct kept_reader reader; /* open if reader.kept */
};

/** An error, before it is known in which form it is told. */
struct exec_problem {
	unsigned int status; /* 0: none */
	const char *code;
	json_t *details; /* owned */
	int error;	 /* for SHIM_ERROR */
	u32 stage;
	char text[300];
};

/** exec_call_begin() - the running box of the request; and, if the pattern has an {id}, the exec.
 * Return: 0, or -errno: answered. exec_call_end() in any case. */
int __must_check exec_call_begin(struct exec_call *call, struct thawd *thawd, struct http_req *req);
/** exec_call_begin_read() - the same for what can also be asked of a stopped box. */
int __must_check exec_call_begin_read(struct exec_call *call, struct thawd *thawd,
				      struct http_req *req);
void exec_call_end(struct exec_call *call);

/** exec_call_limits() - of the box. */
struct exec_spec_limits exec_call_limits(const struct exec_call *call);

/** exec_call_start() - start @spec with a reader at 0 that holds, unless it is detached; audits.
 * Return: 0, or -errno with @problem. */
int __must_check exec_call_start(struct exec_call *call, const struct exec_spec *spec,
				 struct exec_problem *problem);

void __printf(4, 5) exec_problem_set(struct exec_problem *problem, unsigned int status,
				     const char *code, const char *fmt, ...);
/** exec_problem_spec() - of a request that makes no sense. */
void exec_problem_spec(struct exec_problem *problem, const struct exec_spec_error *error);
/** exec_problem_end() - of one that did not start, or whose end nobody knows; status 0 otherwise.
 */
void exec_problem_end(struct exec_problem *problem, const struct kept *kept,
		      const struct kept_end *end);
/** exec_problem_stop() - thawd ends. */
void exec_problem_stop(struct exec_problem *problem, const struct kept *kept);
/** exec_problem_json() - {"code","message","details"}; the problem is used up. */
json_t *exec_problem_json(struct exec_problem *problem);
/** exec_problem_reply() - as the answer; the problem is used up. */
void exec_problem_reply(struct http_req *req, struct exec_problem *problem);

/** exec_result_json() - id, pid, how it ended, counts, drained, duration. */
json_t *exec_result_json(const struct kept *kept, const struct kept_view *view);

/** What is to be written to the exec's stdin before anything else. */
struct exec_feed {
	const u8 *data;
	size_t len_bytes;
	bool close; /* and then it ends */
};
/** exec_feed_some() - as much as there is room for. */
void exec_feed_some(struct kept *kept, struct exec_feed *feed);

/* The forms. */
void exec_run_buffered(struct exec_call *call, const struct exec_spec *spec);
void exec_run_events(struct exec_call *call, const struct exec_spec *spec);
void exec_run_detached(struct exec_call *call, const struct exec_spec *spec);
void exec_run_frames(struct exec_call *call);
void exec_attach_frames(struct exec_call *call, u64 cursor);
void exec_run_socket(struct exec_call *call);
void exec_attach_socket(struct exec_call *call, u64 cursor);

/** exec_left() - the client has gone: what runs for it alone is killed, a terminal stays. @owner:
 * it had started it, or came back for it. */
void exec_left(struct exec_call *call, bool owner);
/** exec_adopt() - is this client the one that the exec was run for, by an earlier thawd? Asked
 * once. */
bool exec_adopt(struct kept *kept);
/** exec_replay_cursor() - where a client begins that named no cursor. */
u64 exec_replay_cursor(struct kept *kept);

/* Handlers in other files. */
void api_exec_list(struct thawd *thawd, struct http_req *req);
void api_exec_get(struct thawd *thawd, struct http_req *req);
void api_exec_delete(struct thawd *thawd, struct http_req *req);
void api_exec_signal(struct thawd *thawd, struct http_req *req);
void api_exec_kill(struct thawd *thawd, struct http_req *req);
void api_exec_resize(struct thawd *thawd, struct http_req *req);
void api_exec_stdin(struct thawd *thawd, struct http_req *req);
void api_exec_wait(struct thawd *thawd, struct http_req *req);
void api_exec_logs(struct thawd *thawd, struct http_req *req);
void api_exec_wait_for_log(struct thawd *thawd, struct http_req *req);

#endif
