// SPDX-License-Identifier: Apache-2.0
// The pager: what is brought at a fault, and that the death of its servers at any instant costs
// neither content nor time. With real processes and a real userfaultfd.
#include <errno.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/unit/pager_rig.h"
#include "vmm/util/ctl.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

static void test_content(void)
{
	static const u64 windows[] = {PAGE, 64 * 1024, PAGER_WINDOW_MAX_BYTES};

	for (unsigned int i = 0; i < ARRAY_SIZE(windows); i++) {
		struct rig rig;

		rig_start(&rig, windows[i], i % 2);
		check_all(&rig);
		rig_end(&rig);
	}
}

/** check_stats() - a fault is over before its server has counted it. */
static void check_stats(const struct rig *rig, u64 faults, u64 reads, u64 copied, u64 zero)
{
	struct pager_stats stats = pager_stats(rig->pager);

	for (unsigned int i = 0; i < 1000; i++) {
		if (stats.copied_pages >= copied && stats.zero_pages >= zero)
			break;
		usleep(1000);
		stats = pager_stats(rig->pager);
	}
	CHECK_EQ(stats.faults, faults);
	CHECK_EQ(stats.reads, reads);
	CHECK_EQ(stats.copied_pages, copied);
	CHECK_EQ(stats.zero_pages, zero);
}

/** What one touch brings: the stretch of its kind in its window, no more. */
static void test_window(void)
{
	struct rig rig;

	rig_start(&rig, 64 * 1024, false);
	CHECK(!pager_is_plain(rig.pager));
	CHECK_EQ(*at(&rig, 70 * 1024), expected(70 * 1024));
	check_stats(&rig, 1, 1, 16, 0);
	/* The other pages of it are there. */
	for (u64 offset = 64 * 1024; offset < 128 * 1024; offset += PAGE)
		CHECK_EQ(*at(&rig, offset), expected(offset));
	check_stats(&rig, 1, 1, 16, 0);
	/* An island of data in a hole is one page; the hole around it is all of a window before it,
	 * and the rest of its own behind it. */
	CHECK_EQ(*at(&rig, ISLAND), expected(ISLAND));
	check_stats(&rig, 2, 2, 17, 0);
	CHECK_EQ(*at(&rig, ISLAND + 2 * PAGE), 0);
	check_stats(&rig, 3, 2, 17, 15);
	CHECK_EQ(*at(&rig, ISLAND - 2 * PAGE), 0);
	check_stats(&rig, 4, 2, 17, 31);
	/* A page that is written first keeps what was written, and its neighbours the file's. */
	*(volatile u64 *)at(&rig, 3 * MIB + 8) = 42;
	CHECK_EQ(*at(&rig, 3 * MIB + 8), 42);
	CHECK_EQ(*at(&rig, 3 * MIB), expected(3 * MIB));
	CHECK_EQ(*at(&rig, 3 * MIB + PAGE), expected(3 * MIB + PAGE));
	check_stats(&rig, 5, 3, 33, 31);
	rig_end(&rig);
}

/** System calls fault in the kernel. */
static void test_kernel_faults(void)
{
	struct rig rig;
	int pipes[2];
	u64 word;

	rig_start(&rig, PAGE, false);
	CHECK_EQ(pipe2(pipes, O_CLOEXEC), 0);
	CHECK_EQ(write(pipes[1], (const void *)at(&rig, 5 * MIB), 8), 8);
	CHECK_EQ(read(pipes[0], &word, 8), 8);
	CHECK_EQ(word, expected(5 * MIB));
	CHECK_EQ(write(pipes[1], &word, 8), 8);
	CHECK_EQ(read(pipes[0], (void *)at(&rig, 6 * MIB + 16), 8), 8);
	CHECK_EQ(*at(&rig, 6 * MIB + 16), word);
	CHECK_EQ(*at(&rig, 6 * MIB), expected(6 * MIB));
	close(pipes[0]);
	close(pipes[1]);
	rig_end(&rig);
}

/** As the pages of a diff: other mappings over parts of a range, in the middle of a window. */
static void test_overlay(void)
{
	struct rig rig;
	u8 *hole;

	rig_start(&rig, 64 * 1024, false);
	hole = rig.base + MIB + 5 * PAGE;
	CHECK(mmap(hole, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		   -1, 0) == hole);
	memset(hole, 7, 2 * PAGE);
	CHECK_EQ(*at(&rig, MIB), expected(MIB));
	CHECK_EQ(*at(&rig, MIB + 6 * PAGE), 0x0707070707070707);
	for (u64 i = 0; i < 16; i++) {
		if (i != 5 && i != 6)
			CHECK_EQ(*at(&rig, MIB + i * PAGE), expected(MIB + i * PAGE));
	}
	rig_end(&rig);
}

struct toucher {
	struct rig *rig;
	u64 seed;
	bool done;
	pthread_t thread;
};

