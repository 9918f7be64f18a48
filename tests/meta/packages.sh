#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# packages.sh FOLDER [again]
#
# Installs what `make wheel` and `make deb` have written into FOLDER on a bare Debian and uses it. The
# wheel: pip without a network, python/tests/fresh.py with neither NumPy nor PyTorch, then with
# NumPy. The packages: apt, the C and C++ examples against the shared and the static library, attest,
# Python; then all of them are removed, and nothing is left. With `again` the wheel of this machine is
# built again from the sdist in another folder, and must be the same bytes.
#
# The bare Debian is a chroot made by mmdebstrap (root, network; some minutes).
#
# Invariant: exit code 77 iff no chroot can be made here; 0 iff everything was run and right.
set -eu

out=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
command -v mmdebstrap >/dev/null || { echo "skip packages: no mmdebstrap" && exit 77; }
work=$(mktemp -d)
root=$work/root
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf "$work"' EXIT
fail() {
    echo "FAIL $*"
    exit 1
}

mmdebstrap --quiet --variant=apt --include=g++,libc6-dev,pkg-config,python3,python3-venv bookworm \
    "$root" 2>"$work/log" || { echo "skip packages: mmdebstrap: $(tail -n 1 "$work/log")" && exit 77; }
mount -t proc proc "$root/proc" 2>/dev/null || true # some have it mounted, some may not
mkdir "$root/dist"
cp "$out"/*_"$(dpkg --print-architecture)".deb "$out"/*_all.deb "$out"/*manylinux*_"$(uname -m)".whl \
    "$source"/examples/*.c* "$source/python/tests/fresh.py" "$root/dist"

inside() { # inside NAME COMMANDS: run by sh in the chroot; the seconds are printed
    begin=$(date +%s)
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LC_ALL=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive sh -euc "cd /dist; $2" >"$work/log" 2>&1 ||
        fail "$1: $(cat "$work/log")"
    tail -n 1 "$work/log"
    echo "ok   $1 ($(($(date +%s) - begin)) s)"
}

inside "wheel: pip install" 'python3 -m venv /v; /v/bin/pip install -q --no-index *.whl; /v/bin/pip list'
inside "wheel: without NumPy and PyTorch" '/v/bin/python fresh.py; /v/bin/attest devices | grep "^cpu"; /v/bin/attest exec true'
inside "deb: apt install" 'apt-get update -qq; apt-get install -y -qq --no-install-recommends ./*.deb'
inside "deb: C" 'cc -O2 decode.c -o c $(pkg-config --cflags --libs attn); ./c'
inside "deb: C, static" 'cc -O2 decode.c -o s $(pkg-config --cflags attn) -l:libattn.a -lm; ./s;
    ! ldd s | grep libattn'
inside "deb: C++" 'c++ -std=c++17 attention.cpp -o cpp $(pkg-config --cflags --libs attn); ./cpp'
inside "deb: attest" 'attest bench --seq 128 --dtype bf16 --seconds 0.1
    attest plan --device vgpu --dtype fp16 || attest plan --device vgpu 2>&1 | grep "no GPU kernels"
    zcat /usr/share/man/man1/attest.1.gz | grep -c "^.SH ATTEST"
    bash -c ". /usr/share/bash-completion/completions/attest; complete -p attest"; attest exec true; attest --version'
inside "deb: Python" 'python3 fresh.py'
inside "NumPy" 'apt-get install -y -qq --no-install-recommends python3-numpy; python3 fresh.py;
    python3 -m venv --system-site-packages /n; /n/bin/pip install -q --no-index *.whl; /n/bin/python fresh.py |
    grep "numpy [0-9]"'
inside "deb: apt remove" 'apt-get purge -y -qq $(dpkg-query -W -f "\${Package} \${source:Package}\n" | sed -n "s/ attn$//p")
    ! dpkg -l | grep -E "attn|attest|vgpu"
    find /usr /etc -type f -o -type l | grep -E "attn|attest|vgpu" && exit 1 || echo nothing is left'

[ "${2:-}" = again ] || exit 0
copy=$work/another/and/longer/folder
mkdir -p "$copy"
tar xzf "$out"/attn-*.tar.gz -C "$copy" --strip-components=1
mkdir "$copy/build-wheel"
ln -s "$source/build-wheel/venv" "$copy/build-wheel/venv"
[ ! -e "$source/build-nvcc" ] || ln -s "$source/build-nvcc" "$copy/build-nvcc"
ATTN_KERNEL_CACHE=${ATTN_KERNEL_CACHE:-$source/build-wheel/kernels} ATTN_TARGETS=$(uname -m) \
    sh "$copy/python/wheels.sh" "$work/again" >"$work/log" 2>&1 || fail "the sdist: $(cat "$work/log")"
wheel=$(basename "$work"/again/*.whl)
cmp "$work/again/$wheel" "$out/$wheel" || fail "built again, $wheel differs"
echo "ok   the same wheel from the sdist in another folder"
