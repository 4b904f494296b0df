// SPDX-License-Identifier: Apache-2.0
// Bytes and numbers of an exec as JSON has them.
#include "vmm/daemon/exec_text.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *exec_base64(const void *data, size_t len_bytes)
{
	char *out = malloc((len_bytes + 2) / 3 * 4 + 1);
	const u8 *in = data;
	char *at = out;

	if (!out)
		return NULL;
	for (; len_bytes >= 3; len_bytes -= 3, in += 3) {
		u32 v = (u32)in[0] << 16 | (u32)in[1] << 8 | in[2];

		*at++ = alphabet[v >> 18];
		*at++ = alphabet[v >> 12 & 63];
		*at++ = alphabet[v >> 6 & 63];
		*at++ = alphabet[v & 63];
	}
	if (len_bytes) {
		u32 v = (u32)in[0] << 16 | (len_bytes > 1 ? (u32)in[1] << 8 : 0);

		*at++ = alphabet[v >> 18];
		*at++ = alphabet[v >> 12 & 63];
		*at++ = len_bytes > 1 ? alphabet[v >> 6 & 63] : '=';
		*at++ = '=';
	}
	*at = '\0';
	return out;
}

static int base64_value(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	if (c == '+')
		return 62;
	return c == '/' ? 63 : -1;
}

int exec_base64_decode(const char *text, size_t len_bytes, u8 **out, size_t *out_bytes)
{
	size_t pad = 0, n = 0;
	u8 *bytes;

	if (len_bytes % 4)
		return -EINVAL;
	while (pad < 2 && pad < len_bytes && text[len_bytes - 1 - pad] == '=')
		pad++;
	bytes = malloc(len_bytes / 4 * 3 + 1);
	if (!bytes)
		return -ENOMEM;
	for (size_t i = 0; i < len_bytes; i += 4) {
		u32 v = 0;

		for (size_t k = 0; k < 4; k++) {
			bool padding = i + k >= len_bytes - pad;
			int digit = padding ? 0 : base64_value(text[i + k]);

			if (digit < 0) {
				free(bytes);
				return -EINVAL;
			}
			v = v << 6 | (u32)digit;
		}
		bytes[n++] = (u8)(v >> 16);
		bytes[n++] = (u8)(v >> 8);
		bytes[n++] = (u8)v;
	}
	*out = bytes;
	*out_bytes = n - pad;
	return 0;
}

/* Length of the character that begins with @lead; 0: none does. */
static size_t utf8_length(u8 lead)
{
	if (lead < 0x80)
		return 1;
	if (lead >= 0xc2 && lead <= 0xdf)
		return 2;
	if (lead >= 0xe0 && lead <= 0xef)
		return 3;
	return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

/* The second byte has the narrower bounds that keep out overlong forms, surrogates and what is
 * above U+10FFFF. */
static bool utf8_second_ok(u8 lead, u8 second)
{
	u8 low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
	u8 high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;

	return second >= low && second <= high;
}

bool exec_utf8_ok(const u8 *data, size_t len_bytes)
{
	for (size_t i = 0; i < len_bytes;) {
		size_t n = utf8_length(data[i]);

		if (!n || n > len_bytes - i)
			return false;
		if (n > 1 && !utf8_second_ok(data[i], data[i + 1]))
			return false;
		for (size_t k = 2; k < n; k++)
			if ((data[i + k] & 0xc0) != 0x80)
				return false;
		i += n;
	}
	return true;
}

size_t exec_utf8_cut(const u8 *data, size_t len_bytes)
{
	for (size_t back = 1; back <= 3 && back <= len_bytes; back++) {
		u8 byte = data[len_bytes - back];

		if ((byte & 0xc0) == 0x80)
			continue;
		return utf8_length(byte) > back ? len_bytes - back : len_bytes;
	}
	return len_bytes;
}

json_t *exec_bytes_json(const u8 *data, size_t len_bytes, bool utf8, const char **encoding)
{
	json_t *value;
	char *text;

	if (utf8 && exec_utf8_ok(data, len_bytes)) {
		*encoding = "utf-8";
		return json_stringn_nocheck(len_bytes ? (const char *)data : "", len_bytes);
	}
	*encoding = "base64";
	text = exec_base64(data, len_bytes);
	value = text ? json_string_nocheck(text) : NULL;
	free(text);
	return value;
}

int exec_signal_number(const json_t *value)
{
	const char *name = json_string_value(value);

	if (json_is_integer(value)) {
		json_int_t number = json_integer_value(value);

		return number >= 1 && number <= 64 ? (int)number : -EINVAL;
	}
	if (!name)
		return -EINVAL;
	if (!strncmp(name, "SIG", 3))
		name += 3;
	for (int i = 1; i < 32; i++) {
		const char *have = sigabbrev_np(i);

		if (have && !strcmp(have, name))
			return i;
	}
	return -EINVAL;
}

const char *exec_signal_name(u32 number, char out[16])
{
	const char *name = number < 32 ? sigabbrev_np((int)number) : NULL;

	if (name)
		snprintf(out, 16, "SIG%s", name);
	else
		/* Of the kernel's numbers, of which libc hides the first two. */
		snprintf(out, 16, "SIGRTMIN%+d", (int)(number & 127) - 34);
	return out;
}

u64 exec_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (u64)ts.tv_sec * 1000000000u + (u64)ts.tv_nsec;
}

json_t *exec_time_json(u64 time_ns)
{
	time_t seconds = (time_t)(time_ns / 1000000000u);
	char text[64], out[80];
	struct tm tm;

	if (!time_ns || !gmtime_r(&seconds, &tm))
		return json_null();
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(out, sizeof(out), "%s.%03uZ", text, (unsigned int)(time_ns / 1000000u % 1000u));
	return json_string(out);
}