static void *touch(void *opaque)
{
	struct toucher *toucher = opaque;
	u64 npages = FILE_BYTES / PAGE, step = 2 * (toucher->seed % 512) + 1, page = toucher->seed;

	/* Every page once, as @step is odd and @npages a power of two. */
	for (u64 i = 0; i < npages; i++, page += step) {
		u64 offset = page % npages * PAGE;

		CHECK_EQ(*at(toucher->rig, offset), expected(offset));
	}
	__atomic_store_n(&toucher->done, true, __ATOMIC_RELEASE);
	return NULL;
}

static void kill_active(struct rig *rig)
{
	unsigned int active = pager_active(rig->pager);

	CHECK_EQ(kill(pager_pid(rig->pager, active), SIGKILL), 0);
	while (pager_active(rig->pager) == active)
		usleep(100);
}

/** Killed twice at random instants with four threads at work. */
static void test_killed(void)
{
	unsigned int seed = (unsigned int)clock_now_ns(), rounds = 24, midway = 0;

	printf("    seed %u\n", seed);
	for (unsigned int round = 0; round < rounds; round++) {
		struct toucher touchers[4];
		struct rig rig;

		rig_start(&rig, round % 2 ? PAGE : 16 * 1024, round % 3 == 0);
		for (unsigned int i = 0; i < ARRAY_SIZE(touchers); i++) {
			touchers[i] = (struct toucher){.rig = &rig, .seed = (u64)rand_r(&seed)};
			CHECK_EQ(pthread_create(&touchers[i].thread, NULL, touch, &touchers[i]), 0);
		}
		for (unsigned int kills = 0; kills < 2; kills++) {
			usleep((useconds_t)rand_r(&seed) % 4000);
			kill_active(&rig);
		}
		midway += !__atomic_load_n(&touchers[0].done, __ATOMIC_ACQUIRE);
		for (unsigned int i = 0; i < ARRAY_SIZE(touchers); i++)
			CHECK_EQ(pthread_join(touchers[i].thread, NULL), 0);
		check_all(&rig);
		CHECK_EQ(pager_active(rig.pager), 2);
		rig_end(&rig);
	}
	/* Or it tested nothing. */
	CHECK(midway > 0);
}

static int find_uffd(void)
{
	char link[64], target[64];

	for (int fd = 3; fd < 64; fd++) {
		ssize_t n;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, target, sizeof(target) - 1);
		if (n > 0) {
			target[n] = '\0';
			if (strstr(target, "userfaultfd"))
				return fd;
		}
	}
	return -1;
}

/** A server that has read a message and dies before it acts: nobody is told of that page again. */
static void test_killed_with_message(void)
{
	struct toucher toucher;
	struct uffd_msg msg;
	struct pollfd pfd;
	struct rig rig;

	rig_start(&rig, PAGE, false);
	pfd = (struct pollfd){.fd = find_uffd(), .events = POLLIN};
	CHECK(pfd.fd >= 0);
	CHECK_EQ(kill(pager_pid(rig.pager, 0), SIGSTOP), 0);
	toucher = (struct toucher){.rig = &rig, .seed = 1};
	CHECK_EQ(pthread_create(&toucher.thread, NULL, touch, &toucher), 0);
	CHECK_EQ(poll(&pfd, 1, 10000), 1);
	CHECK_EQ(read(pfd.fd, &msg, sizeof(msg)), sizeof(msg));
	CHECK_EQ(poll(&pfd, 1, 0), 0);
	kill_active(&rig);
	CHECK_EQ(pthread_join(toucher.thread, NULL), 0);
	rig_end(&rig);
}

/** A spare server that is gone before it is needed is passed over. */
static void test_spare_killed(void)
{
	struct rig rig;

	rig_start(&rig, PAGE, false);
	CHECK_EQ(kill(pager_pid(rig.pager, 1), SIGKILL), 0);
	usleep(20000);
	kill_active(&rig);
	CHECK_EQ(pager_active(rig.pager), 2);
	check_all(&rig);
	rig_end(&rig);
}

static void test_failed(void)
{
	struct capture capture;
	struct pollfd pfd;
	struct rig rig;

	rig_start(&rig, PAGE, false);
	pfd = (struct pollfd){.fd = pager_failed_fd(rig.pager), .events = POLLIN};
	kill_active(&rig);
	kill_active(&rig);
	CHECK_EQ(poll(&pfd, 1, 0), 0);
	capture_begin(&capture);
	CHECK_EQ(kill(pager_pid(rig.pager, 2), SIGKILL), 0);
	CHECK_EQ(poll(&pfd, 1, 10000), 1);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "the VM has to end");
	/* An owner that acts on it is not ended. */
	rig_end(&rig);
}

/** In a child: everybody who could act on it waits for a page. */
static void be_stuck(int ctl_fd)
{
	struct rlimit none = {0};
	struct rig rig;

	setrlimit(RLIMIT_CORE, &none);
	rig_start(&rig, PAGE, false);
	pager_tell(rig.pager, ctl_fd);
	for (unsigned int i = 0; i < PAGER_SERVERS; i++)
		kill(pager_pid(rig.pager, i), SIGKILL);
	usleep(10000);
	(void)*at(&rig, 0);
	_exit(77);
}

