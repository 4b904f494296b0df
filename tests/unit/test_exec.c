// SPDX-License-Identifier: Apache-2.0
// The host's side of an exec against guests that are scripted, and that lie.
#include "vmm/cli/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/shim/frame.h"
#include "tests/unit/test.h"
#include "vmm/util/util.h"

#define SECOND_NS 1000000000ull

static char *const true_argv[] = {(char[]){"true"}, NULL};
static const struct exec_request plain = {.argv = true_argv};
static const struct exec_request with_stdin = {.argv = true_argv, .with_stdin = true};

/* What a scripted guest sends. */
struct script {
	u8 bytes[1 << 17];
	size_t len;
};

static void say(struct script *s, enum shim_frame_type type, const void *payload, u32 len)
{
	frame_put(s->bytes + s->len, type, len);
	if (len)
		memcpy(s->bytes + s->len + 8, payload, len);
	s->len += 8 + len;
}

static void say_started(struct script *s)
{
	say(s, SHIM_STARTED, (u8[]){42, 0, 0, 0}, 4);
}

static void say_exit(struct script *s, u32 kind, u32 value, u32 drained)
{
	struct shim_exit body = {.kind = kind, .value = value, .flags = drained};

	say(s, SHIM_EXIT, &body, sizeof(body));
}

