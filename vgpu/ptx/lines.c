/* SPDX-License-Identifier: Apache-2.0
 *
 * lines.c - where instructions come from: .loc, whose files (.file) and inlined functions
 * (labels in .debug_str) follow at the end of the text.
 *
 * `inlined_at FILE LINE COLUMN` means the .loc of that place that came last in the same function:
 * the compiler writes the outer one just before the inner one.
 *
 * Invariant: a location's inlined_at is smaller than its own index, so that chains end.
 */
#include "ptx/parser.h"

#include <string.h>

enum { NUMBER_MAX = 0x7FFFFFFF, NAME_BYTES_MAX = 1 << 26 };

/* A location before files and functions have names. The fields before `at` identify it. */
struct place {
    uint32_t file, line, column;
    uint32_t inlined_at;
    struct symbol *function; /* a label in .debug_str, or NULL */
    uint64_t function_offset;
    struct token at;
};

/* What belongs to a key; keys of different meanings have different sizes. */
static void *entry(struct parser *p, const void *key, size_t length, size_t size) {
    void *found = arena_entry(p->place_keys, key, length, size);
    if (!found) {
        fail_at(p, &p->token, "out of memory");
    }
    return found;
}

/* The index of the place: one for equal ones, and from 1. */
static uint32_t index_of(struct parser *p, const struct place *place) {
    uint32_t *index = entry(p, place, offsetof(struct place, at), sizeof *index);
    if (*index == 0) {
        *(struct place *)vector_push(p, &p->places, sizeof *place) = *place;
        *index = (uint32_t)p->places.count;
    }
    return *index;
}

/* Where the place was named last in this function; 0: nowhere. */
static uint32_t *latest(struct parser *p, const struct place *place) {
    const uint32_t key[] = {place->file, place->line, place->column, p->function_number};
    return entry(p, key, sizeof key, sizeof(uint32_t));
}

/* ---- directives ------------------------------------------------------------------------------ */

static struct place expect_place(struct parser *p) {
    struct place place = {.at = p->token};
    place.file = expect_number(p, NUMBER_MAX, "the number of a file");
    place.line = expect_number(p, NUMBER_MAX, "the number of a line");
    place.column = expect_number(p, NUMBER_MAX, "the number of a column");
    return place;
}

void parse_loc(struct parser *p) {
    struct place place = expect_place(p);
    while (take_sign(p, ',')) {
        if (take_word(p, "function_name")) {
            const struct token label = expect_kind(p, TOKEN_NAME, "the label of a function's name");
            place.function = symbol_of(p, &label);
            place.function_offset =
                take_sign(p, '+') ? expect_number(p, NUMBER_MAX, "an offset") : 0;
        } else if (take_word(p, "inlined_at")) {
            const struct place outer = expect_place(p);
            uint32_t *last = latest(p, &outer);
            if (*last == 0) {
                *last = index_of(p, &outer);
            }
            place.inlined_at = *last;
        } else {
            fail_expected(p, "function_name or inlined_at");
        }
    }
    p->borrowed = place.line == 0;
    if (p->borrowed) {
        p->location = place.inlined_at != 0 ? place.inlined_at : p->location;
    } else {
        p->location = *latest(p, &place) = index_of(p, &place);
    }
}

void parse_file(struct parser *p) {
    const uint32_t number = expect_number(p, NUMBER_MAX, "the number of a file");
    const struct token name = expect_kind(p, TOKEN_STRING, "the name of a file in quotes");
    while (take_sign(p, ',')) { /* its time and its size */
        expect_integer(p, UINT64_MAX, "a number");
    }
    const char **known = entry(p, &number, sizeof number, sizeof *known);
    const char *text = parser_intern(p, name.start + 1, name.length - 2);
    if (*known && *known != text) {
        fail_at(p, &name, "file %u has two names, expected one", number);
    }
    *known = text;
}

