#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# check_includes.sh SOURCE_DIR     every #include of the tree against the table below
# check_includes.sh --self-test    plants violations and expects each to be found
#
#   from            may include                                          never
#   include/        stdint, stddef, stdbool; attn_*.h include attn.h     anything else of ours
#   src/            include/, headers of src/, libc, and of kernels/     vgpu, tool, cuda.h, sqlite
#                   args.h, variants.def and tuned.def
#   src/kernels/    its own folder                                       libc, CUDA headers
#   vgpu/           its own headers, libc                                attn.h, src
#   tool/           include/, vgpu.h, sqlite3.h, its own headers, libc     src
#   tests/          all of ours, libc                                    cuda.h
#   tests/faults/   a kernel (.cu): headers of src/kernels               as src/kernels
#
# Vector intrinsics are for src/cpu_* and tests only. Exit code 0 clean, 1 violations, 2 usage.
#
# Invariant: it is a list of what is allowed; what nobody thought of is a violation.
set -u

libc='assert ctype dirent dlfcn elf errno fcntl fenv float getopt inttypes limits link locale malloc
math poll pthread regex sched semaphore setjmp signal spawn stdalign stdarg stdatomic stdbool stddef
stdint stdio stdlib stdnoreturn string strings sys/auxv sys/ioctl sys/mman sys/prctl sys/resource
sys/stat sys/syscall sys/sysinfo sys/time sys/types sys/uio sys/utsname sys/wait tgmath threads
time unistd'
vector='arm_bf16 arm_fp16 arm_neon arm_sve asm/hwcap cpuid immintrin'
ours='attn.h attn_inspect.h attn_verify.h'

among() { # among WORD LIST
    for word in $2; do
        [ "$1.h" = "$word.h" ] && return 0
    done
    return 1
}

# allowed FILE STYLE HEADER: STYLE is < or "
allowed() {
    header=${3%.h}
    case $3 in *..* | /*) return 1 ;; esac
    case $1 in
    include/attn_*.h) [ "$3" = attn.h ] || { [ "$2" = '<' ] && among "$header" 'stdint stddef stdbool'; } ;;
    include/*) [ "$2" = '<' ] && among "$header" 'stdint stddef stdbool' ;;
    src/kernels/*) [ "$2" = '"' ] && [ -f "src/kernels/$3" ] ;;
    src/cpu_*) system_or_own src "$2" "$3" "$libc $vector" "$ours kernels/args.h kernels/variants.def kernels/tuned.def" ;;
    src/*) system_or_own src "$2" "$3" "$libc cpuid asm/hwcap" "$ours kernels/args.h kernels/variants.def kernels/tuned.def" ;;
    vgpu/*) system_or_own vgpu "$2" "$3" "$libc $vector" '' ;;
    tool/*) system_or_own tool "$2" "$3" "$libc sqlite3 attn vgpu" "$ours vgpu.h" ;;
    tests/faults/check/*.cu | tests/golden/*.cu | tests/data/*) true ;; # as a user would write them
    tests/red_team/*.cu) true ;; # as a cheat would
    tests/faults/*.cu) [ "$2" = '"' ] && [ -f "src/kernels/$3" ] && [ "$3" != "$header" ] ;;
    tests/*)
        system_or_own tests "$2" "$3" "$libc $vector attn vgpu" "$ours vgpu.h" ||
            { [ "$2" = '"' ] && { [ -f "src/$3" ] || [ -f "tool/$3" ] || [ -f "vgpu/$3" ] ||
                [ -f "tests/$3" ]; }; }
        ;;
    *) false ;;
    esac
}

# system_or_own FOLDER STYLE HEADER SYSTEM_HEADERS OTHERS_OF_OURS
system_or_own() {
    case $2 in
    '<') [ "$3" != "${3%.h}" ] && among "${3%.h}" "$4" ;;
    '"') among "$3" "$5" || { case $3 in */*) false ;; *) [ -f "$1/$3" ] ;; esac; } ;;
    *) false ;;
    esac
}

