/* SPDX-License-Identifier: Apache-2.0
 *
 * test_evolve.c - the parts of `attest evolve` that need no device: what the search does with
 * results that are made up here, promotion, the journal.
 *
 * Invariant: results come from a formula and a seed, so that the search can be compared with the
 * best there is.
 */
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"
#include "tool/base/file.h"
#include "tool/base/output.h"
#include "tool/cases/cases.h"
#include "tool/evolve/evolve.h"

/* ---- the space ------------------------------------------------------------------------------- */

/* The names of candidates are those of variants.def, so that a shipped one is found again. */
TEST(shipped_variants_are_in_the_space) {
    attn_variant v = {.size = sizeof v};
    int count = 0;
    for (int32_t i = 0; attn_variant_get(NULL, i, &v, NULL) == ATTN_OK; i++) {
        const struct family family = {
            .name = v.family, .kernel = v.family, .head_dim = v.head_dim_max};
        struct knobs knobs = {{v.block_q, v.block_kv, v.warps, v.stages}};
        char name[EVOLVE_NAME];
        if (strcmp(v.device, "cuda") != 0) {
            continue;
        }
        knobs_settle(&family, &knobs);
        CHECK_STR(knobs_name(&family, (attn_dtype)__builtin_ctz(v.dtypes), &knobs, name), v.name);
        for (int k = 0; k < KNOB_COUNT; k++) {
            const int *list = NULL;
            const int values = knob_values(&family, (enum knob)k, &list);
            bool found = values == 0;
            for (int j = 0; j < values; j++) {
                found = found || list[j] == knobs.value[k];
            }
            CHECK_MSG(found, "%s: %s %d is not searched", v.name, KNOB_NAMES[k], knobs.value[k]);
        }
        count++;
    }
    if (count == 0) {
        SKIP("no kernels for GPUs were built");
    }
}

TEST(shapes) {
    attn_problem p;
    attn_error why = {""};
    char text[96];
    CHECK(shape_parse("1,32/8,4096,128,causal", ATTN_BF16, &p, &why));
    CHECK_EQ(p.heads_kv, 8);
    CHECK_EQ(p.seq_kv, 4096);
    CHECK_STR(shape_text(&p, text, sizeof text), "1,32/8,4096,128,causal");
    static const char *const wrong[] = {
        "",         "1",          "1,2,3",    "1,2,3,4,5", "0,2,3,4",       "1,2,3,x",
        "1,2,3,4,", "1,3/2,8,64", "1 ,2,3,4", "1,2,-3,4",  "1,2,3,4causal", "9999999999,1,1,1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_MSG(!shape_parse(wrong[i], ATTN_FP16, &p, &why), "'%s' is no shape", wrong[i]);
    }
}

/* ---- the search ------------------------------------------------------------------------------ */

static const char FACTS[] =
    "{\"device\": {\"name\": \"made up\", \"arch\": \"sm_90\", \"units\": 100,"
    " \"driver\": 13000},"
    " \"shipped\": [{\"name\": \"fwd_mma\", \"kernel\": \"fwd_mma\", \"arch\": \"sm_80\","
    " \"head_dim\": 64, \"start\": true, \"knobs\": {\"block_q\": 16, \"block_kv\": 128,"
    " \"warps\": 8, \"stages\": 5}}],"
    " \"targets\": [{\"shape\": \"1,1,128,64\", \"baseline\": \"%s\"}],"
    " \"held_out\": [{\"shape\": \"1,1,96,64\", \"baseline\": \"today\"}]}";

/* Seconds of a candidate: a valley with its floor at 64x64, 4 warps, 3 stages. */
static double cost_of(const struct knobs *knobs) {
    const double best[] = {64, 64, 4, 3};
    double cost = 1.0;
    for (int i = 0; i < 4; i++) {
        cost += 0.06 * fabs(log2(knobs->value[i] / best[i]));
    }
    return cost + 0.05 * fabs(log2((double)knobs->value[0] * knobs->value[1] / 4096.0));
}

/* Stands for the kernels' static assertions. */
static bool compiles(const struct knobs *knobs) {
    return knobs->value[KNOB_BLOCK_Q] / 16 >= knobs->value[KNOB_WARPS] ||
           knobs->value[KNOB_BLOCK_KV] / knobs->value[KNOB_WARPS] >= 16;
}

