#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_kernels_build.sh SOURCE_DIR BUILD_DIR
#
# Proves what cmake/kernels.cmake promises. Without nvcc: the configuration succeeds, says what is
# missing, and ATTN_KERNELS=ON refuses. With nvcc, in a copy of the tree: a filter builds one
# kernel, another one of each family; the log's hash is the cubin's; the embedded bytes are the
# files'; line tables are in the companion's PTX alone; nothing names a folder of this machine, so that
# another folder gives the same PTX; release code neither prints nor asserts; an edited header rebuilds
# the kernel, the library and the companion; a warning of nvcc or of ptxas is an error.
#
# Invariant: the tree and the build folder are only read.
set -eu

source=$(cd "$1" && pwd)
build=$2
variant=fwd_scalar_fp16_d64_32x64_w4_s2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0
ok() {
    echo "ok   $1"
    passed=$((passed + 1))
}
bad() { # bad NAME WHY
    echo "FAIL $1: $2"
    failed=$((failed + 1))
}
holds() { # holds NAME COMMAND...
    name=$1
    shift
    if "$@" >"$work/said" 2>&1; then
        ok "$name"
    else
        bad "$name" "$* said: $(tail -n 5 "$work/said")"
    fi
}
lacks() { # lacks NAME PATTERN FILE
    if grep -a -q -e "$2" "$3"; then
        bad "$1" "$(grep -a -m 1 -e "$2" "$3" | head -c 200)"
    else
        ok "$1"
    fi
}
says() { # says NAME PATTERN LOG: CMake breaks lines where it likes
    if tr -s ' \n' '  ' <"$3" | tr -s ' ' | grep -q -e "$2"; then
        ok "$1"
    else
        bad "$1" "no '$2' in: $(tail -n 20 "$3")"
    fi
}
finish() {
    echo "$passed passed, $failed failed, ${1:-0} skipped"
    [ "$failed" -eq 0 ]
    exit
}

cached() { # cached VARIABLE: its value in the build folder
    sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"
}
compiler=$(cached CMAKE_C_COMPILER)
nvcc=$(cached ATTN_NVCC)
case $nvcc in *NOTFOUND) nvcc= ;; esac

# A tree of its own, to be edited; in a folder whose name needs quotes.
tree="$work/a tree"
mkdir "$tree"
cp -R "$source/CMakeLists.txt" "$source/cmake" "$source/include" "$source/src" "$tree"
configure() { # configure FOLDER OPTION...
    folder=$1
    shift
    cmake -S "$tree" -B "$work/$folder" -DBUILD_TESTING=OFF -DATTN_PORTABLE_ONLY=ON -DATTN_ATTEST=OFF \
        -DATTN_VGPU=OFF -DCMAKE_BUILD_TYPE=None -DCMAKE_C_COMPILER="$compiler" -DATTN_VARIANTS="^$variant\$" "$@" \
        >"$work/$folder.log" 2>&1
}
make_target() { # make_target TARGET
    cmake --build "$work/with" --parallel 2 --target "$1" >"$work/make.log" 2>&1
}

# ---- without nvcc ----------------------------------------------------------------------------

holds without_nvcc_it_configures configure without -DATTN_NVCC=/nowhere/nvcc
holds it_says_what_is_missing_in_one_line \
    test "$(grep -c 'left out: /nowhere/nvcc is no working nvcc. To have them, install' \
        "$work/without.log")" = 1
holds the_table_says_it_too \
    grep -q 'built_in_images_missing = "/nowhere/nvcc is no .* when it was built";' \
    "$work/without/kernels/images.c"
if configure without -DATTN_NVCC=/nowhere/nvcc -DATTN_KERNELS=ON; then
    bad kernels_on_without_nvcc "it configured"
else
    says kernels_on_without_nvcc 'ATTN_KERNELS is ON, but /nowhere/nvcc' "$work/without.log"