/* Run a whole script against exec_run(); the guest closes behind it. */
static struct exec_result play(const struct script *s, int out_fd, int err_fd)
{
	const struct exec_io io = {.stdin_fd = -1,
				   .stdout_fd = out_fd,
				   .stderr_fd = err_fd,
				   .signal_fd = -1,
				   .watch_fd = -1,
				   .deadline_ns = clock_now_ns() + 20 * SECOND_NS};
	struct exec_result result;
	int pair[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
	CHECK_EQ(fd_write_full(pair[1], s->bytes, s->len), 0);
	CHECK(!shutdown(pair[1], SHUT_WR));
	CHECK_EQ(exec_run(pair[0], &plain, &io, &result), 0);
	close(pair[0]);
	close(pair[1]);
	return result;
}

static void exits(void)
{
	static struct script s;
	struct exec_result r;
	int out[2], err[2];
	char buf[16];

	CHECK(!pipe(out) && !pipe(err));
	say_started(&s);
	say(&s, SHIM_STDOUT, "a\0b", 3);
	say(&s, SHIM_STDERR, "err", 3);
	say(&s, SHIM_STDOUT, "", 0);
	say(&s, SHIM_STDOUT, "c", 1);
	say_exit(&s, SHIM_EXIT_CODE, 7, 1);
	r = play(&s, out[1], err[1]);
	CHECK_EQ(r.kind, EXEC_EXITED);
	CHECK_EQ(r.value, 7);
	CHECK_EQ(r.pid, 42);
	CHECK_EQ(r.drained, 1);
	CHECK(r.started_ns && r.exit_ns >= r.started_ns);
	CHECK_EQ(r.stdout_bytes, 4);
	CHECK_EQ(r.stderr_bytes, 3);
	CHECK_EQ(read(out[0], buf, sizeof(buf)), 4);
	CHECK(!memcmp(buf, "a\0bc", 4));
	CHECK_EQ(read(err[0], buf, sizeof(buf)), 3);
	CHECK(!memcmp(buf, "err", 3));
	for (int i = 0; i < 2; i++) {
		close(out[i]);
		close(err[i]);
	}
	s.len = 0;
	say_started(&s);
	say_exit(&s, SHIM_EXIT_SIGNAL, 9, 0);
	r = play(&s, -1, -1);
	CHECK_EQ(r.kind, EXEC_SIGNALLED);
	CHECK_EQ(r.value, 9);
	CHECK_EQ(r.drained, 0);
}

static void errors(void)
{
	static struct script s;
	struct exec_result r;
	struct {
		struct shim_error head;
		char text[6];
	} body = {.head = {.stage = SHIM_STAGE_EXEC, .error = ENOENT}, .text = "a\x1b[31m"};

	say(&s, SHIM_ERROR, &body, 8 + 6);
	r = play(&s, -1, -1);
	CHECK_EQ(r.kind, EXEC_SPAWN_ERROR);
	CHECK_EQ(r.stage, SHIM_STAGE_EXEC);
	CHECK_EQ(r.error, ENOENT);
	CHECK_STR(r.text, "a?[31m");
	CHECK_EQ(r.pid, 0);
}

/* Each of these is a guest that lies; the exec ends as EXEC_PROTOCOL or EXEC_LOST. */
static void lies(void)
{
	static struct script s;
	static u8 zeros[65537];
	struct shim_error bad_error = {.stage = 4, .error = 1};

	s.len = 0;
	CHECK_EQ(play(&s, -1, -1).kind, EXEC_LOST);
	say_started(&s);
	CHECK_EQ(play(&s, -1, -1).kind, EXEC_LOST);
	say(&s, SHIM_STDOUT, zeros, 100);
	s.len -= 50;
	CHECK_EQ(play(&s, -1, -1).kind, EXEC_LOST);
	s.len = 0;
	say_exit(&s, SHIM_EXIT_CODE, 0, 1);
	CHECK_EQ(play(&s, -1, -1).kind, EXEC_PROTOCOL); /* never started */
	for (int i = 0; i < 5; i++) {
		static const u32 bad[5][3] = {
			{0, 256, 1}, {1, 0, 1}, {1, 65, 1}, {2, 0, 1}, {0, 0, 8}};

		s.len = 0;
		say_started(&s);
		say_exit(&s, bad[i][0], bad[i][1], bad[i][2]);
		CHECK_EQ(play(&s, -1, -1).kind, EXEC_PROTOCOL);
	}
	s.len = 0;
	say(&s, SHIM_ERROR, &bad_error, sizeof(bad_error));
	CHECK_EQ(play(&s, -1, -1).kind, EXEC_PROTOCOL);
	s.len = 0;
	say(&s, SHIM_STDIN_CREDIT, "\1\0\0\0", 4);
	CHECK_EQ(play(&s, -1, -1).kind, EXEC_PROTOCOL);
	s.len = 0;
	say(&s, SHIM_PONG, NULL, 0);
	CHECK_EQ(play(&s, -1, -1).kind, EXEC_PROTOCOL);
	s.len = 0;
	say(&s, SHIM_STDOUT, zeros, 65537);
	CHECK_EQ(play(&s, -1, -1).kind, EXEC_PROTOCOL);
	s.len = 0;
	say(&s, SHIM_STDIN, "x", 1);
	CHECK_EQ(play(&s, -1, -1).kind, EXEC_PROTOCOL);
}

static void closed_stdout(void)
{
	static struct script s;
	struct exec_result r;
	int out[2];

	signal(SIGPIPE, SIG_IGN);
	CHECK(!pipe(out));
	close(out[0]);
	say_started(&s);
	say(&s, SHIM_STDOUT, "x", 1);
	say_exit(&s, SHIM_EXIT_CODE, 0, 1);
	r = play(&s, out[1], -1);
	CHECK_EQ(r.kind, EXEC_OUTPUT_ERROR);
	CHECK_EQ(r.error, EPIPE);
	CHECK_STR(r.text, "writing stdout");
	close(out[1]);
	r = play(&s, open("/dev/full", O_WRONLY | O_CLOEXEC), -1);
	CHECK_EQ(r.kind, EXEC_OUTPUT_ERROR);
	CHECK_EQ(r.error, ENOSPC);
}

static int watch_abort(void *opaque)
{
	(void)opaque;
	return -ECHILD;
}

static int watch_once(void *opaque)
{
	++*(int *)opaque;
	return 1;
}

static void deadline_and_watch(void)
{
	struct exec_io io = {.stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1, .signal_fd = -1};
	struct exec_result r;
	int pair[2], watch[2], calls = 0;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && !pipe(watch));
	CHECK_EQ(write(watch[1], "x", 1), 1);
	io.watch_fd = -1;
	io.deadline_ns = clock_now_ns() + SECOND_NS / 20;
	CHECK_EQ(exec_run(pair[0], &plain, &io, &r), 0);
	CHECK_EQ(r.kind, EXEC_TIMEOUT);
	CHECK(clock_now_ns() >= io.deadline_ns);
	io.watch_fd = watch[0];
	io.watch = watch_once;
	io.opaque = &calls;
	io.deadline_ns = clock_now_ns() + SECOND_NS / 20;
	CHECK_EQ(exec_run(pair[0], NULL, &io, &r), 0);
	CHECK_EQ(r.kind, EXEC_TIMEOUT);
	CHECK_EQ(calls, 1);
	io.watch = watch_abort;
	io.deadline_ns = 0;
	CHECK_EQ(exec_run(pair[0], NULL, &io, &r), 0);
	CHECK_EQ(r.kind, EXEC_ABORTED);
	CHECK_EQ(r.error, ECHILD);
	for (int i = 0; i < 2; i++) {
		close(pair[i]);
		close(watch[i]);
	}
}

/* The window: without credit exactly SHIM_STDIN_WINDOW_BYTES come, and signals still pass. */
struct greedy {
	int fd;
	u64 stdin_bytes;
	u32 signal;
	bool eof;
};

