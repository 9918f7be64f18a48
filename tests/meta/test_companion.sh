#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_companion.sh - proves that libattn finds libattn_ptx.so in its own folder alone, and that the
# virtual GPU, which needs it, gets one sentence when it is absent, broken or of another build. What
# needs no PTX goes on without it.
#
# usage: test_companion.sh SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/../cli/cli.sh"

build=$(dirname "$attest")
if [ "$(cat "$build/kernels/built.txt")" = 0 ]; then
    skipped companion "no kernels for GPUs were built" && finish
fi
if [ ! -e "$build/libvgpu.so" ]; then
    skipped companion "no virtual GPU was built" && finish
fi

# An installation of its own: the build folder plays no part.
cmake --install "$build" --prefix "$work/here" >log 2>&1 || { bad "install" "$(cat log)" && finish; }
folder=$(dirname "$(find "$work/here" -name libattn.so)")
attest=$work/here/bin/attest
companion=$folder/libattn_ptx.so
holds "it is installed beside the library" test -e "$companion"
mv "$companion" kept

# A link in another folder: the file's own folder counts, not the link's.
mkdir links
ln -s "$folder/libattn.so" "$work/links/libattn.so.0"
refused() { # refused NAME TEXT...: on the virtual GPU and by inspect, in one sentence each
    what=$1
    shift
    for verb in "plan --device vgpu --dtype fp16" "inspect"; do
        # shellcheck disable=SC2086 # a list of words
        run $verb
        holds "$what: $verb is refused" test $code -ne 0
        holds "$what: $verb says one sentence" one_line_of_complaint
        for text in "$@"; do
            holds "$what: $verb says '$text'" grep -q -F "$text" stderr
        done
    done
}

refused "absent" "which a virtual GPU runs, is in libattn_ptx.so beside libattn" \
    "$companion: cannot open shared object file: No such file or directory"
run parity --device vgpu --cases 1 --launches 1
holds "absent: parity does not pass" test $code -ne 0

# A GPU loads cubins, or the fatbin: all of it is in the library.
fake=$build/tests/libfake_driver.so
accepts "absent: a GPU's plan" plan --device cuda --driver "$fake" --dtype fp16 --all
says "absent: the images in the library" "images sm_80 sm_90 compute_80"
holds "absent: no other images" sh -c '! grep -q "\.ptx" stdout'
refuses "absent: PTX is requested" "$companion" plan --device cuda --driver "$fake" --dtype fp16 --ptx

identity=$(cat "$build/kernels/identity.txt")
sed "s/$identity/0000000000000000$(echo "$identity" | cut -c 17-)/" kept >"$companion"
refused "another build" "$companion is of another build than libattn" \
    "(000000000000, expected $(echo "$identity" | cut -c 1-12))"
echo "no library" >"$companion"
refused "broken" "$companion: file too short"

cp kept "$companion"
accepts "present" plan --device vgpu --dtype fp16 --all
says "present: its images" "compute_80.ptx"
LD_LIBRARY_PATH=$work/links accepts "through a link" plan --device vgpu --dtype fp16
finish
