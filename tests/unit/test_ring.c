// SPDX-License-Identifier: Apache-2.0
// The I/O ring: the same behaviour through io_uring and through plain calls, and the restrictions.
#include "tests/unit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vmm/util/ring.h"
#include "vmm/util/util.h"

struct op {
	struct ring_req req;
	struct iovec iov[2];
	s64 result;
	bool done;
	struct ring *again; /* queue the request once more from done() */
};

static void op_done(struct ring_req *req, s64 result)
{
	struct op *op = container_of(req, struct op, req);

	op->done = true;
	op->result = result;
	if (op->again) {
		CHECK_EQ(ring_queue(op->again, req), 0);
		op->again = NULL;
	}
}

static struct op make_op(enum ring_op kind, unsigned int file, u64 offset, void *buf, size_t len)
{
	struct op op = {
		.req = {.op = kind,
			.file = file,
			.offset_bytes = offset,
			.len_bytes = len,
			.done = op_done},
		.iov[0] = {buf, len},
	};

	return op;
}

static s64 run(struct ring *ring, struct op *op)
{
	op->req.iov = op->iov;
	if (!op->req.niov)
		op->req.niov = 1;
	op->done = false;
	CHECK_EQ(ring_queue(ring, &op->req), 0);
	CHECK_EQ(ring_submit(ring), 0);
	CHECK_EQ(ring_reap(ring, 1), 1);
	CHECK(op->done);
	return op->result;
}

static int make_file(void)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	CHECK(fd >= 0);
	return fd;
}

static void check_io(unsigned int flags)
{
	int files[2] = {make_file(), make_file()};
	char buf[64] = "hello, ring";
	char in[64];
	struct ring ring;
	struct op op;

	CHECK_EQ(ring_init(&ring, 4, files, 2, flags), 0);
	op = make_op(RING_WRITE, 1, 4096, buf, 11);
	CHECK_EQ(run(&ring, &op), 11);
	CHECK_EQ(lseek(files[0], 0, SEEK_END), 0);
	CHECK_EQ(lseek(files[1], 0, SEEK_END), 4107);
	/* Two buffers, and the end of the file inside the second. */
	memset(in, '.', sizeof(in));
	op = make_op(RING_READ, 1, 4098, in, 3);
	op.iov[1] = (struct iovec){in + 10, 20};
	op.req.niov = 2;
	op.req.len_bytes = 23;
	CHECK_EQ(run(&ring, &op), 9);
	CHECK(!memcmp(in, "llo.......", 10) && !memcmp(in + 10, ", ring..", 8));
	op = make_op(RING_READ, 1, 8192, in, 1);
	CHECK_EQ(run(&ring, &op), 0);
	op = make_op(RING_FDATASYNC, 1, 0, NULL, 0);
	CHECK_EQ(run(&ring, &op), 0);
	op = make_op(RING_DISCARD, 1, 0, NULL, 4100);
	CHECK_EQ(run(&ring, &op), 0);
	CHECK_EQ(pread(files[1], in, 11, 4096), 11);
	CHECK(!memcmp(in, "\0\0\0\0o, ring", 11));
	CHECK_EQ(lseek(files[1], 0, SEEK_END), 4107);
	ring_destroy(&ring);
	close(files[0]);
	close(files[1]);
}

static void test_io_uring(void)
{
	check_io(0);
	check_io(RING_RESTRICT);
	check_io(RING_RESTRICT | RING_EVENTFD);
}

static void test_io_plain(void)
{
	check_io(RING_PLAIN);
	check_io(RING_PLAIN | RING_EVENTFD);
}

