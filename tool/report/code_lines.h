/* SPDX-License-Identifier: Apache-2.0
 *
 * code_lines.h - where in the source something is: what a report gives as its code.
 *
 * The table is written by cmake/code_lines.sh from code_lines.def when attest is built.
 *
 * Invariant: a line is that of the tree which attest was built from.
 */
#ifndef ATTEST_REPORT_CODE_LINES_H
#define ATTEST_REPORT_CODE_LINES_H

#define CODE(name, file, text) CODE_##name,
enum code {
#include "report/code_lines.def"
    CODE_COUNT
};
#undef CODE

struct code_line {
    const char *file;
    int line; /* 0: not found */
};

extern const struct code_line CODE_LINES[CODE_COUNT];

#endif /* ATTEST_REPORT_CODE_LINES_H */
