#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [-l LIST] ATTEST SAMPLES WORK [NAME]...
#
# NVIDIA's cuda-samples on the virtual GPU: builds each program of cuda-samples.txt from the checkout
# SAMPLES by `attest nvcc` in the folder WORK, runs it by `attest exec`, and compares with the
# outcome that the list expects. Prints a table. Fails if an outcome differs. LIST is another
# such list, of the programs of another project: hecbench.txt.
#
# It fetches nothing. SAMPLES is not changed. SECONDS_MOST (600) bounds each run, JOBS (1) is how
# many run at once.
set -u
list=$(cd "$(dirname "$0")" && pwd)/cuda-samples.txt
if [ "${1:-}" = -l ] && [ $# -ge 2 ]; then
    list=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
    shift 2
fi
[ $# -ge 3 ] || { sed -n '3,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
attest=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
samples=$(cd "$2" && pwd) || exit 2
mkdir -p "$3" && work=$(cd "$3" && pwd) || exit 2
shift 3
[ ! -e "$samples/Common" ] || cp -r "$samples/Common" "$work/" # data are in ../Common

nvcc=$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
include=$(cd "$(dirname "$nvcc")/../include" && pwd)

# build NAME [libs=L,L] [rdc] [fatbin=FROM,TO] [ptx=FROM,TO] [only=FILE,FILE] [include=FOLDER] [cg]:
# in the current folder; include: a folder of the checkout
build() {
    name=$1
    shift
    libraries='' options='' skipped='' only=''
    for word in "$@"; do
        files=$(echo "${word#*=}" | tr , ' ')
        case $word in
        libs=*) libraries=$files ;;
        rdc) options="$options -rdc=true" ;;
        fatbin=* | ptx=*)
            skipped="$skipped ${files% *}"
            # shellcheck disable=SC2086 # words
            "$attest" nvcc "-${word%%=*}" -std=c++17 -I../Common -o ${files#* } ${files% *} ||
                return 1
            ;;
        only=*) only=$files ;;
        include=*) options="$options -I$samples/$files" ;;
        cg) # what the program hands to NVRTC
            ln -sf "$include/cooperative_groups" "$include/cooperative_groups.h" \
                "$include/cccl/cuda" "$include/cccl/nv" .
            ;;
        esac
    done
    sources=''
    for file in ${only:-*.cu *.cpp *.c src/*.cu src/*.cpp}; do
        case " $skipped " in *" $file "*) continue ;; esac
        [ ! -e "$file" ] || sources="$sources $file"
    done
    # shellcheck disable=SC2086 # words
    "$attest" nvcc -O2 -std=c++17 --extended-lambda -Wno-deprecated-gpu-targets -Xcompiler -fopenmp \
        -I../Common -Iinc -I. $options -o "$name.out" $sources $libraries
}

# one FOLDER/NAME OUTCOME BUILD EXEC ARGUMENTS: a row of the table; status 1 if it is unexpected
one() {
    name=$(basename "$1")
    rm -rf "${work:?}/$name"
    cp -r "$samples/$1" "$work/$name" && cd "$work/$name" || return 1
    begin=$(date +%s)
    # shellcheck disable=SC2086 # words
    if ! build "$name" $3 >build.log 2>&1; then
        outcome="does not compile"
    else
        # shellcheck disable=SC2086 # words
        timeout "${SECONDS_MOST:-600}" "$attest" exec --report report.txt $4 "./$name.out" $5 \
            >stdout 2>stderr </dev/null
        code=$?
        kinds=$(sed -n 's/.*error: \([a-z-]*\): .*/\1/p' report.txt 2>/dev/null | sort -u |
            tr '\n' ' ')
        outcome=passes
        [ "$code" -eq 0 ] || outcome="exit code $code"
        [ -z "$kinds" ] || outcome="finds ${kinds% }"
        [ "$code" -ne 124 ] || outcome="not done in ${SECONDS_MOST:-600} s"
    fi
    mark=" "
    [ "$outcome" = "$2" ] || mark="!"
    printf '%s %-30s %-28s %5s s  %s\n' "$mark" "$name" "$outcome" "$(($(date +%s) - begin))" \
        "$([ "$mark" = " " ] || echo "expected: $2")"
    [ "$mark" = " " ]
}

trim() { echo "$1" | sed 's/^ *//;s/ *$//'; }

status=0 running=0
# shellcheck disable=SC2034 # why
while IFS='|' read -r folder outcome how options arguments why; do
    folder=$(trim "$folder") outcome=$(trim "$outcome")
    case $folder in '' | '#'*) continue ;; esac
    [ "$outcome" != "left out" ] || continue
    if [ $# -gt 0 ]; then
        case " $* " in *" $(basename "$folder") "*) ;; *) continue ;; esac
    fi
    (one "$folder" "$outcome" "$(trim "$how")" "$(trim "$options")" "$(trim "$arguments")") ||
        : >"$work/unexpected" &
    running=$((running + 1))
    if [ "$running" -ge "${JOBS:-1}" ]; then
        wait
        running=0
    fi
done <"$list"
wait
[ ! -e "$work/unexpected" ] || { rm "$work/unexpected" && status=1; }
exit $status