static void *greedy_guest(void *opaque)
{
	static struct script s;
	static u8 payload[SHIM_EXEC_MAX_BYTES];
	struct greedy *g = opaque;
	struct shim_frame frame;
	u8 head[8];

	say_started(&s);
	CHECK_EQ(fd_write_full(g->fd, s.bytes, s.len), 0);
	while (!g->signal) {
		CHECK_EQ(fd_read_full(g->fd, head, 8), 0);
		CHECK_EQ(frame_get(head, FRAME_FROM_HOST, &frame), 0);
		CHECK_EQ(fd_read_full(g->fd, payload, frame.len_bytes), 0);
		if (frame.type == SHIM_STDIN)
			g->stdin_bytes += frame.len_bytes;
		else if (frame.type == SHIM_STDIN_EOF)
			g->eof = true;
		else if (frame.type == SHIM_SIGNAL)
			g->signal = frame_get_u32(payload);
		if (frame.type == SHIM_STDIN && g->stdin_bytes == SHIM_STDIN_WINDOW_BYTES) {
			struct pollfd more = {.fd = g->fd, .events = POLLIN};

			CHECK_EQ(poll(&more, 1, 100), 0);
			kill(getpid(), SIGUSR1);
		}
	}
	s.len = 0;
	say(&s, SHIM_STDIN_CREDIT, "\x10\0\0\0", 4);
	CHECK_EQ(fd_write_full(g->fd, s.bytes, s.len), 0);
	CHECK_EQ(fd_read_full(g->fd, head, 8), 0);
	CHECK_EQ(frame_get(head, FRAME_FROM_HOST, &frame), 0);
	CHECK_EQ(frame.type, SHIM_STDIN);
	CHECK_EQ(frame.len_bytes, 16);
	s.len = 0;
	say_exit(&s, SHIM_EXIT_CODE, 3, 1);
	CHECK_EQ(fd_write_full(g->fd, s.bytes, s.len), 0);
	return NULL;
}

static void window_and_signals(void)
{
	struct exec_io io = {.stdout_fd = -1, .stderr_fd = -1, .watch_fd = -1};
	struct greedy g = {0};
	struct exec_result r;
	pthread_t thread;
	sigset_t mask;
	int pair[2];

	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	CHECK(!pthread_sigmask(SIG_BLOCK, &mask, NULL));
	io.signal_fd = signalfd(-1, &mask, SFD_CLOEXEC);
	io.stdin_fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	io.deadline_ns = clock_now_ns() + 20 * SECOND_NS;
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	g.fd = pair[1];
	CHECK(!pthread_create(&thread, NULL, greedy_guest, &g));
	CHECK_EQ(exec_run(pair[0], &with_stdin, &io, &r), 0);
	CHECK(!pthread_join(thread, NULL));
	CHECK_EQ(r.kind, EXEC_EXITED);
	CHECK_EQ(r.value, 3);
	CHECK_EQ(g.stdin_bytes, SHIM_STDIN_WINDOW_BYTES);
	CHECK_EQ(g.signal, SIGUSR1);
	CHECK(!g.eof);
	close(io.signal_fd);
	close(io.stdin_fd);
	close(pair[0]);
	close(pair[1]);
}

/* Against the real shim, where it is built. */
static pid_t start_shim(int *stream)
{
	const char *shim = getenv("THAW_SHIM") ? getenv("THAW_SHIM") : "build/release/thaw-shim";
	char number[16];
	int pair[2];
	pid_t pid;

	if (access(shim, X_OK) < 0 || geteuid() != 0)
		return 0;
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		close(pair[0]);
		snprintf(number, sizeof(number), "%d", pair[1]);
		execl(shim, shim, "--serve-fd", number, NULL);
		_exit(99);
	}
	close(pair[1]);
	*stream = pair[0];
	return pid;
}

static struct exec_result run_real(const struct exec_request *req, const struct exec_io *io)
{
	struct exec_result r = {0};
	int stream = -1, status;
	pid_t pid = start_shim(&stream);

	if (!pid)
		return r;
	CHECK_EQ(exec_run(stream, req, io, &r), 0);
	close(stream);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	return r;
}

