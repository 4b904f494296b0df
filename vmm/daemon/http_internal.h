/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the HTTP layer share; see README.md for threads and invariants.
 *
 * Locks, in the order in which they may be taken: MHD's own (held around its callbacks now and
 * then) - http_req.lock - http_listener.lock. MHD_resume_connection() is called with none of ours,
 * MHD_suspend_connection() with the request's: whoever sees `suspended` may resume.
 */
#ifndef THAW_DAEMON_HTTP_INTERNAL_H
#define THAW_DAEMON_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/queue.h>

#include "vmm/daemon/auth.h"
#include "vmm/daemon/http.h"
#include "vmm/daemon/route.h"
#include "vmm/daemon/thawd.h"

#define HTTP_RING_BYTES	  (128 * KIB) /* bounded buffer of a body, each way */
#define HTTP_HEADERS_MAX  128u
#define HTTP_EXTRA_MAX	  136u /* headers a handler may add */
#define HTTP_JSON_DEPTH	  64u
#define HTTP_STACK_BYTES  (512 * KIB)
#define HTTP_ACCESS_LIMIT 64u /* MHD's own limit above ours: room to throw the oldest out */

enum http_listener_kind {
	LISTENER_UNIX,
	LISTENER_TCP,
	LISTENER_PREVIEW,
};

enum http_conn_state {
	CONN_FRESH, /* waits for the headers of a request, or drains the body of one refused */
	CONN_IDLE,  /* between requests */
	CONN_BUSY,  /* a request is being served, or answered */
};

/** One client's connection; guarded by its listener's lock, constant where told. */
struct http_conn {
	TAILQ_ENTRY(http_conn) link;
	struct http_listener *listener; /* constant */
	int fd;				/* constant; MHD's, open as long as this is listed */
	enum http_conn_state state;
	u64 deadline_ns; /* FRESH, IDLE */
	bool cut;	 /* shut down already */
	bool watched;	 /* atomic: its handler polls it, http_client_fd() */
	bool upgraded;	 /* atomic: it speaks something else now */
	uid_t uid;	 /* this and what follows: constant */
	pid_t pid;
	char peer[INET6_ADDRSTRLEN + 8]; /* "": a Unix socket's */
};

TAILQ_HEAD(http_conn_list, http_conn);

struct http_listener {
	struct http *http;
	enum http_listener_kind kind;
	const char *name; /* for messages */
	bool tls;
	int fd;
	char *cert, *key; /* PEM, as MHD wants them */
	struct MHD_Daemon *daemon;
	pthread_mutex_t lock;
	struct http_conn_list lists[CONN_BUSY + 1]; /* by state; the first two oldest first */
	unsigned int count;
	unsigned int requests; /* in worker threads or waiting for one; guarded by http.work_lock */
};

#define HTTP_LISTENERS_MAX 3

struct http {
	struct thawd *thawd;
	struct auth auth;
	struct http_listener listeners[HTTP_LISTENERS_MAX];
	unsigned int nlisteners;
	int stop_fd;
	bool stopping; /* atomic */
	pthread_mutex_t work_lock;
	pthread_cond_t work_wake, work_done;
	TAILQ_HEAD(http_queue, http_req) queue;
	unsigned int queued, idle, workers;
	bool ending;	/* guarded by work_lock: no more work */
	u64 answers[6]; /* atomic; by first digit of the status */
};

/** A bounded buffer of bytes; guarded by the request's lock. */
struct http_ring {
	u8 *buf; /* HTTP_RING_BYTES, made when first needed */
	size_t start, used;
};

size_t http_ring_put(struct http_ring *ring, const void *buf, size_t len_bytes);
size_t http_ring_take(struct http_ring *ring, void *buf, size_t max_bytes);

