/* SPDX-License-Identifier: Apache-2.0
 *
 * parts.h - what the parts of the judge know of each other.
 *
 *     judge.c     the table of the stages, controls, values
 *     cases.c     cases and launches
 *     logs.c      what ptxas, cuobjdump, ncu and compute-sanitizer printed
 *     timing.c    samples, and the statistics that follow from them
 *     state.c     what was seen beside the samples
 *     row.c       what only several units together can show
 *
 * Invariant: each judges what it is given, and nothing that it does not look at can pass for it.
 */
#ifndef ATTEST_PACK_PARTS_H
#define ATTEST_PACK_PARTS_H

#include "attn.h"
#include "pack/judge.h"

/* An object, with only keys of the list, which ends with NULL: what nobody judges could look like a
 * verdict. NULL is fine. */
void judge_known(const struct json_value *object, const char *const *known, const char *what,
                 struct judgement *judgement);

/* The value of a key, where it is there, is of that kind: what has another is not looked at. */
void judge_kind(const struct json_value *object, const char *key, enum json_kind kind,
                struct judgement *judgement);

/* Bytes of an artifact, for free(). NULL: judged. */
char *judge_artifact(const struct pack *pack, const struct json_value *name, size_t *bytes,
                     struct judgement *judgement);

/* What the plan says that a device is: "NVIDIA H200, sm_90, ..."; NULL: nothing. */
const char *plan_model(const struct json_value *plan, const char *device);

/* ---- cases and launches (cases.c) --------------------------------------------------- */

/* Numbers go from 0 to one less than the plan asked for, each once, and each was drawn from the
 * plan's seed for this variant. */
void judge_cases(const struct json_value *row, const struct json_value *unit,
                 struct judgement *judgement);

/* As many as the plan asked for, in every way of launching. */
void judge_launches(const struct json_value *row, const struct json_value *unit,
                    struct judgement *judgement);

/* Asynchronous work completed in every order in a full run. */
void judge_orders(const struct json_value *plan, const struct json_value *unit,
                  struct judgement *judgement);

/* Where there are enough cases, wrong results were tried on them: not on an empty one, or on one in
 * which they would be right, or once something was found damaged. */
void judge_impostors(size_t cases, size_t enough, size_t impostors, struct judgement *judgement);
size_t count_impostors(const struct json_value *unit);

/* Cases that are not within the rule by themselves. */
size_t count_borderline(const struct json_value *unit);

/* ---- logs (logs.c) ------------------------------------------------------------------ */

/* What ptxas, and cuobjdump where the plan has it, said of this very image. */
void judge_image_logs(const struct pack *pack, const struct json_value *unit,
                      struct judgement *judgement);
void judge_ncu_log(const struct pack *pack, const struct json_value *unit,
                   struct judgement *judgement);
void judge_sanitizer_logs(const struct pack *pack, const struct json_value *unit,
                          struct judgement *judgement);

/* ---- timings (timing.c) ------------------------------------------------------------- */

/* A problem as problem_json writes it, with every default replaced. False: it is none, or it is
 * written in other words, which would make two problems of one. */
bool read_problem(const struct json_value *from, attn_problem *problem);

/* ---- the state (state.c) ------------------------------------------------------------ */

/* The one artifact of a bench unit that tells what was seen beside the samples says the same as
 * the unit and the plan. */
void judge_bench_state(const struct pack *pack, const struct json_value *unit,
                       struct judgement *judgement);

/* It, for json_free(); NULL: there is none, or more than one. */
struct json_value *bench_state(const struct pack *pack, const struct json_value *unit);

#endif /* ATTEST_PACK_PARTS_H */
