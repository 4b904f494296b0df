// SPDX-License-Identifier: Apache-2.0
// The exec protocol from hostile peers: requests that reach the shim, and frames that reach the
// host.
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/shim/frame.h"
#include "guest/shim/parse.h"
#include "vmm/cli/exec.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

/* What was accepted, written down again, is what came. */
static void check_round_trip(const struct parse_exec *exec, const u8 *payload, size_t len_bytes)
{
	struct exec_request req = {
		.argv = exec->argv,
		.env = exec->envp,
		.cwd = exec->cwd,
		.uid = exec->uid,
		.gid = exec->gid,
		.drain_ms = frame_get_u32(payload + offsetof(struct shim_exec, drain_ms)),
		.with_stdin = exec->with_stdin,
		.detach = exec->detach,
	};
	struct shim_exec_ext ext;
	size_t again_len = 0;
	u8 *again = NULL;

	/* A head that announces options has them, even if they are all 0. */
	if (frame_get_u32(payload) & SHIM_EXEC_EXT) {
		memcpy(&ext, payload + sizeof(struct shim_exec), sizeof(ext));
		req.ext = &ext;
	}
	/* Without the PATH that was added. */
	exec->envp[exec->envc] = NULL;
	if (exec_payload_build(&req, &again, &again_len))
		abort();
	if (again_len != len_bytes || memcmp(again, payload, len_bytes))
		abort();
	free(again);
}

static void fuzz_request(const u8 *data, size_t size)
{
	/* An allocation of its own, so that a read past its end is seen. */
	u8 *payload = malloc(size ? size : 1);
	struct parse_exec exec;
	char **slots;
	s64 nslots;

	memcpy(payload, data, size);
	nslots = parse_exec_slots(payload, size);
	if (nslots >= 0) {
		slots = malloc((size_t)nslots * sizeof(*slots));
		if (!parse_exec(payload, size, slots, &exec))
			check_round_trip(&exec, payload, size);
		free(slots);
	}
	free(payload);
}

static void fuzz_guest(const u8 *data, size_t size)
{
	const struct exec_io io = {
		.stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1, .signal_fd = -1, .watch_fd = -1};
	struct exec_result result;
	int pair[2];

	if (size > 100000 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
		return;
	if (fd_write_full(pair[1], data, size) || shutdown(pair[1], SHUT_WR) < 0)
		abort();
	if (exec_run(pair[0], NULL, &io, &result))
		abort();
	/* Every end is one of those; text is printable. */
	if (result.kind > EXEC_LOST || strlen(result.text) > SHIM_TEXT_MAX_BYTES)
		abort();
	for (const char *p = result.text; *p; p++)
		if (*p < 0x20 || *p > 0x7e)
			abort();
	if (result.kind == EXEC_EXITED && (result.value > 255 || !result.exit_ns))
		abort();
	close(pair[0]);
	close(pair[1]);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	log_set_level(LOG_ERROR);
	if (!size)
		return 0;
	if (data[0] & 1)
		fuzz_request(data + 1, size - 1);
	else
		fuzz_guest(data + 1, size - 1);
	return 0;
}
