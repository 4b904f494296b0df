// SPDX-License-Identifier: Apache-2.0
// A VMM that misbehaves: this program starts itself in a jail and tries, from inside, what a guest
// that has taken over its VMM would try. Each attempt is made three times: behind user, namespaces
// and the empty root alone; with the jail's own filter; with the event loop's filter as well. The
// table says which of them has to stop it, and how that looks.
//
// Needs root. Limits of the cgroup are tried where there is cgroup v2 with its controllers.
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/jail/attempts.h"
#include "tests/unit/test.h"
#include "vmm/cli/state.h"
#include "vmm/jail/jail.h"
#include "vmm/seccomp.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

static struct state state;
static struct jail_config config;
static struct targets targets;
static char dir[] = "/tmp/thaw-jail-XXXXXX";
static bool has_controllers;

/* --- inside ------------------------------------------------------------------------------------
 */

static void enter(enum layer layer, u32 uid, struct targets *t)
{
	struct jail_entry entry = {.uid = uid,
				   .file_max_bytes = FILE_MAX,
				   .threads_max = THREADS_MAX,
				   .no_filter = layer == BARE};

	signal(SIGXFSZ, SIG_IGN);
	if (jail_enter(&entry))
		_exit(90);
	t->pagemap_fd = entry.pagemap_fd;
	if (layer == THREAD &&
	    seccomp_apply_main(SECCOMP_SNAPSHOT | SECCOMP_OWNERS | SECCOMP_WAIT | SECCOMP_JAIL |
			       SECCOMP_VSOCK_PATH | SECCOMP_BUILD))
		_exit(91);
}

static int number(const char *name)
{
	const char *text = getenv(name);

	return text ? atoi(text) : -1;
}

static int attack(char **argv)
{
	struct targets t = {.pid = number("T_PID"),
			    .port = number("T_PORT"),
			    .key = number("T_KEY"),
			    .path = getenv("T_PATH"),
			    .abstract = getenv("T_ABSTRACT"),
			    .secret = getenv("T_SECRET")};
	unsigned int index = (unsigned int)atoi(argv[2]);
	int ret;

	enter((enum layer)atoi(argv[3]), (u32)strtoul(argv[4], NULL, 10), &t);
	if (index < nattempts) {
		ret = attempts[index].fn(&t);
	} else { /* to be looked at */
		ret = 0;
		(void)!write(FD_RESULT, &ret, sizeof(ret));
		for (;;)
			(void)!poll(NULL, 0, -1);
	}
	(void)!write(FD_RESULT, &ret, sizeof(ret));
	_exit(0);
}

/* --- outside -----------------------------------------------------------------------------------
 */

static int listen_unix(const char *name, bool abstract)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path + abstract, sizeof(addr.sun_path) - 1, "%s", name);
	CHECK_EQ(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	CHECK_EQ(listen(fd, 8), 0);
	return fd;
}