fi
refuses_to_configure() { # refuses_to_configure NAME SENTENCE OPTION...
    name=$1
    sentence=$2
    shift 2
    if configure wrong "$@"; then
        bad "$name" "it configured"
    else
        says "$name" "$sentence" "$work/wrong.log"
    fi
}
refuses_to_configure no_architectures 'ATTN_PORTABLE_ARCHS is empty' -DATTN_PORTABLE_ARCHS=
refuses_to_configure an_expression_that_is_none 'ATTN_VARIANTS is "(", expected a regular' \
    -DATTN_PORTABLE_ARCHS=80 '-DATTN_VARIANTS=('

# ---- with nvcc -------------------------------------------------------------------------------

if ! configure with ${nvcc:+-DATTN_NVCC="$nvcc"}; then
    bad it_configures "$(tail -n 20 "$work/with.log")"
    finish
fi
reason=$(sed -n 's/.*GPUs are left out: \(.*\) To have them, .*/\1/p' "$work/with.log")
case $reason in
'') ;;
'nvcc was not found.') echo "skip with_nvcc: $reason" && finish 1 ;;
*) echo "skip with_this_nvcc: $reason" && finish 1 ;;
esac
if ! make_target attn; then
    bad it_builds "$(tail -n 20 "$work/make.log")"
    finish
fi
kernel=$work/with/kernels/$variant
holds the_filter_builds_one_kernel \
    test "$(find "$work/with/kernels" -name 'fwd_*.ptx')" = "$kernel.ptx"
for arch in sm_80 sm_90; do
    holds "the_log_is_of_the_cubin_$arch" test "$(head -n 1 "$kernel.$arch.log")" = \
        "sha256 $(sha256sum <"$kernel.$arch.cubin" | cut -d ' ' -f 1)"
    holds "the_log_tells_of_spills_$arch" grep -q 'bytes spill stores' "$kernel.$arch.log"
    lacks "the_cubin_has_no_line_table_$arch" 'debug_line' "$kernel.$arch.cubin"
    lacks "the_cubin_names_no_folder_$arch" "$work" "$kernel.$arch.cubin"
done
one_of_each() {
    configure each ${nvcc:+-DATTN_NVCC="$nvcc"} -DATTN_VARIANTS=_bf16_ -DATTN_ONE_OF_EACH=ON &&
        sed -n 's/^    {"\([a-z_]*\)_bf16_.*_PTX.*/\1/p' "$work/each/kernels/companion.c"
}
sed -n 's/^CUDA_VARIANT(\([a-z_]*\), [a-z0-9_]*, bf16.*/\1/p' "$tree/src/kernels/variants.def" |
    awk '!seen[$0]++' >"$work/families"
one_of_each >"$work/each.txt"
holds one_of_each_family cmp "$work/families" "$work/each.txt"
holds the_ptx_has_lines grep -q "\.file.*\"src/kernels/portable/fwd_scalar\.cu\"" "$kernel.ptx"
lacks the_ptx_names_no_folder '"/' "$kernel.ptx"
lacks release_code_does_not_print vprintf "$kernel.ptx"
lacks release_code_does_not_assert __assertfail "$kernel.ptx"

touch "$work/with/kernels/fwd_stale.ptx" "$work/with/kernels/fwd_stale.sm_80.cubin"
holds it_configures_again configure with ${nvcc:+-DATTN_NVCC="$nvcc"}
holds what_is_stale_goes test -z "$(find "$work/with/kernels" -name 'fwd_stale*')"
holds what_is_not_stays test -e "$kernel.sm_90.cubin" -a -e "$kernel.d"

