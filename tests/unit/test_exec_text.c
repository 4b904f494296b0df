// SPDX-License-Identifier: Apache-2.0
// base64, UTF-8 and names of signals as answers of execs have them.
#include "vmm/daemon/exec_text.h"

#include <errno.h>
#include <signal.h>

#include "tests/unit/test.h"

static void test_base64(void)
{
	static const struct {
		const char *bytes, *text;
	} rows[] = {{"", ""},	     {"f", "Zg=="},	   {"fo", "Zm8="},
		    {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xff\xfe\xfd", "//79"}};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char *text = exec_base64(rows[i].bytes, strlen(rows[i].bytes));
		size_t len = 0;
		u8 *bytes = NULL;

		CHECK_STR(text, rows[i].text);
		CHECK_EQ(exec_base64_decode(text, strlen(text), &bytes, &len), 0);
		CHECK_EQ(len, strlen(rows[i].bytes));
		CHECK(!memcmp(bytes, rows[i].bytes, len));
		free(text);
		free(bytes);
	}
}

static void test_base64_refused(void)
{
	static const char *const bad[] = {
		"Z", "Zg", "Zg=", "Zg==Zg==", "Z===", "====", "Zm9 ", "Zm9-", "Zm\n9", "=Zm9"};
	size_t len;
	u8 *bytes;

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		CHECK_EQ(exec_base64_decode(bad[i], strlen(bad[i]), &bytes, &len), -EINVAL);
}

static bool utf8(const char *text)
{
	return exec_utf8_ok((const u8 *)text, strlen(text));
}

static void test_utf8(void)
{
	CHECK(utf8(""));
	CHECK(utf8("plain"));
	CHECK(utf8(
		"\xc2\x80 \xdf\xbf \xe0\xa0\x80 \xef\xbf\xbf \xf0\x90\x80\x80 \xf4\x8f\xbf\xbf"));
	CHECK(exec_utf8_ok((const u8 *)"a\0b", 3));
	/* Overlong, surrogates, above U+10FFFF, cut, a tail alone. */
	CHECK(!utf8("\xc0\x80"));
	CHECK(!utf8("\xc1\xbf"));
	CHECK(!utf8("\xe0\x9f\xbf"));
	CHECK(!utf8("\xf0\x8f\xbf\xbf"));
	CHECK(!utf8("\xed\xa0\x80"));
	CHECK(!utf8("\xf4\x90\x80\x80"));
	CHECK(!utf8("\xf5\x80\x80\x80"));
	CHECK(!utf8("\xff"));
	CHECK(!utf8("\x80"));
	CHECK(!utf8("\xc3"));
	CHECK(!utf8("\xe2\x82"));
	CHECK(!utf8("\xe2\x28\xa1"));
}

static void test_cut(void)
{
	const u8 *text = (const u8 *)"a\xf0\x9f\x98\x80"; /* a character of four bytes */

	CHECK_EQ(exec_utf8_cut(text, 0), 0);
	CHECK_EQ(exec_utf8_cut(text, 1), 1);
	CHECK_EQ(exec_utf8_cut(text, 2), 1);
	CHECK_EQ(exec_utf8_cut(text, 3), 1);
	CHECK_EQ(exec_utf8_cut(text, 4), 1);
	CHECK_EQ(exec_utf8_cut(text, 5), 5);
	CHECK_EQ(exec_utf8_cut((const u8 *)"\x80\x80\x80\x80", 4), 4);
}

static void test_bytes_json(void)
{
	const char *encoding = NULL;
	json_t *value = exec_bytes_json(NULL, 0, true, &encoding);

	CHECK_STR(json_string_value(value), "");
	CHECK_STR(encoding, "utf-8");
	json_decref(value);
	value = exec_bytes_json((const u8 *)"\xff", 1, true, &encoding);
	CHECK_STR(json_string_value(value), "/w==");
	CHECK_STR(encoding, "base64");
	json_decref(value);
	value = exec_bytes_json((const u8 *)"x", 1, false, &encoding);
	CHECK_STR(encoding, "base64");
	json_decref(value);
}

static int number(json_t *steal)
{
	int n = exec_signal_number(steal);

	json_decref(steal);
	return n;
}

static void test_signals(void)
{
	char name[16];

	CHECK_EQ(number(json_string("SIGTERM")), SIGTERM);
	CHECK_EQ(number(json_string("KILL")), SIGKILL);
	CHECK_EQ(number(json_integer(1)), 1);
	CHECK_EQ(number(json_integer(64)), 64);
	CHECK_EQ(number(json_integer(0)), -EINVAL);
	CHECK_EQ(number(json_integer(65)), -EINVAL);
	CHECK_EQ(number(json_string("SIG")), -EINVAL);
	CHECK_EQ(number(json_string("term")), -EINVAL);
	CHECK_EQ(number(json_true()), -EINVAL);
	CHECK_STR(exec_signal_name(SIGKILL, name), "SIGKILL");
	CHECK_STR(exec_signal_name(34, name), "SIGRTMIN+0");
	CHECK_STR(exec_signal_name(64, name), "SIGRTMIN+30");
	CHECK_STR(exec_signal_name(32, name), "SIGRTMIN-2");
}

static void test_time(void)
{
	json_t *value = exec_time_json(1700000000123456789ull);

	CHECK_STR(json_string_value(value), "2023-11-14T22:13:20.123Z");
	json_decref(value);
	CHECK(json_is_null(exec_time_json(0)));
}

TEST_MAIN({"base64", test_base64}, {"base64 refused", test_base64_refused}, {"utf8", test_utf8},
	  {"cut", test_cut}, {"bytes as json", test_bytes_json}, {"signals", test_signals},
	  {"time", test_time})