static void real_shim(void)
{
	char *const script[] = {(char[]){"sh"}, (char[]){"-c"},
				(char[]){"wc -c; printf '%s' $A >&2; exit 5"}, NULL};
	char *const env[] = {(char[]){"A=b"}, NULL};
	struct exec_request req = {.argv = script, .env = env, .with_stdin = true};
	struct exec_io io = {.signal_fd = -1, .watch_fd = -1};
	char path[] = "/tmp/thaw-exec-XXXXXX", buf[32];
	struct exec_result r;
	int out[2], file;

	/* A stdin that is a file, longer than the window. */
	file = mkstemp(path);
	CHECK(file >= 0 && !unlink(path) && !ftruncate(file, 1000000));
	CHECK(!pipe(out));
	io.stdin_fd = file;
	io.stdout_fd = io.stderr_fd = out[1];
	io.deadline_ns = clock_now_ns() + 60 * SECOND_NS;
	r = run_real(&req, &io);
	if (!r.started_ns)
		SKIP("the shim is not built, or this is not root");
	CHECK_EQ(r.kind, EXEC_EXITED);
	CHECK_EQ(r.value, 5);
	CHECK_EQ(r.drained, 1);
	CHECK_EQ(read(out[0], buf, sizeof(buf)), 9);
	CHECK(!memcmp(buf, "1000000\nb", 9));
	/* No stdin to send: its end. */
	io.stdin_fd = -1;
	r = run_real(&req, &io);
	CHECK_EQ(r.kind, EXEC_EXITED);
	CHECK_EQ(read(out[0], buf, sizeof(buf)), 3);
	CHECK(!memcmp(buf, "0\nb", 3));
	req.cwd = "/no/such";
	r = run_real(&req, &io);
	CHECK_EQ(r.kind, EXEC_SPAWN_ERROR);
	CHECK_EQ(r.stage, SHIM_STAGE_CWD);
	CHECK_EQ(r.error, ENOENT);
	CHECK_STR(r.text, "/no/such: No such file or directory");
	close(file);
	close(out[0]);
	close(out[1]);
}

/* A pipe that takes nothing for a while: nothing is lost, nothing spins. */
static void *slow_reader(void *opaque)
{
	static u8 buf[65536];
	u64 *total = opaque;
	int fd = (int)*total;
	ssize_t n;

	*total = 0;
	usleep(200000);
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		*total += (u64)n;
	return NULL;
}

static void real_shim_slow_pipe(void)
{
	char *const argv[] = {(char[]){"head"}, (char[]){"-c"}, (char[]){"20000000"},
			      (char[]){"/dev/zero"}, NULL};
	const struct exec_request req = {.argv = argv};
	struct exec_io io = {.stdin_fd = -1, .stderr_fd = -1, .signal_fd = -1, .watch_fd = -1};
	struct exec_result r;
	pthread_t thread;
	u64 total;
	int out[2];

	CHECK(!pipe(out));
	io.stdout_fd = out[1];
	total = (u64)out[0];
	CHECK(!pthread_create(&thread, NULL, slow_reader, &total));
	r = run_real(&req, &io);
	close(out[1]);
	CHECK(!pthread_join(thread, NULL));
	close(out[0]);
	CHECK_EQ(r.kind, EXEC_EXITED);
	CHECK_EQ(r.stdout_bytes, 20000000);
	CHECK_EQ(total, 20000000);
}

static void simple_operations(void)
{
	u64 deadline_ns = clock_now_ns() + 20 * SECOND_NS;
	struct shim_error refusal = {.stage = SHIM_STAGE_REQUEST, .error = EBUSY};
	static struct script s;
	int pair[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	say(&s, SHIM_PONG, NULL, 0);
	say(&s, SHIM_OK, NULL, 0);
	say(&s, SHIM_ERROR, &refusal, sizeof(refusal));
	say(&s, SHIM_PONG, NULL, 0);
	CHECK_EQ(fd_write_full(pair[1], s.bytes, s.len), 0);
	CHECK_EQ(exec_ping(pair[0], deadline_ns), 0);
	CHECK_EQ(exec_checkpoint(pair[0], deadline_ns), 0);
	CHECK_EQ(exec_checkpoint(pair[0], deadline_ns), -EBUSY);
	CHECK_EQ(exec_poweroff(pair[0], deadline_ns), -EPROTO);
	CHECK_EQ(exec_ping(pair[0], clock_now_ns() + SECOND_NS / 50), -ETIMEDOUT);
	close(pair[1]);
	CHECK_EQ(exec_ping(pair[0], deadline_ns), -EPIPE);
	close(pair[0]);
}

TEST_MAIN({"exits", exits}, {"errors", errors}, {"lies", lies}, {"closed_stdout", closed_stdout},
	  {"deadline_and_watch", deadline_and_watch}, {"window_and_signals", window_and_signals},
	  {"simple_operations", simple_operations}, {"real_shim_slow_pipe", real_shim_slow_pipe},
	  {"real_shim", real_shim})