static void check_limits(unsigned int flags)
{
	int file = make_file();
	struct op ops[3];
	struct ring ring;
	struct op bad;

	CHECK_EQ(ring_init(&ring, 2, &file, 1, flags), 0);
	for (int i = 0; i < 3; i++) {
		ops[i] = make_op(RING_WRITE, 0, i, "x", 1);
		ops[i].req.iov = ops[i].iov;
		ops[i].req.niov = 1;
	}
	bad = make_op(RING_WRITE, 1, 0, "x", 1);
	CHECK_EQ(ring_queue(&ring, &bad.req), -EINVAL);
	bad = make_op(RING_WRITE, 0, ~0ull, "x", 1);
	CHECK_EQ(ring_queue(&ring, &bad.req), -EINVAL);
	bad = make_op(RING_WRITE, 0, INT64_MAX, "x", 1);
	CHECK_EQ(ring_queue(&ring, &bad.req), -EINVAL);
	CHECK_EQ(ring_queue(&ring, &ops[0].req), 0);
	CHECK_EQ(ring_reap(&ring, 1), 0); /* nothing submitted: nothing to wait for */
	CHECK_EQ(ring_queue(&ring, &ops[1].req), 0);
	CHECK_EQ(ring_queue(&ring, &ops[2].req), -EBUSY);
	ops[0].again = &ring; /* done() may queue */
	CHECK_EQ(ring_drain(&ring), 0);
	CHECK_EQ(ring.inflight, 0);
	CHECK(ops[0].done && ops[1].done && !ops[2].done);
	CHECK_EQ(ring_queue(&ring, &ops[2].req), 0);
	CHECK_EQ(ring_drain(&ring), 0);
	CHECK_EQ(lseek(file, 0, SEEK_END), 3);
	ring_destroy(&ring);
	close(file);
}

static void test_limits(void)
{
	int file = 0;
	struct ring ring;

	check_limits(0);
	check_limits(RING_RESTRICT | RING_EVENTFD);
	check_limits(RING_PLAIN | RING_EVENTFD);
	CHECK_EQ(ring_init(&ring, 0, &file, 1, 0), -EINVAL);
	CHECK_EQ(ring_init(&ring, 1, &file, 0, 0), -EINVAL);
	CHECK_EQ(ring_init(&ring, 1, &file, RING_FILES_MAX + 1, 0), -EINVAL);
}

static void check_eventfd(unsigned int flags)
{
	int file = make_file();
	struct op op = make_op(RING_WRITE, 0, 0, "x", 1);
	struct pollfd pfd = {.events = POLLIN};
	struct ring ring;

	CHECK_EQ(ring_init(&ring, 2, &file, 1, flags | RING_EVENTFD), 0);
	pfd.fd = ring.event_fd;
	CHECK_EQ(poll(&pfd, 1, 0), 0);
	op.req.iov = op.iov;
	op.req.niov = 1;
	CHECK_EQ(ring_queue(&ring, &op.req), 0);
	CHECK_EQ(ring_submit(&ring), 0);
	CHECK_EQ(poll(&pfd, 1, 10000), 1);
	CHECK_EQ(ring_reap(&ring, 0), 1);
	CHECK_EQ(poll(&pfd, 1, 0), 0);
	ring_destroy(&ring);
	CHECK_EQ(ring.event_fd, -1);
	close(file);
}

static void test_eventfd(void)
{
	check_eventfd(RING_RESTRICT);
	check_eventfd(RING_PLAIN);
}

static void test_errors(void)
{
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	char buf[4];
	struct ring ring;
	struct op op;

	CHECK(file >= 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(ring_init(&ring, 2, &file, 1, i ? RING_PLAIN : RING_RESTRICT), 0);
		op = make_op(RING_WRITE, 0, 0, buf, 4);
		CHECK_EQ(run(&ring, &op), -EBADF);
		op = make_op(RING_READ, 0, 0, buf, 4);
		CHECK_EQ(run(&ring, &op), 4);
		CHECK(!memcmp(buf, "\177ELF", 4));
		ring_destroy(&ring);
	}
	close(file);
}

