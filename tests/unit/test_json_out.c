// SPDX-License-Identifier: Apache-2.0
// JSON results, /proc texts, and the state folder's locks and removal, on files of the test's own.
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/kvmkind.h"
#include "vmm/cli/state.h"
#include "vmm/cli/sweep.h"
#include "vmm/util/util.h"

static char scratch[] = "/tmp/thaw-test-XXXXXX";

static struct run_result example(void)
{
	return (struct run_result){
		.template_name = "debian",
		.strategy = "mmap",
		.pool = "none",
		.kvm = "emulated",
		.clocks = {.start_ns = 1000000000ull,
			   .first_ioctl_ns = 1000100000ull,
			   .state_set_ns = 1005333499ull,
			   .run_ns = 1006000500ull,
			   .resumed_ns = 1010000000ull},
		.client_start_ns = 999000000ull,
		.exit_ns = 1123456789ull,
		.faults_minor = 1234,
		.faults_major = 0,
		.bytes_read = 40960,
		.code = 7,
	};
}

static void check_json(const struct run_result *result, const char *expected)
{
	json_t *object = run_result_json(result);
	char *text;

	CHECK(object);
	text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(15));
	CHECK(text);
	CHECK_STR(text, expected);
	free(text);
	json_decref(object);
}

static void test_schema(void)
{
	struct run_result result = example();

	check_json(&result,
		   "{\"template\":\"debian\",\"strategy\":\"mmap\",\"pool\":\"none\",\"kvm\":"
		   "\"emulated\",\"clocks_ms\":{\"c1\":5.233,\"c2\":6.001,\"c3\":10.0,"
		   "\"c4\":123.457,\"c5\":124.457},\"faults\":{\"minor\":1234,\"major\":0},"
		   "\"bytes_read\":40960,\"exit\":{\"code\":7,\"signal\":null}}");
}

static void test_missing(void)
{
	struct run_result result = example();

	result.signal = 9;
	result.code = 137;
	result.clocks.resumed_ns = 0;
	result.clocks.state_set_ns = result.clocks.first_ioctl_ns - 1;
	result.exit_ns = 0;
	result.faults_major = -1;
	result.bytes_read = -1;
	check_json(&result,
		   "{\"template\":\"debian\",\"strategy\":\"mmap\",\"pool\":\"none\",\"kvm\":"
		   "\"emulated\",\"clocks_ms\":{\"c1\":null,\"c2\":6.001,\"c3\":null,"
		   "\"c4\":null,\"c5\":null},\"faults\":{\"minor\":1234,\"major\":null},"
		   "\"bytes_read\":null,\"exit\":{\"code\":null,\"signal\":9}}");
}

static void path_in(const char *name, char out[256])
{
	snprintf(out, 256, "%s/%s", scratch, name);
}

static void test_write_file(void)
{
	json_t *value = json_pack("{s:i}", "a", 1);
	char path[256], link_path[256], *text;
	struct stat st;

	path_in("r.json", path);
	path_in("no/r.json", link_path);
	CHECK_EQ(json_write_file(path, value), 0);
	CHECK_EQ(file_read_all(AT_FDCWD, path, 100, &text, NULL), 0);
	CHECK_STR(text, "{\n \"a\": 1\n}\n");
	free(text);
	/* Again: replaced, and no temporary file stays. */
	CHECK_EQ(json_write_file(path, value), 0);
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(json_write_file(link_path, value), -ENOENT);
	/* A device is written to, never replaced. */
	path_in("fifo", path);
	CHECK_EQ(mkfifo(path, 0600), 0);
	int reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	CHECK(reader >= 0);
	CHECK_EQ(json_write_file(path, value), 0);
	CHECK_EQ(stat(path, &st), 0);
	CHECK(S_ISFIFO(st.st_mode));
	close(reader);
	CHECK_EQ(unlink(path), 0);
	json_decref(value);
}

static void test_proc_stat(void)
{
	s64 minor, major;

	CHECK_EQ(proc_stat_faults("42 (thaw-vmm) S 1 42 42 0 -1 4194560 1234 0 5 0 1 2 0 0 20 0",
				  &minor, &major),
		 0);
	CHECK_EQ(minor, 1234);
	CHECK_EQ(major, 5);
	/* A name that tries to pass for fields. */
	CHECK_EQ(proc_stat_faults("42 (a) S 9 9 9 9 9 9 9 9 9) R 1 42 42 0 -1 1 77 0 8 0", &minor,
				  &major),
		 0);
	CHECK_EQ(minor, 77);
	CHECK_EQ(major, 8);
	CHECK_EQ(proc_stat_faults("42 (x) S 1 42", &minor, &major), -EINVAL);
	CHECK_EQ(proc_stat_faults("", &minor, &major), -EINVAL);
}

static void test_counters(void)
{
	struct proc_counters counters;

	proc_counters_read((int)getpid(), &counters);
	CHECK(counters.faults_minor > 0);
	CHECK(counters.faults_major >= 0);
	proc_counters_read(0x7fffffff, &counters);
	CHECK_EQ(counters.faults_minor, -1);
	CHECK_EQ(counters.bytes_read, -1);
}

