#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh MODE BUILD_DIR [CTEST_OPTION...]
#
# Runs CTest over a build folder, then lists what was skipped and closes with the line
# `N passed, N failed, N skipped`, counted over CTest's tests. Skips inside a program that passed are
# listed as program/test.
#
# Invariant: exit code 0 iff something ran, nothing failed and every skip stands in
# tests/expected_skips.txt for this mode. CTest alone calls an all-skipped suite a success.
set -u

mode=$1
build=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
log=$build/junit.xml
jobs=${JOBS:-2}
rm -f "$log"

ctest --test-dir "$build" --output-on-failure --parallel "$jobs" --no-tests=error \
    --test-output-size-passed 1000000 --output-junit junit.xml "$@" </dev/null
ctest_status=$?
if [ ! -s "$log" ]; then
    echo "run.sh: no test ran in $build" >&2
    exit 1
fi

# One line for each test: pass NAME | fail NAME | skip NAME: reason | part PROGRAM/TEST: reason
awk '
    function attribute(line, key) {
        sub(".*[ \t]" key "=\"", "", line)
        sub("\".*", "", line)
        return line
    }
    function flush() {
        if (name != "")
            print verdict, name (verdict == "skip" && reason != "" ? ": " reason : "")
        name = reason = ""
    }
    /^[ \t]*<testcase / {
        flush()
        name = attribute($0, "name")
        verdict = attribute($0, "status") == "run" ? "pass" : "fail"
        next
    }
    /^[ \t]*<skipped message="SKIP_RETURN_CODE=/ { verdict = "skip"; next }
    {
        sub(/^[ \t]*<system-out>/, "")
        gsub(/&lt;/, "<"); gsub(/&gt;/, ">"); gsub(/&quot;/, "\""); gsub(/&apos;/, "\x27")
        gsub(/&amp;/, "\\&")
        if (sub(/^skip /, "")) {
            if (verdict == "pass")
                print "part", name "/" $0
            else if (reason == "")
                reason = $0
        }
    }
    END { flush() }
' "$log" >"$build/verdicts.txt"

count() {
    grep -c "^$1 " "$build/verdicts.txt"
}

# Is this name (program or program/test) allowed to skip in this mode, on this machine?
expected() {
    while read -r pattern modes condition; do
        case $pattern in '' | '#'*) continue ;; esac
        # shellcheck disable=SC2254 # unquoted, since it is a pattern
        case $1 in $pattern) ;; *) continue ;; esac
        case ",$modes," in *,"$mode",* | ',any,') ;; *) continue ;; esac
        case $condition in
        always) return 0 ;;
        without-kernels) [ "$(cat "$build/kernels/built.txt" 2>/dev/null)" = 0 ] && return 0 ;;
        without-vgpu) [ -e "$build/libvgpu.so" ] || return 0 ;;
        some-kernels) grep -q '^ATTN_VARIANTS:[A-Z]*=.' "$build/CMakeCache.txt" && return 0 ;;
        without-cpu=*) grep -qwi "${condition#*=}" /proc/cpuinfo || return 0 ;;
        without=*)
            # nvcc may be there without being in the PATH
            (PATH=$PATH:/usr/local/cuda/bin; command -v "${condition#*=}" >/dev/null 2>&1) || return 0
            ;;
        esac
    done <"$here/expected_skips.txt"
    return 1
}

unexpected=0
if grep -q '^skip \|^part ' "$build/verdicts.txt"; then
    echo "Skipped ($mode):"
    while read -r verdict name reason; do
        case $verdict in skip | part) ;; *) continue ;; esac
        name=${name%:}
        if expected "$name"; then
            echo "  $name: $reason"
        else
            echo "  $name: $reason  <- UNEXPECTED, see tests/expected_skips.txt"
            unexpected=$((unexpected + 1))
        fi
    done <"$build/verdicts.txt"
fi
if [ "$unexpected" -gt 0 ]; then
    echo "$unexpected unexpected skips"
fi

passed=$(count pass)
failed=$(count fail)
skipped=$(count skip)
echo "$passed $failed $skipped" >"$build/counts.txt"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$ctest_status" -eq 0 ] && [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ] && [ "$unexpected" -eq 0 ]
