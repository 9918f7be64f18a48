/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - see record.h.
 */
#include "stages/record.h"

void record_control(struct json *unit, const char *name, bool caught) {
    json_open(unit, NULL, '{');
    json_text(unit, "name", name);
    json_bool(unit, "caught", caught);
    json_close(unit);
}
