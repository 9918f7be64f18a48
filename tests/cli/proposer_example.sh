#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# proposer_example.sh - the smallest proposer for `attest evolve --proposer`: of the best candidate so
# far it wants twice and half as many keys in a step. docs/evolve.md has the protocol.
#
# Invariant: it reads the request on its standard input and writes one answer, whatever the request.
awk '
    # keys come in the order of their letters: candidates before leaderboard, family, id, knobs
    /"candidates": \[/ { inside = 1 }
    /"leaderboard": \[/ && getline > 0 { best = $1 + 0; seen = $1 ~ /^[0-9]/; inside = 0 }
    inside && /"family":/ { split($0, part, "\""); name = part[4] }
    inside && /"id":/ { id = $2 + 0; family[id] = name }
    inside && /"(block_q|block_kv|warps|stages)":/ { gsub(/[":,]/, ""); value[id, $1] = $2 }
    function proposal(keys,    text, one, knobs, count) {
        count = split("block_q block_kv warps stages", knobs, " ")
        for (one = 1; one <= count; one++)
            if ((best, knobs[one]) in value)
                text = text (text == "" ? "" : ", ") "\"" knobs[one] "\": " \
                       (knobs[one] == "block_kv" ? keys : value[best, knobs[one]])
        return "{\"family\": \"" family[best] "\", \"predicted\": 1.01, " \
               "\"hypothesis\": \"" keys " keys in a step fit the cache better\", \"knobs\": {" text "}}"
    }
    END {
        printf "{\"schema\": \"attest-proposer/2\", \"proposals\": ["
        if (seen)
            printf "%s, %s", proposal(2 * value[best, "block_kv"]), proposal(value[best, "block_kv"] / 2)
        print "]}"
    }'
