/* SPDX-License-Identifier: Apache-2.0
 *
 * cubin.c - see cubin.h.
 */
#include "stages/inspect/cubin.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

enum { HEADER = 64, SECTION = 64, SYMBOL = 24, MACHINE_CUDA = 190, RESERVED_SHARED = 1024 };
enum { TYPE_STRINGS = 3, TYPE_SYMBOLS = 2, TYPE_NO_BITS = 8, SYMBOL_FUNCTION = 2 };
/* Of relocatable files: variables, local and shared memory, and what the system keeps of that. */
enum { GLOBAL_SPACE = 0x70000007, LOCAL_SPACE = 0x70000009 };
enum { SHARED_SPACE = 0x7000000a, RESERVED_SPACE = 0x70000015 };
enum { FILE_LINKED = 2, FIRST_WITH_RESERVED = 90, NONE = -1 };
enum { TEXT_PREFIX = 6 };    /* ".text." */
enum { OTHER_ENTRY = 0x10 }; /* in a symbol's st_other: a kernel */

/* Of .nv.info: what an attribute's two bytes after format and code are. */
enum { FORMAT_NONE = 1, FORMAT_BYTE = 2, FORMAT_HALF = 3, FORMAT_SIZED = 4 };
enum { FRAME_SIZE = 0x11, MIN_STACK_SIZE = 0x12, REGISTER_COUNT = 0x2f, BARRIER_COUNT = 0x4c };

struct section {
    const char *name;
    uint32_t type, link;
    uint64_t at, size;
};

struct symbol {
    const char *name;
    unsigned type, other, section;
    uint64_t value, size;
};

struct named_section {
    const char *name;
    uint32_t section;
};

/* What .nv.info tells of a symbol; NONE: nothing. */
struct needs {
    int64_t registers, frame, stack;
};

