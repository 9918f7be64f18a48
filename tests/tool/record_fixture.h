/* SPDX-License-Identifier: Apache-2.0
 *
 * record_fixture.h - runs a recorder and reads its unit back, as `attest run` would store it.
 */
#ifndef TESTS_TOOL_RECORD_FIXTURE_H
#define TESTS_TOOL_RECORD_FIXTURE_H

#include "tool/base/json_read.h"
#include "tool/stages/stage.h"

#define LIBRARY "2222222222222222222222222222222222222222222222222222222222222222"
#define SEED "0123456789abcdef"

typedef bool recorder(const struct slot *slot, struct pack *pack, struct json *unit,
                      attn_error *why);

/* NULL and the reason where nothing was recorded. */
struct json_value *recorded(const struct slot *slot, const char *stage, recorder *record,
                            struct pack *pack, attn_error *why);

#endif /* TESTS_TOOL_RECORD_FIXTURE_H */