/* What a VMM that was taken over could try through its ring. */
static void test_restrictions(void)
{
	struct io_uring_cqe *cqe;
	struct io_uring_sqe *sqe;
	int file = make_file();
	struct ring ring;
	char byte = 'x';

	CHECK_EQ(ring_init(&ring, 8, &file, 1, RING_RESTRICT), 0);
	if (ring.plain)
		SKIP("io_uring is forbidden here");
	for (int i = 0; i < 4; i++) {
		sqe = io_uring_get_sqe(&ring.uring);
		CHECK(sqe);
		switch (i) {
		case 0:
			io_uring_prep_nop(sqe);
			break;
		case 1:
			io_uring_prep_openat(sqe, AT_FDCWD, "/", O_RDONLY, 0);
			break;
		case 2: /* a plain descriptor instead of a registered file */
			io_uring_prep_writev(sqe, file, &(struct iovec){&byte, 1}, 1, 0);
			break;
		default: /* an opcode that is not in the list, on a registered file */
			io_uring_prep_write(sqe, 0, &byte, 1, 0);
			io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
			break;
		}
		CHECK_EQ(io_uring_submit(&ring.uring), 1);
		CHECK_EQ(io_uring_wait_cqe(&ring.uring, &cqe), 0);
		CHECK_EQ(cqe->res, -EACCES);
		io_uring_cqe_seen(&ring.uring, cqe);
	}
	CHECK_EQ(lseek(file, 0, SEEK_END), 0);
	CHECK(io_uring_register_files_update(&ring.uring, 0, &file, 1) < 0);
	ring_destroy(&ring);
	close(file);
}

static void note_result(struct ring_req *req, s64 result)
{
	req->plain_result = result;
}

static void test_fixed(void)
{
	static u8 bufs[2][8192] __attribute__((aligned(4096)));
	const struct iovec iovs[2] = {{bufs[0], sizeof(bufs[0])}, {bufs[1], sizeof(bufs[1])}};
	struct iovec iov = {bufs[1] + 4096, 4096}, both[2] = {{bufs[0], 1}, {bufs[1], 1}};
	struct ring_req req = {.op = RING_READ_FIXED,
			       .buf = 1,
			       .len_bytes = 4096,
			       .iov = &iov,
			       .niov = 1,
			       .done = note_result};
	int file = make_file();
	struct ring ring;
	int ret;

	memset(bufs, 'f', sizeof(bufs));
	CHECK_EQ(pwrite(file, bufs[0], 4096, 0), 4096);
	memset(bufs, 0, sizeof(bufs));
	ret = ring_init_fixed(&ring, 2, &file, 1, RING_RESTRICT, iovs, 2);
	if (ret == -EOPNOTSUPP)
		SKIP("io_uring is forbidden here");
	CHECK_EQ(ret, 0);
	CHECK_EQ(ring_queue(&ring, &req), 0);
	CHECK_EQ(ring_drain(&ring), 0);
	CHECK_EQ(req.plain_result, 4096);
	CHECK_EQ(bufs[1][4096], 'f');
	CHECK_EQ(bufs[1][4095], 0);
	/* In another buffer than it says: the kernel's to find. */
	req.buf = 0;
	CHECK_EQ(ring_queue(&ring, &req), 0);
	CHECK_EQ(ring_drain(&ring), 0);
	CHECK_EQ(req.plain_result, -EFAULT);
	req.buf = 2;
	CHECK_EQ(ring_queue(&ring, &req), -EINVAL);
	req.buf = 0;
	req.iov = both;
	req.niov = 2;
	CHECK_EQ(ring_queue(&ring, &req), -EINVAL);
	ring_destroy(&ring);
	/* A ring without buffers has no such operation. */
	CHECK_EQ(ring_init(&ring, 2, &file, 1, RING_RESTRICT), 0);
	req.niov = 1;
	CHECK_EQ(ring_queue(&ring, &req), -EINVAL);
	ring_destroy(&ring);
	CHECK_EQ(setenv("THAW_IO", "plain", 1), 0);
	CHECK_EQ(ring_init_fixed(&ring, 2, &file, 1, RING_RESTRICT, iovs, 2), -EOPNOTSUPP);
	CHECK_EQ(unsetenv("THAW_IO"), 0);
	close(file);
}

static void test_environment(void)
{
	int file = make_file();
	struct ring ring;

	CHECK_EQ(setenv("THAW_IO", "plain", 1), 0);
	CHECK_EQ(ring_init(&ring, 2, &file, 1, RING_RESTRICT), 0);
	CHECK(ring.plain);
	ring_destroy(&ring);
	CHECK_EQ(unsetenv("THAW_IO"), 0);
	close(file);
}

TEST_MAIN({"io_uring", test_io_uring}, {"io_plain", test_io_plain}, {"limits", test_limits},
	  {"eventfd", test_eventfd}, {"errors", test_errors}, {"restrictions", test_restrictions},
	  {"fixed", test_fixed}, {"environment", test_environment})