struct world {
    uint64_t noise;
    double today;     /* seconds of today's choice */
    double held;      /* how much of its speed a winner keeps on held-out shapes */
    double spread;    /* of a sample */
    int64_t rounds;   /* that were measured */
    int rejects;      /* one in so many candidates fails; 0: none */
    double give_up;   /* below this ratio a first timing ends after three rounds */
    const char *name; /* of today's choice; NULL: none that the search knows */
    double unrest;    /* by so much today's choice is slower while others are confirmed; 0: not */
};

static void timings_json(struct world *w, const struct step *step, struct json *json) {
    const double cost =
        cost_of(&step->candidate->knobs) / (step->kind == STEP_HELD_OUT ? w->held : 1);
    const bool hopeless = step->kind == STEP_CANDIDATE && w->today < w->give_up * cost;
    const int rounds = hopeless ? 3 : step->rounds;
    json_open(json, "timings", '[');
    json_open(json, NULL, '{');
    json_open(json, "ratios", '[');
    for (int i = 0; i < rounds; i++) {
        const double unrest = step->kind == STEP_CONFIRM ? w->unrest : 0;
        const double today =
            (w->today + unrest) * (1.0 + w->spread * (double)rng_normal(&w->noise));
        json_real(json, NULL, today / cost / (1.0 + w->spread * (double)rng_normal(&w->noise)));
    }
    json_close(json);
    json_close(json);
    json_close(json);
    w->rounds += rounds;
}

/* What a device would have answered. */
static struct json_value *answer(struct world *w, const struct step *step) {
    struct memo memo;
    attn_error why;
    if (step->kind == STEP_FACTS) {
        char facts[sizeof FACTS + EVOLVE_NAME];
        snprintf(facts, sizeof facts, FACTS, w->name != NULL ? w->name : "today");
        return json_read(facts, strlen(facts), &why);
    }
    memo_begin(&memo);
    if (step->kind == STEP_CANDIDATE &&
        (!compiles(&step->candidate->knobs) ||
         (w->rejects > 0 && step->candidate->number % w->rejects == 1))) {
        json_text(&memo.json, "verdict", "rejected");
        json_text(&memo.json, "gate", "compile");
        json_text(&memo.json, "reason", "made up");
    } else {
        json_text(&memo.json, "verdict", "timed");
        json_text(&memo.json, "machine", step->candidate->name);
        json_real(&memo.json, "error", 0.5);
        timings_json(w, step, &memo.json);
    }
    return memo_end(&memo, &why);
}

/* A search keeps its results, as it does those of a journal. */
static struct json_value *kept[8192];
static int kept_count;

static void done(struct search *s) {
    search_free(s);
    while (kept_count > 0) {
        json_free(kept[--kept_count]);
    }
}

/* Runs a search to its end; its steps as text, for free(). */
static char *run_search(struct search *s, uint64_t seed, int candidates, struct world *w) {
    struct shapes targets = {.count = 1};
    const struct search_options options = {.seed = seed, .seconds = 1e6, .candidates = candidates};
    attn_error why = {""};
    char *text = NULL;
    size_t bytes = 0;
    FILE *steps = open_memstream(&text, &bytes);
    CHECK(shape_parse("1,1,128,64", ATTN_FP16, &targets.problems[0], &why));
    search_begin(s, &options, &targets);
    for (struct step step = search_next(s, 0); steps != NULL && step.kind != STEP_END;
         step = search_next(s, 0)) {
        struct json json = json_begin(steps);
        search_step_json(s, &step, NULL, &json);
        struct json_value *result = answer(w, &step);
        const bool taken = result != NULL && search_take(s, &step, result, 1.0, &why);
        kept[kept_count++] = result;
        if (!CHECK_MSG(taken && kept_count < 8192, "%s", why.text)) {
            break;
        }
    }
    if (steps != NULL) {
        fclose(steps);
    }
    return text;
}

TEST(the_same_results_make_the_same_steps) {
    struct search one, two;
    struct world a = {.noise = 1, .today = 1.1, .held = 1, .spread = 0.01, .rejects = 5}, b = a;
    char *first = run_search(&one, 7, 60, &a), *second = run_search(&two, 7, 60, &b);
    CHECK_STR(first, second);
    CHECK_EQ(one.count, two.count);
    CHECK_STR(one.decision, two.decision);
    search_free(&one);
    done(&two);
    free(first);
    free(second);
}

