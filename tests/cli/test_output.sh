#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_output.sh - where `attest attn` writes O and the LSE: through symbolic links, over its own
# inputs, into devices and pipes; and that a failure of either leaves both as they were.
#
# usage: test_output.sh ATTEST, or SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

npy q.npy f2 "1, 2, 1024, 1"
attn="attn --q q.npy --k q.npy --v q.npy"
accepts "O and LSE" $attn -o good_o.npy --lse good_l.npy

# ---- symbolic links ----------------------------------------------------------------------------

mkdir folder
ln -s folder/absent.npy dangling.npy
ln -s dangling.npy chain.npy
ln -s "$work/folder/far.npy" absolute.npy
accepts "a dangling link" $attn -o chain.npy --lse absolute.npy
holds "the links are still there" [ -h chain.npy -a -h dangling.npy -a -h absolute.npy ]
holds "what they lead to is a file" [ -f folder/absent.npy -a ! -h folder/absent.npy ]
same "through two links" folder/absent.npy good_o.npy
same "through an absolute link" folder/far.npy good_l.npy
echo old >folder/absent.npy
accepts "a link to a file" $attn -o chain.npy
same "a link to a file" folder/absent.npy good_o.npy
holds "the links are there now as well" [ -h chain.npy -a -h dangling.npy ]
ln -s nowhere/o.npy lost.npy
refuses "a link into no folder" "lost.npy: cannot write: No such file" $attn -o lost.npy
ln -s loop_b.npy loop_a.npy
ln -s loop_a.npy loop_b.npy
refuses "a loop of links" "loop_a.npy: cannot write" $attn -o loop_a.npy
ln -s folder folder_link
refuses "a link to a folder" "folder_link: cannot write: it is a directory" $attn -o folder_link
accepts "in a folder that is a link" $attn -o folder_link/o.npy
rm -f folder/*
refuses "one file by two names" "same file" $attn -o folder/absent.npy --lse chain.npy
refuses "one file by two links" "same file" $attn -o dangling.npy --lse chain.npy
holds "they still lead nowhere" [ ! -e chain.npy ]

# ---- one of two fails --------------------------------------------------------------------------

# Two bytes for each row of O, four for each of the LSE: a limit between them, in blocks of 512.
limited() {
    (ulimit -f 12 && "$attest" $attn "$@" >stdout 2>stderr)
}
limited -o o.npy --lse l.npy
holds "LSE too large: exit code" [ $? -eq 2 ]
holds "LSE too large: complaint" grep -q 'l.npy: cannot write: File too large' stderr
holds "LSE too large: neither is there" nothing_left
echo old >old_o.npy
limited -o old_o.npy --lse l.npy
holds "LSE too large: the old O stays" grep -qx old old_o.npy
mkfifo pipe
cat pipe >piped.npy &
limited -o pipe --lse l.npy
wait
holds "LSE too large: nothing went into the pipe" [ ! -s piped.npy ]
holds "LSE too large: nothing else is there" nothing_left
refuses "LSE is a folder" "folder: cannot write: it is a directory" $attn -o o.npy --lse folder
refuses "LSE is a folder, an old O" "directory" $attn -o old_o.npy --lse folder
holds "LSE is a folder: the old O stays" grep -qx old old_o.npy
if [ -c /dev/full ]; then
    refuses "LSE on a full disk" "No space left" $attn -o old_o.npy --lse /dev/full
    holds "LSE on a full disk: the old O stays" grep -qx old old_o.npy
fi
if [ "$(id -u)" -ne 0 ]; then
    mkdir locked
    : >locked/l.npy
    chmod 555 locked
    refuses "LSE in a locked folder" "Permission denied for a new file in its folder" $attn -o o.npy \
        --lse locked/l.npy
    chmod 755 locked
fi

# ---- other files -------------------------------------------------------------------------------

accepts "over an input" $attn -o q.npy --lse q.npy.lse
same "over an input" q.npy good_o.npy
npy q.npy f2 "1, 2, 1024, 1"
cp q.npy k.npy
accepts "over two inputs" attn --q q.npy --k k.npy --v q.npy -o q.npy --lse k.npy
same "over two inputs: O" q.npy good_o.npy
same "over two inputs: LSE" k.npy good_l.npy
npy q.npy f2 "1, 2, 1024, 1"
accepts "/dev/null" $attn -o /dev/null --lse l.npy
same "/dev/null beside a file" l.npy good_l.npy
accepts "/dev/null for the LSE" $attn -o o.npy --lse /dev/null
same "/dev/null for the LSE" o.npy good_o.npy
holds "/dev/null is still a device" [ -c /dev/null ]
rm -f o.npy l.npy
"$attest" $attn -o /dev/stdout 2>stderr | head -c 4224 >stdout.npy
same "/dev/stdout, a pipe" stdout.npy good_o.npy
echo secret >private.npy
chmod 600 private.npy
accepts "over a private file" $attn -o private.npy
case $(ls -l private.npy) in -rw-------*) ok ;; *) bad "private" "$(ls -l private.npy)" ;; esac
holds "no temporary files" nothing_left

finish
