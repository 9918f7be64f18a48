/* SPDX-License-Identifier: Apache-2.0
 *
 * variant_by_name.h - a variant by its name.
 */
#ifndef ATTEST_DEVICE_VARIANT_BY_NAME_H
#define ATTEST_DEVICE_VARIANT_BY_NAME_H

#include <stdbool.h>

#include "attn_inspect.h"

/* Of the context's device, those that were added to it included. False and the reason: it has none
 * of that name. */
bool variant_by_name(const attn_context *context, const char *name, attn_variant *variant,
                     attn_error *why);

#endif /* ATTEST_DEVICE_VARIANT_BY_NAME_H */
