/* SPDX-License-Identifier: Apache-2.0
 *
 * test.h - what a test program needs: one file of TEST(name) { ... } bodies, closed by TEST_MAIN().
 *
 *     #include "test.h"
 *     TEST(adds) {
 *         CHECK(1 + 1 == 2);
 *         CHECK_EQ(add(2, 2), 4);               // integers; prints both values
 *         CHECK_STR(name_of(4), "four");        // prints both strings
 *         CHECK_CONTAINS(sentence, "seq_q");    // a part of a sentence
 *         CHECK_STATUS(attn_open(&o, &ctx, &why), ATTN_INVALID, &why);
 *         if (!have_device) SKIP("no device");  // in the TEST body only
 *     }
 *     TEST_MAIN()
 *
 * Every CHECK is an expression with the value "it held": `if (!CHECK(p)) return;`. A failed one
 * prints its place and marks the test; the test goes on. `program TEXT` runs the tests whose name
 * contains TEXT. The last line on stdout is `N passed, N failed, N skipped`; the exit code is 0, 1,
 * or 77 where every test was skipped (1 where none matched).
 *
 * Invariant: floats are compared nowhere in here (CHECK_EQ refuses to compile for them), so a NaN
 * cannot pass: use attn_compare, attn_verify or memcmp. Not thread-safe: check in the main thread.
 */
#ifndef TEST_H
#define TEST_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_verify.h"

enum { TEST_PASS = 0, TEST_FAIL = 1, TEST_SKIP = 77 };
/* A loop over random cases divides their number by this: sanitizers and emulators take ten to fifty
 * times as long for each, and the full number runs without them. */
#ifndef TEST_FEWER
#define TEST_FEWER 1
#endif

/* `make test-all`: combinations too that differ little from those of `make test`. */
static inline bool test_all(void) {
    return getenv("TEST_ALL") != NULL;
}

enum { TEST_MESSAGES_MAX = 20 }; /* printed for one test; the others are only counted */

struct test_case {
    const char *name;
    void (*body)(void);
    struct test_case *next;
};

/* One of these per program, defined by TEST_MAIN (or TEST_STATE, for a main of one's own). */
struct test_state {
    struct test_case *first, *last;
    int failures; /* of the test that runs */
    const char *skipped;
};
extern struct test_state test_state;

#define TEST_STATE() struct test_state test_state;

#define TEST_MAIN()                                                                                \
    TEST_STATE()                                                                                   \
    int main(int argc, char **argv) {                                                              \
        return test_run(argc > 1 ? argv[1] : "");                                                  \
    }

/* As TEST_MAIN, with the attn_context that `context` points to open while the tests run. */
#define TEST_MAIN_WITH(context)                                                                    \
    TEST_STATE()                                                                                   \
    int main(int argc, char **argv) {                                                              \
        attn_error why;                                                                            \
        if (attn_open(NULL, &(context), &why) != ATTN_OK) {                                        \
            printf("%s\n", why.text);                                                              \
            return TEST_FAIL;                                                                      \
        }                                                                                          \
        const int status = test_run(argc > 1 ? argv[1] : "");                                      \
        attn_close(context);                                                                       \
        return status;                                                                             \
    }

#define TEST(name)                                                                                 \
    static void test_body_##name(void);                                                            \
    __attribute__((constructor)) static void test_add_##name(void) {                               \
        static struct test_case test = {#name, test_body_##name, NULL};                            \
        *(test_state.last ? &test_state.last->next : &test_state.first) = &test;                   \
        test_state.last = &test;                                                                   \
    }                                                                                              \
    static void test_body_##name(void)

#define CHECK(cond) test_check(cond, __FILE__, __LINE__, "%s", #cond)

/* As CHECK, with a printf message instead of the condition. */
#define CHECK_MSG(cond, ...) test_check(cond, __FILE__, __LINE__, __VA_ARGS__)

#define TEST_NO_FLOAT(x)                                                                           \
    ((void)sizeof(struct {                                                                         \
        _Static_assert(_Generic((x), float : 0, double : 0, long double : 0, default : 1),         \
                       "floats are compared by attn_compare, attn_verify or memcmp");              \
        int unused;                                                                                \
    }))

