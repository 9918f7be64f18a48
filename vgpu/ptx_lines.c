/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx_lines.c - where instructions come from: .loc, whose files (.file) and inlined functions
 * (labels in .debug_str) are told at the end of the text.
 *
 * `inlined_at FILE LINE COLUMN` means the .loc of that place that came last in the same function:
 * the compiler writes the outer one just before the inner one.
 *
 * Invariant: a location's inlined_at is smaller than its own index, so that chains end.
 */
#include "ptx_parser.h"

#include <stdlib.h>
#include <string.h>

enum { PLACES_FIRST = 256, NUMBER_MAX = 0x7FFFFFFF, NAME_BYTES_MAX = 1 << 26 };

/* A location before files and functions have names. */
struct place {
    uint32_t file, line, column;
    uint32_t inlined_at;
    struct symbol *function; /* a label in .debug_str, or NULL */
    uint64_t function_offset;
    uint32_t text_line, text_column;
};

/* Where the place was named last: found by file, line and column. */
struct latest {
    uint32_t file, line, column;
    uint32_t function; /* counted from 1; 0: a free place */
    uint32_t location;
};

struct source_file {
    uint32_t number;
    uint32_t text_line, text_column;
    const char *name;
};

struct line_table {
    struct vector places; /* struct place; [0] is unused */
    uint32_t *index;      /* of places, by content: open addressing, 0 is free */
    size_t index_places;
    struct latest *latest; /* open addressing */
    size_t latest_places, latest_count;
    uint32_t function;     /* the current one, counted from 1 */
    struct vector files;   /* struct source_file */
    struct vector strings; /* char: the bytes of .debug_str */
    uint64_t name_bytes;   /* of functions, so far */
};

bool lines_make(struct parser *p) {
    struct line_table *lines = calloc(1, sizeof *lines);
    p->lines = lines;
    if (!lines) {
        return false;
    }
    lines->index_places = lines->latest_places = PLACES_FIRST;
    lines->index = calloc(PLACES_FIRST, sizeof *lines->index);
    lines->latest = calloc(PLACES_FIRST, sizeof *lines->latest);
    return lines->index && lines->latest && vector_push(p, &lines->places, sizeof(struct place));
}

void lines_drop(struct parser *p) {
    struct line_table *lines = p->lines;
    if (lines) {
        free(lines->places.items);
        free(lines->index);
        free(lines->latest);
        free(lines->files.items);
        free(lines->strings.items);
        free(lines);
    }
}

