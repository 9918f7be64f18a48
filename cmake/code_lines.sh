#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# code_lines.sh SOURCE_DIR OUTPUT: writes the table of tool/report/code_lines.h: for each entry of
# tool/report/code_lines.def the number of the line that holds its text.
#
# Invariant: a line that is given is the only one with the text; otherwise it is 0.
set -eu
cd "$1"
{
    echo '#include "report/code_lines.h"'
    echo
    echo 'const struct code_line CODE_LINES[CODE_COUNT] = {'
    awk -F '"' '/^CODE\(/ {
        found = 0
        line = 0
        while ((getline text < $2) > 0) {
            line++
            if (index(text, $4) > 0) {
                found = found == 0 ? line : -1
            }
        }
        close($2)
        printf("    {\"%s\", %d},\n", $2, (found > 0 ? found : 0))
    }' tool/report/code_lines.def
    echo '};'
} >"$2.tmp"
mv "$2.tmp" "$2"
