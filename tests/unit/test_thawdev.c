// SPDX-License-Identifier: Apache-2.0
// The THAW0001 node and the serial port: registers, mailbox, hostile accesses.
#include "vmm/kvm/thawdev.h"

#include <errno.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "vmm/kvm/vm.h"

static u8 mailbox[THAW_NODE_BYTES - 4096];

static void make_vm(struct vm *vm, int ctl_fd)
{
	struct vm_config cfg = {.ram_bytes = 128 * MIB, .nvcpus = 1, .ctl_fd = ctl_fd};

	vm_init(vm, &cfg);
	vm->mailbox_hva = mailbox;
	memset(mailbox, 0, sizeof(mailbox));
	thawdev_init(&vm->thawdev, vm);
}

static u32 reg_read(struct vm *vm, u64 offset)
{
	u32 value = 0;

	thawdev_access(&vm->thawdev, offset, &value, 4, false);
	return value;
}

static void reg_write(struct vm *vm, u64 offset, u32 value)
{
	thawdev_access(&vm->thawdev, offset, &value, 4, true);
}

static int never(struct vm *vm, void *opaque)
{
	(void)vm;
	(void)opaque;
	CHECK(!"called without the loop");
	return 0;
}

static void test_registers(void)
{
	struct vm vm;
	u64 wide = 0;

	make_vm(&vm, -1);
	CHECK_EQ(reg_read(&vm, THAW_REG_MAGIC), 0x57414854);
	CHECK_EQ(reg_read(&vm, THAW_REG_VERSION), THAW_ABI_VERSION);
	CHECK_EQ(reg_read(&vm, THAW_REG_STATUS), 0);
	CHECK_EQ(reg_read(&vm, THAW_REG_COMMAND), 0xffffffff);
	CHECK_EQ(reg_read(&vm, 0xffc), 0xffffffff);
	thawdev_access(&vm.thawdev, 0, &wide, 8, false);
	CHECK_EQ(wide, ~0ull);
	wide = 0;
	thawdev_access(&vm.thawdev, 2, &wide, 4, false);
	CHECK_EQ(wide, 0xffffffffull);
	wide = THAW_CMD_READY;
	thawdev_access(&vm.thawdev, THAW_REG_COMMAND, &wide, 8, true);
	CHECK(!vm.thawdev.ready);
	reg_write(&vm, THAW_REG_STATUS, 5);
	CHECK_EQ(reg_read(&vm, THAW_REG_STATUS), 0);
	reg_write(&vm, THAW_REG_COMMAND, 99);
	CHECK_EQ(reg_read(&vm, THAW_REG_STATUS), EINVAL);
}

static void test_checkpoint_states(void)
{
	struct vm vm;

	make_vm(&vm, -1);
	reg_write(&vm, THAW_REG_COMMAND, THAW_CMD_CHECKPOINT);
	CHECK_EQ(reg_read(&vm, THAW_REG_STATUS), EOPNOTSUPP);
	CHECK(!vm.thawdev.checkpoint_pending && !vm.pause.requested);
	vm.cfg.checkpoint = never;
	vm.access_vcpu = 3;
	reg_write(&vm, THAW_REG_COMMAND, THAW_CMD_CHECKPOINT);
	CHECK_EQ(reg_read(&vm, THAW_REG_STATUS), 0);
	CHECK(vm.thawdev.checkpoint_pending && vm.pause.requested);
	CHECK_EQ(vm.thawdev.checkpoint_vcpu, 3);
	vm.access_vcpu = 1;
	reg_write(&vm, THAW_REG_COMMAND, THAW_CMD_CHECKPOINT);
	CHECK_EQ(reg_read(&vm, THAW_REG_STATUS), EBUSY);
	CHECK_EQ(vm.thawdev.checkpoint_vcpu, 3);
}

static void test_told_once(void)
{
	struct ctl_msg msg;
	int pair[2], fd;
	struct vm vm;
	u64 first;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	make_vm(&vm, pair[0]);
	vm.generation = 77;
	reg_write(&vm, THAW_REG_COMMAND, THAW_CMD_RESUMED);
	first = vm.clocks.resumed_ns;
	CHECK(first);
	for (int i = 0; i < 1000; i++) {
		reg_write(&vm, THAW_REG_COMMAND, THAW_CMD_RESUMED);
		reg_write(&vm, THAW_REG_COMMAND, THAW_CMD_READY);
	}
	CHECK_EQ(vm.clocks.resumed_ns, first);
	CHECK_EQ(ctl_recv(pair[1], &msg, &fd), 1);
	CHECK_EQ(msg.type, CTL_RESUMED);
	CHECK_EQ(msg.generation, 77);
	CHECK_EQ(msg.clocks.resumed_ns, first);
	CHECK_EQ(ctl_recv(pair[1], &msg, &fd), 1);
	CHECK_EQ(msg.type, CTL_READY);
	CHECK_EQ(ctl_recv(pair[1], &msg, &fd), -EAGAIN);
	close(pair[0]);
	close(pair[1]);
}

