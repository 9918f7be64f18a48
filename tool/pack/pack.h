/* SPDX-License-Identifier: Apache-2.0
 *
 * pack.h - an evidence pack on disk: a folder, docs/proof.md says what is in it.
 *
 *     PACK/plan.json            the request; a folder without it is no pack
 *     PACK/units/HASH.json      what one piece of work observed
 *     PACK/artifacts/HASH       logs and other raw files that units name
 *     PACK/evidence.json        what follows from them; absent while a run goes on
 *
 * Invariant: a file appears whole, under its name, or not at all, and is on disk before it has the
 * name: a run that is killed, or a disk that is full, leaves what was there, and at worst a file
 * `.attest-*.tmp`, which is ignored. What is read of units/ and artifacts/ has the SHA-256 that it
 * is called by.
 */
#ifndef ATTEST_PACK_PACK_H
#define ATTEST_PACK_PACK_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"
#include "base/sha256.h"

#define PACK_SCHEMA "attest-evidence/1"
#define PACK_UNIT_SCHEMA "attest-unit/1"

struct pack {
    char *path;
    struct json_value *plan;
    char plan_hash[SHA256_TEXT];
};

enum pack_folder { PACK_UNITS, PACK_ARTIFACTS, PACK_FOLDERS };

/* Makes the folder, or takes one with nothing in it but `.attest-*.tmp`; and writes the plan: JSON
 * in any form, whose "schema" is PACK_SCHEMA. After a failure, too, the pack may be closed. */
bool pack_make_folder(const char *path, attn_error *why);
bool pack_create(struct pack *pack, const char *path, const char *plan, attn_error *why);

/* Refuses what is no pack, and packs of another schema. */
bool pack_open(struct pack *pack, const char *path, attn_error *why);
void pack_close(struct pack *pack);

/* Another plan in place of the old one, by one rename. */
bool pack_replan(struct pack *pack, const char *plan, attn_error *why);

/* Stores JSON in its canonical form, or bytes as they are, and says what they are called. What is
 * there already is the same, and stays. */
bool pack_add_unit(const struct pack *pack, const char *json, char name[SHA256_TEXT],
                   attn_error *why);
bool pack_add_artifact(const struct pack *pack, const void *data, size_t bytes,
                       char name[SHA256_TEXT], attn_error *why);

/* A file of another pack, with the same bytes and name. */
bool pack_copy(const struct pack *from, const struct pack *to, enum pack_folder folder,
               const char *name, attn_error *why);

/* Their names in the order of their bytes. A file that is neither is refused. */
struct pack_names {
    char (*names)[SHA256_TEXT];
    size_t count;
};
bool pack_list(const struct pack *pack, enum pack_folder folder, struct pack_names *names,
               attn_error *why);
void pack_names_free(struct pack_names *names);

/* The bytes, which have the hash `name`, for free(). */
char *pack_read(const struct pack *pack, enum pack_folder folder, const char *name, size_t *bytes,
                attn_error *why);

/* A unit, for json_free. */
struct json_value *pack_read_unit(const struct pack *pack, const char *name, attn_error *why);

/* Writes PACK/file over what it was; reads it: NULL, and an empty sentence if it is absent. */
bool pack_publish(const struct pack *pack, const char *file, const char *text, size_t bytes,
                  attn_error *why);
/* Removes PACK/file; it need not be there. */
bool pack_withdraw(const struct pack *pack, const char *file, attn_error *why);
char *pack_published(const struct pack *pack, const char *file, size_t *bytes, attn_error *why);

#endif /* ATTEST_PACK_PACK_H */
