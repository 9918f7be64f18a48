/* SPDX-License-Identifier: Apache-2.0
 *
 * grown.c - part of the library that meta/test_abi.sh builds with grown headers, and a program with
 * the old ones: the field that the program does not know has its default.
 */
#ifdef LIBRARY
#include "src/core/internal.h"

ATTN_API int64_t attn_test_grown(const attn_problem *problem);

ATTN_API int64_t attn_test_grown(const attn_problem *problem) {
    attn_problem resolved;
    return problem_resolve(problem, &resolved, NULL) == ATTN_OK ? resolved.grown : -1;
}
#else
#include "attn.h"

#include <stdio.h>
#include <string.h>

int64_t attn_test_grown(const attn_problem *problem);

int main(void) {
    struct {
        attn_problem problem;
        unsigned char after[64];
    } guarded;
    memset(&guarded, 0xff, sizeof guarded);
    attn_problem_init(&guarded.problem);
    const long long grown = attn_test_grown(&guarded.problem);
    printf("the field that is not known is %lld\n", grown);
    return grown != 0;
}
#endif
