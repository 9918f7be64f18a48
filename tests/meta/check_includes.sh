#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# check_includes.sh SOURCE_DIR     every #include of the tree against the table below
# check_includes.sh --self-test    plants violations and expects each to be found
#
#   from                may include
#   include/            stdint, stddef, stdbool; attn_*.h include attn.h, attn_mpi.h includes mpi.h
#   src/core            include/, src/core, cpu/cpu.h, cuda/cuda.h, cuda/images.h, kernels/*.def
#   src/cpu verify      include/, src/core, its own folder
#   src/cuda            include/, src/core, its own folder, kernels/common/args.h
#   src/mpi             include/, mpi.h, its own folder (a library of its own over libattn)
#   src/kernels         no libc, no CUDA header; common: itself; portable: common and itself;
#                       hopper: common, portable, itself
#   vgpu/               vgpu.h (ptx: not), libc, its own folder and those after it; not attn.h, not src
#     ptx               -
#     machine           ptx
#     report            ptx machine
#     race              ptx machine report
#     memory            ptx machine report race (not race/state.h)
#     ops               ptx machine report race memory (not race/state.h)
#     async             ptx machine report race memory ops (not race/state.h)
#     exec              ptx machine report race memory ops async (not race/state.h)
#     driver            ptx machine report exec; async/tensor_map.h
#     runtime           vgpu.h, itself (a library of its own over libvgpu)
#     nvrtc             - (a library of its own)
#   tool/base           include/, itself; tool/device: base as well; tool/cases: both
#   tool/stages/X       base, device, cases, pack, stages/*.h, its own folder: never another stage
#   tool/, the rest     include/, vgpu.h, tool/, libc; not src; judge: seccomp, sys/socket
#   tests/              all of ours by their path from the root, its own by their path from tests/
#   tests/faults/*.cu   headers of src/kernels, as src/kernels
#
# A header is named by its path from src/kernels, src, vgpu or tool, or, in tests/, from the root.
# Vector intrinsics are for src/cpu and tests only. Exit code 0 clean, 1 violations, 2 usage.
#
# Invariant: it is a list of what is allowed; anything else is a violation.
set -u

libc='assert ctype dirent dlfcn elf errno fcntl fenv float ftw getopt inttypes limits link locale malloc
math poll pthread regex sched semaphore setjmp signal spawn stdalign stdarg stdatomic stdbool stddef
stdint stdio stdlib stdnoreturn string strings sys/auxv sys/file sys/ioctl sys/mman sys/prctl sys/resource
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

