// SPDX-License-Identifier: Apache-2.0
// Frames of thaw-files, for both ends.
#include "guest/files/frame.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is this machine's");

/* The largest frame: two names. */
_Static_assert(sizeof(struct files_entry) + 2 * FILES_NAME_MAX_BYTES + FILES_TEXT_MAX_BYTES <
		       FILES_PAYLOAD_MAX_BYTES,
	       "every frame fits");

#define ERRNO_MAX 4095u

static u16 cut(const struct files_str *str, size_t max_bytes)
{
	return (u16)MIN(str->len_bytes, max_bytes);
}

static u8 *put(u8 *out, const void *from, size_t len_bytes)
{
	if (len_bytes)
		memcpy(out, from, len_bytes);
	return out + len_bytes;
}

size_t files_frame_put(u8 *out, const struct files_message *msg)
{
	u16 path = cut(&msg->path, FILES_NAME_MAX_BYTES), to = cut(&msg->to, FILES_NAME_MAX_BYTES);
	u16 text = cut(&msg->text, FILES_TEXT_MAX_BYTES);
	struct files_message m = *msg;
	struct files_frame head = {.type = (u8)msg->type, .version = FILES_PROTO_VERSION};
	u8 *end = out + FILES_HEADER_BYTES;

	switch (msg->type) {
	case FILES_OPENED:
		end = put(end, &m.opened, sizeof(m.opened));
		break;
	case FILES_ENTRY:
		m.entry.path_bytes = path;
		m.entry.target_bytes = to;
		end = put(end, &m.entry, sizeof(m.entry));
		end = put(put(end, m.path.bytes, path), m.to.bytes, to);
		break;
	case FILES_EVENT:
		m.event.path_bytes = path;
		m.event.to_bytes = to;
		end = put(end, &m.event, sizeof(m.event));
		end = put(put(end, m.path.bytes, path), m.to.bytes, to);
		break;
	case FILES_NOTE:
		m.note.path_bytes = path;
		m.note.text_bytes = text;
		end = put(end, &m.note, sizeof(m.note));
		end = put(put(end, m.path.bytes, path), m.text.bytes, text);
		break;
	case FILES_DONE:
		end = put(end, &m.done, sizeof(m.done));
		break;
	case FILES_ERROR:
		m.error.path_bytes = path;
		m.error.destination_bytes = to;
		m.error.text_bytes = text;
		end = put(end, &m.error, sizeof(m.error));
		end = put(put(end, m.path.bytes, path), m.to.bytes, to);
		end = put(end, m.text.bytes, text);
		break;
	}
	head.len_bytes = (u32)((size_t)(end - out) - FILES_HEADER_BYTES);
	put(out, &head, sizeof(head));
	return (size_t)(end - out);
}

/* A struct, then strings of the lengths it names, then nothing. */
struct cursor {
	const u8 *at;
	size_t left_bytes;
	bool bad;
};

static void take(struct cursor *c, void *out, size_t len_bytes)
{
	if (c->left_bytes < len_bytes) {
		c->bad = true;
		return;
	}
	memcpy(out, c->at, len_bytes);
	c->at += len_bytes;
	c->left_bytes -= len_bytes;
}

static void take_str(struct cursor *c, struct files_str *out, size_t len_bytes)
{
	if (c->left_bytes < len_bytes || memchr(c->at, 0, len_bytes)) {
		c->bad = true;
		return;
	}
	out->bytes = (const char *)c->at;
	out->len_bytes = len_bytes;
	c->at += len_bytes;
	c->left_bytes -= len_bytes;
}

static bool stat_ok(const struct files_stat *st)
{
	static const u32 ns_max = 999999999;

	switch (st->mode & S_IFMT) {
	case S_IFREG:
	case S_IFDIR:
	case S_IFLNK:
	case S_IFBLK:
	case S_IFCHR:
	case S_IFIFO:
	case S_IFSOCK:
		break;
	default:
		return false;
	}
	return !(st->mode & ~(u32)(S_IFMT | 07777)) && !st->reserved && st->atime_ns <= ns_max &&
	       st->mtime_ns <= ns_max && st->ctime_ns <= ns_max;
}

static bool opened_ok(const struct files_opened *opened)
{
	/* Sizes go into 64-bit signed lengths on the host. */
	return stat_ok(&opened->stat) && !opened->reserved &&
	       !(opened->flags & ~(u32)FILES_SIZED) && opened->stat.size_bytes <= INT64_MAX &&
	       opened->offset_bytes <= INT64_MAX && opened->length_bytes <= INT64_MAX;
}

static void take_payload(struct cursor *c, struct files_message *m)
{
	switch (m->type) {
	case FILES_OPENED:
		take(c, &m->opened, sizeof(m->opened));
		c->bad |= !opened_ok(&m->opened);
		return;
	case FILES_ENTRY:
		take(c, &m->entry, sizeof(m->entry));
		take_str(c, &m->path, m->entry.path_bytes);
		take_str(c, &m->to, m->entry.target_bytes);
		c->bad |= !stat_ok(&m->entry.stat) || m->entry.error > ERRNO_MAX;
		return;
	case FILES_EVENT:
		take(c, &m->event, sizeof(m->event));
		take_str(c, &m->path, m->event.path_bytes);
		take_str(c, &m->to, m->event.to_bytes);
		c->bad |= m->event.kind < FILES_CREATED || m->event.kind > FILES_OVERFLOW ||
			  m->event.folder > 1 || m->event.reserved ||
			  (m->event.to_bytes && m->event.kind != FILES_MOVED);
		return;
	case FILES_NOTE:
		take(c, &m->note, sizeof(m->note));
		take_str(c, &m->path, m->note.path_bytes);
		take_str(c, &m->text, m->note.text_bytes);
		c->bad |= m->note.error > ERRNO_MAX || m->note.text_bytes > FILES_TEXT_MAX_BYTES;
		return;
	case FILES_DONE:
		take(c, &m->done, sizeof(m->done));
		return;
	case FILES_ERROR:
		take(c, &m->error, sizeof(m->error));
		take_str(c, &m->path, m->error.path_bytes);
		take_str(c, &m->to, m->error.destination_bytes);
		take_str(c, &m->text, m->error.text_bytes);
		c->bad |= !m->error.error || m->error.error > ERRNO_MAX || m->error.reserved ||
			  m->error.text_bytes > FILES_TEXT_MAX_BYTES;
		return;
	}
	c->bad = true;
}

ssize_t files_frame_get(const u8 *in, size_t len_bytes, struct files_message *out)
{
	struct files_frame head;
	struct cursor c;

	if (len_bytes < FILES_HEADER_BYTES)
		return 0;
	memcpy(&head, in, sizeof(head));
	if (head.version != FILES_PROTO_VERSION)
		return -EPROTONOSUPPORT;
	if (head.reserved || head.type < FILES_OPENED || head.type > FILES_ERROR)
		return -EPROTO;
	if (head.len_bytes > FILES_PAYLOAD_MAX_BYTES)
		return -EMSGSIZE;
	if (len_bytes - FILES_HEADER_BYTES < head.len_bytes)
		return 0;
	c = (struct cursor){.at = in + FILES_HEADER_BYTES, .left_bytes = head.len_bytes};
	memset(out, 0, sizeof(*out));
	out->type = (enum files_frame_type)head.type;
	take_payload(&c, out);
	if (c.bad || c.left_bytes)
		return -EPROTO;
	return (ssize_t)(FILES_HEADER_BYTES + head.len_bytes);
}