void lines_start_function(struct parser *p) {
    p->lines->function++;
    p->location = 0;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static uint64_t mixed(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

static uint64_t place_hash(const struct place *place) {
    uint64_t hash = mixed(mixed(place->file, place->line), place->column);
    hash = mixed(hash, place->inlined_at);
    hash = mixed(hash, place->function ? place->function->hash : 0);
    return mixed(hash, place->function_offset);
}

static bool same_place(const struct place *a, const struct place *b) {
    return a->file == b->file && a->line == b->line && a->column == b->column &&
           a->inlined_at == b->inlined_at && a->function == b->function &&
           a->function_offset == b->function_offset;
}

static uint32_t *index_slot(uint32_t *index, size_t count, const struct place *places,
                            const struct place *wanted) {
    size_t at = (size_t)place_hash(wanted) & (count - 1);
    while (index[at] && !same_place(&places[index[at]], wanted)) {
        at = (at + 1) & (count - 1);
    }
    return &index[at];
}

static bool widen_index(struct parser *p) {
    struct line_table *lines = p->lines;
    const size_t wider = lines->index_places * 2;
    uint32_t *index = calloc(wider, sizeof *index);
    if (!index) {
        lexer_fail_at(&p->lexer, 0, 0, "out of memory");
        return false;
    }
    const struct place *places = lines->places.items;
    for (uint32_t i = 1; i < lines->places.count; i++) {
        *index_slot(index, wider, places, &places[i]) = i;
    }
    free(lines->index);
    lines->index = index;
    lines->index_places = wider;
    return true;
}

/* The index of the place: one for equal ones. */
static uint32_t intern_place(struct parser *p, const struct place *place) {
    struct line_table *lines = p->lines;
    uint32_t *slot = index_slot(lines->index, lines->index_places, lines->places.items, place);
    if (*slot) {
        return *slot;
    }
    if (lines->places.count * 2 >= lines->index_places) {
        if (!widen_index(p)) {
            return 0;
        }
        slot = index_slot(lines->index, lines->index_places, lines->places.items, place);
    }
    const uint32_t number = (uint32_t)lines->places.count;
    struct place *added = vector_push(p, &lines->places, sizeof *added);
    if (!added) {
        return 0;
    }
    *added = *place;
    *slot = number;
    return number;
}

static struct latest *latest_slot(struct latest *table, size_t count, uint32_t file, uint32_t line,
                                  uint32_t column) {
    size_t at = (size_t)mixed(mixed(file, line), column) & (count - 1);
    while (table[at].function &&
           (table[at].file != file || table[at].line != line || table[at].column != column)) {
        at = (at + 1) & (count - 1);
    }
    return &table[at];
}

static bool widen_latest(struct parser *p) {
    struct line_table *lines = p->lines;
    const size_t wider = lines->latest_places * 2;
    struct latest *table = calloc(wider, sizeof *table);
    if (!table) {
        lexer_fail_at(&p->lexer, 0, 0, "out of memory");
        return false;
    }
    for (size_t i = 0; i < lines->latest_places; i++) {
        const struct latest *old = &lines->latest[i];
        if (old->function) {
            *latest_slot(table, wider, old->file, old->line, old->column) = *old;
        }
    }
    free(lines->latest);
    lines->latest = table;
    lines->latest_places = wider;
    return true;
}

static void remember_latest(struct parser *p, const struct place *place, uint32_t location) {
    struct line_table *lines = p->lines;
    if (lines->latest_count * 2 >= lines->latest_places && !widen_latest(p)) {
        return;
    }
    struct latest *latest =
        latest_slot(lines->latest, lines->latest_places, place->file, place->line, place->column);
    lines->latest_count += latest->function == 0;
    *latest = (struct latest){place->file, place->line, place->column, lines->function, location};
}

/* ---- directives ------------------------------------------------------------------------------ */

static uint32_t expect_number(struct parser *p, const char *what) {
    const struct token token = p->lexer.token;
    if (token.kind != TOKEN_INTEGER || token.value > NUMBER_MAX) {
        lexer_expected(&p->lexer, what);
        return 0;
    }
    lexer_next(&p->lexer);
    return (uint32_t)token.value;
}

static void expect_place(struct parser *p, struct place *place) {
    place->text_line = p->lexer.token.line;
    place->text_column = p->lexer.token.column;
    place->file = expect_number(p, "the number of a file");
    place->line = expect_number(p, "the number of a line");
    place->column = expect_number(p, "the number of a column");
}

static uint32_t outer_location(struct parser *p, const struct place *outer) {
    struct line_table *lines = p->lines;
    const struct latest *latest =
        latest_slot(lines->latest, lines->latest_places, outer->file, outer->line, outer->column);
    if (latest->function && latest->function == lines->function) {
        return latest->location;
    }
    const uint32_t location = intern_place(p, outer);
    remember_latest(p, outer, location);
    return location;
}

void parse_loc(struct parser *p) {
    struct place place = {0};
    expect_place(p, &place);
    while (take_sign(p, ',')) {
        if (take_word(p, "function_name")) {
            if (p->lexer.token.kind != TOKEN_NAME) {
                lexer_expected(&p->lexer, "the label of a function's name");
                return;
            }
            place.function = symbol_of(p, &p->lexer.token);
            lexer_next(&p->lexer);
            if (take_sign(p, '+')) {
                place.function_offset = expect_number(p, "an offset");
            }
        } else if (take_word(p, "inlined_at")) {
            struct place outer = {0};
            expect_place(p, &outer);
            if (!p->lexer.failed) {
                place.inlined_at = outer_location(p, &outer);
            }
        } else {
            lexer_expected(&p->lexer, "function_name or inlined_at");
        }
    }
    if (!p->lexer.failed) {
        p->location = intern_place(p, &place);
        remember_latest(p, &place, p->location);
    }
}

void parse_file(struct parser *p) {
    const uint32_t number = expect_number(p, "the number of a file");
    const struct token name = p->lexer.token;
    if (name.kind != TOKEN_STRING) {
        lexer_expected(&p->lexer, "the name of a file in quotes");
        return;
    }
    lexer_next(&p->lexer);
    while (take_sign(p, ',')) { /* its time and its size */
        expect_integer(p, UINT64_MAX, "a number");
    }
    struct source_file *file = vector_push(p, &p->lines->files, sizeof *file);
    if (file) {
        file->number = number;
        file->text_line = name.line;
        file->text_column = name.column;
        file->name = arena_intern(p->arena, name.start + 1, name.length - 2);
        if (!file->name) {
            lexer_fail_at(&p->lexer, name.line, name.column, "out of memory");
        }
    }
}

static void parse_string_bytes(struct parser *p) {
    do {
        const unsigned char value = (unsigned char)expect_integer(p, UINT8_MAX, "a byte");
        char *byte = vector_push(p, &p->lines->strings, 1);
        if (byte) {
            *byte = (char)value;
        }
    } while (take_sign(p, ','));
}

void parse_section(struct parser *p) {
    const struct token name = p->lexer.token;
    if (name.kind != TOKEN_DIRECTIVE) {
        lexer_expected(&p->lexer, "the name of a section");
        return;
    }
    const bool keep = token_is(&name, ".debug_str");
    lexer_next(&p->lexer);
    expect_sign(p, '{', "behind the name of a section");
    while (!token_is_sign(&p->lexer.token, '}') && p->lexer.token.kind != TOKEN_END) {
        const struct token token = p->lexer.token;
        lexer_next(&p->lexer);
        if (keep && token.kind == TOKEN_NAME && take_sign(p, ':')) {
            struct symbol *label = symbol_of(p, &token);
            if (label) {
                label->string = p->lines->strings.count + 1;
            }
        } else if (keep && token_is(&token, ".b8")) {
            parse_string_bytes(p);
        }
    }
    expect_sign(p, '}', "at the end of a section");
}

/* ---- names ----------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b) {
    const struct source_file *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

static const char *file_name(struct parser *p, const struct place *place) {
    const struct vector *files = &p->lines->files;
    const struct source_file wanted = {.number = place->file};
    const struct source_file *found =
        files->count ? bsearch(&wanted, files->items, files->count, sizeof wanted, by_number)
                     : NULL;
    if (!found) {
        lexer_fail_at(&p->lexer, place->text_line, place->text_column,
                      "expected a file that a .file directive names, found %u", place->file);
        return NULL;
    }
    return found->name;
}

static const char *function_name(struct parser *p, const struct place *place) {
    const struct vector *strings = &p->lines->strings;
    if (place->function->string_name && place->function_offset == 0) {
        return place->function->string_name;
    }
    const uint64_t start = place->function->string + place->function_offset;
    const char *text = NULL, *end = NULL;
    if (place->function->string && start <= strings->count) {
        text = (const char *)strings->items + (start - 1);
        end = memchr(text, '\0', (size_t)(strings->count - (start - 1)));
    }
    if (!end) {
        lexer_fail_at(
            &p->lexer, place->text_line, place->text_column,
            "function_name '%.80s': expected a label in .debug_str with a string that ends",
            place->function->name);
        return NULL;
    }
    /* Labels inside one long string would make long names of a short text. */
    p->lines->name_bytes += (uint64_t)(end - text);
    const char *name = p->lines->name_bytes <= NAME_BYTES_MAX
                           ? arena_intern(p->arena, text, (size_t)(end - text))
                           : NULL;
    if (!name) {
        lexer_fail_at(&p->lexer, place->text_line, place->text_column,
                      "no memory for the names of functions: more than %d bytes", NAME_BYTES_MAX);
    }
    if (place->function_offset == 0) {
        place->function->string_name = name;
    }
    return name;
}

static void sort_files(struct parser *p) {
    struct source_file *files = p->lines->files.items;
    const size_t count = p->lines->files.count;
    if (count) {
        qsort(files, count, sizeof *files, by_number);
    }
    for (size_t i = 1; i < count; i++) {
        if (files[i].number == files[i - 1].number && files[i].name != files[i - 1].name) {
            lexer_fail_at(&p->lexer, files[i].text_line, files[i].text_column,
                          "file %u has two names, expected one", files[i].number);
        }
    }
}

void lines_finish(struct parser *p) {
    struct line_table *lines = p->lines;
    const struct place *places = lines->places.items;
    const size_t count = lines->places.count;
    struct ptx_location *locations = parser_alloc(p, p->arena, count * sizeof *locations);
    if (!locations) {
        return;
    }
    sort_files(p);
    for (size_t i = 1; i < count && !p->lexer.failed; i++) {
        locations[i] = (struct ptx_location){
            .file = file_name(p, &places[i]),
            .line = places[i].line,
            .column = places[i].column,
            .function = places[i].function ? function_name(p, &places[i]) : NULL,
            .inlined_at = places[i].inlined_at,
        };
    }
    p->module->locations = locations;
    p->module->location_count = (uint32_t)count;
}