static int listen_tcp(int *port)
{
	struct sockaddr_in addr = {.sin_family = AF_INET,
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK_EQ(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	CHECK_EQ(listen(fd, 8), 0);
	CHECK_EQ(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
	*port = ntohs(addr.sin_port);
	return fd;
}

static void set_up(void)
{
	static char path[128], secret[128], abstract[64];
	int fd;

	CHECK(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/socket", dir);
	snprintf(secret, sizeof(secret), "%s/secret", dir);
	snprintf(abstract, sizeof(abstract), "thaw-jail-%d", getpid());
	CHECK_EQ(setenv("THAW_STATE", dir, 1), 0);
	CHECK_EQ(state_init(&state), 0);
	fd = open(secret, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	CHECK(fd >= 0);
	close(fd);
	CHECK_EQ(chmod(dir, 0755), 0);
	targets = (struct targets){.path = path, .secret = secret, .abstract = abstract};
	(void)listen_unix(path, false);
	(void)listen_unix(abstract, true);
	(void)listen_tcp(&targets.port);
	targets.key = (int)syscall(SYS_add_key, "user", "thaw-jail", "secret", 6,
				   KEY_SPEC_SESSION_KEYRING);
	targets.pid = fork();
	if (targets.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	CHECK(targets.pid > 0);
}

/** Outside of a jail each of these works: it is the jail that makes them fail. */
static void test_control(void)
{
	static const char *const names[] = {"open a host file",
					    "connect to a socket's path",
					    "connect to an abstract socket",
					    "connect by TCP",
					    "ptrace",
					    "fork",
					    "read a key"};

	for (unsigned int i = 0; i < nattempts; i++) {
		int status = -1;
		pid_t pid;

		for (size_t j = 0; j < ARRAY_SIZE(names); j++)
			status = strcmp(names[j], attempts[i].name) ? status : 0;
		if (status || (targets.key < 0 && strstr(attempts[i].name, "key")))
			continue;
		pid = fork();
		if (pid == 0)
			_exit(attempts[i].fn(&targets) != 0);
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		if (status)
			fprintf(stderr, "%s: fails outside, too\n", attempts[i].name);
		CHECK_EQ(status, 0);
	}
}

static void find_cgroups(void)
{
	static char root[64];
	char text[256] = "";
	int fd;

	jail_config_default(&config);
	config.require_cgroup = false;
	snprintf(root, sizeof(root), "%s/thaw-test-%d",
		 access("/sys/fs/cgroup/unified/cgroup.procs", F_OK) == 0 ? "/sys/fs/cgroup/unified"
									  : "/sys/fs/cgroup",
		 getpid());
	config.cgroup_root = root;
	fd = open("/sys/fs/cgroup/cgroup.controllers", O_RDONLY | O_CLOEXEC);
	has_controllers = fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 &&
			  strstr(text, "memory") && strstr(text, "pids");
	fd_close(&fd);
	config.require_cgroup = has_controllers;
	printf("  (cgroup v2 controllers: %s)\n", has_controllers ? "yes" : "no");
}

static pid_t start(struct jail *jail, const struct jail_limits *limits, unsigned int index,
		   enum layer layer, int *result_fd)
{
	char number_text[16], layer_text[16], uid_text[16], env[6][160];
	char *argv[] = {"test_jail", "attack", number_text, layer_text, uid_text, NULL};
	char *envp[] = {env[0], env[1], env[2], env[3], env[4], env[5], NULL};
	int folder_fd, file_fd, net_fd, pair[2];
	char folder[64];
	pid_t pid;

	CHECK_EQ(jail_prepare(&state, &config, "attacker", limits, jail), 0);
	CHECK_EQ(pipe2(pair, O_CLOEXEC), 0);
	snprintf(folder, sizeof(folder), "%s/uids", dir);
	folder_fd = jail_detach_folder(AT_FDCWD, folder, true);
	file_fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	net_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	CHECK(folder_fd >= 0 && file_fd >= 0 && net_fd >= 0);
	snprintf(number_text, sizeof(number_text), "%u", index);
	snprintf(layer_text, sizeof(layer_text), "%d", (int)layer);
	snprintf(uid_text, sizeof(uid_text), "%u", jail->uid);
	snprintf(env[0], sizeof(env[0]), "T_PID=%d", targets.pid);
	snprintf(env[1], sizeof(env[1]), "T_PORT=%d", targets.port);
	snprintf(env[2], sizeof(env[2]), "T_KEY=%d", targets.key);
	snprintf(env[3], sizeof(env[3]), "T_PATH=%s", targets.path);
	snprintf(env[4], sizeof(env[4]), "T_ABSTRACT=%s", targets.abstract);
	snprintf(env[5], sizeof(env[5]), "T_SECRET=%s", targets.secret);
	{
		const int fds[FD_COUNT] = {-1,	      -1,      STDERR_FILENO, pair[1],
					   folder_fd, file_fd, net_fd};
		const struct jail_birth birth = {.path = "/proc/self/exe",
						 .argv = argv,
						 .env = envp,
						 .fds = fds,
						 .nfds = FD_COUNT};

		pid = jail_spawn(jail, &birth);
	}
	CHECK(pid > 0);
	close(pair[1]);
	close(folder_fd);
	close(file_fd);
	close(net_fd);
	*result_fd = pair[0];
	return pid;
}

static const char *const words[] = {"whatever", "works", "fails", "is killed by a filter",
				    "is killed by the cgroup"};

static enum outcome run(unsigned int index, enum layer layer, int *error)
{
	const struct jail_limits limits = {.memory_max_bytes = attempts[index].memory_max_bytes,
					   .pids_max = attempts[index].cgroup ? PIDS_MAX : 0};
	int fd, status, ret = 0;
	struct jail jail;
	ssize_t n;
	pid_t pid;

	pid = start(&jail, &limits, index, layer, &fd);
	n = read(fd, &ret, sizeof(ret));
	close(fd);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (limits.memory_max_bytes)
		CHECK(jail_oom_kills(&config, "attacker") > 0);
	jail_close(&jail);
	CHECK_EQ(jail_remove(&config, "attacker"), 0);
	*error = ret;
	if (n == sizeof(ret))
		return ret ? FAILS : WORKS;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
		return SYSCALL;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return KILLED;
	fprintf(stderr, "%s: wait status %#x\n", attempts[index].name, (unsigned int)status);
	return ANY;
}

static void test_misbehave(void)
{
	static const char *const layers[] = {"jail alone", "jail's filter", "thread's filter"};
	unsigned int wrong = 0;

	for (unsigned int i = 0; i < nattempts; i++) {
		if (attempts[i].cgroup && !has_controllers)
			continue;
		for (unsigned int layer = 0; layer < LAYERS; layer++) {
			enum outcome want = attempts[i].want[layer], got;
			int error;

			got = run(i, (enum layer)layer, &error);
			if (got == want || (want == ANY && got != KILLED))
				continue;
#ifdef THAW_SANITIZER
			/* Its own calls are allowed; then the layers below have to do. */
			if (want == SYSCALL && got == attempts[i].want[BARE])
				continue;
#endif
			fprintf(stderr, "%s, %s: it %s (%s), but should be seen to: %s\n",
				attempts[i].name, layers[layer], words[got], strerror(-error),
				words[want]);
			wrong++;
		}
	}
	CHECK_EQ(wrong, 0);
	CHECK_EQ(kill(targets.pid, 0), 0);
}

static void read_proc(pid_t pid, const char *name, char *buf, size_t max)
{
	char path[64];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, buf, max - 1);
	CHECK(n >= 0);
	buf[n] = '\0';
	close(fd);
}

static void check_namespaces(pid_t pid)
{
	static const char *const names[] = {"user", "mnt", "pid", "net", "ipc", "uts"};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		char path[64], own[64], other[64];
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/ns/%s", names[i]);
		n = readlink(path, own, sizeof(own) - 1);
		CHECK(n > 0);
		own[n] = '\0';
		snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)pid, names[i]);
		n = readlink(path, other, sizeof(other) - 1);
		CHECK(n > 0);
		other[n] = '\0';
		CHECK(strcmp(own, other) != 0);
	}
}

/** What /proc says about a process in a jail. */
static void test_status(void)
{
	const struct jail_limits none = {0};
	char text[8192], want[128];
	struct jail jail;
	int fd, ret;
	pid_t pid;

	pid = start(&jail, &none, nattempts, THREAD, &fd);
	CHECK_EQ(read(fd, &ret, sizeof(ret)), sizeof(ret));
	read_proc(pid, "status", text, sizeof(text));
	snprintf(want, sizeof(want), "\nUid:\t%u\t%u\t%u\t%u\n", jail.uid, jail.uid, jail.uid,
		 jail.uid);
	CHECK(strstr(text, want));
	snprintf(want, sizeof(want), "\nGid:\t%u\t%u\t%u\t%u\n", jail.uid, jail.uid, jail.uid,
		 jail.uid);
	CHECK(strstr(text, want));
	CHECK(strstr(text, "\nGroups:\t \n"));
	CHECK(strstr(text, "\nCapPrm:\t0000000000000000\n"));
	CHECK(strstr(text, "\nCapEff:\t0000000000000000\n"));
	CHECK(strstr(text, "\nCapBnd:\t0000000000000000\n"));
	CHECK(strstr(text, "\nNoNewPrivs:\t1\n"));
	CHECK(strstr(text, "\nSeccomp:\t2\n"));
	snprintf(want, sizeof(want), "\nNSpid:\t%d\t1\n", (int)pid);
	CHECK(strstr(text, want));
	check_namespaces(pid);
	read_proc(pid, "uid_map", text, sizeof(text));
	snprintf(want, sizeof(want), "%10u %10u          1\n", jail.uid, jail.uid);
	CHECK_STR(text, want);
	/* Its user is taken for as long as it lives, whoever else has let go. */
	jail_close(&jail);
	{
		struct jail other;
		u32 taken = jail.uid;

		for (int i = 0; i < 3; i++) {
			CHECK_EQ(jail_prepare(&state, &config, "other", &none, &other), 0);
			CHECK(other.uid != taken);
			jail_close(&other);
		}
		CHECK_EQ(jail_remove(&config, "other"), 0);
	}
	/* Its removal is its end. */
	CHECK_EQ(jail_remove(&config, "attacker"), 0);
	if (config.require_cgroup || access(config.cgroup_root, F_OK) == 0)
		CHECK_EQ(read(fd, &ret, sizeof(ret)), 0);
	kill(pid, SIGKILL);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	close(fd);
}

static void test_uids(void)
{
	const struct jail_config small = {
		.uid_base = 2000000000u, .uid_count = 2, .cgroup_root = "/nonexistent"};
	struct jail_config wrong = small;
	const struct jail_limits none = {0};
	struct jail a, b, c;

	CHECK_EQ(jail_prepare(&state, &small, "a", &none, &a), 0);
	CHECK_EQ(jail_prepare(&state, &small, "b", &none, &b), 0);
	CHECK(a.uid != b.uid && a.uid >= small.uid_base && b.uid >= small.uid_base);
	CHECK(a.uid < small.uid_base + 2 && b.uid < small.uid_base + 2);
	CHECK_EQ(a.cgroup_fd, -1);
	CHECK_EQ(jail_prepare(&state, &small, "c", &none, &c), -EBUSY);
	jail_close(&a);
	CHECK_EQ(jail_prepare(&state, &small, "c", &none, &c), 0);
	CHECK_EQ(c.uid, a.uid);
	jail_close(&b);
	jail_close(&c);
	wrong.uid_base = 0;
	CHECK_EQ(jail_prepare(&state, &wrong, "c", &none, &c), -EINVAL);
	wrong = small;
	wrong.require_cgroup = true;
	CHECK(jail_prepare(&state, &wrong, "c", &none, &c) < 0);
	CHECK_EQ(jail_remove(&small, "a"), 0);
	CHECK_EQ(jail_remove(&small, "../a"), -EINVAL);
}

static void tear_down(void)
{
	char command[128];

	kill(targets.pid, SIGKILL);
	(void)waitpid(targets.pid, NULL, 0);
	(void)rmdir(config.cgroup_root);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	CHECK_EQ(system(command), 0);
}

int main(int argc, char **argv)
{
	log_init("test_jail");
	if (argc == 5 && !strcmp(argv[1], "attack"))
		return attack(argv);
	if (geteuid() != 0)
		SKIP("only root can make a jail");
	set_up();
	find_cgroups();
	printf("  control\n");
	test_control();
	printf("  uids\n");
	test_uids();
	printf("  status\n");
	test_status();
	printf("  misbehave\n");
	test_misbehave();
	tear_down();
	printf("ok 4\n");
	return 0;
}
