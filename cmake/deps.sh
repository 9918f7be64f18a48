#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs missing packages with apt-get: for building and testing (`deps.sh test`), or for
# every target of the Makefile (`deps.sh all`: clang and its tools, ccache, Rust, a cross compiler,
# an emulator, tools that check packages).
# Where that cannot work (no root, no network, another system) it says in one line what is missing.
#
# Invariant: exit code 0 iff there is a C compiler and CMake afterwards; nothing asks a question.
set -u
scope=${1:-all}
log=${TMPDIR:-/tmp}/attest-deps-$$.log

have() {
    command -v "$1" >/dev/null 2>&1
}

# package, and how to see that it is not needed
missing_packages() {
    have cc && have make || echo build-essential
    have c++ || echo g++
    have cmake || echo cmake
    have pkg-config || echo pkg-config
    have python3 || echo python3
    have abidiff || echo abigail-tools
    have mpicc || echo libopenmpi-dev
    have mpirun || echo openmpi-bin
    [ "$scope" = all ] || return 0
    python3 -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
    have ccache || echo ccache
    have clang || echo clang
    ls "$(clang -print-resource-dir 2>/dev/null)"/lib/linux/libclang_rt.fuzzer-* >/dev/null 2>&1 ||
        echo libclang-rt-dev
    have clang-tidy || echo clang-tidy
    have clang-format || echo clang-format
    have cargo || echo cargo
    have bindgen || echo bindgen
    have dpkg-architecture || echo dpkg-dev
    have lintian || echo lintian
    have mmdebstrap || echo mmdebstrap
    have chromium || have chromium-browser || have google-chrome || echo chromium
    case $(uname -m) in
    aarch64)
        have x86_64-linux-gnu-gcc || echo gcc-x86-64-linux-gnu
        [ -e /usr/x86_64-linux-gnu/include/stdio.h ] || echo libc6-dev-amd64-cross
        have qemu-x86_64 || echo qemu-user
        ;;
    esac
}

install_packages() {
    have apt-get || return 1
    if [ "$(id -u)" = 0 ]; then
        as_root="env"
    elif have sudo && sudo -n true 2>/dev/null; then
        as_root="sudo -n env"
    else
        because="needs root"
        return 1
    fi
    options="-qq -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15"
    # shellcheck disable=SC2086 # both variables are lists of words
    timeout 120 $as_root apt-get $options update >>"$log" 2>&1 || return 1
    # All at once, or one by one where another release lacks a name.
    echo "deps: installing" "$@"
    apt_install "$@" && return 0
    for package in "$@"; do
        apt_install "$package"
    done
}

apt_install() {
    # shellcheck disable=SC2086 # both variables are lists of words
    $as_root DEBIAN_FRONTEND=noninteractive \
        apt-get $options install -y --no-install-recommends "$@" </dev/null >>"$log" 2>&1
}

missing=$(missing_packages)
if [ -n "$missing" ]; then
    because="apt-get failed, see $log"
    # shellcheck disable=SC2086 # a list of words
    install_packages $missing || true
    missing=$(missing_packages)
    if [ -n "$missing" ]; then
        # shellcheck disable=SC2086 # a list of words
        echo "deps: left out ($because):" $missing
    else
        rm -f "$log"
    fi
fi
if [ "$scope" = all ] && ! (PATH=$PATH:/usr/local/cuda/bin && have "${CUDACXX:-nvcc}"); then
    # Debian's own is too old, and NVIDIA's packages have a licence that the user should see.
    [ -e build-nvcc ] || echo "deps: no nvcc: kernels for NVIDIA GPUs are left out (\`make nvcc\` installs it)"
fi
have cc && have cmake && exit 0
echo "deps: a C compiler (cc) and cmake are needed" >&2
exit 1