/* Its candidates, that is: how long the best of them are timed follows from their results. */
TEST(generation_0_follows_from_the_seed_alone) {
    struct search one, two, three;
    struct world a = {.noise = 1, .today = 1.1, .held = 1, .spread = 0.01};
    struct world b = {.noise = 2, .today = 0.7, .held = 1, .spread = 0.1}, c = a;
    free(run_search(&one, 7, 40, &a));
    free(run_search(&two, 7, 40, &b));
    free(run_search(&three, 8, 40, &c));
    int others = 0;
    for (int i = 0; i < one.count && one.candidates[i]->generation == 0; i++) {
        CHECK_STR(one.candidates[i]->name, two.candidates[i]->name);
        others += strcmp(one.candidates[i]->name, three.candidates[i]->name) != 0;
    }
    CHECK(others > 3);
    CHECK_STR(one.candidates[0]->why, "shipped");
    search_free(&one);
    search_free(&two);
    done(&three);
}

/* Every candidate that compiles, and the least cost among them. */
static int brute_force(double *best) {
    const struct family family = {.kernel = "fwd_mma", .head_dim = 64};
    const int *lists[KNOB_COUNT];
    int counts[KNOB_COUNT], total = 1, count = 0;
    for (int k = 0; k < KNOB_COUNT; k++) {
        counts[k] = knob_values(&family, (enum knob)k, &lists[k]);
        total *= counts[k];
    }
    *best = INFINITY;
    for (int i = 0; i < total; i++) {
        struct knobs knobs;
        int rest = i;
        for (int k = 0; k < KNOB_COUNT; k++) {
            knobs.value[k] = lists[k][rest % counts[k]];
            rest /= counts[k];
        }
        if (compiles(&knobs)) {
            *best = fmin(*best, cost_of(&knobs));
            count++;
        }
    }
    return count;
}

TEST(finds_what_brute_force_finds_with_a_fifth_of_its_work) {
    enum { SEEDS = 100 };
    double best;
    const int legal = brute_force(&best), budget = legal / 5;
    int found = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct search s;
        struct world w = {.noise = seed, .today = 1.0, .held = 1, .spread = 0.002};
        free(run_search(&s, seed, budget, &w));
        if (CHECK(s.winner >= 0)) {
            found += cost_of(&s.candidates[s.winner]->knobs) <= 1.01 * best;
        }
        CHECK(s.count <= budget);
        done(&s);
    }
    CHECK_MSG(found >= 90, "%d of %d searches came within 1 %% of the best of %d candidates", found,
              (int)SEEDS, legal);
}

/* Three rounds have no interval: such candidates are ranked all the same, below the others. */
TEST(the_hopeless_rank_last) {
    struct search s;
    struct world w = {.noise = 9, .today = 1.0, .held = 1, .spread = 0.002, .give_up = 0.85};
    int ranked[64], hopeless = 0;
    free(run_search(&s, 11, 60, &w));
    const int count = search_ranking(&s, ranked, 64);
    for (int i = 0; i < count; i++) {
        const double ratio = s.candidates[ranked[i]]->score.value;
        const bool given_up = isnan(s.candidates[ranked[i]]->score.low);
        CHECK_MSG(given_up || hopeless == 0, "%g ranks after a hopeless one", ratio);
        CHECK_MSG(i == 0 || ratio < s.candidates[ranked[i - 1]]->score.value + 0.01,
                  "rank %d has %g", i, ratio);
        hopeless += given_up;
    }
    CHECK(hopeless > 10 && hopeless < count);
    CHECK(s.winner >= 0 && !isnan(s.candidates[s.winner]->score.low));
    done(&s);
}

/* ---- promotion ------------------------------------------------------------------------------- */

static void promotion(double today, double held, double spread, bool *proven, bool *refuted,
                      char *decision, size_t size) {
    struct search s;
    struct world w = {.noise = 3, .today = today, .held = held, .spread = spread};
    free(run_search(&s, 5, 80, &w));
    *proven = s.proven;
    *refuted = s.refuted;
    snprintf(decision, size, "%s", s.decision);
    done(&s);
}

