// SPDX-License-Identifier: Apache-2.0
// Nothing outside one folder, whatever an archive or somebody else in the guest does.
#include <errno.h>
#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest/files/files.h"

/* Rights that came after the kernel headers this is built with. */
#define ACCESS_REFER	((u64)1 << 13) /* ABI 2 */
#define ACCESS_TRUNCATE ((u64)1 << 14) /* ABI 3 */
#define ACCESS_ABI1	(ACCESS_REFER - 1)

/* Links and renames between folders are possible from ABI 2 on; before, there is no rule set. */
static int landlock(int fd)
{
	struct landlock_ruleset_attr rules = {0};
	struct landlock_path_beneath_attr beneath = {.parent_fd = fd};
	int ruleset, err = 0;
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

	if (abi < 2)
		return 0;
	rules.handled_access_fs = ACCESS_ABI1 | ACCESS_REFER | (abi >= 3 ? ACCESS_TRUNCATE : 0);
	beneath.allowed_access = rules.handled_access_fs;
	ruleset = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof(rules), 0);
	if (ruleset < 0)
		return -errno;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0) ||
	    syscall(SYS_landlock_restrict_self, ruleset, 0))
		err = -errno;
	close(ruleset);
	return err;
}

int confine_to(int fd)
{
	if (fchdir(fd))
		return -errno;
	/* Who is not root may not; what then holds it is Landlock and its own lack of rights. */
	if (chroot(".") && errno != EPERM)
		return -errno;
	return landlock(fd);
}
