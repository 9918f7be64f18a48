/* SPDX-License-Identifier: Apache-2.0
 *
 * source.h - what may back a figure: JSON files and evidence packs of one folder.
 *
 * Invariant: of a pack it gives what follows from the raw files (evidence_make), or an artifact
 * that a unit names, and only if evidence.json and statement.json say the same and the verdict is
 * PASS (of less than all stages, too); nothing outside the folder is read.
 */
#ifndef ATTEST_CLAIMS_SOURCE_H
#define ATTEST_CLAIMS_SOURCE_H

#include "base/json_read.h"

struct claims_source {
    char *name;
    struct json_value *document; /* NULL: it is none, for this reason */
    attn_error why;
};

struct claims_sources {
    const char *folder;
    struct claims_source *items;
    size_t count;
};

/* "h200.json"; the folder of a pack, "h200"; or 8 digits or more of the name of an artifact of it,
 * "h200/artifacts/1f2e3d4c". Each is read once. NULL and the reason. */
const struct json_value *claims_source(struct claims_sources *sources, const char *name,
                                       attn_error *why);
void claims_sources_free(struct claims_sources *sources);

#endif /* ATTEST_CLAIMS_SOURCE_H */