check_tree() {
    cd "$1" || exit 2
    [ -f include/attn.h ] || {
        echo "check_includes.sh: $1 has no include/attn.h" >&2
        exit 2
    }
    violations=$(
        find include src vgpu tool tests -type f \
            \( -name '*.[chS]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' \) \
            -exec grep -n '^[[:space:]]*#[[:space:]]*include' {} /dev/null \; 2>/dev/null |
            while IFS=: read -r file line text; do
                rest=${text#*include}
                rest=${rest#"${rest%%[! 	]*}"}
                case $rest in
                '<'*) style='<' header=${rest#<} header=${header%%>*} ;;
                '"'*) style='"' header=${rest#?} header=${header%%\"*} ;;
                *) style=macro header=$rest ;;
                esac
                allowed "$file" "$style" "$header" ||
                    echo "$file:$line: may not include ${rest%%/\**}"
            done
    )
    [ -z "$violations" ] && return 0
    echo "$violations"
    return 1
}

# plant FILE LINE: a copy of the clean tree with one line more must be refused, by that line.
plant() {
    rm -rf "$work/planted"
    cp -R "$work/clean" "$work/planted"
    mkdir -p "$work/planted/$(dirname "$1")"
    echo "$2" >>"$work/planted/$1"
    if report=$(check_tree "$work/planted"); then
        echo "self-test: not found: $1: $2"
        failures=$((failures + 1))
    elif ! echo "$report" | grep -q "^$1:[0-9]*: may not include"; then
        echo "self-test: found for the wrong reason: $1: $2: $report"
        failures=$((failures + 1))
    fi
}

self_test() {
    work=$(mktemp -d) || exit 2
    trap 'rm -rf "$work"' EXIT
    failures=0
    mkdir -p "$work/clean/include" "$work/clean/src/kernels" "$work/clean/vgpu" \
        "$work/clean/tool" "$work/clean/tests/faults"
    cd "$work/clean" || exit 2
    echo '#include <stdint.h>' >include/attn.h
    printf '#include "attn.h"\n#  include <pthread.h> /* why */\n' >src/internal.h
    printf '#include <arm_neon.h>\n#include "internal.h"\n#include "kernels/args.h"\n' >src/cpu_neon.c
    echo '#include "args.h"' >src/kernels/tile.cu
    : >src/kernels/args.h
    echo '#include "args.h"' >tests/faults/race.cu
    printf '#include "attn.h"\n#include <dlfcn.h>\n' >tests/faults/forward.c
    : >vgpu/vgpu.h
    printf '#include <stdio.h>\n#include "vgpu.h"\n' >vgpu/ptx.c
    : >tool/npy.h
    printf '#include <sqlite3.h>\n#include "attn.h"\n#include "npy.h"\n#include "vgpu.h"\n' >tool/main.c
    printf '#include "internal.h"\n#include "npy.h"\n#include <stdio.h>\n' >tests/test_a.c
    if ! report=$(check_tree "$work/clean"); then
        echo "self-test: the clean tree was refused: $report"
        failures=1
    fi
    plant include/attn.h '#include <stdio.h>'
    plant include/attn.h '#include "internal.h"'
    plant include/attn.h '#include "attn_verify.h"'
    plant src/plan.c '#include "vgpu.h"'
    plant src/plan.c '#include "../vgpu/vgpu.h"'
    plant src/plan.c '#include "npy.h"'
    plant src/plan.c '#include <cuda.h>'
    plant src/plan.c ' # include <cuda_fp16.h>'
    plant src/plan.c '#include <sqlite3.h>'
    plant src/plan.c '#include <arm_neon.h>'
    plant src/plan.c '#include "kernels/tile.cu"'
    plant src/plan.c '#include HEADER'
    plant src/kernels/tile.cu '#include <stdint.h>'
    plant src/kernels/tile.cu '#include "internal.h"'
    plant src/kernels/tile.cu '#include "../internal.h"'
    plant vgpu/ptx.c '#include "attn.h"'
    plant vgpu/ptx.c '#include "internal.h"'
    plant tool/main.c '#include "internal.h"'
    plant tool/main.c '#include "src/internal.h"'
    plant tool/main.c '#include <torch.h>'
    plant tests/test_a.c '#include <cuda.h>'
    plant tests/faults/race.cu '#include <cuda_fp16.h>'
    plant tests/faults/race.cu '#include "internal.h"'
    plant tests/faults/race.cu '#include "../../src/kernels/args.h"'
    plant tests/faults/race.cu '#include "tile.cu"'
    plant tests/faults/forward.c '#include <cuda.h>'
    [ "$failures" -eq 0 ] || exit 1
    echo "self-test: every planted violation was found"
}

case ${1:-} in
--self-test) self_test ;;
'') echo "usage: check_includes.sh SOURCE_DIR | --self-test" >&2 && exit 2 ;;
*) (check_tree "$1") ;;
esac
