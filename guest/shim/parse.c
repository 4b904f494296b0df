// SPDX-License-Identifier: Apache-2.0
// The payload of SHIM_EXEC.
#include "guest/shim/parse.h"

#include <errno.h>
#include <string.h>

#define HEAD_FLAGS (SHIM_EXEC_STDIN | SHIM_EXEC_DETACH | SHIM_EXEC_EXT)
#define EXT_FLAGS  (SHIM_EXT_KEEP | SHIM_EXT_PTY | SHIM_EXT_COMBINED | SHIM_EXT_FILES)

bool parse_id_is_zero(const u8 id[SHIM_ID_BYTES])
{
	u8 any = 0;

	for (u32 i = 0; i < SHIM_ID_BYTES; i++)
		any |= id[i];
	return !any;
}

/* Where the strings begin. */
static size_t strings_at(const struct shim_exec *head)
{
	return sizeof(*head) + (head->flags & SHIM_EXEC_EXT ? sizeof(struct shim_exec_ext) : 0);
}

static int parse_ext(const u8 *payload, const struct shim_exec *head, struct shim_exec_ext *ext)
{
	const u32 not_detached = SHIM_EXT_KEEP | SHIM_EXT_PTY | SHIM_EXT_COMBINED;

	memset(ext, 0, sizeof(*ext));
	if (!(head->flags & SHIM_EXEC_EXT))
		return 0;
	memcpy(ext, payload + sizeof(*head), sizeof(*ext));
	if (ext->flags & ~(u32)EXT_FLAGS || ext->reserved)
		return -EINVAL;
	if (!(ext->flags & SHIM_EXT_KEEP) != parse_id_is_zero(ext->id))
		return -EINVAL;
	if (!ext->size.cols != !ext->size.rows)
		return -EINVAL;
	if (ext->size.cols && !(ext->flags & SHIM_EXT_PTY))
		return -EINVAL;
	if ((ext->flags & SHIM_EXT_PTY) && !(head->flags & SHIM_EXEC_STDIN))
		return -EINVAL;
	if ((ext->flags & not_detached) && (head->flags & SHIM_EXEC_DETACH))
		return -EINVAL;
	if ((ext->flags & SHIM_EXT_PTY) && !ext->size.cols)
		ext->size = (struct shim_size){PARSE_DEFAULT_COLS, PARSE_DEFAULT_ROWS};
	return 0;
}

static int parse_head(const u8 *payload, size_t len_bytes, struct shim_exec *head)
{
	if (len_bytes < sizeof(*head))
		return -EINVAL;
	memcpy(head, payload, sizeof(*head));
	if (head->flags & ~(u32)HEAD_FLAGS || head->reserved || head->has_cwd > 1)
		return -EINVAL;
	if ((head->flags & SHIM_EXEC_STDIN) && (head->flags & SHIM_EXEC_DETACH))
		return -EINVAL;
	if (len_bytes < strings_at(head))
		return -EINVAL;
	if (!head->argc)
		return -EINVAL;
	if (head->argc > SHIM_ARGS_MAX || head->envc > SHIM_ARGS_MAX - head->argc)
		return -E2BIG;
	/* Each string has its NUL at least: refuses big counts in a short payload before slots are
	 * made for them. */
	if ((size_t)head->argc + head->envc + head->has_cwd > len_bytes - strings_at(head))
		return -EINVAL;
	if (head->uid == UINT32_MAX || head->gid == UINT32_MAX)
		return -EINVAL;
	if (head->drain_ms > PARSE_DRAIN_MAX_MS)
		return -EINVAL;
	return 0;
}

s64 parse_exec_slots(const u8 *payload, size_t len_bytes)
{
	struct shim_exec head;
	int ret = parse_head(payload, len_bytes, &head);

	if (ret)
		return ret;
	/* Two NULLs and the default PATH. */
	return (s64)head.argc + head.envc + 3;
}

/** The next NUL-terminated string of [*pos, end), or NULL. */
static char *take_string(char **pos, char *end)
{
	char *start = *pos;
	char *nul = memchr(start, '\0', (size_t)(end - start));

	if (!nul)
		return NULL;
	*pos = nul + 1;
	return start;
}

static int parse_env(char **pos, char *end, struct parse_exec *out)
{
	/* Not written through: execve(2) wants char * by tradition only. */
	static char default_path[] = PARSE_DEFAULT_PATH;
	u32 i;

	out->path = NULL;
	for (i = 0; i < out->envc; i++) {
		char *entry = take_string(pos, end);
		const char *eq = entry ? strchr(entry, '=') : NULL;

		if (!eq || eq == entry)
			return -EINVAL;
		/* The first one counts, as in getenv(3). */
		if (!out->path && !strncmp(entry, "PATH=", 5))
			out->path = entry + 5;
		out->envp[i] = entry;
	}
	if (!out->path) {
		out->path = default_path + 5;
		out->envp[i++] = default_path;
	}
	out->envp[i] = NULL;
	return 0;
}

int parse_exec(u8 *payload, size_t len_bytes, char **slots, struct parse_exec *out)
{
	char *end = (char *)payload + len_bytes;
	struct shim_exec_ext ext;
	struct shim_exec head;
	char *pos;
	int ret;
	u32 i;

	ret = parse_head(payload, len_bytes, &head);
	if (!ret)
		ret = parse_ext(payload, &head, &ext);
	if (ret)
		return ret;
	pos = (char *)payload + strings_at(&head);
	*out = (struct parse_exec){
		.argv = slots,
		.envp = slots + head.argc + 1,
		.argc = head.argc,
		.envc = head.envc,
		.uid = head.uid,
		.gid = head.gid,
		.drain_ms = head.drain_ms ? head.drain_ms : PARSE_DRAIN_DEFAULT_MS,
		.with_stdin = head.flags & SHIM_EXEC_STDIN,
		.detach = head.flags & SHIM_EXEC_DETACH,
		.ext = ext,
		.keep = ext.flags & SHIM_EXT_KEEP,
		.pty = ext.flags & SHIM_EXT_PTY,
		.combined = ext.flags & SHIM_EXT_COMBINED,
		.files = ext.flags & SHIM_EXT_FILES,
	};
	for (i = 0; i < head.argc; i++) {
		out->argv[i] = take_string(&pos, end);
		if (!out->argv[i])
			return -EINVAL;
	}
	out->argv[i] = NULL;
	if (!out->argv[0][0])
		return -EINVAL;
	ret = parse_env(&pos, end, out);
	if (ret)
		return ret;
	if (head.has_cwd) {
		out->cwd = take_string(&pos, end);
		if (!out->cwd || !out->cwd[0])
			return -EINVAL;
	}
	return pos == end ? 0 : -EINVAL;
}
