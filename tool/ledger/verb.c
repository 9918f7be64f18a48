/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest ledger`: evidence packs over time. See docs/ledger.md.
 *
 * Invariant: only `import` and `ratchet` write, each in one transaction; a ratchet that does not
 * end with exit code 0 has moved nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/args.h"
#include "base/message.h"
#include "cli/verbs.h"
#include "ledger/compare.h"
#include "ledger/import.h"
#include "ledger/ledger.h"
#include "ledger/print.h"
#include "ledger/ratchet.h"

struct request {
    const char *ledger;
    struct arg_list words;
    bool baselines;
    struct ratchet ratchet; /* of which compare has the margin, and all have as_json */
};

/* ---- which pack ------------------------------------------------------------------------------ */

enum { NUMBER_DIGITS = 5, FEWEST_DIGITS = 6 };

static bool only_of(const char *word, const char *set) {
    return word[strspn(word, set)] == '\0';
}

static bool is_meant(const struct ledger_packs *packs, size_t i, const char *word) {
    const size_t length = strlen(word);
    if (strcmp(word, "latest") == 0) {
        return i + 1 == packs->count;
    }
    if (length <= NUMBER_DIGITS && only_of(word, "0123456789")) {
        return packs->items[i].id == strtoll(word, NULL, 10);
    }
    return length >= FEWEST_DIGITS && strncmp(packs->items[i].root, word, length) == 0;
}

static bool is_folder(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* A pack by its number, the beginning of its root hash, or "latest". NULL: complained. */
static const struct ledger_pack *find_pack(const struct ledger_packs *packs, const char *word) {
    const struct ledger_pack *found = NULL;
    for (size_t i = 0; i < packs->count; i++) {
        if (is_meant(packs, i, word)) {
            if (found != NULL) {
                complain("ledger: '%s' begins the root of packs %lld and %lld", word,
                         (long long)found->id, (long long)packs->items[i].id);
                return NULL;
            }
            found = &packs->items[i];
        }
    }
    if (found == NULL && is_folder(word)) {
        complain("ledger: '%s' is a folder, expected a pack of the ledger: attest ledger import it "
                 "first",
                 word);
    } else if (found == NULL) {
        complain("ledger: no pack '%s', expected a number of attest ledger list, %d or more digits "
                 "of a root, or latest",
                 word, (int)FEWEST_DIGITS);
    }
    return found;
}

/* ---- import ---------------------------------------------------------------------------------- */

static const struct ledger_pack *with_root(const struct ledger_packs *packs, const char *root) {
    for (size_t i = 0; i < packs->count; i++) {
        if (strcmp(packs->items[i].root, root) == 0) {
            return &packs->items[i];
        }
    }
    return NULL;
}

static void say_imported(const struct ledger *ledger, const struct ledger_pack *pack, bool is_new,
                         bool as_json) {
    if (as_json) {
        struct json json = json_begin(stdout);
        json_open(&json, NULL, '{');
        json_bool(&json, "new", is_new);
        ledger_pack_json(&json, "pack", pack);
        json_text(&json, "head", ledger_head(ledger));
        json_close(&json);
        return;
    }
    ledger_print_pack(pack);
    printf("%s\nhead %s\n", is_new ? "imported" : "it is in the ledger already: nothing to do",
           ledger_head(ledger));
}

/* The pack is in order. */
static int enter(struct ledger *ledger, struct ledger_pack *pack,
                 const struct ledger_timings *timings, bool as_json) {
    struct ledger_packs packs;
    attn_error why = {""};
    bool good = ledger_packs(ledger, &packs, &why);
    if (good) {
        const struct ledger_pack *present = with_root(&packs, pack->root);
        good = present != NULL || ledger_add(ledger, pack, timings, &why);
        if (good) {
            say_imported(ledger, present != NULL ? present : pack, present == NULL, as_json);
        }
    }
    ledger_packs_free(&packs);
    return good ? EXIT_DONE : complain("%s", why.text);
}

/* The pack is read before the ledger is opened: a refused one does not make a ledger. */
static int do_import(const struct request *request) {
    struct ledger_pack pack;
    struct ledger_timings timings;
    attn_error why = {""};
    int status = ledger_import(request->words.items[0], &pack, &timings, &why);
    if (status != EXIT_DONE) {
        complain("%s", why.text);
    } else {
        struct ledger *ledger = ledger_open(request->ledger, LEDGER_CREATE, &why);
        status = ledger != NULL ? enter(ledger, &pack, &timings, request->ratchet.as_json)
                                : complain("%s", why.text);
        ledger_close(ledger);
    }
    ledger_pack_free(&pack);
    ledger_timings_free(&timings);
    return status;
}

/* ---- list and show --------------------------------------------------------------------------- */

static void say_timings(struct json *json, const struct ledger_timings *timings, const char *key) {
    if (json != NULL) {
        json_open(json, key, '[');
    }
    for (size_t i = 0; i < timings->count; i++) {
        if (json != NULL) {
            ledger_timing_json(json, &timings->items[i]);
        } else {
            ledger_print_timing(&timings->items[i]);
        }
    }
    if (json != NULL) {
        json_close(json);
    }
}

static int list_baselines(struct ledger *ledger, bool as_json) {
    struct ledger_timings timings;
    attn_error why = {""};
    const bool good = ledger_baselines(ledger, &timings, &why);
    if (good && as_json) {
        struct json json = json_begin(stdout);
        json_open(&json, NULL, '{');
        say_timings(&json, &timings, "baselines");
        json_text(&json, "head", ledger_head(ledger));
        json_close(&json);
    } else if (good) {
        say_timings(NULL, &timings, NULL);
        printf("%zu baselines, head %s\n", timings.count, ledger_head(ledger));
    }
    ledger_timings_free(&timings);
    return good ? EXIT_DONE : complain("%s", why.text);
}

static int list_packs(const struct ledger *ledger, const struct ledger_packs *packs, bool as_json) {
    struct json json = json_begin(stdout);
    if (as_json) {
        json_open(&json, NULL, '{');
        json_open(&json, "packs", '[');
    }
    for (size_t i = 0; i < packs->count; i++) {
        if (as_json) {
            ledger_pack_json(&json, NULL, &packs->items[i]);
        } else {
            ledger_print_pack(&packs->items[i]);
        }
    }
    if (as_json) {
        json_close(&json);
        json_text(&json, "head", ledger_head(ledger));
        json_close(&json);
    } else {
        printf("%zu packs, head %s\n", packs->count, ledger_head(ledger));
    }
    return EXIT_DONE;
}

static int do_list(const struct request *request, struct ledger *ledger,
                   const struct ledger_packs *packs) {
    return request->baselines ? list_baselines(ledger, request->ratchet.as_json)
                              : list_packs(ledger, packs, request->ratchet.as_json);
}

static int do_show(const struct request *request, struct ledger *ledger,
                   const struct ledger_packs *packs) {
    const struct ledger_pack *pack = find_pack(packs, request->words.items[0]);
    struct ledger_timings timings;
    attn_error why = {""};
    if (pack == NULL) {
        return EXIT_BAD_INPUT;
    }
    const bool good = ledger_timings(ledger, pack->id, &timings, &why);
    if (good && request->ratchet.as_json) {
        struct json json = json_begin(stdout);
        json_open(&json, NULL, '{');
        ledger_pack_json(&json, "pack", pack);
        say_timings(&json, &timings, "timings");
        json_close(&json);
    } else if (good) {
        ledger_print_pack(pack);
        printf("root    %s\nlibrary %s\n", pack->root, pack->library);
        say_timings(NULL, &timings, NULL);
    }
    ledger_timings_free(&timings);
    return good ? EXIT_DONE : complain("%s", why.text);
}

/* ---- compare --------------------------------------------------------------------------------- */

/* What became of a subject, in the order in which a reader wants to know. */
enum word { W_SLOWER, W_FASTER, W_AMBIGUOUS, W_ONLY_OLD, W_ONLY_NEW, W_SAME, WORDS };
static const char *const WORD_NAMES[WORDS] = {"SLOWER",   "FASTER",   "AMBIGUOUS",
                                              "ONLY_OLD", "ONLY_NEW", "SAME"};

static enum word word_of(const struct comparison *comparison) {
    static const enum word WORD_OF[CHANGES] = {
        [SAME_SPEED] = W_SAME, [FASTER] = W_FASTER, [SLOWER] = W_SLOWER, [AMBIGUOUS] = W_AMBIGUOUS};
    return comparison->old == NULL   ? W_ONLY_NEW
           : comparison->new == NULL ? W_ONLY_OLD
                                     : WORD_OF[comparison->change];
}

static void print_comparisons(const struct request *request, const struct comparison *all,
                              size_t count, const size_t words[WORDS], bool brief) {
    for (int word = 0; word < WORDS; word++) {
        for (size_t i = 0; i < count; i++) {
            if (word_of(&all[i]) == (enum word)word) {
                ledger_print_comparison(&all[i], WORD_NAMES[word], brief);
            }
        }
    }
    printf("%zu slower, %zu faster, %zu same (within %g %%), %zu ambiguous, %zu only old, %zu only "
           "new\n",
           words[W_SLOWER], words[W_FASTER], words[W_SAME], request->ratchet.margin,
           words[W_AMBIGUOUS], words[W_ONLY_OLD], words[W_ONLY_NEW]);
}

static void say_comparisons(const struct request *request, const struct ledger_timings *old,
                            const struct ledger_timings *new, const struct comparison *all,
                            size_t count) {
    static const char *const KEYS[WORDS] = {"slower",   "faster",   "ambiguous",
                                            "only_old", "only_new", "same"};
    size_t words[WORDS] = {0};
    for (size_t i = 0; i < count; i++) {
        words[word_of(&all[i])]++;
    }
    if (!request->ratchet.as_json) {
        print_comparisons(request, all, count, words, ledger_print_hardware(old, new));
        return;
    }
    struct json json = json_begin(stdout);
    json_open(&json, NULL, '{');
    json_real(&json, "margin_percent", request->ratchet.margin);
    json_open(&json, "rows", '[');
    for (size_t i = 0; i < count; i++) {
        ledger_comparison_json(&json, &all[i], WORD_NAMES[word_of(&all[i])]);
    }
    json_close(&json);
    for (int word = 0; word < WORDS; word++) {
        json_int(&json, KEYS[word], (int64_t)words[word]);
    }
    json_close(&json);
}

static int do_compare(const struct request *request, struct ledger *ledger,
                      const struct ledger_packs *packs) {
    const struct ledger_pack *a = find_pack(packs, request->words.items[0]);
    const struct ledger_pack *b = a != NULL ? find_pack(packs, request->words.items[1]) : NULL;
    if (b == NULL) {
        return EXIT_BAD_INPUT;
    }
    struct ledger_timings old, new = {0};
    attn_error why = {""};
    size_t count = 0, both = 0;
    const bool good =
        ledger_timings(ledger, a->id, &old, &why) && ledger_timings(ledger, b->id, &new, &why);
    struct comparison *all =
        good ? compare_all(&old, &new, request->ratchet.margin / 100, &count, &both) : NULL;
    int status = EXIT_DONE;
    if (all == NULL) {
        status = complain("%s", good ? "ledger: out of memory" : why.text);
    } else {
        say_comparisons(request, &old, &new, all, count);
        if (both == 0) {
            complain("ledger: packs %lld and %lld have no timing of the same device, variant, "
                     "problem, mode and cache",
                     (long long)a->id, (long long)b->id);
            status = EXIT_NOT_RUN;
        }
    }
    free(all);
    ledger_timings_free(&old);
    ledger_timings_free(&new);
    return status;
}

static int do_ratchet(const struct request *request, struct ledger *ledger,
                      const struct ledger_packs *packs) {
    const struct ledger_pack *pack = find_pack(packs, request->words.items[0]);
    return pack != NULL ? ledger_ratchet(ledger, pack, &request->ratchet) : EXIT_BAD_INPUT;
}

/* ---- the command line ------------------------------------------------------------------------ */

#define READS "Exit code: 0 done; 2 usage; 3 built without SQLite.\n"

static const struct action {
    const char *name, *summary, *synopsis, *words, *exits, *examples;
    size_t word_count;
    enum ledger_access access;
    int (*run)(const struct request *, struct ledger *, const struct ledger_packs *);
    bool margin, baselines, ratchets;
} ACTIONS[] = {
    {.name = "import",
     .summary = "verify an evidence pack and enter it, once",
     .synopsis = "PACK [options]",
     .words = "PACK",
     .word_count = 1,
     .exits =
         "Exit code: 0 it is in the ledger, whatever its verdict; 1 it was changed; 2 usage, or\n"
         "no pack; 3 built without SQLite; 4 it is INVALID.\n",
     .examples = "  attest ledger import results/h200\n"},
    {.name = "list",
     .summary = "the packs of the ledger, or its baselines",
     .synopsis = "[options]",
     .run = do_list,
     .baselines = true,
     .exits = READS,
     .examples = "  attest ledger list --json\n  attest ledger list --baselines\n"},
    {.name = "show",
     .summary = "a pack of the ledger and its timings",
     .synopsis = "PACK [options]",
     .words = "PACK",
     .word_count = 1,
     .run = do_show,
     .exits = READS,
     .examples = "  attest ledger show 3\n  attest ledger show latest\n"},
    {.name = "compare",
     .summary = "whether pack B is faster than pack A",
     .synopsis = "A B [options]",
     .words = "A B",
     .word_count = 2,
     .run = do_compare,
     .margin = true,
     .exits =
         "Exit code: 0 compared, whatever became slower (ratchet is what fails for it); 2 usage;\n"
         "3 nothing in common, or built without SQLite.\n",
     .examples = "  attest ledger compare 3 latest\n"
                 "  attest ledger compare 1f2e3d 4c5b6a --margin 2 --json\n"},
    {.name = "ratchet",
     .summary = "fail if a pack is slower than its baselines, move those it beats",
     .synopsis = "PACK [options]",
     .words = "PACK",
     .word_count = 1,
     .access = LEDGER_APPEND,
     .run = do_ratchet,
     .margin = true,
     .ratchets = true,
     .exits =
         "Exit code: 0 baselines moved or stayed; 1 something is surely slower, or the pack is\n"
         "FAIL; 2 usage; 3 a baseline was not measured again, the pack is not PASS, or built\n"
         "without SQLite; 4 no ratio is a number. Unless 0, no baseline moves.\n",
     .examples = "  attest ledger ratchet latest\n  attest ledger ratchet latest --dry-run\n"},
};
enum { ACTION_COUNT = sizeof ACTIONS / sizeof *ACTIONS };

static enum args_result parse(const struct action *action, int argc, char **argv,
                              struct request *request) {
    char verb[32];
    snprintf(verb, sizeof verb, "ledger %s", action->name);
    struct arg args[6];
    size_t count = 0;
    args[count++] = arg_text("--ledger", &request->ledger, "FILE", "where it is (ledger.db)");
    args[count++] = arg_flag("--json", &request->ratchet.as_json, "the same as JSON");
    if (action->baselines) {
        args[count++] = arg_flag("--baselines", &request->baselines, "the present baselines");
    }
    if (action->margin) {
        args[count++] = arg_real("--margin", &request->ratchet.margin,
                                 "what still counts as the same, in percent (1)");
    }
    if (action->ratchets) {
        args[count++] = arg_flag("--allow-missing", &request->ratchet.allow_missing,
                                 "baselines of the same hardware need not be measured again");
        args[count++] = arg_flag("--dry-run", &request->ratchet.dry_run, "move nothing");
    }
    struct arg positional = arg_list(action->words, &request->words, action->words, "");
    const struct arg_group groups[] = {{"options", args, count}};
    char notes[512];
    snprintf(notes, sizeof notes, "%s%s",
             action->word_count > 0 && action->run != NULL
                 ? "A pack of the ledger is named by its number, by 6 or more digits of its root\n"
                   "hash, or as latest.\n"
                 : "",
             action->exits);
    const struct command command = {
        .verb = verb,
        .summary = action->summary,
        .synopsis = action->synopsis,
        .notes = notes,
        .examples = action->examples,
        .groups = groups,
        .group_count = 1,
        .positional = action->word_count > 0 ? &positional : NULL,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed == ARGS_RUN && request->words.count != action->word_count) {
        complain("%s: %zu packs, expected %s", verb, request->words.count, action->words);
        return ARGS_BAD;
    }
    if (parsed == ARGS_RUN && !(request->ratchet.margin >= 0 && request->ratchet.margin <= 50)) {
        complain("%s: --margin: %g is out of range, expected 0 to 50", verb,
                 request->ratchet.margin);
        return ARGS_BAD;
    }
    return parsed;
}

static int run_action(const struct action *action, const struct request *request) {
    if (!ledger_is_built()) {
        complain("ledger: this attest was built without SQLite: install its headers "
                 "(libsqlite3-dev) and build again");
        return EXIT_NOT_RUN;
    }
    if (action->run == NULL) {
        return do_import(request);
    }
    struct ledger_packs packs = {0};
    attn_error why = {""};
    struct ledger *ledger = ledger_open(request->ledger, action->access, &why);
    const int status = ledger != NULL && ledger_packs(ledger, &packs, &why)
                           ? action->run(request, ledger, &packs)
                           : complain("%s", why.text);
    ledger_packs_free(&packs);
    ledger_close(ledger);
    return status;
}

static int print_actions(void) {
    printf("attest ledger - evidence packs over time, append-only, in one SQLite file\n\n"
           "usage: attest ledger ACTION [options]\n\n");
    for (int i = 0; i < ACTION_COUNT; i++) {
        printf("  %-8s %-18s %s\n", ACTIONS[i].name, ACTIONS[i].synopsis, ACTIONS[i].summary);
    }
    printf("\n  attest ledger ACTION --help   options and examples of an action\n");
    return EXIT_DONE;
}

int verb_ledger(int argc, char **argv) {
    if (argc < 1) {
        return complain("ledger: no action given; attest ledger --help lists them");
    }
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        return print_actions();
    }
    for (int i = 0; i < ACTION_COUNT; i++) {
        if (strcmp(argv[0], ACTIONS[i].name) == 0) {
            struct request request = {.ledger = "ledger.db", .ratchet.margin = 1};
            const enum args_result parsed = parse(&ACTIONS[i], argc - 1, argv + 1, &request);
            return parsed == ARGS_RUN    ? run_action(&ACTIONS[i], &request)
                   : parsed == ARGS_HELP ? EXIT_DONE
                                         : EXIT_BAD_INPUT;
        }
    }
    return complain("ledger: unknown action '%s'; attest ledger --help lists them", argv[0]);
}
