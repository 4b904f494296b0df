/* SPDX-License-Identifier: Apache-2.0 */
/* Bearer tokens of the setting token_file. */
#ifndef THAW_DAEMON_AUTH_H
#define THAW_DAEMON_AUTH_H

#include <pthread.h>

#include "vmm/util/types.h"

#define AUTH_TOKENS_MAX	     64u
#define AUTH_TOKEN_MIN	     16u
#define AUTH_TOKEN_MAX_BYTES 256u

/** Lines of token_file; blank ones and those that begin with '#' do not count. */
struct auth {
	pthread_rwlock_t lock;
	char tokens[AUTH_TOKENS_MAX][AUTH_TOKEN_MAX_BYTES];
	unsigned int count;
};

/** auth_init() - no token: nobody is let in. */
void auth_init(struct auth *auth);
void auth_destroy(struct auth *auth);

/**
 * auth_load() - the tokens of @path, in place of those there were. The file must belong to root or
 * to this user, and others must not be able to read or write it.
 * Return: 0 or -errno (logged, with the fix; the old tokens stay).
 */
int __must_check auth_load(struct auth *auth, const char *path);

/** auth_check() - is @header, the value of Authorization or NULL, "Bearer TOKEN" with one of the
 * tokens? Takes as long whichever byte differs. */
bool auth_check(struct auth *auth, const char *header);

/** auth_same() - are the texts equal? The time it takes depends on @given's length alone. */
bool auth_same(const char *secret, const char *given);

#endif