void parse_section(struct parser *p) {
    const bool keep = token_is(&p->token, ".debug_str");
    expect_kind(p, TOKEN_DIRECTIVE, "the name of a section");
    expect_sign(p, '{', "after the name of a section");
    while (!token_is_sign(&p->token, '}') && p->token.kind != TOKEN_END) {
        const struct token token = p->token;
        next_token(p);
        if (keep && token.kind == TOKEN_NAME && take_sign(p, ':')) {
            symbol_of(p, &token)->string = p->strings.count + 1;
        } else if (keep && token_is(&token, ".b8")) {
            do {
                const uint64_t byte = expect_integer(p, UINT8_MAX, "a byte");
                *(unsigned char *)vector_push(p, &p->strings, 1) = (unsigned char)byte;
            } while (take_sign(p, ','));
        }
    }
    expect_sign(p, '}', "at the end of a section");
}

/* ---- names ----------------------------------------------------------------------------------- */

static const char *file_name(struct parser *p, const struct place *place) {
    const char **name = arena_find(p->place_keys, &place->file, sizeof place->file);
    if (!name) {
        fail_at(p, &place->at, "expected a file that a .file directive names, found %u",
                place->file);
    }
    return *name;
}

static const char *function_name(struct parser *p, const struct place *place) {
    struct symbol *label = place->function;
    if (!label || (label->string_name && place->function_offset == 0)) {
        return label ? label->string_name : NULL;
    }
    const uint64_t start = label->string + place->function_offset;
    const char *text = NULL, *end = NULL;
    if (label->string && start <= p->strings.count) {
        text = (const char *)p->strings.items + (start - 1);
        end = memchr(text, '\0', (size_t)(p->strings.count - (start - 1)));
    }
    if (!end) {
        fail_at(p, &place->at,
                "function_name '%.80s': expected a label in .debug_str with a string that ends",
                label->name);
    }
    /* Labels inside one long string would make long names of a short text. */
    p->name_bytes += (uint64_t)(end - text);
    if (p->name_bytes > NAME_BYTES_MAX) {
        fail_at(p, &place->at, "no memory for the names of functions: more than %d bytes",
                NAME_BYTES_MAX);
    }
    const char *name = parser_intern(p, text, (size_t)(end - text));
    if (place->function_offset == 0) {
        label->string_name = name;
    }
    return name;
}

/* /usr/local/cuda-13.0/targets/x86_64-linux/include/cuda_bf16.hpp and the like; Triton's and
 * numba's own files, and toolkits, in packages of Python; what the compiler put in has a name in
 * brackets. */
static bool is_library(const char *file) {
    static const char *const FOLDERS[] = {"/cuda/include/", "/cuda/bin/", "/targets/", "/nvidia/"};
    const char *cuda = strstr(file, "/cuda-");
    bool found = file[0] == '<' || strncmp(file, "/usr/include/", 13) == 0 ||
                 strncmp(file, "/usr/lib/", 9) == 0 || strstr(file, "/site-packages/") != NULL ||
                 (cuda != NULL && strstr(cuda, "/include/") != NULL);
    for (size_t i = 0; !found && i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        const char *folder = strstr(file, FOLDERS[i]);
        found = folder != NULL && strstr(folder, "/include/") != NULL;
    }
    return found;
}

uint32_t ptx_user_location(const struct ptx_module *module, uint32_t index) {
    uint32_t at = index;
    while (at != 0 && module->locations[at].library) {
        at = module->locations[at].inlined_at;
    }
    return at != 0 ? at : index;
}

void finish_lines(struct parser *p) {
    const struct place *places = p->places.items;
    const size_t count = p->places.count;
    struct ptx_location *locations =
        parser_alloc(p, p->arena, (count + 1) * sizeof *locations); /* [0] is unused */
    for (size_t i = 0; i < count; i++) {
        locations[i + 1] = (struct ptx_location){
            .file = file_name(p, &places[i]),
            .line = places[i].line,
            .column = places[i].column,
            .function = function_name(p, &places[i]),
            .inlined_at = places[i].inlined_at,
            .library = is_library(file_name(p, &places[i])),
        };
    }
    p->module->locations = locations;
    p->module->location_count = (uint32_t)count + 1;
}