static void test_cpuinfo(void)
{
	static const char text[] =
		"processor\t: 0\nflags_x\t: vmx\nflags\t\t: fpu svmx nosvm svm\nbugs\t: vmx\n";

	CHECK(!cpuinfo_has_flag("", "svm"));
	CHECK(cpuinfo_has_flag("a: 1\nflags\t: fpu svm\nbugs : vmx\n", "svm"));
	CHECK(cpuinfo_has_flag("flags: svm", "svm"));
	CHECK(!cpuinfo_has_flag("a: 1\nflags\t: fpu svm\nbugs : vmx\n", "vmx"));
	CHECK(!cpuinfo_has_flag("flags\t: fpu svmx nosvm\n", "svm"));
	CHECK(!cpuinfo_has_flag("flags\t:\n", "svm"));
	CHECK(!cpuinfo_has_flag("flags", "svm"));
	CHECK(!cpuinfo_has_flag(text, "vmx"));
	CHECK(cpuinfo_has_flag(text, "svm"));
}

static void make_file(const char *folder, const char *name)
{
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0400);
	CHECK(fd >= 0);
	close(fd);
}

static void test_state(void)
{
	struct state_names names;
	struct state state;
	char path[PATH_MAX];
	int shared, exclusive, build, again, held;

	CHECK(!setenv("THAW_STATE", "relative", 1));
	CHECK_EQ(state_init(&state), -EINVAL);
	snprintf(path, sizeof(path), "%s/state///", scratch);
	CHECK(!setenv("THAW_STATE", path, 1));
	CHECK_EQ(state_init(&state), 0);
	CHECK_EQ(state_list_templates(&state, &names), 0);
	CHECK_EQ(names.count, 0);
	CHECK_EQ(state_make(&state), 0);
	CHECK_EQ(state_make(&state), 0);
	state_path(&state, "templates", "b", "", path);
	CHECK_EQ(mkdir(path, 0700), 0);
	make_file(path, "memory");
	CHECK_EQ(chmod(path, 0500), 0);
	state_path(&state, "templates", "a", "", path);
	CHECK_EQ(mkdir(path, 0700), 0);
	/* Two builds of one name: one at a time. Leftovers go, what somebody holds locked stays. */
	state_path(&state, "templates", ".b.tmp-1-2", "", path);
	CHECK_EQ(mkdir(path, 0700), 0);
	make_file(path, "state");
	state_path(&state, "templates", ".bb.tmp-1-2", "", path);
	CHECK_EQ(mkdir(path, 0700), 0);
	held = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(held >= 0 && !flock(held, LOCK_EX));
	build = state_lock_build(&state, "b");
	CHECK(build >= 0);
	CHECK_EQ(state_lock_build(&state, "b"), -EBUSY);
	again = state_lock_build(&state, "a");
	CHECK(again >= 0);
	state_unlock_build(&state, "a", &again);
	CHECK_EQ(access(path, F_OK), 0);
	close(held);
	state_sweep(&state);
	CHECK(access(path, F_OK) < 0);
	state_path(&state, "templates", ".b.tmp-1-2", "", path);
	CHECK(access(path, F_OK) < 0);
	CHECK_EQ(mkdir(path, 0700), 0);
	state_unlock_build(&state, "b", &build);
	CHECK_EQ(build, -1);
	CHECK(access(path, F_OK) < 0);
	state_path(&state, "templates", ".b.build", "", path);
	CHECK(access(path, F_OK) < 0);
	/* Running and removing exclude each other. */
	CHECK_EQ(state_list_templates(&state, &names), 0);
	CHECK_EQ(names.count, 2);
	CHECK_STR(names.names[0], "a");
	CHECK_STR(names.names[1], "b");
	state_names_free(&names);
	CHECK(!state_in_use(&state, "b"));
	shared = state_lock_template(&state, "b", false);
	again = state_lock_template(&state, "b", false);
	CHECK(shared >= 0 && again >= 0);
	CHECK(state_in_use(&state, "b"));
	CHECK_EQ(state_lock_template(&state, "b", true), -EBUSY);
	close(again);
	close(shared);
	exclusive = state_lock_template(&state, "b", true);
	CHECK(exclusive >= 0);
	CHECK_EQ(state_lock_template(&state, "b", false), -EBUSY);
	CHECK_EQ(state_remove_template(&state, "b", exclusive), 0);
	close(exclusive);
	CHECK_EQ(state_lock_template(&state, "b", false), -ENOENT);
	CHECK_EQ(state_list_templates(&state, &names), 0);
	CHECK_EQ(names.count, 1);
	state_names_free(&names);
}

static void test_cleanup(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", scratch);
	CHECK_EQ(system(command),
		 0); // NOLINT(cert-env33-c): a fixed command on a folder of mkdtemp()
}

static void test_folder(void)
{
	CHECK(mkdtemp(scratch));
}

TEST_MAIN({"folder", test_folder}, {"schema", test_schema}, {"missing", test_missing},
	  {"write file", test_write_file}, {"proc stat", test_proc_stat},
	  {"counters", test_counters}, {"cpuinfo", test_cpuinfo}, {"state", test_state},
	  {"cleanup", test_cleanup})
