#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_subproject.sh SOURCE_DIR BUILD_DIR
#
# Proves that a project can build libattn as a part of itself: FetchContent (which is
# add_subdirectory), then attn::attn and attn::attn_static. It gets neither attest nor tests, and its
# own settings and `make install` stay as they are. A program linked with libattn.a may define every
# name that is not attn_*.
set -eu

source=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAIL $*"
    exit 1
}

cat >"$work/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.22)
project(stranger C)
include(CTest) # BUILD_TESTING is ON here
set(ATTN_KERNELS OFF)
set(ATTN_PORTABLE_ONLY ON) # to build in seconds
include(FetchContent)
FetchContent_Declare(attn SOURCE_DIR $source)
FetchContent_MakeAvailable(attn)
foreach(kind attn attn_static)
    add_executable(with_\${kind} use.c)
    target_link_libraries(with_\${kind} PRIVATE attn::\${kind})
endforeach()
install(TARGETS with_attn)
file(WRITE \${PROJECT_BINARY_DIR}/build_type.txt "\${CMAKE_BUILD_TYPE}")
CMAKE
cat >"$work/use.c" <<'C'
#include <attn.h>
#include <stdlib.h>

int divide_up(int a); /* a name that libattn uses itself */
int divide_up(int a) {
    return a;
}

int main(void) {
    attn_context *context = NULL;
    attn_plan *plan = NULL;
    attn_problem problem;
    attn_tensors tensors;
    float x[64], o[64] = {0};
    for (int i = 0; i < 64; i++) {
        x[i] = (float)i;
    }
    attn_problem_init(&problem); /* one query, one key: O is V */
    attn_tensors_init(&tensors);
    tensors.q = tensors.k = tensors.v = x;
    tensors.o = o;
    int failed = attn_open(NULL, &context, NULL) != ATTN_OK ||
                 attn_plan_create(context, &problem, NULL, &plan, NULL) != ATTN_OK;
    if (!failed) {
        void *workspace = malloc(attn_workspace_size(plan) + 1);
        failed = attn_forward(plan, &tensors, workspace, attn_workspace_size(plan), NULL, NULL) !=
                     ATTN_OK ||
                 o[63] != 63.0F;
        free(workspace);
    }
    attn_plan_destroy(plan);
    attn_close(context);
    return failed + divide_up(0);
}
C
{
    cmake -S "$work" -B "$work/build" -DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1 &&
        cmake --build "$work/build" --parallel 2 &&
        DESTDIR=$work/stage cmake --install "$work/build"
} >"$work/log" 2>&1 || fail "build: $(tail -n 20 "$work/log")"
[ -z "$(cat "$work/build/build_type.txt")" ] || fail "CMAKE_BUILD_TYPE was changed"
[ "$(find "$work/stage" -type f | sed 's|.*/||')" = with_attn ] || fail "installed more than asked"
[ -z "$(find "$work/build" -name 'attest*' -o -name 'test_*' -type f)" ] || fail "attest was built"
for kind in attn attn_static; do
    "$work/build/with_$kind" || fail "with_$kind"
done
archive=$(find "$work/build" -name libattn.a)
foreign=$(nm -g --defined-only "$archive" | awk 'NF == 3 && $3 !~ /^attn_/ { print $3 }')
[ -z "$foreign" ] || fail "libattn.a defines" "$foreign"
[ "$(nm -g --defined-only "$archive" | grep -c ' T attn_')" -ge 20 ] || fail "libattn.a lacks functions"
echo "ok   subproject"