struct http_req {
	struct http *http;
	struct http_listener *listener;
	TAILQ_ENTRY(http_req) queue_link;
	/* constant once the handler runs */
	struct route_target target;
	char *raw_target;
	const struct http_route *route;
	char method[32];
	char who[96], peer[INET6_ADDRSTRLEN + 8];
	struct route_pair headers[HTTP_HEADERS_MAX];
	unsigned int nheaders;
	char *header_memory;
	s64 length_bytes;		/* of the body; -1: chunked */
	bool is_head, begun, submitted; /* MHD's thread alone: the last two */
	/* the handler's alone */
	char *extra[HTTP_EXTRA_MAX][2];
	unsigned int nextra;
	int client_fd;		  /* a duplicate; -1: nobody asked */
	struct http_watch *watch; /* of an upgraded TLS connection */
	u64 sse_sent_ns;
	s64 stream_left; /* -1: unknown */
	u64 start_ns;
	bool body_failed; /* it did not come as it should have; the connection can't be used again
			   */
	/* guarded by @lock */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct MHD_Connection *mhd; /* NULL: MHD has done with this request */
	struct http_conn *conn;	    /* valid while @mhd is */
	unsigned int refs;	    /* MHD, the worker, a streamed response */
	bool suspended, body_done, answered, streaming, out_done, out_failed, raw_sent;
	bool holds, want_body; /* Expect: 100-continue */
	int body_fd;	       /* an eventfd, written at each piece of the body; -1: nobody asked */
	struct http_ring in, out;
	struct MHD_Response *response;
	unsigned int status;
	char *plain; /* the body of a simple answer, for raw sending */
	/* upgrade */
	struct MHD_UpgradeResponseHandle *upgrade;
	int upgrade_fd;
	u8 *early;
	size_t early_bytes;
};

/* http_conn.c */
void http_conn_notify(void *opaque, struct MHD_Connection *mhd, void **context,
		      enum MHD_ConnectionNotificationCode code);
/** http_conn_set() - another state; its time-out begins. */
void http_conn_set(struct http_conn *conn, enum http_conn_state state);
/** http_conn_begin() - a request begins: of a fresh connection the time for its headers began with
 * it, of one that was idle it does now. */
void http_conn_begin(struct http_conn *conn);
/** http_conn_cut() - shut it down, now; MHD sees that. Any thread, while @conn is valid. */
void http_conn_cut(struct http_conn *conn);
/** http_conn_expire() - cut all whose time is up. */
void http_conn_expire(struct http_listener *listener);
/** http_conn_busy() - is there a request that is not answered to its end? */
bool http_conn_busy(struct http_listener *listener);
/** http_conn_stop() - cut those that serve nothing, or @all; wake handlers that wait for their
 * client by ending its side. MHD may take that for the client's leaving and drop a late answer, so
 * others are left alone. */
void http_conn_stop(struct http_listener *listener, bool all);

/* http_serve.c */
void *http_serve_target(void *opaque, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result http_serve(void *opaque, struct MHD_Connection *mhd, const char *url,
			   const char *method, const char *version, const char *upload_data,
			   size_t *upload_bytes, void **context);
void http_serve_completed(void *opaque, struct MHD_Connection *mhd, void **context,
			  enum MHD_RequestTerminationCode code);

/* http_work.c */
/** http_work_submit() - Return: 0, -EAGAIN (too many), -errno. */
int __must_check http_work_submit(struct http_req *req);

/* http_req.c */
struct http_req *http_req_new(struct http_listener *listener, struct MHD_Connection *mhd,
			      const char *raw_target);
void http_req_put(struct http_req *req);
/** http_req_unlock_resume() - also resumes the connection if it is suspended. Once too often does
 * no harm: MHD asks again, and is told to wait again. */
void http_req_lock(struct http_req *req);
void http_req_unlock_resume(struct http_req *req);
void http_req_unlock(struct http_req *req);
/** http_req_wait() - with the lock held, until @deadline_ns (0: for ever). Return: 0 or
 * -ETIMEDOUT. */
int __must_check http_req_wait(struct http_req *req, u64 deadline_ns);
/** http_req_wake() - with the lock held: something has happened that the worker may wait for. */
void http_req_wake(struct http_req *req);
/** http_req_cut() - with the lock held: the client is cut off. */
void http_req_cut(struct http_req *req);

/* http_reply.c */
/** http_answer() - what every answer ends in. @response: stolen. @plain: body text, stolen, or
 * NULL. */
void http_answer(struct http_req *req, unsigned int status, struct MHD_Response *response,
		 char *plain);
/** http_drop_response() - ours to the response; MHD has its own once it is queued. A streamed one
 * has one to the request: it must be dropped before the request can go. */
void http_drop_response(struct http_req *req);
/** http_add_extra() - the handler's headers into @response. */
void http_add_extra(struct http_req *req, struct MHD_Response *response);

/* http_body.c */
/** http_json_parse() - one object; nothing counts as {}. Return: it, or NULL with @why. */
json_t *http_json_parse(const char *text, size_t len_bytes, char *why, size_t why_bytes);

/* http_upgrade.c */
void http_upgrade_end(struct http_req *req);

/* http_listen.c: sockets */
int __must_check http_listen_unix(struct thawd *thawd);
int __must_check http_listen_tcp(const char *setting, const char *address);

#endif
