// SPDX-License-Identifier: Apache-2.0
// Reading thaw.conf. Errors name file, line, setting and what would be right.
#include "vmm/daemon/conf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define VALUE_MAX 4096

static void say(char *why, size_t why_bytes, const char *fmt, ...) __printf(3, 4);
static void say(char *why, size_t why_bytes, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(why, why_bytes, fmt, args);
	va_end(args);
}

static const struct conf_row *find_row(const char *name)
{
	for (const struct conf_row *row = conf_rows; row->name; row++) {
		if (!strcmp(row->name, name))
			return row;
	}
	return NULL;
}

static void *member_of(const struct conf *conf, const struct conf_row *row)
{
	return (char *)conf + row->offset;
}

static bool is_text(const struct conf_row *row)
{
	return row->kind == CONF_TEXT || row->kind == CONF_PATH;
}

/** parse_duration() - a number and ms, s, m or h. */
static int parse_duration(const char *text, u64 *out_ms)
{
	static const struct {
		const char *unit;
		u64 ms;
	} units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
	size_t digits = strspn(text, "0123456789");
	char number[24];
	u64 n;

	if (!digits || digits >= sizeof(number))
		return -EINVAL;
	memcpy(number, text, digits);
	number[digits] = '\0';
	if (parse_u64(number, 0, UINT64_MAX / 3600000, &n))
		return -EINVAL;
	for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
		if (!strcmp(text + digits, units[i].unit)) {
			*out_ms = n * units[i].ms;
			return 0;
		}
	}
	return -EINVAL;
}

static int parse_mode(const char *text, u64 *out)
{
	u64 mode = 0;

	if (!*text || strlen(text) > 5 || strspn(text, "01234567") != strlen(text))
		return -EINVAL;
	for (; *text; text++)
		mode = mode * 8 + (u64)(*text - '0');
	*out = mode;
	return 0;
}

static int parse_bool(const char *text, bool *out)
{
	static const char *const yes[] = {"on", "yes", "true", "1"};
	static const char *const no[] = {"off", "no", "false", "0"};

	for (size_t i = 0; i < ARRAY_SIZE(yes); i++) {
		if (!strcasecmp(text, yes[i]) || !strcasecmp(text, no[i])) {
			*out = !strcasecmp(text, yes[i]);
			return 0;
		}
	}
	return -EINVAL;
}

static int set_text(struct conf *conf, const struct conf_row *row, const char *value, char *why,
		    size_t why_bytes)
{
	char **member = member_of(conf, row), *copy;
	size_t len = strlen(value);

	if (len > row->max || len < row->min) {
		say(why, why_bytes, "%s: expected %llu to %llu characters, this has %zu", row->name,
		    (unsigned long long)row->min, (unsigned long long)row->max, len);
		return -EINVAL;
	}
	if (row->kind == CONF_PATH && len && *value != '/') {
		say(why, why_bytes, "%s: '%s' is not an absolute path; start it with '/'",
		    row->name, value);
		return -EINVAL;
	}
	copy = strdup(value);
	if (!copy) {
		say(why, why_bytes, "%s: out of memory", row->name);
		return -ENOMEM;
	}
	free(*member);
	*member = copy;
	return 0;
}

static int set_number(struct conf *conf, const struct conf_row *row, const char *value, char *why,
		      size_t why_bytes)
{
	const char *expected = "a number such as 100";
	u64 *member = member_of(conf, row), n = 0;
	int ret;

	if (row->kind == CONF_SIZE) {
		expected = "a size such as 64KiB or 1G";
		ret = parse_size(value, &n);
	} else if (row->kind == CONF_DURATION) {
		expected = "a duration such as 500ms, 10s, 5m or 6h";
		ret = parse_duration(value, &n);
	} else if (row->kind == CONF_MODE) {
		expected = "an octal mode such as 0660";
		ret = parse_mode(value, &n);
	} else {
		ret = parse_u64(value, 0, UINT64_MAX, &n);
	}
	if (ret) {
		say(why, why_bytes, "%s: '%s' is not %s", row->name, value, expected);
		return -EINVAL;
	}
	if (n < row->min || n > row->max) {
		say(why, why_bytes, "%s: %s is out of bounds: %llu to %llu%s", row->name, value,
		    (unsigned long long)row->min, (unsigned long long)row->max,
		    row->kind == CONF_DURATION ? " ms"
		    : row->kind == CONF_SIZE   ? " bytes"
					       : "");
		return -EINVAL;
	}
	*member = n;
	return 0;
}

