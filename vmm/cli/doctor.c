// SPDX-License-Identifier: Apache-2.0
// `thaw doctor`: what this machine has and lacks, with what to do about it.
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/doctor.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/optparse.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

struct doctor_opts {
	bool json;
};

static const struct optparse_spec doctor_specs[] = {
	{"output", 'o', "json", optparse_json, offsetof(struct doctor_opts, json), "as JSON", NULL},
	{"json", 0, NULL, optparse_flag, offsetof(struct doctor_opts, json), "the same", NULL},
};

const struct optparse_command doctor_command = {
	.usage = "thaw doctor [--json]",
	.summary = "Tell what this machine has and lacks for thaw, and what to do.",
	.details = "ok: there; warn: something else than 'thaw run' will miss it; FAIL: 'thaw run' "
		   "can't work.\nExit status: 0 when nothing failed, else 1.",
	.specs = doctor_specs,
	.nspecs = ARRAY_SIZE(doctor_specs),
};

void doctor_say(struct doctor_finding *finding, enum doctor_status status, const char *fmt, ...)
{
	va_list args;

	finding->status = status;
	va_start(args, fmt);
	vsnprintf(finding->detail, sizeof(finding->detail), fmt, args);
	va_end(args);
}

/** Every check, in the order of the report: what `run` stands on first. */
static const struct doctor_check checks[] = {
	{"cpu", doctor_check_cpu},
	{"kvm", doctor_check_kvm},
	{"kvm-features", doctor_check_kvm_features},
	{"kernel", doctor_check_kernel},
	{"thaw-vmm", doctor_check_vmm},
	{"state", doctor_check_state},
	{"guest", doctor_check_guest},
	{"templates", doctor_check_templates},
	{"disk-space", doctor_check_space},
	{"memory", doctor_check_memory},
	{"io_uring", doctor_check_io_uring},
	{"mke2fs", doctor_check_mke2fs},
	{"huge-pages", doctor_check_thp},
	{"userfaultfd", doctor_check_userfaultfd},
	{"bpf", doctor_check_bpf},
	{"tun", doctor_check_tun},
	{"cgroup", doctor_check_cgroup},
	{"jail", doctor_check_jail},
};

static const char *const status_names[] = {"ok", "warn", "FAIL"};

static void print_finding(const char *name, const struct doctor_finding *finding)
{
	printf("%-5s %-13s %s\n", status_names[finding->status], name, finding->detail);
	if (finding->status != DOCTOR_OK && finding->fix)
		printf("%-19s -> %s\n", "", finding->fix);
}

static json_t *finding_json(const char *name, const struct doctor_finding *finding)
{
	const char *fix = finding->status == DOCTOR_OK ? NULL : finding->fix;

	return json_pack("{s:s, s:s, s:s, s:s?}", "name", name, "status",
			 finding->status == DOCTOR_FAIL ? "fail" : status_names[finding->status],
			 "detail", finding->detail, "fix", fix);
}

static int print_json(json_t *findings, const struct doctor *doctor, bool ok)
{
	static const char *const kinds[] = {
		[KVM_KIND_NONE] = "none",
		[KVM_KIND_PVM] = "pvm",
		[KVM_KIND_EMULATED] = "emulated",
		[KVM_KIND_HARDWARE] = "hardware",
	};
	json_t *report = json_pack("{s:b, s:s, s:O}", "ok", ok, "kvm", kinds[doctor->kind],
				   "checks", findings);
	int ret = report ? json_print(report) : -ENOMEM;

	json_decref(report);
	return ret;
}

int doctor_main(struct cli *cli, int argc, char **argv)
{
	struct doctor doctor = {.kvm_fd = -1};
	struct doctor_opts opts = {0};
	struct optparse_result result;
	json_t *array = NULL;
	bool ok = true;
	int status, ret = 0;

	(void)cli;
	status = cli_parse(&doctor_command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (state_init(&doctor.state))
		return CLI_FAILED;
	if (opts.json && !(array = json_array()))
		return CLI_FAILED;
	for (size_t i = 0; i < ARRAY_SIZE(checks); i++) {
		struct doctor_finding finding = {.fix = NULL};

		checks[i].run(&doctor, &finding);
		ok = ok && finding.status != DOCTOR_FAIL;
		if (!array)
			print_finding(checks[i].name, &finding);
		else if (json_array_append_new(array, finding_json(checks[i].name, &finding)))
			ret = -ENOMEM;
	}
	if (array && !ret)
		ret = print_json(array, &doctor, ok);
	json_decref(array);
	fd_close(&doctor.kvm_fd);
	if (!opts.json)
		printf("%s\n", ok ? "thaw run works here" : "thaw run can't work here");
	return !cli_flush() && ok && !ret ? CLI_OK : CLI_FAILED;
}
