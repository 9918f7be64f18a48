#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - runs `attest check` for each line of $CHECK; the step of action.yml. All lines run. Exit
# code 1 if any failed.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
failed=0
echo "::add-matcher::$here/matcher.json"
while IFS= read -r line; do
    [[ $line =~ [^[:space:]] ]] || continue
    echo "::group::attest check $line"
    # The words of the line, quotes as in a shell; nothing in it is expanded or run.
    words=()
    while IFS= read -r -d '' word; do
        words+=("$word")
    done < <(xargs printf '%s\0' <<<"$line")
    "${ATTEST:-attest}" check "${words[@]}" || failed=1
    echo "::endgroup::"
done <<<"${CHECK:-}"
echo "::remove-matcher owner=attest::"
exit "$failed"