static int set_row(struct conf *conf, const struct conf_row *row, const char *value, char *why,
		   size_t why_bytes)
{
	if (is_text(row))
		return set_text(conf, row, value, why, why_bytes);
	if (row->kind != CONF_BOOL)
		return set_number(conf, row, value, why, why_bytes);
	if (!parse_bool(value, member_of(conf, row)))
		return 0;
	say(why, why_bytes, "%s: '%s' is neither 'on' nor 'off'", row->name, value);
	return -EINVAL;
}

int conf_set(struct conf *conf, const char *name, const char *value, char *why, size_t why_bytes)
{
	const struct conf_row *row = find_row(name);

	if (row)
		return set_row(conf, row, value, why, why_bytes);
	say(why, why_bytes, "%s: no such setting; see thaw.conf(5)", name);
	return -EINVAL;
}

int conf_init(struct conf *conf)
{
	char why[256];
	int ret;

	memset(conf, 0, sizeof(*conf));
	for (const struct conf_row *row = conf_rows; row->name; row++) {
		ret = set_row(conf, row, row->otherwise, why, sizeof(why));
		if (ret == -ENOMEM) {
			conf_free(conf);
			return ret;
		}
		BUG_ON(ret);
	}
	return 0;
}

/** trim() - @text without blanks at both ends; cut in place. */
static char *trim(char *text)
{
	size_t len;

	text += strspn(text, " \t\r");
	len = strlen(text);
	while (len && strchr(" \t\r", text[len - 1]))
		len--;
	text[len] = '\0';
	return text;
}

/** parse_line() - "name = value", a comment, or nothing. */
static int parse_line(struct conf *conf, char *line, bool *seen, char *why, size_t why_bytes)
{
	const struct conf_row *row;
	char *name, *value, *equals;

	name = trim(line);
	if (!*name || *name == '#')
		return 0;
	equals = strchr(name, '=');
	if (!equals) {
		say(why, why_bytes, "'%.60s' is not 'name = value'", name);
		return -EINVAL;
	}
	*equals = '\0';
	name = trim(name);
	value = trim(equals + 1);
	row = find_row(name);
	if (!row) {
		say(why, why_bytes, "%.60s: no such setting; see thaw.conf(5)", name);
		return -EINVAL;
	}
	if (seen[row - conf_rows]) {
		say(why, why_bytes, "%s: set twice; remove one of the lines", name);
		return -EINVAL;
	}
	seen[row - conf_rows] = true;
	return set_row(conf, row, value, why, why_bytes);
}

static size_t rows_count(void)
{
	size_t count = 0;

	while (conf_rows[count].name)
		count++;
	return count;
}

int conf_parse(struct conf *conf, const char *text, size_t len_bytes, char *why, size_t why_bytes)
{
	bool *seen = calloc(rows_count() + 1, sizeof(*seen));
	char line[VALUE_MAX + 128], inner[512] = "";
	unsigned int number = 0;
	int ret = 0;

	if (!seen)
		return -ENOMEM;
	while (len_bytes && !ret) {
		const char *end = memchr(text, '\n', len_bytes);
		size_t len = end ? (size_t)(end - text) : len_bytes;

		number++;
		if (len >= sizeof(line)) {
			say(inner, sizeof(inner), "longer than %zu bytes", sizeof(line) - 1);
			ret = -EINVAL;
		} else if (memchr(text, '\0', len)) {
			say(inner, sizeof(inner), "has a NUL byte");
			ret = -EINVAL;
		} else {
			memcpy(line, text, len);
			line[len] = '\0';
			ret = parse_line(conf, line, seen, inner, sizeof(inner));
		}
		len += end ? 1 : 0;
		text += len;
		len_bytes -= len;
	}
	free(seen);
	if (ret)
		say(why, why_bytes, "%u: %s", number, inner);
	return ret;
}

static bool is_set(const char *text)
{
	return text && *text;
}

