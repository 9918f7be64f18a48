/* SPDX-License-Identifier: Apache-2.0
 *
 * variant_by_name.c - see variant_by_name.h.
 */
#include "device/variant_by_name.h"

#include <string.h>

#include "base/message.h"

bool variant_by_name(const attn_context *context, const char *name, attn_variant *variant,
                     attn_error *why) {
    *variant = (attn_variant){.size = sizeof *variant};
    for (int32_t i = 0; attn_variant_get(context, i, variant, NULL) == ATTN_OK; i++) {
        if (strcmp(variant->name, name) == 0) {
            return true;
        }
        *variant = (attn_variant){.size = sizeof *variant};
    }
    return explain(why, "variant = %s: the device has none of that name", name);
}