# Another folder, perhaps another day: the same bytes.
if [ -e "$build/kernels/$variant.ptx" ] && [ "$(cached ATTN_KERNEL_DEBUG)" = OFF ]; then
    holds another_folder_gives_the_same_ptx cmp "$kernel.ptx" "$build/kernels/$variant.ptx"
    holds another_folder_gives_the_same_cubin cmp "$kernel.sm_90.cubin" \
        "$build/kernels/$variant.sm_90.cubin"
    for fatbin in sm_80.fatbin sm_90.fatbin fatbin; do
        holds "another_folder_gives_the_same_$fatbin" cmp "$kernel.$fatbin" \
            "$build/kernels/$variant.$fatbin"
    done
fi

# Without line tables it is the same program: ptxas makes the same machine code of it with the same options.
plain=$kernel.stripped
lacks no_line_table_is_left '^[[:space:]]*\.\(loc\|file\|section\)' "$plain"
nvcc=$(sed -n 's/^ATTN_NVCC:[A-Z]*=//p' "$work/with/CMakeCache.txt")
holds ptxas_takes_it "$(dirname "$nvcc")/ptxas" -v --warning-as-error --generate-line-info \
    --suppress-debug-info -arch=sm_90 "$plain" -o "$work/plain.cubin"
holds the_machine_code_is_the_same cmp "$work/plain.cubin" "$kernel.sm_90.cubin"
echo '.section .nv_debug_lines' | cat "$kernel.ptx" - >"$work/edited.ptx"
if sh "$tree/cmake/strip_ptx.sh" "$work/edited.ptx" "$work/none" >/dev/null 2>&1; then
    bad an_unknown_table_is_refused "it was taken"
else
    ok an_unknown_table_is_refused
fi

# The table, read by a program of its own: its order, and each image against its file.
cat >"$work/table.c" <<'C'
#include "cuda/images.h"
#include <stdio.h>
#include <string.h>

int main(int count, char **files) {
    if (count - 1 != built_in_image_count || strcmp(built_in_images_missing, "") != 0)
        return printf("%d images\n", (int)built_in_image_count);
    for (int i = 0; i < built_in_image_count; i++) {
        const struct built_in_image *image = &built_in_images[i];
        const unsigned char *at = image->data;
        FILE *file = fopen(files[i + 1], "rb");
        int c;
        if (!file || ((size_t)at & 15) != 0 || strstr(files[i + 1], image->variant) == NULL)
            return printf("%s: not there\n", files[i + 1]);
        while ((c = getc(file)) != EOF)
            if (at == image->end || *at++ != c)
                return printf("%s: other bytes\n", files[i + 1]);
        fclose(file);
        if (at != image->end || *at != 0)
            return printf("%s: another end\n", files[i + 1]);
        printf("%d %s %.7s\n", (int)image->kind, image->arch, image->log ? image->log : "none");
    }
    return 0;
}
C
holds the_table_compiles "$compiler" -std=c11 -Wall -Werror -I"$tree/include" -I"$tree/src" \
    -o "$work/table" "$work/table.c" "$work/with/kernels/images.c" "$work/with/kernels/images.S"
holds the_table_has_the_files \
    "$work/table" "$kernel.sm_80.fatbin" "$kernel.sm_90.fatbin" "$kernel.fatbin"
cp "$work/said" "$work/table.txt"
printf '3 sm_80 sha256 \n3 sm_90 sha256 \n2 compute_80 none\n' >"$work/expected"
holds the_table_is_in_order cmp "$work/expected" "$work/table.txt"

# ---- edits -----------------------------------------------------------------------------------