TEST(only_what_is_proven_is_promoted) {
    bool proven, refuted;
    char decision[512];
    promotion(1.3, 1.0, 0.01, &proven, &refuted, decision, sizeof decision);
    CHECK_MSG(proven && !refuted, "%s", decision);
    CHECK_CONTAINS(decision, "faster than the baseline");
    promotion(0.9, 1.0, 0.01, &proven, &refuted, decision, sizeof decision);
    CHECK_MSG(!proven, "slower, and promoted: %s", decision);
    CHECK_CONTAINS(decision, "not promoted, not proven");
    promotion(1.3, 0.7, 0.01, &proven, &refuted, decision, sizeof decision);
    CHECK_MSG(proven && refuted, "lost a held-out shape: %s", decision);
    CHECK_CONTAINS(decision, "on 1,1,96,64");
}

/* While the best are confirmed something slows down the baseline alone, which is among them. */
TEST(an_unquiet_machine_promotes_nothing) {
    struct search quiet, s;
    struct world w = {.noise = 3, .today = 1.0, .held = 1, .spread = 0.001};
    free(run_search(&quiet, 5, 80, &w));
    const struct candidate *best = quiet.candidates[quiet.finalists[0]];
    struct world loud = {.noise = 3, .today = cost_of(&best->knobs), .held = 1, .spread = 0.001};
    loud.name = best->name;
    loud.unrest = 0.1;
    free(run_search(&s, 5, 80, &loud));
    CHECK(s.proven && s.refuted);
    CHECK_CONTAINS(s.decision, "the control failed");
    CHECK_CONTAINS(s.decision, best->name);
    search_free(&quiet);
    done(&s);
}

/* The baseline is as fast as the best there is: chance alone must promote none of many. */
TEST(noise_promotes_nothing) {
    double best;
    int promoted = 0;
    brute_force(&best);
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct search s;
        struct world w = {.noise = 1000 + seed, .today = best, .held = 1, .spread = 0.05};
        free(run_search(&s, seed, 60, &w));
        promoted += s.proven && !s.refuted;
        done(&s);
    }
    CHECK_MSG(promoted <= 3, "%d of 40 searches promoted what is no faster", promoted);
}

TEST(promotion_line) {
    struct search s;
    struct world w = {.noise = 3, .today = 1.3, .held = 1, .spread = 0.01};
    char line[256] = "";
    attn_error why = {""};
    free(run_search(&s, 5, 80, &w));
    CHECK(promote_line(&s, "0123456789abcdef0123", line, sizeof line, &why));
    CHECK_CONTAINS(line, "TUNED(fwd_mma, sm_90a, 64, 0, 128, 2, 128, ");
    CHECK_CONTAINS(line, "\"evolve-0123456789abcdef.json\")");
    s.candidates[s.winner]->source = "int a;";
    CHECK(!promote_line(&s, "0", line, sizeof line, &why));
    CHECK_CONTAINS(why.text, "change of the source");
    done(&s);
}

static void put(const char *folder, const char *name, const char *text) {
    char path[128];
    attn_error why = {""};
    snprintf(path, sizeof path, "%s/src/kernels/%s", folder, name);
    CHECK_MSG(output_write(path, text, strlen(text), &why), "%s", why.text);
}

static char *get(const char *folder, const char *name) {
    char path[128];
    size_t bytes = 0;
    attn_error why = {""};
    snprintf(path, sizeof path, "%s/src/kernels/%s", folder, name);
    char *text = file_read(path, &bytes, &why);
    CHECK_MSG(text != NULL, "%s", why.text);
    return text;
}