#define CHECK_EQ(a, b)                                                                             \
    (TEST_NO_FLOAT(a), TEST_NO_FLOAT(b),                                                           \
     test_check_eq((int64_t)(a), (int64_t)(b), __FILE__, __LINE__, #a " == " #b))

#define CHECK_STR(a, b) test_check_str(a, b, __FILE__, __LINE__, #a)
#define CHECK_CONTAINS(text, part) test_check_contains(text, part, __FILE__, __LINE__, #text)

/* `error` is the attn_error pointer that `call` was given, or NULL. Also holds the sentence to its
 * contract: empty after success, a terminated non-empty text after a failure. */
#define CHECK_STATUS(call, expected, error)                                                        \
    test_check_status(call, expected, error, __FILE__, __LINE__, #call)

#define SKIP(why)                                                                                  \
    do {                                                                                           \
        test_state.skipped = (why);                                                                \
        return;                                                                                    \
    } while (0)

__attribute__((format(printf, 4, 5))) static inline bool
test_check(bool ok, const char *file, int line, const char *format, ...) {
    if (ok) {
        return true;
    }
    if (++test_state.failures <= TEST_MESSAGES_MAX) {
        char message[1024];
        __builtin_va_list args;
        __builtin_va_start(args, format);
        vsnprintf(message, sizeof message, format, args);
        __builtin_va_end(args);
        printf("  %s:%d: %s\n", file, line, message);
        const char *words = getenv("FAULT_WORDS"); /* faults.sh: the planted bug is found */
        if (words != NULL && strstr(message, words) != NULL) {
            fflush(stdout);
            _Exit(TEST_FAIL);
        }
    }
    return false;
}

static inline bool test_check_eq(int64_t a, int64_t b, const char *file, int line,
                                 const char *what) {
    return test_check(a == b, file, line, "%s: %" PRId64 " != %" PRId64, what, a, b);
}

static inline bool test_check_str(const char *a, const char *b, const char *file, int line,
                                  const char *what) {
    return test_check(a && b && strcmp(a, b) == 0, file, line, "%s: \"%s\" != \"%s\"", what,
                      a ? a : "(null)", b ? b : "(null)");
}

static inline bool test_check_contains(const char *text, const char *part, const char *file,
                                       int line, const char *what) {
    return test_check(text && part && strstr(text, part), file, line, "%s: no \"%s\" in \"%s\"",
                      what, part ? part : "(null)", text ? text : "(null)");
}

static inline bool test_check_status(attn_status got, attn_status expected, const attn_error *error,
                                     const char *file, int line, const char *call) {
    const char *text = error ? error->text : "";
    const bool terminated = !error || memchr(text, '\0', sizeof error->text) != NULL;
    if (!test_check(terminated, file, line, "%s: error text is not terminated", call)) {
        return false;
    }
    if (!test_check(got == expected, file, line, "%s: %s != %s (%s)", call, attn_status_name(got),
                    attn_status_name(expected), text)) {
        return false;
    }
    return test_check(!error || (got == ATTN_OK) == (text[0] == '\0'), file, line,
                      "%s: %s with the sentence \"%s\"", call, attn_status_name(got), text);
}

static inline int test_run(const char *filter) {
    int passed = 0, failed = 0, skipped = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (const struct test_case *test = test_state.first; test; test = test->next) {
        if (!strstr(test->name, filter)) {
            continue;
        }
        test_state.failures = 0;
        test_state.skipped = NULL;
        fprintf(stderr, "run  %s\n", test->name);
        test->body();
        if (test_state.failures > 0) {
            printf("FAIL %s (%d failed checks)\n", test->name, test_state.failures);
            failed++;
        } else if (test_state.skipped) {
            printf("skip %s: %s\n", test->name, test_state.skipped);
            skipped++;
        } else {
            printf("ok   %s\n", test->name);
            passed++;
        }
    }
    if (passed + failed + skipped == 0) {
        printf("no test matches \"%s\"\n", filter);
        failed = 1;
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed ? TEST_FAIL : passed ? TEST_PASS : TEST_SKIP;
}

#endif /* TEST_H */
