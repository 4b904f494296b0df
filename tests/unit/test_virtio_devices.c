// SPDX-License-Identifier: Apache-2.0
// The small devices: entropy, console, persistent memory.
#include "tests/unit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_pmem.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/driver.h"

static struct drv drv;

static void add_buffer(unsigned int q, u16 desc, u64 gpa, u32 len, bool writable)
{
	drv_desc(&drv, q, desc, gpa, len, writable ? VRING_DESC_F_WRITE : 0, 0);
	drv_add(&drv, q, desc);
}

static void test_rng(void)
{
	u8 *buf;
	int zeros = 0;

	drv_init(&drv);
	CHECK_EQ(rng_create(&drv.host, 1, &drv.dev), 0);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_DEVICE_ID), 4);
	drv_start(&drv, 8);
	buf = drv_ptr(&drv, DRV_BUF_GPA);
	add_buffer(0, 0, DRV_BUF_GPA, 64, true);
	add_buffer(0, 1, DRV_BUF_GPA + 0x1000, MIB, true);
	add_buffer(0, 2, DRV_BUF_GPA + 0x100, 16, false); /* nothing to write into */
	drv_notify(&drv, 0);
	CHECK_EQ(drv_used_idx(&drv, 0), 3);
	CHECK_EQ(drv_used(&drv, 0, 0)->len, 64);
	CHECK_EQ(drv_used(&drv, 0, 1)->len, 4096); /* bounded */
	CHECK_EQ(drv_used(&drv, 0, 2)->len, 0);
	for (int i = 0; i < 64; i++)
		zeros += !buf[i];
	CHECK(zeros < 16);
	CHECK(memcmp(buf, buf + 0x1000, 64));
	CHECK_EQ(buf[64], 0);
	CHECK_EQ(buf[0x1000 + 4096], 0);
	CHECK_EQ(buf[0x100], 0);
	CHECK_EQ(drv.interrupts, 1); /* one for the batch */
	drv_destroy(&drv);
}

static void test_pmem(void)
{
	struct virtio_pmem_config config;
	struct snap_virtio state;
	u32 *type, *ret;

	drv_init(&drv);
	CHECK_EQ(pmem_create(&drv.host, 2, 0x140000000, 512 * MIB, &drv.dev), 0);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_DEVICE_ID), 27);
	virtio_mmio_access(drv.dev, 0x100, &config.start, 8, false);
	virtio_mmio_access(drv.dev, 0x108, &config.size, 8, false);
	CHECK_EQ(config.start, 0x140000000);
	CHECK_EQ(config.size, 512 * MIB);
	drv_start(&drv, 8);
	type = drv_ptr(&drv, DRV_BUF_GPA);
	ret = drv_ptr(&drv, DRV_BUF_GPA + 0x100);
	for (u32 i = 0; i < 2; i++) {
		*type = i; /* 0: flush */
		*ret = 0x5555;
		drv_desc(&drv, 0, 0, DRV_BUF_GPA, 4, VRING_DESC_F_NEXT, 1);
		drv_desc(&drv, 0, 1, DRV_BUF_GPA + 0x100, 4, VRING_DESC_F_WRITE, 0);
		drv_add(&drv, 0, 0);
		drv_notify(&drv, 0);
		CHECK_EQ(drv_used(&drv, 0, (u16)i)->len, 4);
		CHECK_EQ(*ret, i ? 0xffffffff : 0);
	}
	*type = 0;
	add_buffer(0, 0, DRV_BUF_GPA, 4, false); /* no room for the answer */
	drv_notify(&drv, 0);
	CHECK_EQ(drv_used(&drv, 0, 2)->len, 0);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_STATUS), 0xf);
	virtio_save(drv.dev, &state);
	virtio_destroy(drv.dev);
	CHECK_EQ(pmem_create(&drv.host, 2, 0x180000000, 512 * MIB, &drv.dev), 0);
	CHECK_EQ(virtio_load(drv.dev, &state), -EINVAL); /* mapped somewhere else */
	virtio_destroy(drv.dev);
	CHECK_EQ(pmem_create(&drv.host, 2, 0x140000000, 512 * MIB, &drv.dev), 0);
	CHECK_EQ(virtio_load(drv.dev, &state), 0);
	drv_destroy(&drv);
}