static void test_stuck(void)
{
	u64 start_ns = clock_now_ns();
	struct capture capture;
	struct ctl_msg msg;
	int pair[2], status, fd;
	pid_t pid;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	capture_begin(&capture);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		be_stuck(pair[1]);
	close(pair[1]);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	capture_end(&capture);
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), 1);
	CHECK_LOGGED(&capture, "killed by signal 9");
	CHECK_LOGGED(&capture, PAGER_FAILED_TEXT);
	CHECK_EQ(ctl_recv(pair[0], &msg, &fd), 1);
	CHECK_EQ(msg.type, CTL_EXIT);
	CHECK_EQ(msg.reason, CTL_EXIT_ERROR);
	CHECK_STR(msg.text, PAGER_FAILED_TEXT);
	close(pair[0]);
	CHECK(clock_now_ns() - start_ns < (PAGER_GRACE_MS + 8000) * 1000000ull);
}

/** A file that shrinks is an error, and never zeros. */
static void test_shrunk(void)
{
	struct capture capture;
	int status;
	pid_t pid;

	capture_begin(&capture);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		struct rig rig;

		rig_start(&rig, PAGE, false);
		CHECK_EQ(truncate(path, MIB), 0);
		CHECK_EQ(*at(&rig, 0), expected(0));
		_exit(*at(&rig, 2 * MIB) == 0 ? 76 : 77);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	capture_end(&capture);
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), 1);
	CHECK_LOGGED(&capture, "truncated");
	CHECK_LOGGED(&capture, "exit status 1");
}

/** is_gone() - within a few seconds. */
static bool is_gone(pid_t pid)
{
	for (unsigned int i = 0; i < 500; i++) {
		char text[64], state = 'X';
		FILE *file;

		snprintf(text, sizeof(text), "/proc/%d/stat", pid);
		file = fopen(text, "re");
		if (!file)
			return true;
		if (fscanf(file, "%*d %*s %c", &state) != 1)
			state = 'X';
		fclose(file);
		/* A zombie is waiting for an init that reaps, which not every container has. */
		if (state == 'Z' || state == 'X')
			return true;
		usleep(10000);
	}
	return false;
}

/** Servers end with their VMM, however that ends, and hold nothing of it open. */
static void test_orphans(void)
{
	pid_t pids[PAGER_SERVERS], pid;
	int pipes[2], held[2], status;
	char byte;

	CHECK_EQ(pipe2(pipes, O_CLOEXEC), 0);
	CHECK_EQ(pipe2(held, O_CLOEXEC), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		struct rig rig;

		close(held[0]);
		rig_start(&rig, PAGE, false);
		for (unsigned int i = 0; i < PAGER_SERVERS; i++)
			pids[i] = pager_pid(rig.pager, i);
		CHECK_EQ(write(pipes[1], pids, sizeof(pids)), sizeof(pids));
		/* The servers were told to go on after SIGTERM. */
		CHECK_EQ(kill(pids[0], SIGTERM), 0);
		check_all(&rig);
		/* Only this process has the other end, so that closing it is seen at once. */
		close(held[1]);
		pause();
	}
	close(held[1]);
	CHECK_EQ(read(pipes[0], pids, sizeof(pids)), sizeof(pids));
	CHECK_EQ(read(held[0], &byte, 1), 0);
	for (unsigned int i = 0; i < PAGER_SERVERS; i++)
		CHECK_EQ(kill(pids[i], 0), 0);
	CHECK_EQ(kill(pid, SIGKILL), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	for (unsigned int i = 0; i < PAGER_SERVERS; i++)
		CHECK(is_gone(pids[i]));
	close(pipes[0]);
	close(pipes[1]);
	close(held[0]);
}

static void test_plain(void)
{
	struct rig rig;

	CHECK_EQ(setenv("THAW_IO", "plain", 1), 0);
	rig_start(&rig, 16 * 1024, true);
	CHECK_EQ(unsetenv("THAW_IO"), 0);
	CHECK(pager_is_plain(rig.pager));
	check_all(&rig);
	rig_end(&rig);
}

static void setup(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd < 0)
		SKIP("userfaultfd for faults of the kernel can't be had here");
	close(fd);
	/* Take-overs are warnings, and here they are wanted. */
	log_set_level(LOG_ERROR);
	temp_folder(folder);
	snprintf(path, sizeof(path), "%s/memory", folder);
}

static void teardown(void)
{
	temp_folder_remove(folder);
}

TEST_MAIN({"setup", setup}, {"content", test_content}, {"window", test_window},
	  {"kernel_faults", test_kernel_faults}, {"overlay", test_overlay}, {"plain", test_plain},
	  {"killed", test_killed}, {"killed_with_message", test_killed_with_message},
	  {"spare_killed", test_spare_killed}, {"failed", test_failed}, {"stuck", test_stuck},
	  {"shrunk", test_shrunk}, {"orphans", test_orphans}, {"teardown", teardown})
