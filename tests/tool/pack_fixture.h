/* SPDX-License-Identifier: Apache-2.0
 *
 * pack_fixture.h - a small evidence pack that is right in every stage, for tests that spoil it.
 *
 * Its verdict is PASS, not partial: a full plan of six stages for one GPU variant, and parity and
 * bench of a CPU variant.
 */
#ifndef PACK_FIXTURE_H
#define PACK_FIXTURE_H

#include "tool/pack/pack.h"
#include "tool/stages/profile/ncu.h"

enum { FIXTURE_SAMPLES = 40 };

/* A new folder under /tmp, for free(), that does not exist yet inside one that does. */
char *fixture_path(void);

/* Removes the pack and the folder around it. */
void fixture_remove(char *path);

/* The plan: static text. */
const char *fixture_plan(void);

/* The pack with all its units, artifacts and evidence.json. */
bool fixture_make(struct pack *pack, const char *path, attn_error *why);

/* Writes evidence.json as it follows from the pack now. */
bool fixture_publish(const struct pack *pack, attn_error *why);

/* The artifact of what a tool, or a stage, printed, and its name. The figures that ncu would have
 * of a kernel. */
bool fixture_log(const struct pack *pack, const char *tool, const char *variant,
                 char name[SHA256_TEXT], attn_error *why);
struct ncu_kernel fixture_kernel(const char *variant, double busy, double tensor);

/* What a tool of compute-sanitizer said of its planted fault in that kernel, for free(). */
char *fixture_fault_log(int tool, const char *kernel, attn_error *why);

/* The recipe of a random case, as in a run. */
const char *fixture_recipe(const char *variant, const char *seed, int64_t number, char recipe[64]);

/* `text` with its first `find` replaced, for free(); NULL where there is none. */
char *replaced(const char *text, const char *find, const char *by);

/* The name of the unit of that stage on that device. */
bool fixture_find(const struct pack *pack, const char *stage, const char *device,
                  char name[SHA256_TEXT], attn_error *why);

/* Changes that unit and its hash: the old one goes, and the new one has the name of its content.
 * evidence.json stays as it was. fixture_restore takes it back, and must follow where fixture_edit
 * was true. */
struct fixture_edit {
    char *text; /* as it was */
    char name[SHA256_TEXT];
};
bool fixture_edit(const struct pack *pack, const char *stage, const char *device, const char *find,
                  const char *by, struct fixture_edit *edit, attn_error *why);
bool fixture_restore(const struct pack *pack, struct fixture_edit *edit, attn_error *why);

bool fixture_drop(const struct pack *pack, const char *stage, const char *device, attn_error *why);

#endif /* PACK_FIXTURE_H */
