/* SPDX-License-Identifier: Apache-2.0 */
/* The unit tests' whole framework: one program a file, exit 0 pass, 1 fail, 77 skip. */
#ifndef THAW_TESTS_UNIT_TEST_H
#define THAW_TESTS_UNIT_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                                        \
	do {                                                                               \
		if (!(cond)) {                                                             \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond); \
			exit(1);                                                           \
		}                                                                          \
	} while (0)

/** Both sides as 64-bit integers; prints them when they differ. */
#define CHECK_EQ(a, b)                                                                             \
	do {                                                                                       \
		long long check_a_ = (long long)(a), check_b_ = (long long)(b);                    \
		if (check_a_ != check_b_) {                                                        \
			fprintf(stderr, "%s:%d: %s is %lld (%#llx), expected %s = %lld (%#llx)\n", \
				__FILE__, __LINE__, #a, check_a_, (unsigned long long)check_a_,    \
				#b, check_b_, (unsigned long long)check_b_);                       \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define CHECK_STR(a, b)                                                                     \
	do {                                                                                \
		const char *check_a_ = (a), *check_b_ = (b);                                \
		if (strcmp(check_a_, check_b_)) {                                           \
			fprintf(stderr, "%s:%d: %s is \"%s\", expected \"%s\"\n", __FILE__, \
				__LINE__, #a, check_a_, check_b_);                          \
			exit(1);                                                            \
		}                                                                           \
	} while (0)

/** Skip the whole program; the reason is printed and counted. */
#define SKIP(reason)                          \
	do {                                  \
		printf("skip: %s\n", reason); \
		exit(77);                     \
	} while (0)

struct test_case {
	const char *name;
	void (*fn)(void);
};

/** TEST_MAIN({"name", fn}, ...) - runs each, says which one was running when a check fails. */
#define TEST_MAIN(...)                                                               \
	int main(void)                                                               \
	{                                                                            \
		static const struct test_case cases_[] = {__VA_ARGS__};              \
		for (size_t i_ = 0; i_ < sizeof(cases_) / sizeof(cases_[0]); i_++) { \
			printf("  %s\n", cases_[i_].name);                           \
			fflush(stdout);                                              \
			cases_[i_].fn();                                             \
		}                                                                    \
		printf("ok %zu\n", sizeof(cases_) / sizeof(cases_[0]));              \
		return 0;                                                            \
	}

#endif