# A kernel that uses each of its macros and has no fault of its own; then one fault at a time.
cat >"$work/clean.cu" <<'CUDA'
#include "common/args.h"
#include "bounds.h"
extern "C" __global__ void __launch_bounds__(ATTN_WARPS * 32, BLOCKS)
    ATTN_ENTRY(struct attn_args a) {
    if (a.lse)
        a.lse[threadIdx.x] = ATTN_D + ATTN_BM + ATTN_BN + ATTN_STAGES + ATTN_DTYPE_fp16;
}
CUDA
cp "$work/clean.cu" "$tree/src/kernels/portable/fwd_scalar.cu"
echo '#define BLOCKS 1' >"$tree/src/kernels/bounds.h"
holds another_kernel_builds make_target attn
sleep 1 # make compares seconds on some file systems
library_before=$(sha256sum <"$work/with/libattn.so")
echo '#define BLOCKS 2' >"$tree/src/kernels/bounds.h"
holds an_edited_header_builds make_target attn
holds an_edited_header_rebuilds_the_kernel grep -q 'minnctapersm 2' "$kernel.ptx"
holds a_new_image_relinks_the_library \
    test "$(sha256sum <"$work/with/libattn.so")" != "$library_before"
holds the_library_knows_its_companion \
    grep -a -q -F "$(cat "$work/with/kernels/identity.txt")" "$work/with/libattn.so"
holds the_companion_is_of_this_build \
    grep -a -q -F "$(cat "$work/with/kernels/identity.txt")" "$work/with/libattn_ptx.so"

refuses() { # refuses NAME PATTERN: the build fails, and says this
    if make_target kernel_images; then
        bad "$1" "it was built"
    else
        says "$1" "$2" "$work/make.log"
    fi
}
sed 's/if (a.lse)/int never_used = 1;\n    &/' "$work/clean.cu" >"$tree/src/kernels/portable/fwd_scalar.cu"
refuses a_warning_of_nvcc_is_an_error '"never_used" was declared but never referenced'
echo 'static __device__ int f(int x) { if (x) return 1; }' |
    cat "$work/clean.cu" - >"$tree/src/kernels/portable/fwd_scalar.cu"
refuses a_missing_return_is_an_error 'missing return statement'
cp "$work/clean.cu" "$tree/src/kernels/portable/fwd_scalar.cu"
echo '#define BLOCKS 999' >"$tree/src/kernels/bounds.h"
refuses a_warning_of_ptxas_is_an_error 'minnctapersm will be ignored'

echo '#define BLOCKS 1' >"$tree/src/kernels/bounds.h"
sed 's/if (a.lse)/if (a.seq_q < ATTN_DEBUG)\n        __trap();\n    &/' "$work/clean.cu" \
    >"$tree/src/kernels/portable/fwd_scalar.cu"
holds the_debug_kernel_configures configure with -DATTN_KERNEL_DEBUG=ON
holds the_debug_kernel_builds make_target kernel_images
holds the_debug_kernel_has_its_asserts grep -q 'trap;' "$kernel.ptx"
holds the_debug_kernel_has_a_line_table grep -a -q debug_line "$kernel.sm_90.cubin"
lacks the_debug_kernel_names_no_folder "$work" "$kernel.sm_90.cubin"
holds the_release_kernel_configures_again configure with -DATTN_KERNEL_DEBUG=OFF
refuses release_code_has_no_debug_macro '"ATTN_DEBUG" is undefined'

if configure filtered ${nvcc:+-DATTN_NVCC="$nvcc"} -DATTN_VARIANTS=nothing; then
    bad a_filter_that_leaves_nothing "it configured"
else
    says a_filter_that_leaves_nothing 'ATTN_VARIANTS is "nothing"' "$work/filtered.log"
fi
cp "$tree/src/kernels/families.def" "$work/families.def"
sed 's/fwd_scalar\.cu", sm_80,/fwd_scalar.cu", sm_90a,/' "$work/families.def" >"$tree/src/kernels/families.def"
refuses a_family_of_another_architecture 'is for sm_80, families.def says "sm_90a"'
cp "$work/families.def" "$tree/src/kernels/families.def"
echo 'CUDA_VARIANT(fwd_scalar, sm_80, fp8, 64, 32, 64, 4, 2)' >>"$tree/src/kernels/variants.def"
refuses an_edited_table_is_read_again 'not a CUDA_VARIANT that can be built'
finish
