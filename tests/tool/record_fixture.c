/* SPDX-License-Identifier: Apache-2.0
 *
 * record_fixture.c - see record_fixture.h.
 */
#include "tool/record_fixture.h"

#include <stdio.h>
#include <stdlib.h>

#include "test.h"

struct json_value *recorded(const struct slot *slot, const char *stage, recorder *record,
                            struct pack *pack, attn_error *why) {
    char *text = NULL, name[SHA256_TEXT];
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    struct json json = json_begin(out);
    json_open(&json, NULL, '{');
    json_text(&json, "schema", PACK_UNIT_SCHEMA);
    json_text(&json, "stage", stage);
    json_text(&json, "device", slot->device);
    json_text(&json, "variant", slot->variant);
    json_text(&json, "image", slot->image);
    json_text(&json, "tool", "0.1.0");
    json_text(&json, "library", LIBRARY);
    json_text(&json, "seed", SEED);
    json_real(&json, "seconds", 100.0);
    const bool good = record(slot, pack, &json, why);
    json_close(&json);
    fclose(out);
    struct json_value *unit = NULL;
    if (good && CHECK_MSG(pack_add_unit(pack, text, name, why), "%s", why->text)) {
        unit = pack_read_unit(pack, name, why);
    }
    free(text);
    return unit;
}
