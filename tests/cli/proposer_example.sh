#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# proposer_example.sh - the smallest proposer for `attest evolve --proposer`: of the best candidate so
# far it wants twice and half as many keys in a step. docs/evolve.md has the protocol.
#
# Invariant: it reads the request on its standard input and writes one answer, whatever the request.
awk '
    /"parents": \[/ { inside = 1 }
    inside && family == "" && /"family":/ { split($0, part, "\""); family = part[4] }
    inside && id == "" && /"id":/ { id = $2; sub(/,/, "", id) }
    inside && !seen && /"knobs": \{/ { knobs = 1; next }
    knobs && /\}/ { knobs = 0; seen = 1 }
    knobs {
        name = $1
        gsub(/[":]/, "", name)
        value[name] = $2 + 0
    }
    function proposal(keys,    text, one) {
        text = ""
        for (one in value)
            text = text (text == "" ? "" : ", ") "\"" one "\": " (one == "block_kv" ? keys : value[one])
        return "{\"family\": \"" family "\", \"parent\": " id ", \"predicted\": 1.01, " \
               "\"hypothesis\": \"" keys " keys in a step fit the cache better\", \"knobs\": {" text "}}"
    }
    END {
        printf "{\"schema\": \"attest-proposer/1\", \"proposals\": ["
        if (seen)
            printf "%s, %s", proposal(2 * value["block_kv"]), proposal(value["block_kv"] / 2)
        print "]}"
    }'
