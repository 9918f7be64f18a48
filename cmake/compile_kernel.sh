#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# compile_kernel.sh NVCC PTXAS SOURCE OUTPUT PTX_ARCH CUBIN_ARCHS HABITS [FLAG...]
#
# Compiles one kernel, called from the root of the source tree with SOURCE relative to it:
#   OUTPUT.ptx            for PTX_ARCH (compute_80), with line numbers; the FLAGs are nvcc's
#   OUTPUT.sm_XX.cubin    of that very PTX, for each of CUBIN_ARCHS ("sm_80 sm_90")
#   OUTPUT.sm_XX.log      `sha256 HEX-OF-THE-CUBIN`, then what `ptxas -v` said of it
#   OUTPUT.d              the files of the tree that it read, for make and ninja
# ATTN_KERNEL_CACHE, if set, is a folder that keeps these for all build folders: a kernel is compiled
# again only if its flags, the compilers or a file that it reads have changed.
# HABITS are words: `lines` keeps line tables in the cubins, which then hold the PTX's text too;
# `lenient` lets warnings pass; `release` is neither.
#
# Invariant: all of them or none, and the same bytes in every folder and on every day. A warning of
# nvcc or ptxas is an error: it is often the only sign of a bug in a kernel.
set -eu

nvcc=$1 ptxas=$2 source=$3 output=$4 ptx_arch=$5 cubin_archs=$6 habits=$7
shift 7
nvcc_habits="-Werror all-warnings"
ptxas_habits="--warning-as-error --generate-line-info --suppress-debug-info"
for habit in $habits; do
    case $habit in
    release) ;;
    lines) ptxas_habits=$(echo "$ptxas_habits" | sed 's/ --suppress-debug-info//') ;;
    lenient)
        nvcc_habits=
        ptxas_habits=$(echo "$ptxas_habits" | sed 's/--warning-as-error //')
        ;;
    *) echo "compile_kernel.sh: habit $habit, expected release, lines or lenient" >&2 && exit 2 ;;
    esac
done

root=$(pwd -P)
name=$(basename "$output")
mkdir -p "$(dirname "$output")"
work=$(mktemp -d "$output.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# NAME-HASH/: the kernel NAME with these flags and compilers. In it is one folder for each state of
# its sources, which `checksums` lists.
cached=
case ${ATTN_KERNEL_CACHE:+$source} in
src/kernels/*)
    cached=$ATTN_KERNEL_CACHE/$name-$({
        echo "$source" "$ptx_arch" "$cubin_archs" "$habits" "$@"
        "$nvcc" --version
        "$ptxas" --version
        env | grep -E '^(NVCC_(PRE|AP)PEND_FLAGS|CPATH|CPLUS_INCLUDE_PATH)=' || true
        sha256sum cmake/compile_kernel.sh
    } | sha256sum | cut -c 1-32)
    ;;
esac

compile() {
    # shellcheck disable=SC2086 # a list of words
    "$nvcc" -ptx -arch="$ptx_arch" -std=c++17 -O3 -lineinfo $nvcc_habits -Isrc/kernels "$@" \
        -MD -MF "$work/all.d" -o "$work/raw.ptx" "$source"

    # nvcc writes down the folder twice: in the names of files, and as a hash of it in the names of
    # static functions and variables (also where those are spelled as bytes, in .debug_str).
    ROOT="\"$root/" awk '
        /^[ \t]*\.file[ \t]/ {
            at = index($0, ENVIRON["ROOT"])
            if (at > 0)
                $0 = substr($0, 1, at) substr($0, at + length(ENVIRON["ROOT"]))
            sub(/"\/.*\/include\//, "\"cuda/")
        }
        /_INTERNAL_/ { gsub(/_INTERNAL_[0-9a-f]+_/, "_INTERNAL_00000000_") }
        /95,73,78,84,69,82,78,65,76,95,/ {
            digit = "[0-9]+,"
            gsub("95,73,78,84,69,82,78,65,76,95," digit digit digit digit digit digit digit digit \
                 "95,", "95,73,78,84,69,82,78,65,76,95,48,48,48,48,48,48,48,48,95,")
        }
        { print }' "$work/raw.ptx" >"$work/$name.ptx"
    if grep -n '^[[:space:]]*\.file.*"/' "$work/$name.ptx" >&2; then
        echo "$source: its PTX names a path of this machine" >&2
        exit 1
    fi

    for arch in $cubin_archs; do
        cubin=$work/$name.$arch.cubin
        # shellcheck disable=SC2086 # a list of words
        "$ptxas" -v $ptxas_habits -arch="$arch" "$work/$name.ptx" -o "$cubin" \
            >"$work/said" 2>&1 || {
            cat "$work/said" >&2
            echo "$source: ptxas refused it for $arch" >&2
            exit 1
        }
        {
            echo "sha256 $(sha256sum <"$cubin" | cut -d ' ' -f 1)"
            grep -v 'Compile time = ' "$work/said"
        } >"$work/$name.$arch.log"
    done

    # Headers of CUDA and of the system are left out: a new compiler changes kernels/options.txt.
    # shellcheck disable=SC1003,SC2020 # two characters, each becomes a line end
    tr -s ' \\' '\n\n' <"$work/all.d" | grep -E '^(src|tests)/' | LC_ALL=C sort -u >"$work/sources"
}

found=
for state in ${cached:+"$cached"/*/}; do
    if sha256sum --check --status "$state/checksums" 2>/dev/null; then
        found=$state
        break
    fi
done
if [ -n "$found" ]; then
    cp "$found"/* "$work/"
else
    : >"$work/begin"
    compile "$@"
    # What was edited meanwhile may have been read before.
    if [ -n "$cached" ] && [ -z "$(xargs -I '{}' find '{}' -newer "$work/begin" <"$work/sources")" ]; then
        mkdir -p "$cached"
        new=$(mktemp -d "$ATTN_KERNEL_CACHE/new.XXXXXX")
        cp "$work/$name".* "$work/sources" "$new/"
        xargs sha256sum <"$work/sources" >"$new/checksums"
        state=$(sha256sum <"$new/checksums" | cut -c 1-16)
        mv -T "$new" "$cached/$state" 2>/dev/null || rm -rf "$new"
    fi
fi

ROOT=$root OUTPUT=$output awk '
    function escaped(path) { gsub(/ /, "\\ ", path); return path }
    NR == 1 { printf "%s:", escaped(ENVIRON["OUTPUT"] ".ptx") }
    { printf " \\\n  %s", escaped(ENVIRON["ROOT"] "/" $0) }
    END { print "" }' "$work/sources" >"$work/$name.d"

for file in "$work/$name".*; do
    mv -f "$file" "$(dirname "$output")/"
done