int conf_check(const struct conf *conf, char *why, size_t why_bytes)
{
	if (is_set(conf->listen) && !is_set(conf->token_file)) {
		say(why, why_bytes,
		    "listen is set without token_file: whoever reaches the port could do all; "
		    "set token_file, or remove listen");
		return -EINVAL;
	}
	if (!is_set(conf->tls_cert) != !is_set(conf->tls_key)) {
		say(why, why_bytes, "tls_cert and tls_key go together; set both or none");
		return -EINVAL;
	}
	if (!is_set(conf->preview_tls_cert) != !is_set(conf->preview_tls_key)) {
		say(why, why_bytes,
		    "preview_tls_cert and preview_tls_key go together; set both or none");
		return -EINVAL;
	}
	if (!is_set(conf->preview_listen) != !is_set(conf->preview_domain)) {
		say(why, why_bytes,
		    "preview_listen and preview_domain go together; set both or none");
		return -EINVAL;
	}
	return 0;
}

int conf_load(struct conf *conf, const char *path, bool must_exist)
{
	char why[640] = "", *text = NULL;
	size_t len_bytes = 0;
	int ret;

	ret = conf_init(conf);
	if (ret)
		return ret;
	ret = file_read_all(AT_FDCWD, path, CONF_FILE_MAX_BYTES, &text, &len_bytes);
	if (ret == -ENOENT && !must_exist)
		ret = 0;
	else if (ret)
		log_err("%s: %s; make it readable, or name another file by --config", path,
			strerror(-ret));
	if (!ret) {
		ret = conf_parse(conf, text ? text : "", len_bytes, why, sizeof(why));
		if (ret)
			log_err("%s:%s", path, why);
	}
	if (!ret) {
		ret = conf_check(conf, why, sizeof(why));
		if (ret)
			log_err("%s: %s", path, why);
	}
	free(text);
	if (ret)
		conf_free(conf);
	return ret;
}

static bool row_same(const struct conf *a, const struct conf *b, const struct conf_row *row)
{
	if (is_text(row))
		return !strcmp(*(char **)member_of(a, row), *(char **)member_of(b, row));
	if (row->kind == CONF_BOOL)
		return *(bool *)member_of(a, row) == *(bool *)member_of(b, row);
	return *(u64 *)member_of(a, row) == *(u64 *)member_of(b, row);
}

int conf_reload(struct conf *conf, const char *path)
{
	struct conf fresh;
	int ret = conf_load(&fresh, path, false);

	if (ret)
		return ret;
	for (const struct conf_row *row = conf_rows; row->name; row++) {
		if (row_same(conf, &fresh, row))
			continue;
		BUG_ON(row->reload && is_text(row));
		if (!row->reload)
			log_warn("%s: %s has changed; this takes a restart of thawd", path,
				 row->name);
		else if (row->kind == CONF_BOOL)
			__atomic_store_n((bool *)member_of(conf, row),
					 *(bool *)member_of(&fresh, row), __ATOMIC_RELAXED);
		else
			__atomic_store_n((u64 *)member_of(conf, row),
					 *(u64 *)member_of(&fresh, row), __ATOMIC_RELAXED);
	}
	conf_free(&fresh);
	return 0;
}

void conf_print(const struct conf *conf, FILE *out)
{
	for (const struct conf_row *row = conf_rows; row->name; row++) {
		const void *member = member_of(conf, row);

		if (is_text(row))
			fprintf(out, "%s = %s\n", row->name, *(char *const *)member);
		else if (row->kind == CONF_BOOL)
			fprintf(out, "%s = %s\n", row->name, *(const bool *)member ? "on" : "off");
		else if (row->kind == CONF_MODE)
			fprintf(out, "%s = %04llo\n", row->name,
				(unsigned long long)*(const u64 *)member);
		else
			fprintf(out, "%s = %llu%s\n", row->name,
				(unsigned long long)*(const u64 *)member,
				row->kind == CONF_DURATION ? "ms" : "");
	}
}

void conf_free(struct conf *conf)
{
	for (const struct conf_row *row = conf_rows; row->name; row++) {
		if (is_text(row))
			free(*(char **)member_of(conf, row));
	}
	memset(conf, 0, sizeof(*conf));
}
