/* SPDX-License-Identifier: Apache-2.0
 *
 * cubin.c - see cubin.h.
 */
#include "cubin.h"

#include <inttypes.h>
#include <string.h>

#include "message.h"

enum { HEADER = 64, SECTION = 64, SYMBOL = 24, MACHINE_CUDA = 190, RESERVED_SHARED = 1024 };
enum { TYPE_STRINGS = 3, TYPE_SYMBOLS = 2, TYPE_NO_BITS = 8, SYMBOL_FUNCTION = 2 };
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

static struct section get_section(const struct cubin *cubin, uint32_t index) {
    struct section section = raw_section(cubin, index);
    section.name = string_of(cubin, cubin->section_names, section_name_at(cubin, index));
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

/* The first section called PREFIX, or PREFIX and NAME; false if there is none. */
static bool find_section(const struct cubin *cubin, const char *prefix, const char *name,
                         struct section *section) {
    const size_t length = strlen(prefix);
    for (uint32_t i = 0; i < cubin->sections; i++) {
        *section = get_section(cubin, i);
        if (strncmp(section->name, prefix, length) == 0 &&
            strcmp(section->name + length, name) == 0) {
            return true;
        }
    }
    return false;
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
        if (section.type != TYPE_NO_BITS && !inside(section.at, section.size, cubin->bytes)) {
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

bool cubin_open(struct cubin *cubin, const void *data, size_t bytes, attn_error *why) {
    *cubin = (struct cubin){.data = data, .bytes = bytes};
    return check_header(cubin, why) && check_sections(cubin, why) && check_symbols(cubin, why);
}

/* ---- .nv.info -------------------------------------------------------------------------------- */

/* The largest value that attribute `code` has for the symbol (sized attributes: symbol and value)
 * or at all (byte attributes); *found says whether there is one. */
static bool look_up(const struct cubin *cubin, const struct section *info, unsigned code,
                    uint32_t symbol, uint32_t *value, bool *found, attn_error *why) {
    const unsigned char *bytes = cubin->data + info->at;
    const uint64_t size = info->type == TYPE_NO_BITS ? 0 : info->size;
    uint64_t at = 0;
    *value = 0;
    *found = false;
    while (at < size) {
        if (size - at < 4) {
            return explain(why, "%.64s ends within an attribute", info->name);
        }
        const unsigned char *p = bytes + at;
        const uint64_t payload = p[0] == FORMAT_SIZED ? read16(p + 2) : 0;
        if (p[0] < FORMAT_NONE || p[0] > FORMAT_SIZED || payload > size - at - 4) {
            return explain(why,
                           "%.64s: attribute of format %u and %" PRIu64 " bytes at %" PRIu64
                           " of %" PRIu64,
                           info->name, p[0], payload, at, size);
        }
        if (p[1] == code) {
            const bool sized = p[0] == FORMAT_SIZED && payload == 8 && read32(p + 4) == symbol;
            if (sized || p[0] == FORMAT_BYTE) {
                const uint32_t given = sized ? read32(p + 8) : p[2];
                *value = given > *value ? given : *value;
                *found = true;
            }
        }
        at += 4 + payload;
    }
    return true;
}

static bool demand(const struct cubin *cubin, const struct section *info, unsigned code,
                   const struct cubin_entry *entry, const char *what, uint32_t *value,
                   attn_error *why) {
    bool found;
    if (!look_up(cubin, info, code, entry->symbol, value, &found, why)) {
        return false;
    }
    return found || explain(why, "kernel %.64s: .nv.info does not tell its %s (attribute 0x%x)",
                            entry->name, what, code);
}

static bool read_needs(const struct cubin *cubin, struct cubin_entry *entry, attn_error *why) {
    struct section info;
    if (!find_section(cubin, ".nv.info", "", &info)) {
        return explain(why, "kernel %.64s: there is no section .nv.info", entry->name);
    }
    uint32_t whole;
    bool found;
    if (!demand(cubin, &info, REGISTER_COUNT, entry, "registers", &entry->registers, why) ||
        !demand(cubin, &info, FRAME_SIZE, entry, "frame", &entry->frame_bytes, why) ||
        !demand(cubin, &info, MIN_STACK_SIZE, entry, "stack", &whole, why)) {
        return false;
    }
    entry->stack_bytes = whole > entry->frame_bytes ? whole : entry->frame_bytes;
    if (!find_section(cubin, ".nv.info.", entry->name, &info)) {
        return explain(why, "kernel %.64s: there is no section .nv.info.%.64s", entry->name,
                       entry->name);
    }
    return look_up(cubin, &info, BARRIER_COUNT, entry->symbol, &entry->barriers, &found, why);
}

/* ---- entries --------------------------------------------------------------------------------- */

static bool read_shared(const struct cubin *cubin, struct cubin_entry *entry, attn_error *why) {
    struct section shared, reserved;
    if (!find_section(cubin, ".nv.shared.", entry->name, &shared)) {
        return true;
    }
    const uint64_t kept =
        find_section(cubin, ".nv.shared.reserved.0", "", &reserved) ? RESERVED_SHARED : 0;
    if (shared.size < kept || shared.size - kept > INT32_MAX) {
        return explain(why,
                       "kernel %.64s: %" PRIu64 " bytes of shared memory, of which the system "
                       "keeps %" PRIu64,
                       entry->name, shared.size, kept);
    }
    entry->shared_bytes = (uint32_t)(shared.size - kept);
    return true;
}

/* A function that is no kernel, in the entry's section or in one of its own. One in the section of
 * another kernel is that kernel's. */
static bool is_callee(const struct cubin *cubin, const struct cubin_entry *entry,
                      const struct symbol *symbol) {
    if (symbol->type != SYMBOL_FUNCTION || is_entry(symbol) || symbol->section >= cubin->sections) {
        return false;
    }
    const char *section = get_section(cubin, symbol->section).name;
    return symbol->section == entry->section ||
           (is_text(section) && strcmp(section + TEXT_PREFIX, symbol->name) == 0);
}

static void count_callees(const struct cubin *cubin, struct cubin_entry *entry) {
    for (uint32_t i = 0; i < cubin->symbols; i++) {
        const struct symbol symbol = get_symbol(cubin, i);
        if (is_callee(cubin, entry, &symbol)) {
            const bool builtin = strncmp(symbol.name, "$__internal_", 12) == 0;
            entry->builtins += builtin;
            entry->helpers += !builtin;
        }
    }
}

bool cubin_owns(const struct cubin *cubin, const struct cubin_entry *entry, size_t offset) {
    const uint64_t at = entry->code_at + offset;
    for (uint32_t i = 0; entry->helpers + entry->builtins > 0 && i < cubin->symbols; i++) {
        const struct symbol symbol = get_symbol(cubin, i);
        if (is_callee(cubin, entry, &symbol) && symbol.section == entry->section &&
            at >= symbol.value && at - symbol.value < symbol.size) {
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
    if (text.type == TYPE_NO_BITS || !inside(symbol.value, symbol.size, text.size) ||
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
    uint32_t seen = 0;
    for (uint32_t i = 0; i < cubin->symbols; i++) {
        const struct symbol symbol = get_symbol(cubin, i);
        if (is_entry(&symbol) && seen++ == index) {
            return read_entry(cubin, i, entry, why);
        }
    }
    return explain(why, "kernel %" PRIu32 " of %" PRIu32, index, cubin->entries);
}

bool cubin_find(const struct cubin *cubin, const char *name, struct cubin_entry *entry,
                attn_error *why) {
    for (uint32_t i = 0; i < cubin->symbols; i++) {
        const struct symbol symbol = get_symbol(cubin, i);
        if (is_entry(&symbol) && strcmp(symbol.name, name) == 0) {
            return read_entry(cubin, i, entry, why);
        }
    }
    return explain(why, "no kernel called %.128s among its %" PRIu32, name, cubin->entries);
}