# below ROOT HEADER FOLDER...: HEADER is a file of one of the folders of ROOT
below() {
    root=$1 wanted=$2
    shift 2
    [ -f "$root/$wanted" ] || return 1
    for folder in "$@"; do
        case $wanted in "$folder"/*) return 0 ;; esac
    done
    return 1
}

# system STYLE HEADER LIST: <HEADER> is one of the list
system() {
    [ "$1" = '<' ] && [ "$2" != "${2%.h}" ] && among "${2%.h}" "$3"
}

# vgpu_allowed FOLDER HEADER: the rows of vgpu/ in the table above; each folder sees the lower ones
vgpu_allowed() {
    case $1 in
    ptx) lower= ;;
    driver) lower='ptx machine report exec' ;;
    runtime | nvrtc) lower= ;;
    *)
        lower='ptx machine report race memory ops async exec '
        case $lower in *"$1 "*) lower=${lower%%"$1 "*} ;; *) return 1 ;; esac
        ;;
    esac
    case $1:$2 in
    ptx:vgpu.h) return 1 ;;
    *:vgpu.h | driver:async/tensor_map.h) return 0 ;;
    race:race/state.h) ;;
    *:race/state.h) return 1 ;;
    esac
    # shellcheck disable=SC2086
    below vgpu "$2" "$1" $lower
}

# allowed FILE STYLE HEADER: STYLE is < or "
allowed() {
    case $3 in *..* | /*) return 1 ;; esac
    case $1 in
    include/attn_mpi.h) among "$3" 'attn.h mpi.h' ;;
    include/attn_*.h) [ "$3" = attn.h ] || system "$2" "$3" 'stdint stddef stdbool' ;;
    include/*) system "$2" "$3" 'stdint stddef stdbool' ;;
    src/kernels/common/*) [ "$2" = '"' ] && below src/kernels "$3" common ;;
    src/kernels/portable/*) [ "$2" = '"' ] && below src/kernels "$3" common portable ;;
    src/kernels/*) [ "$2" = '"' ] && below src/kernels "$3" common portable hopper ;;
    src/mpi/*) system "$2" "$3" "$libc" || below src "$3" mpi || among "$3" "attn_mpi.h $ours" ;;
    src/*)
        [ "$2" = '"' ] && among "$3" "$ours" && return 0
        case $1 in
        src/core/*)
            system "$2" "$3" "$libc cpuid asm/hwcap" || below src "$3" core ||
                among "$3" 'cpu/cpu.h cuda/cuda.h cuda/images.h kernels/families.def kernels/variants.def kernels/tuned.def'
            ;;
        src/cpu/*) system "$2" "$3" "$libc $vector" || below src "$3" core cpu ;;
        src/cuda/*) system "$2" "$3" "$libc" || below src "$3" core cuda || [ "$3" = kernels/common/args.h ] ;;
        src/verify/*) system "$2" "$3" "$libc" || below src "$3" core verify ;;
        *) false ;;
        esac
        ;;
    vgpu/*/*)
        folder=${1#vgpu/}
        system "$2" "$3" "$libc $vector" || vgpu_allowed "${folder%%/*}" "$3"
        ;;
    vgpu/vgpu.h) system "$2" "$3" 'stdbool stddef stdint stdio' ;;
    tool/*)
        system "$2" "$3" "$libc" && return 0
        [ "$2" = '"' ] && among "$3" "$ours vgpu.h" && return 0
        case $1 in
        tool/base/*) below tool "$3" base ;;
        tool/device/*) below tool "$3" base device ;;
        tool/cases/*) below tool "$3" base device cases ;;
        tool/stages/*/*)
            stage=${1#tool/stages/}
            [ "$3" = cli/verbs.h ] || below tool "$3" base device cases pack "stages/${stage%%/*}" ||
                case $3 in stages/*/*) false ;; *) below tool "$3" stages ;; esac
            ;;
        tool/judge/*) system "$2" "$3" 'linux/audit linux/filter linux/seccomp sys/socket' || [ -f "tool/$3" ] ;;
        tool/*) [ "$2" = '"' ] && case $3 in */*) [ -f "tool/$3" ] ;; *) false ;; esac ;;
        esac
        ;;
    tests/faults/check/*.cu | tests/golden/*.cu | tests/data/*) true ;; # as a user would write them
    tests/red_team/*) true ;; # as a cheat would
    tests/mpi/*) system "$2" "$3" "$libc attn_mpi" || [ -f "tests/$3" ] ;;
    tests/faults/*.cu) [ "$2" = '"' ] && [ "$3" != "${3%.h}" ] && below src/kernels "$3" common portable hopper ;;
    tests/*)
        system "$2" "$3" "$libc $vector attn vgpu" ||
            { [ "$2" = '"' ] && { among "$3" "$ours vgpu.h" || [ -f "tests/$3" ] || below . "$3" src vgpu tool; }; }
        ;;
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
    cd "$work" || exit 2
    mkdir -p clean/include clean/src/core clean/src/cpu clean/src/cuda clean/src/kernels/common \
        clean/src/kernels/portable clean/src/kernels/hopper clean/vgpu/ptx clean/vgpu/machine clean/vgpu/report clean/vgpu/race \
        clean/vgpu/memory clean/vgpu/exec clean/vgpu/driver clean/vgpu/runtime clean/tool/base \
        clean/tool/device clean/tool/stages/bench clean/tool/stages/parity clean/tests/faults
    cd clean || exit 2
    echo '#include <stdint.h>' >include/attn.h
    printf '#include "attn.h"\n#  include <pthread.h> /* why */\n' >src/core/plan.h
    mkdir -p src/mpi
    printf '#include "attn.h"\n#include <mpi.h>\n' >include/attn_mpi.h
    printf '#include "attn_mpi.h"\n#include <stdlib.h>\n' >src/mpi/ring.h
    : >src/cuda/cuda.h
    printf '#include "core/plan.h"\n#include "cuda/cuda.h"\n' >src/core/plan.c
    printf '#include <arm_neon.h>\n#include "core/plan.h"\n' >src/cpu/neon.c
    printf '#include "kernels/common/args.h"\n' >src/cuda/plan.c
    echo '#include "common/args.h"' >src/kernels/portable/tile.cu
    echo '#include "portable/tile.cu"' >src/kernels/hopper/tile.cu
    : >src/kernels/common/args.h
    echo '#include "common/args.h"' >tests/faults/race.cu
    printf '#include "attn.h"\n#include <dlfcn.h>\n' >tests/faults/forward.c
    : >vgpu/vgpu.h
    : >vgpu/ptx/ptx.h
    printf '#include <stdio.h>\n#include "ptx/ptx.h"\n' >vgpu/ptx/parse.c
    printf '#include "ptx/ptx.h"\n#include "vgpu.h"\n' >vgpu/machine/machine.h
    echo '#include "machine/machine.h"' >vgpu/report/finding.h
    echo '#include "race/race.h"' >vgpu/race/state.h
    echo '#include "machine/machine.h"' >vgpu/race/race.h
    printf '#include "race/state.h"\n#include "report/finding.h"\n' >vgpu/race/clock.c
    echo '#include "race/race.h"' >vgpu/memory/memory.h
    echo '#include "memory/memory.h"' >vgpu/exec/exec.c
    echo '#include "exec/exec.h"' >vgpu/driver/api.h
    : >vgpu/exec/exec.h
    : >vgpu/runtime/runtime.h
    printf '#include "runtime/runtime.h"\n#include "vgpu.h"\n' >vgpu/runtime/state.c
    : >tool/base/npy.h
    : >tool/stages/stage.h
    : >tool/stages/bench/measure.h
    printf '#include "attn.h"\n#include "base/npy.h"\n#include "vgpu.h"\n' >tool/device/device.c
    printf '#include "base/npy.h"\n#include "stages/stage.h"\n#include "stages/bench/measure.h"\n' \
        >tool/stages/bench/verb.c
    printf '#include "src/core/plan.h"\n#include "tool/base/npy.h"\n#include <stdio.h>\n' >tests/test_a.c
    if ! report=$(check_tree "$work/clean"); then
        echo "self-test: the clean tree was refused: $report"
        failures=1
    fi
    plant include/attn.h '#include <stdio.h>'
    plant include/attn.h '#include "core/plan.h"'
    plant include/attn.h '#include <mpi.h>'
    plant src/core/plan.c '#include <mpi.h>'
    plant src/core/plan.c '#include "attn_mpi.h"'
    plant src/mpi/ring.h '#include "core/plan.h"'
    plant include/attn.h '#include "attn_verify.h"'
    plant src/core/plan.c '#include "vgpu.h"'
    plant src/core/plan.c '#include "../vgpu/vgpu.h"'
    plant src/core/plan.c '#include "base/npy.h"'
    plant src/core/plan.c '#include <cuda.h>'
    plant src/core/plan.c ' # include <cuda_fp16.h>'
    plant src/core/plan.c '#include <zlib.h>'
    plant src/core/plan.c '#include <arm_neon.h>'
    plant src/core/plan.c '#include "kernels/portable/tile.cu"'
    plant src/core/plan.c '#include HEADER'
    plant src/cpu/neon.c '#include "cuda/cuda.h"'
    plant src/cuda/plan.c '#include "cpu/neon.c"'
    plant src/kernels/common/args.h '#include "portable/tile.cu"'
    plant src/kernels/portable/tile.cu '#include <stdint.h>'
    plant src/kernels/portable/tile.cu '#include "hopper/tile.cu"'
    plant src/kernels/hopper/tile.cu '#include "core/plan.h"'
    plant src/kernels/hopper/tile.cu '#include "../core/plan.h"'
    plant vgpu/ptx/parse.c '#include "attn.h"'
    plant vgpu/ptx/parse.c '#include "core/plan.h"'
    plant vgpu/ptx/parse.c '#include "vgpu.h"'
    plant vgpu/machine/machine.h '#include "race/race.h"'
    plant vgpu/report/finding.h '#include "driver/api.h"'
    plant vgpu/race/clock.c '#include "memory/memory.h"'
    plant vgpu/memory/memory.h '#include "race/state.h"'
    plant vgpu/exec/exec.c '#include "driver/api.h"'
    plant vgpu/driver/api.h '#include "memory/memory.h"'
    plant vgpu/driver/api.h '#include "runtime/runtime.h"'
    plant vgpu/runtime/state.c '#include "driver/driver.h"'
    plant vgpu/runtime/state.c '#include <cuda_runtime_api.h>'
    plant vgpu/other/other.c '#include "ptx/ptx.h"'
    plant tool/base/npy.h '#include "device/device.c"'
    plant tool/device/device.c '#include "core/plan.h"'
    plant tool/device/device.c '#include "src/core/plan.h"'
    plant tool/device/device.c '#include "stages/stage.h"'
    plant tool/device/device.c '#include <torch.h>'
    plant tool/stages/parity/verb.c '#include "stages/bench/measure.h"'
    plant tests/test_a.c '#include <cuda.h>'
    plant tests/faults/race.cu '#include <cuda_fp16.h>'
    plant tests/faults/race.cu '#include "core/plan.h"'
    plant tests/faults/race.cu '#include "../../src/kernels/common/args.h"'
    plant tests/faults/race.cu '#include "portable/tile.cu"'
    plant tests/faults/forward.c '#include <cuda.h>'
    [ "$failures" -eq 0 ] || exit 1
    echo "self-test: every planted violation was found"
}

case ${1:-} in
--self-test) self_test ;;
'') echo "usage: check_includes.sh SOURCE_DIR | --self-test" >&2 && exit 2 ;;
*) (check_tree "$1") ;;
esac