/* Made once, so that a file of ten thousand kernels is read in a second. */
struct cubin_index {
    struct named_section *names; /* of all sections, sorted; equal ones in the file's order */
    struct needs *needs;         /* by symbol */
    uint32_t *entries;           /* symbols that are kernels, in the table's order */
    int64_t *first_callee;       /* by section: a function in it that is no kernel, or NONE */
    int64_t *next_callee;        /* by symbol: another one in the same section, or NONE */
    uint32_t far_helpers, far_builtins; /* in sections of their own: any kernel may call them */
    bool has_info;
};

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint32_t read16(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t read32(const unsigned char *p) {
    return read16(p) | read16(p + 2) << 16;
}

static uint64_t read64(const unsigned char *p) {
    return read32(p) | (uint64_t)read32(p + 4) << 32;
}

static bool inside(uint64_t at, uint64_t size, uint64_t whole) {
    return at <= whole && size <= whole - at;
}

static bool takes_no_bytes(uint32_t type) {
    return type == TYPE_NO_BITS || type == GLOBAL_SPACE || type == LOCAL_SPACE ||
           type == SHARED_SPACE || type == RESERVED_SPACE;
}

/* ---- sections and symbols: of an image that was checked ------------------------------------- */

static struct section raw_section(const struct cubin *cubin, uint32_t index) {
    const unsigned char *p = cubin->data + read64(cubin->data + 40) + (size_t)index * SECTION;
    return (struct section){.type = read32(p + 4),
                            .at = read64(p + 24),
                            .size = read64(p + 32),
                            .link = read32(p + 40)};
}

static uint32_t section_name_at(const struct cubin *cubin, uint32_t index) {
    return read32(cubin->data + read64(cubin->data + 40) + (size_t)index * SECTION);
}

static const char *string_of(const struct cubin *cubin, uint32_t table, uint32_t at) {
    return (const char *)cubin->data + raw_section(cubin, table).at + at;
}

static const char *section_name(const struct cubin *cubin, uint32_t index) {
    return string_of(cubin, cubin->section_names, section_name_at(cubin, index));
}

static struct section get_section(const struct cubin *cubin, uint32_t index) {
    struct section section = raw_section(cubin, index);
    section.name = section_name(cubin, index);
    return section;
}

static const unsigned char *symbol_bytes(const struct cubin *cubin, uint32_t index) {
    return cubin->data + raw_section(cubin, cubin->symbol_table).at + (size_t)index * SYMBOL;
}

static struct symbol get_symbol(const struct cubin *cubin, uint32_t index) {
    const unsigned char *p = symbol_bytes(cubin, index);
    return (struct symbol){.name = string_of(cubin, cubin->symbol_names, read32(p)),
                           .type = p[4] & 0xfu,
                           .other = p[5],
                           .section = read16(p + 6),
                           .value = read64(p + 8),
                           .size = read64(p + 16)};
}

static bool is_entry(const struct symbol *symbol) {
    return symbol->type == SYMBOL_FUNCTION && (symbol->other & OTHER_ENTRY) != 0;
}

static bool is_text(const char *name) {
    return strncmp(name, ".text.", TEXT_PREFIX) == 0;
}

static bool is_builtin(const struct symbol *symbol) {
    return strncmp(symbol->name, "$__internal_", 12) == 0;
}

/* The first section called PREFIX and NAME; false, and another one, if there is none. */
static bool find_section(const struct cubin *cubin, const char *prefix, const char *name,
                         struct section *section) {
    const struct named_section *names = cubin->index->names;
    const size_t length = strlen(prefix);
    uint32_t low = 0, high = cubin->sections;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const char *at = section_name(cubin, names[middle].section);
        const int prefixes = strncmp(at, prefix, length);
        if (prefixes < 0 || (prefixes == 0 && strcmp(at + length, name) < 0)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == cubin->sections) {
        return false;
    }
    *section = get_section(cubin, names[low].section);
    return strncmp(section->name, prefix, length) == 0 && strcmp(section->name + length, name) == 0;
}

/* ---- the checks that all of the above relies on ---------------------------------------------- */

static bool check_strings(const struct cubin *cubin, uint32_t index, const char *what,
                          attn_error *why) {
    if (index >= cubin->sections) {
        return explain(why, "%s: section %" PRIu32 " of %" PRIu32, what, index, cubin->sections);
    }
    const struct section section = raw_section(cubin, index);
    if (section.type != TYPE_STRINGS || section.size == 0 ||
        cubin->data[section.at + section.size - 1] != '\0') {
        return explain(why, "%s: section %" PRIu32 " is no table of strings", what, index);
    }
    return true;
}

static bool check_header(struct cubin *cubin, attn_error *why) {
    const unsigned char *p = cubin->data;
    if (cubin->bytes < HEADER || memcmp(p, "\177ELF\2\1\1", 7) != 0) {
        return explain(why,
                       "not a cubin: its %zu bytes do not begin as a 64-bit little-endian ELF "
                       "file does",
                       cubin->bytes);
    }
    if (read16(p + 18) != MACHINE_CUDA) {
        return explain(why, "not a cubin: ELF machine %" PRIu32 ", expected %d", read16(p + 18),
                       MACHINE_CUDA);
    }
    /* From ABI version 8 on the architecture is in the second byte of the flags, before in the
     * first. */
    const uint32_t flags = read32(p + 48);
    cubin->sm = p[8] >= 8 ? flags >> 8 & 0xff : flags & 0xff;
    cubin->linked = read16(p + 16) == FILE_LINKED;
    cubin->sections = read16(p + 60);
    if (read16(p + 58) != SECTION || cubin->sections == 0 ||
        !inside(read64(p + 40), (uint64_t)cubin->sections * SECTION, cubin->bytes)) {
        return explain(why, "truncated: %" PRIu32 " section headers at %" PRIu64 " of %zu bytes",
                       cubin->sections, read64(p + 40), cubin->bytes);
    }
    return true;
}

static bool check_sections(struct cubin *cubin, attn_error *why) {
    for (uint32_t i = 0; i < cubin->sections; i++) {
        const struct section section = raw_section(cubin, i);
        if (!takes_no_bytes(section.type) && !inside(section.at, section.size, cubin->bytes)) {
            return explain(why,
                           "truncated: section %" PRIu32 " has %" PRIu64 " bytes at %" PRIu64
                           ", the file %zu bytes",
                           i, section.size, section.at, cubin->bytes);
        }
    }
    cubin->section_names = read16(cubin->data + 62);
    if (!check_strings(cubin, cubin->section_names, "names of sections", why)) {
        return false;
    }
    const uint64_t size = raw_section(cubin, cubin->section_names).size;
    for (uint32_t i = 0; i < cubin->sections; i++) {
        if (section_name_at(cubin, i) >= size) {
            return explain(why, "section %" PRIu32 ": its name lies outside the names", i);
        }
    }
    return true;
}

static bool check_symbols(struct cubin *cubin, attn_error *why) {
    uint32_t index = 0;
    while (index < cubin->sections && raw_section(cubin, index).type != TYPE_SYMBOLS) {
        index++;
    }
    if (index == cubin->sections) {
        return explain(why, "no table of symbols among its %" PRIu32 " sections", cubin->sections);
    }
    const struct section table = raw_section(cubin, index);
    cubin->symbol_table = index;
    cubin->symbol_names = table.link;
    if (table.size % SYMBOL != 0 || table.size / SYMBOL > UINT32_MAX) {
        return explain(why, "symbols: %" PRIu64 " bytes, expected a multiple of %d", table.size,
                       SYMBOL);
    }
    cubin->symbols = (uint32_t)(table.size / SYMBOL);
    if (!check_strings(cubin, table.link, "names of symbols", why)) {
        return false;
    }
    const uint64_t names = raw_section(cubin, table.link).size;
    for (uint32_t i = 0; i < cubin->symbols; i++) {
        if (read32(symbol_bytes(cubin, i)) >= names) {
            return explain(why, "symbol %" PRIu32 ": its name lies outside the names", i);
        }
        const struct symbol symbol = get_symbol(cubin, i);
        cubin->entries += is_entry(&symbol);
    }
    return true;
}

/* ---- .nv.info -------------------------------------------------------------------------------- */

/* The attribute at *at, which moves on behind it. */
struct attribute {
    unsigned format, code;
    const unsigned char *bytes; /* what follows format and code */
    uint64_t payload;           /* of a sized one, behind its two bytes of size */
};

/* False and no sentence at the end; false and a sentence where it makes no sense. */
static bool next_attribute(const struct cubin *cubin, const struct section *info, uint64_t *at,
                           struct attribute *attribute, attn_error *why) {
    const uint64_t size = takes_no_bytes(info->type) ? 0 : info->size;
    why->text[0] = '\0';
    if (*at >= size) {
        return false;
    }
    if (size - *at < 4) {
        return explain(why, "%.64s ends within an attribute", info->name);
    }
    const unsigned char *p = cubin->data + info->at + *at;
    const uint64_t payload = p[0] == FORMAT_SIZED ? read16(p + 2) : 0;
    if (p[0] < FORMAT_NONE || p[0] > FORMAT_SIZED || payload > size - *at - 4) {
        return explain(
            why, "%.64s: attribute of format %u and %" PRIu64 " bytes at %" PRIu64 " of %" PRIu64,
            info->name, p[0], payload, *at, size);
    }
    *attribute = (struct attribute){p[0], p[1], p + 2, payload};
    *at += 4 + payload;
    return true;
}

/* The largest value counts, should there be several. */
static bool read_info(struct cubin *cubin, attn_error *why) {
    struct cubin_index *index = cubin->index;
    struct attribute attribute = {0};
    struct section info;
    uint64_t at = 0;
    index->has_info = find_section(cubin, ".nv.info", "", &info);
    while (index->has_info && next_attribute(cubin, &info, &at, &attribute, why)) {
        const uint32_t symbol = attribute.payload == 8 ? read32(attribute.bytes + 2) : UINT32_MAX;
        if (symbol >= cubin->symbols) {
            continue;
        }
        struct needs *needs = &index->needs[symbol];
        int64_t *figure = attribute.code == REGISTER_COUNT   ? &needs->registers
                          : attribute.code == FRAME_SIZE     ? &needs->frame
                          : attribute.code == MIN_STACK_SIZE ? &needs->stack
                                                             : NULL;
        const int64_t value = read32(attribute.bytes + 6);
        if (figure != NULL && value > *figure) {
            *figure = value;
        }
    }
    return !index->has_info || why->text[0] == '\0';
}

static bool read_barriers(const struct cubin *cubin, struct cubin_entry *entry, attn_error *why) {
    struct attribute attribute = {0};
    struct section info;
    uint64_t at = 0;
    if (!find_section(cubin, ".nv.info.", entry->name, &info)) {
        return explain(why, "kernel %.64s: there is no section .nv.info.%.64s", entry->name,
                       entry->name);
    }
    while (next_attribute(cubin, &info, &at, &attribute, why)) {
        if (attribute.code == BARRIER_COUNT && attribute.format == FORMAT_BYTE &&
            attribute.bytes[0] > entry->barriers) {
            entry->barriers = attribute.bytes[0];
        }
    }
    return why->text[0] == '\0';
}

static bool demand(const struct cubin_entry *entry, int64_t figure, const char *what, unsigned code,
                   uint32_t *value, attn_error *why) {
    *value = figure >= 0 ? (uint32_t)figure : 0;
    return figure >= 0 ||
           explain(why, "kernel %.64s: .nv.info does not tell its %s (attribute 0x%x)", entry->name,
                   what, code);
}

static bool read_needs(const struct cubin *cubin, struct cubin_entry *entry, attn_error *why) {
    const struct needs *needs = &cubin->index->needs[entry->symbol];
    uint32_t whole;
    if (!cubin->index->has_info) {
        return explain(why, "kernel %.64s: there is no section .nv.info", entry->name);
    }
    if (!demand(entry, needs->registers, "registers", REGISTER_COUNT, &entry->registers, why) ||
        !demand(entry, needs->frame, "frame", FRAME_SIZE, &entry->frame_bytes, why) ||
        !demand(entry, cubin->linked ? needs->stack : needs->frame, "stack", MIN_STACK_SIZE, &whole,
                why)) {
        return false;
    }
    entry->stack_bytes = whole > entry->frame_bytes ? whole : entry->frame_bytes;
    return read_barriers(cubin, entry, why);
}

/* ---- the index ------------------------------------------------------------------------------- */

static int compare_names(const void *left, const void *right) {
    const struct named_section *a = left, *b = right;
    const int order = strcmp(a->name, b->name);
    return order != 0 ? order : (a->section > b->section) - (a->section < b->section);
}

/* A function in a section that is called as itself. */
static bool is_far(const struct cubin *cubin, const struct symbol *symbol) {
    const char *section = get_section(cubin, symbol->section).name;
    return is_text(section) && strcmp(section + TEXT_PREFIX, symbol->name) == 0;
}

static void index_symbols(struct cubin *cubin) {
    struct cubin_index *index = cubin->index;
    uint32_t entries = 0;
    for (uint32_t i = 0; i < cubin->symbols; i++) {
        const struct symbol symbol = get_symbol(cubin, i);
        index->needs[i] = (struct needs){NONE, NONE, NONE};
        index->next_callee[i] = NONE;
        if (is_entry(&symbol)) {
            index->entries[entries++] = i;
        } else if (symbol.type == SYMBOL_FUNCTION && symbol.section < cubin->sections) {
            index->next_callee[i] = index->first_callee[symbol.section];
            index->first_callee[symbol.section] = i;
            if (is_far(cubin, &symbol)) {
                index->far_builtins += is_builtin(&symbol);
                index->far_helpers += !is_builtin(&symbol);
            }
        }
    }
}

static bool make_index(struct cubin *cubin, attn_error *why) {
    struct cubin_index *index = calloc(1, sizeof *index);
    cubin->index = index;
    const size_t symbols = (size_t)cubin->symbols + 1; /* calloc(0) may give NULL */
    if (index != NULL) {
        index->names = calloc(cubin->sections, sizeof *index->names);
        index->first_callee = calloc(cubin->sections, sizeof *index->first_callee);
        index->needs = calloc(symbols, sizeof *index->needs);
        index->entries = calloc(symbols, sizeof *index->entries);
        index->next_callee = calloc(symbols, sizeof *index->next_callee);
    }
    if (index == NULL || index->names == NULL || index->first_callee == NULL ||
        index->needs == NULL || index->entries == NULL || index->next_callee == NULL) {
        return explain(why, "out of memory for %" PRIu32 " symbols", cubin->symbols);
    }
    for (uint32_t i = 0; i < cubin->sections; i++) {
        index->names[i] = (struct named_section){get_section(cubin, i).name, i};
        index->first_callee[i] = NONE;
    }
    qsort(index->names, cubin->sections, sizeof *index->names, compare_names);
    index_symbols(cubin);
    return true;
}

bool cubin_open(struct cubin *cubin, const void *data, size_t bytes, attn_error *why) {
    attn_error ignored;
    why = why != NULL ? why : &ignored;
    *cubin = (struct cubin){.data = data, .bytes = bytes};
    if (check_header(cubin, why) && check_sections(cubin, why) && check_symbols(cubin, why) &&
        make_index(cubin, why) && read_info(cubin, why)) {
        return true;
    }
    cubin_close(cubin);
    return false;
}

void cubin_close(struct cubin *cubin) {
    if (cubin->index != NULL) {
        free(cubin->index->names);
        free(cubin->index->first_callee);
        free(cubin->index->needs);
        free(cubin->index->entries);
        free(cubin->index->next_callee);
        free(cubin->index);
    }
    *cubin = (struct cubin){0};
}

bool cubin_names(const struct cubin *cubin, const char *name) {
    for (uint32_t i = 0; i < cubin->symbols; i++) {
        if (strcmp(get_symbol(cubin, i).name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- entries --------------------------------------------------------------------------------- */

static bool read_shared(const struct cubin *cubin, struct cubin_entry *entry, attn_error *why) {
    struct section shared;
    if (!find_section(cubin, ".nv.shared.", entry->name, &shared)) {
        return true;
    }
    const uint64_t kept = cubin->linked && cubin->sm >= FIRST_WITH_RESERVED ? RESERVED_SHARED : 0;
    if (shared.size < kept || shared.size - kept > INT32_MAX) {
        return explain(why,
                       "kernel %.64s: %" PRIu64 " bytes of shared memory, of which the system "
                       "keeps %" PRIu64,
                       entry->name, shared.size, kept);
    }
    entry->shared_bytes = (uint32_t)(shared.size - kept);
    return true;
}

/* Functions that are no kernels, in the entry's section or in one of their own. One in the section
 * of another kernel is that kernel's. */
static void count_callees(const struct cubin *cubin, struct cubin_entry *entry) {
    const struct cubin_index *index = cubin->index;
    entry->helpers = index->far_helpers;
    entry->builtins = index->far_builtins;
    for (int64_t i = index->first_callee[entry->section]; i != NONE; i = index->next_callee[i]) {
        const struct symbol symbol = get_symbol(cubin, (uint32_t)i);
        if (!is_far(cubin, &symbol)) {
            entry->builtins += is_builtin(&symbol);
            entry->helpers += !is_builtin(&symbol);
        }
    }
}

bool cubin_owns(const struct cubin *cubin, const struct cubin_entry *entry, size_t offset) {
    const struct cubin_index *index = cubin->index;
    const uint64_t at = entry->code_at + offset;
    for (int64_t i = index->first_callee[entry->section]; i != NONE; i = index->next_callee[i]) {
        const struct symbol symbol = get_symbol(cubin, (uint32_t)i);
        if (at >= symbol.value && at - symbol.value < symbol.size) {
            return false;
        }
    }
    return true;
}

static bool read_entry(const struct cubin *cubin, uint32_t index, struct cubin_entry *entry,
                       attn_error *why) {
    const struct symbol symbol = get_symbol(cubin, index);
    *entry = (struct cubin_entry){.name = symbol.name, .symbol = index, .section = symbol.section};
    if (symbol.section >= cubin->sections || !is_text(get_section(cubin, symbol.section).name)) {
        return explain(why, "kernel %.64s: it is in section %u, which holds no code", symbol.name,
                       symbol.section);
    }
    const struct section text = get_section(cubin, symbol.section);
    if (takes_no_bytes(text.type) || !inside(symbol.value, symbol.size, text.size) ||
        symbol.size == 0 || symbol.size % CUBIN_INSTRUCTION != 0) {
        return explain(why,
                       "kernel %.64s: %" PRIu64 " bytes of code at %" PRIu64 " of %" PRIu64
                       ", expected a multiple of %d",
                       symbol.name, symbol.size, symbol.value, text.size, CUBIN_INSTRUCTION);
    }
    entry->code = cubin->data + text.at + symbol.value;
    entry->code_bytes = (size_t)symbol.size;
    entry->code_at = (size_t)symbol.value;
    count_callees(cubin, entry);
    return read_needs(cubin, entry, why) && read_shared(cubin, entry, why);
}

bool cubin_entry(const struct cubin *cubin, uint32_t index, struct cubin_entry *entry,
                 attn_error *why) {
    attn_error ignored;
    why = why != NULL ? why : &ignored;
    return index < cubin->entries
               ? read_entry(cubin, cubin->index->entries[index], entry, why)
               : explain(why, "kernel %" PRIu32 " of %" PRIu32, index, cubin->entries);
}

bool cubin_find(const struct cubin *cubin, const char *name, struct cubin_entry *entry,
                attn_error *why) {
    for (uint32_t i = 0; i < cubin->entries; i++) {
        if (strcmp(get_symbol(cubin, cubin->index->entries[i]).name, name) == 0) {
            return cubin_entry(cubin, i, entry, why);
        }
    }
    return explain(why, "no kernel called %.128s among its %" PRIu32, name, cubin->entries);
}
