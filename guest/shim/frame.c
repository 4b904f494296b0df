// SPDX-License-Identifier: Apache-2.0
// Frame headers of the exec protocol, for both ends.
#include "guest/shim/frame.h"

#include <errno.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is this machine's");

/* What each type may carry; a type without an entry does not exist. */
struct frame_rule {
	u32 min_bytes, max_bytes;
	bool known;
};

static const struct frame_rule host_rules[] = {
	[SHIM_EXEC] = {sizeof(struct shim_exec) + 2, SHIM_EXEC_MAX_BYTES, true},
	[SHIM_STDIN] = {0, SHIM_DATA_MAX_BYTES, true},
	[SHIM_STDIN_EOF] = {0, 0, true},
	[SHIM_SIGNAL] = {4, 4, true},
	[SHIM_CHECKPOINT] = {0, 0, true},
	[SHIM_PING] = {0, SHIM_PING_MAX_BYTES, true},
	[SHIM_POWEROFF] = {0, 0, true},
	[SHIM_CHECKPOINT_LIVE] = {0, 0, true},
	[SHIM_SHUTDOWN] = {4, 4, true},
	[SHIM_RESIZE] = {sizeof(struct shim_size), sizeof(struct shim_size), true},
	[SHIM_KILL] = {0, 0, true},
	[SHIM_ACK] = {8, 8, true},
	[SHIM_ATTACH] = {sizeof(struct shim_attach), sizeof(struct shim_attach), true},
	[SHIM_LIST] = {0, 0, true},
	[SHIM_FORGET] = {SHIM_ID_BYTES, SHIM_ID_BYTES, true},
	[SHIM_CONNECT] = {sizeof(struct shim_connect), sizeof(struct shim_connect), true},
	[SHIM_USAGE] = {0, 0, true},
};

#define GUEST_FIRST 64
_Static_assert(GUEST_FIRST == SHIM_STARTED, "the first type a guest sends");

static const struct frame_rule guest_rules[] = {
	[SHIM_STARTED - GUEST_FIRST] = {4, 4, true},
	[SHIM_STDOUT - GUEST_FIRST] = {0, SHIM_DATA_MAX_BYTES, true},
	[SHIM_STDERR - GUEST_FIRST] = {0, SHIM_DATA_MAX_BYTES, true},
	[SHIM_EXIT - GUEST_FIRST] = {sizeof(struct shim_exit), sizeof(struct shim_exit), true},
	[SHIM_ERROR - GUEST_FIRST] = {sizeof(struct shim_error),
				      sizeof(struct shim_error) + SHIM_TEXT_MAX_BYTES, true},
	[SHIM_PONG - GUEST_FIRST] = {0, SHIM_PING_MAX_BYTES, true},
	[SHIM_OK - GUEST_FIRST] = {0, 0, true},
	[SHIM_STDIN_CREDIT - GUEST_FIRST] = {4, 4, true},
	[SHIM_ATTACHED -
		GUEST_FIRST] = {sizeof(struct shim_attached), sizeof(struct shim_attached), true},
	[SHIM_ENTRY - GUEST_FIRST] = {sizeof(struct shim_entry), sizeof(struct shim_entry), true},
	[SHIM_USAGE_REPLY -
		GUEST_FIRST] = {sizeof(struct shim_usage), sizeof(struct shim_usage), true},
};

void frame_put(u8 *out, enum shim_frame_type type, u32 len_bytes)
{
	struct shim_frame frame = {
		.len_bytes = len_bytes,
		.type = (u8)type,
		.version = SHIM_PROTO_VERSION,
	};

	memcpy(out, &frame, sizeof(frame));
}

int frame_get(const u8 *in, enum frame_sender sender, struct shim_frame *out)
{
	const struct frame_rule *rule = NULL;
	struct shim_frame frame;

	memcpy(&frame, in, sizeof(frame));
	if (frame.version != SHIM_PROTO_VERSION)
		return -EPROTONOSUPPORT;
	if (frame.reserved)
		return -EPROTO;
	if (sender == FRAME_FROM_HOST && frame.type < ARRAY_SIZE(host_rules))
		rule = &host_rules[frame.type];
	else if (sender == FRAME_FROM_GUEST && frame.type >= GUEST_FIRST &&
		 frame.type - GUEST_FIRST < (int)ARRAY_SIZE(guest_rules))
		rule = &guest_rules[frame.type - GUEST_FIRST];
	if (!rule || !rule->known)
		return -EPROTO;
	if (frame.len_bytes < rule->min_bytes || frame.len_bytes > rule->max_bytes)
		return -EMSGSIZE;
	*out = frame;
	return 0;
}

u32 frame_get_u32(const u8 *in)
{
	u32 value;

	memcpy(&value, in, sizeof(value));
	return value;
}

void frame_put_u32(u8 *out, u32 value)
{
	memcpy(out, &value, sizeof(value));
}

u64 frame_get_u64(const u8 *in)
{
	u64 value;

	memcpy(&value, in, sizeof(value));
	return value;
}

void frame_put_u64(u8 *out, u64 value)
{
	memcpy(out, &value, sizeof(value));
}
