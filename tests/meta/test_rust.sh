#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_rust.sh SOURCE_DIR BUILD_DIR
#
# Proves that examples/rust builds against an installed libattn with cargo and bindgen alone, without
# a crate or a network, and computes what it checks.
set -eu

source=$1
build=$2
for program in cargo bindgen pkg-config; do
    command -v $program >/dev/null || { echo "skip rust: no $program" && exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/attn" >"$work/log"
cp -R "$source/examples/rust" "$work/rust"
PKG_CONFIG_PATH=$(dirname "$(find "$work/attn" -name attn.pc)")
export PKG_CONFIG_PATH
(cd "$work/rust" && cargo run --offline --quiet) >"$work/said" 2>&1 || {
    cat "$work/said"
    echo "FAIL rust"
    exit 1
}
if grep -q '^warning' "$work/said" || ! grep -q '^ok, largest error' "$work/said"; then
    cat "$work/said"
    echo "FAIL rust: expected no warning, and a result"
    exit 1
fi
echo "ok   rust"