static void console_start(int fd)
{
	drv_init(&drv);
	CHECK_EQ(console_create(&drv.host, 0, fd, &drv.dev), 0);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_DEVICE_ID), 3);
	drv_start(&drv, 16);
	add_buffer(0, 0, DRV_BUF_GPA + 0x8000, 4096, true); /* for input, which never comes */
	drv_notify(&drv, 0);
	CHECK_EQ(drv_used_idx(&drv, 0), 0);
}

static void print(const char *text)
{
	memcpy(drv_ptr(&drv, DRV_BUF_GPA), text, strlen(text));
	add_buffer(1, 0, DRV_BUF_GPA, (u32)strlen(text), false);
	drv_notify(&drv, 1);
}

static void test_console_pipe(void)
{
	char buf[64];
	int fds[2];

	CHECK_EQ(pipe2(fds, O_CLOEXEC), 0);
	console_start(fds[1]);
	print("Linux version 6");
	CHECK_EQ(drv_used_idx(&drv, 1), 1);
	CHECK_EQ(drv_used(&drv, 1, 0)->len, 0);
	CHECK_EQ(read(fds[0], buf, sizeof(buf)), 15);
	CHECK(!memcmp(buf, "Linux version 6", 15));
	CHECK(!(fcntl(fds[1], F_GETFL) & O_NONBLOCK)); /* not ours to change */
	drv_destroy(&drv);
	CHECK_EQ(write(fds[1], "x", 1), 1); /* not ours to close */
	close(fds[0]);
	close(fds[1]);
}

/* Nobody reads: the guest goes on, and what fitted is whole. */
static void check_full(int out, int in, bool read_all)
{
	static char buf[MIB];
	size_t got = 0;
	ssize_t n;

	console_start(out);
	memset(drv_ptr(&drv, DRV_BUF_GPA), 'a', 64 * KIB);
	for (u16 i = 1; i <= 40; i++) {
		add_buffer(1, 0, DRV_BUF_GPA, 50000, false);
		drv_notify(&drv, 1);
		CHECK_EQ(drv_used_idx(&drv, 1), i);
	}
	if (read_all) {
		CHECK_EQ(fcntl(in, F_SETFL, O_NONBLOCK), 0);
		while ((n = read(in, buf, sizeof(buf))) > 0)
			got += (size_t)n;
		CHECK(got > 0 && got < 40 * 50000);
		print("again");
		CHECK_EQ(read(in, buf, sizeof(buf)), 5);
	}
	drv_destroy(&drv);
}

static void test_console_full(void)
{
	int fds[2];

	CHECK_EQ(pipe2(fds, O_CLOEXEC), 0);
	check_full(fds[1], fds[0], true);
	close(fds[0]);
	close(fds[1]);
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	check_full(fds[1], fds[0], true);
	close(fds[0]);
	close(fds[1]);
	check_full(-1, -1, false);
}

static void test_console_limits(void)
{
	int fd = memfd_create("console", MFD_CLOEXEC);

	CHECK(fd >= 0);
	console_start(fd);
	/* One chain of 1 MiB: bounded, the rest is dropped. */
	add_buffer(1, 0, DRV_BUF_GPA, MIB, false);
	add_buffer(1, 1, DRV_BUF_GPA, 3, true); /* nothing to print */
	drv_notify(&drv, 1);
	CHECK_EQ(drv_used_idx(&drv, 1), 2);
	CHECK_EQ(lseek(fd, 0, SEEK_END), 64 * KIB);
	drv_destroy(&drv);
	close(fd);
}

TEST_MAIN({"rng", test_rng}, {"pmem", test_pmem}, {"console_pipe", test_console_pipe},
	  {"console_full", test_console_full}, {"console_limits", test_console_limits})
