#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# browser.sh BUILD_DIR: the pages of attest report in a real browser (tests/meta/browser.py says what is
# looked at), of packs that tests/tool/report_fixture.c makes. Leaves pages and screenshots in
# BUILD_DIR/report, to be looked at. Needs Chromium and Python.
#
# Invariant: exit code 0 iff every page was written, opened and found in order; never a skip.
set -eu
cd "$(dirname "$0")/../.."
build=$1
out=$build/report
rm -rf "$out"
mkdir -p "$out"
for kind in full partial failing hostile large; do
    "$build/tests/test_report" --make "$kind" "$out/$kind-pack"
    "$build/attest" report "$out/$kind-pack" --html "$out/report-$kind.html" \
        --markdown "$out/report-$kind.md"
done
python3 tests/meta/browser.py "$out" report-full report-partial report-failing report-hostile report-large