/* Before the line that chose for the target until then, and after those that did not. */
TEST(promotion_writes_one_line) {
    static const char before[] = "TUNED(fwd_mma, sm_80, 64, 1, 0, 0, 0, 64, 64, 4, 2, \"a\")\n"
                                 "TUNED(fwd_mma, sm_80, 64, 0, 0, 1, 0, 64, 64, 4, 2, \"b\")\n";
    static const char after[] = "TUNED(fwd_mma, sm_80, 64, 0, 0, -1, 0, 64, 64, 4, 2, \"blocks\")\n"
                                "TUNED(fwd_mma, sm_80, 64, -1, 0, 9, 0, 64, 64, 4, 2, \"c\")\n";
    char folder[] = "/tmp/attest-test-XXXXXX", path[128], text[1024], line[256], hash[SHA256_TEXT];
    struct search s;
    struct world w = {.noise = 3, .today = 1.3, .held = 1, .spread = 0.01};
    attn_error why = {""};
    struct journal journal = {.path = "/nowhere"};
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/src", folder);
    CHECK_EQ(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/src/kernels", folder);
    CHECK_EQ(mkdir(path, 0777), 0);
    free(run_search(&s, 5, 80, &w));
    snprintf(s.targets.baselines[0], sizeof s.targets.baselines[0], "fwd_mma_fp16_d64_64x64_w4_s2");
    s.candidates[s.winner]->knobs = (struct knobs){{32, 128, 4, 2}};
    snprintf(text, sizeof text, "%s%s", before, after);
    put(folder, "tuned.def", text);
    put(folder, "variants.def", "CUDA_VARIANT(fwd_mma, sm_80, fp16, 64, 32, 128, 4, 2)\n");
    CHECK(!promote_write(&s, &journal, folder, &why));
    CHECK_CONTAINS(why.text, "first add CUDA_VARIANT(fwd_mma, sm_80, bf16, 64, 32, 128, 4, 2)");
    put(folder, "variants.def",
        "CUDA_VARIANT(fwd_mma, sm_80, fp16, 64, 32, 128, 4, 2)\n"
        "CUDA_VARIANT(fwd_mma, sm_80, bf16, 64, 32, 128, 4, 2)\n");
    CHECK_MSG(promote_write(&s, &journal, folder, &why), "%s", why.text);
    journal_hash(&journal, hash);
    CHECK(promote_line(&s, hash, line, sizeof line, &why));
    snprintf(text, sizeof text, "%s%s\n%s", before, line, after);
    char *now = get(folder, "tuned.def");
    CHECK_STR(now, text);
    free(now);
    CHECK(!promote_write(&s, &journal, folder, &why));
    CHECK_CONTAINS(why.text, "has that line already");
    done(&s);
    remove_folder(folder);
}

/* ---- the journal ----------------------------------------------------------------------------- */

static bool append(struct journal *journal, const char *key, const char *value) {
    struct memo memo;
    attn_error why = {""};
    memo_begin(&memo);
    json_text(&memo.json, key, value);
    return journal_append(journal, &memo, &why);
}

/* A kill, or a full disk, may leave a part of a unit: it never was one. */
TEST(journal) {
    char folder[] = "/tmp/attest-test-XXXXXX", path[64], file[96], hash[2][SHA256_TEXT];
    attn_error why = {""};
    struct journal journal, second;
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/j", folder);
    snprintf(file, sizeof file, "%s/journal.json", path);
    CHECK(!journal_open(&journal, path, false, &why));
    CHECK_CONTAINS(why.text, "no journal is there");
    CHECK_MSG(journal_create(&journal, path, &why), "%s", why.text);
    CHECK(append(&journal, "schema", EVOLVE_SCHEMA));
    CHECK(append(&journal, "step", "one\n}\n"));
    CHECK(append(&journal, "step", "two"));
    CHECK_EQ(journal.count, 2);
    journal_hash(&journal, hash[0]);
    journal_close(&journal);
    CHECK(!journal_create(&journal, path, &why));
    CHECK_CONTAINS(why.text, "a journal is there");
    journal_close(&journal);

    FILE *out = fopen(file, "a");
    if (CHECK(out != NULL)) {
        fputs("{\n  \"step\": \"thr", out);
        fclose(out);
    }
    CHECK_MSG(journal_open(&journal, path, false, &why), "%s", why.text);
    CHECK_EQ(journal.count, 2);
    CHECK_STR(json_text_or(journal.units[0], "step", ""), "one\n}\n");
    journal_close(&journal);
    CHECK_MSG(journal_open(&second, path, true, &why), "%s", why.text);
    journal_hash(&second, hash[1]);
    CHECK_STR(hash[0], hash[1]);
    CHECK(append(&second, "step", "three"));
    journal_close(&second);
    CHECK(journal_open(&journal, path, false, &why));
    CHECK_EQ(journal.count, 3);
    journal_close(&journal);
    remove_folder(folder);
    CHECK(access(folder, F_OK) != 0);
}

TEST_MAIN()