static void test_fill(void)
{
	struct thawdev_start start = {.request = "payload", .request_len_bytes = 7};
	struct thaw_control *control = (struct thaw_control *)mailbox, first;
	static const u8 zeros[64];
	u8 vmgenid[16];
	struct vm vm;

	make_vm(&vm, -1);
	CHECK_EQ(thawdev_fill(&vm.thawdev, 1, &start), 0);
	CHECK_EQ(control->magic, THAW_MAGIC);
	CHECK_EQ(control->version, THAW_ABI_VERSION);
	CHECK_EQ(control->generation, 1);
	CHECK_EQ(vm.generation, 1);
	CHECK(control->wall_sec + 5 >= (u64)time(NULL) && control->wall_nsec < 1000000000);
	CHECK_STR(control->hostname, "thaw");
	CHECK_EQ(control->request_len_bytes, 7);
	CHECK(!memcmp(mailbox + 0x1000, "payload", 7));
	CHECK(memcmp(control->seed, zeros, 64) && memcmp(control->vm_id, zeros, 16));
	memcpy(vmgenid, mailbox + 0x800, 16);
	CHECK(memcmp(vmgenid, zeros, 16));

	/* Another start: everything is another one. */
	first = *control;
	memset(start.vm_id, 7, sizeof(start.vm_id));
	start.request_len_bytes = 0;
	start.hostname = "0123456789012345678901234567890123456789012345678901234567890123456789";
	CHECK_EQ(thawdev_fill(&vm.thawdev, 0, &start), 0);
	CHECK(control->generation >= 2 && control->generation == vm.generation);
	CHECK(memcmp(control->seed, first.seed, 64));
	CHECK(memcmp(mailbox + 0x800, vmgenid, 16));
	CHECK_EQ(control->vm_id[15], 7);
	CHECK_EQ(strlen(control->hostname), 63);
	CHECK_EQ(control->request_len_bytes, 0);

	start.request_len_bytes = THAW_REQUEST_BYTES + 1;
	CHECK_EQ(thawdev_fill(&vm.thawdev, 0, &start), -E2BIG);
}

static u8 port_read(struct serial *serial, u64 offset)
{
	u8 value = 0;

	serial_access(serial, offset, &value, 1, false);
	return value;
}

static void port_write(struct serial *serial, u64 offset, u8 value)
{
	serial_access(serial, offset, &value, 1, true);
}

static void test_serial(void)
{
	struct serial serial;
	char text[256] = {0};
	u32 wide = 0;
	int fds[2];

	CHECK_EQ(pipe(fds), 0);
	serial_init(&serial, fds[1]);
	CHECK_EQ(port_read(&serial, 5), 0x60);
	CHECK_EQ(port_read(&serial, 2), 0x01);
	port_write(&serial, 3, 0x83); /* divisor latch: no output */
	port_write(&serial, 0, 'x');
	CHECK_EQ(port_read(&serial, 0), 'x');
	port_write(&serial, 3, 0x03);
	CHECK_EQ(port_read(&serial, 3), 0x03);
	port_write(&serial, 4, 0x1a); /* the loop-back test of Linux's probe */
	CHECK_EQ(port_read(&serial, 6) & 0xf0, 0x90);
	port_write(&serial, 0, 'y');
	port_write(&serial, 4, 0x03);
	serial_access(&serial, 0, &wide, 4, false);
	CHECK_EQ(wide, 0xffffffff);
	serial_access(&serial, 0, &wide, 4, true);
	for (const char *p = "hello\n"; *p; p++)
		port_write(&serial, 0, (u8)*p);
	port_write(&serial, 0, '!');
	CHECK_EQ(read(fds[0], text, sizeof(text)), 6);
	CHECK_STR(text, "hello\n");
	serial_flush(&serial);
	CHECK_EQ(read(fds[0], text, sizeof(text)), 1);
	/* A full pipe: bytes are dropped, nobody waits. */
	for (int i = 0; i < 200000; i++)
		port_write(&serial, 0, 'z');
	close(fds[0]);
	close(fds[1]);
}

TEST_MAIN({"registers", test_registers}, {"checkpoint states", test_checkpoint_states},
	  {"told once", test_told_once}, {"fill", test_fill}, {"serial port", test_serial})
