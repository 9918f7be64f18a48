#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# release.sh FOLDER
#
# Everything of a release in FOLDER: wheels and sdist, Debian packages, the documentation site, the
# evidence pack; SHA256SUMS of them; SHA256SUMS.sig, if RELEASE_KEY names an SSH key (check it with
# `ssh-keygen -Y verify -n attest`). Then the annotated tag vVERSION, unless it points here already.
#
# Invariant: the tag names a commit whose tree is clean, whose CHANGELOG has the version, and from
# which all of these were built.
set -eu
cd "$(dirname "$0")/.."
folder=$1
version=$(sed -n 's/^#define ATTN_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' include/attn.h | paste -sd.)
tag=v$version

fail() {
    echo "release.sh: $*" >&2
    exit 1
}

[ -z "$(git status --porcelain)" ] || fail "the tree has changes that are not committed"
grep -q "^## $version\b" CHANGELOG.md || fail "CHANGELOG.md has no heading '## $version'"
! grep -q '^## Unreleased' CHANGELOG.md || fail "CHANGELOG.md has changes under '## Unreleased'"
if git rev-parse -q --verify "refs/tags/$tag" >/dev/null; then
    [ "$(git rev-list -n 1 "$tag")" = "$(git rev-parse HEAD)" ] || fail "$tag is another commit"
fi
rm -rf "$folder"
mkdir -p "$folder"
make wheel deb docs
cp dist/attn-"$version"* dist/*.deb "$folder"
tar -C build-docs/site -czf "$folder/attest-$version-docs.tar.gz" .
tar -C results -czf "$folder/attest-$version-h200-pack.tar.gz" h200
(cd "$folder" && sha256sum -- * >SHA256SUMS)
if [ -n "${RELEASE_KEY:-}" ]; then
    ssh-keygen -q -Y sign -n attest -f "$RELEASE_KEY" "$folder/SHA256SUMS"
else
    echo "release.sh: not signed; RELEASE_KEY=FILE names an SSH key" >&2
fi
git rev-parse -q --verify "refs/tags/$tag" >/dev/null || git tag -a "$tag" -m "attest $version"
cat "$folder/SHA256SUMS"
