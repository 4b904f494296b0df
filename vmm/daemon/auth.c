// SPDX-License-Identifier: Apache-2.0
// Bearer tokens: read from a file that nobody else can read, compared in constant time.
#include "vmm/daemon/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define FILE_MAX_BYTES (64 * KIB)

void auth_init(struct auth *auth)
{
	memset(auth, 0, sizeof(*auth));
	pthread_rwlock_init(&auth->lock, NULL);
}

void auth_destroy(struct auth *auth)
{
	explicit_bzero(auth->tokens, sizeof(auth->tokens));
	pthread_rwlock_destroy(&auth->lock);
}

static int check_file(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0) {
		int ret = -errno;

		log_err("token_file %s: %s; make it with: (umask 077; openssl rand -hex 32 > %s)",
			path, strerror(-ret), path);
		return ret;
	}
	if (!S_ISREG(st.st_mode)) {
		log_err("token_file %s: not a regular file", path);
		return -EINVAL;
	}
	if (st.st_uid != 0 && st.st_uid != geteuid()) {
		log_err("token_file %s: belongs to uid %u; make it root's: chown root %s", path,
			st.st_uid, path);
		return -EPERM;
	}
	if (st.st_mode & 0027) {
		log_err("token_file %s: mode %04o lets others at it; run: chmod 0600 %s", path,
			st.st_mode & 07777, path);
		return -EPERM;
	}
	return 0;
}

/** add_line() - one token. Return: 0 or -EINVAL (logged, without the token). */
static int add_line(struct auth *fresh, const char *path, unsigned int number, const char *line,
		    size_t len)
{
	while (len && strchr(" \t\r", line[len - 1]))
		len--;
	while (len && strchr(" \t", *line)) {
		line++;
		len--;
	}
	if (!len || *line == '#')
		return 0;
	for (size_t i = 0; i < len; i++) {
		if (line[i] > ' ' && line[i] < 0x7f)
			continue;
		log_err("token_file %s:%u: a token has no blanks and no special characters", path,
			number);
		return -EINVAL;
	}
	if (len < AUTH_TOKEN_MIN || len >= AUTH_TOKEN_MAX_BYTES ||
	    fresh->count == AUTH_TOKENS_MAX) {
		log_err("token_file %s:%u: expected at most %u tokens of %u to %u characters", path,
			number, AUTH_TOKENS_MAX, AUTH_TOKEN_MIN, AUTH_TOKEN_MAX_BYTES - 1);
		return -EINVAL;
	}
	memcpy(fresh->tokens[fresh->count++], line, len);
	return 0;
}

int auth_load(struct auth *auth, const char *path)
{
	struct auth *fresh = NULL;
	char *text = NULL;
	size_t len_bytes = 0;
	int ret;

	ret = check_file(path);
	if (ret)
		return ret;
	fresh = calloc(1, sizeof(*fresh));
	if (!fresh)
		return -ENOMEM;
	ret = file_read_all(AT_FDCWD, path, FILE_MAX_BYTES, &text, &len_bytes);
	if (ret)
		log_err("token_file %s: %s", path, strerror(-ret));
	for (size_t at = 0, number = 1; !ret && at < len_bytes; number++) {
		const char *end = memchr(text + at, '\n', len_bytes - at);
		size_t len = end ? (size_t)(end - text) - at : len_bytes - at;

		ret = add_line(fresh, path, (unsigned int)number, text + at, len);
		at += len + 1;
	}
	if (!ret && !fresh->count) {
		log_err("token_file %s: has no token; write one of at least %u characters into it",
			path, AUTH_TOKEN_MIN);
		ret = -EINVAL;
	}
	if (!ret) {
		pthread_rwlock_wrlock(&auth->lock);
		memcpy(auth->tokens, fresh->tokens, sizeof(auth->tokens));
		auth->count = fresh->count;
		pthread_rwlock_unlock(&auth->lock);
	}
	if (text)
		explicit_bzero(text, len_bytes);
	explicit_bzero(fresh, sizeof(*fresh));
	free(text);
	free(fresh);
	return ret;
}

bool auth_same(const char *secret, const char *given)
{
	size_t secret_len = strlen(secret), len = strlen(given);
	volatile u8 differ = secret_len != len;

	for (size_t i = 0; i < len; i++)
		differ |= (u8)(given[i] ^ secret[secret_len ? i % secret_len : 0]);
	return !differ;
}

bool auth_check(struct auth *auth, const char *header)
{
	bool ok = false;

	if (!header || strncasecmp(header, "Bearer ", 7))
		return false;
	header += 7;
	header += strspn(header, " ");
	if (!*header || strlen(header) >= AUTH_TOKEN_MAX_BYTES)
		return false;
	pthread_rwlock_rdlock(&auth->lock);
	for (unsigned int i = 0; i < auth->count; i++)
		ok |= auth_same(auth->tokens[i], header);
	pthread_rwlock_unlock(&auth->lock);
	return ok;
}
