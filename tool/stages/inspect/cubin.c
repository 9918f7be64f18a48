/* SPDX-License-Identifier: Apache-2.0
 *
 * cubin.c - see cubin.h.
 */
#include "stages/inspect/cubin.h"

#include <elf.h>
#include <inttypes.h>
#include <string.h>

#include "base/message.h"

enum { MACHINE_CUDA = 190, RESERVED_SHARED = 1024, FIRST_WITH_RESERVED = 90, NONE = -1 };
/* Of relocatable files: variables, local and shared memory, and what the system keeps of that. */
enum { GLOBAL_SPACE = 0x70000007, LOCAL_SPACE = 0x70000009 };
enum { SHARED_SPACE = 0x7000000a, RESERVED_SPACE = 0x70000015 };
enum { OTHER_ENTRY = 0x10 }; /* in a symbol's st_other: a kernel */

/* Of .nv.info: what an attribute's two bytes after format and code are. */
enum { FORMAT_NONE = 1, FORMAT_BYTE = 2, FORMAT_SIZED = 4 };
enum { FRAME_SIZE = 0x11, MIN_STACK_SIZE = 0x12, REGISTER_COUNT = 0x2f, BARRIER_COUNT = 0x4c };

/* ---- sections and symbols: of an image that was checked -------------------------------------- */

static uint32_t read16(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t read32(const unsigned char *p) {
    return read16(p) | read16(p + 2) << 16;
}

static bool inside(uint64_t at, uint64_t size, uint64_t whole) {
    return at <= whole && size <= whole - at;
}

static bool takes_no_bytes(uint32_t type) {
    return type == SHT_NOBITS || type == GLOBAL_SPACE || type == LOCAL_SPACE ||
           type == SHARED_SPACE || type == RESERVED_SPACE;
}

static Elf64_Ehdr get_header(const struct cubin *cubin) {
    Elf64_Ehdr header;
    memcpy(&header, cubin->data, sizeof header);
    return header;
}

static Elf64_Shdr get_section(const struct cubin *cubin, uint32_t index) {
    Elf64_Shdr section;
    memcpy(&section, cubin->data + get_header(cubin).e_shoff + (size_t)index * sizeof section,
           sizeof section);
    return section;
}

static Elf64_Sym get_symbol(const struct cubin *cubin, uint32_t index) {
    Elf64_Sym symbol;
    memcpy(&symbol,
           cubin->data + get_section(cubin, cubin->symbol_table).sh_offset +
               (size_t)index * sizeof symbol,
           sizeof symbol);
    return symbol;
}

static const char *string_of(const struct cubin *cubin, uint32_t table, uint32_t at) {
    return (const char *)cubin->data + get_section(cubin, table).sh_offset + at;
}

static const char *section_name(const struct cubin *cubin, uint32_t index) {
    return string_of(cubin, cubin->section_names, get_section(cubin, index).sh_name);
}

static const char *symbol_name(const struct cubin *cubin, const Elf64_Sym *symbol) {
    return string_of(cubin, cubin->symbol_names, symbol->st_name);
}

static bool is_entry(const Elf64_Sym *symbol) {
    return ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && (symbol->st_other & OTHER_ENTRY) != 0;
}

/* "kernel" of ".text.kernel"; NULL: a section without code. */
static const char *text_of(const char *section) {
    return strncmp(section, ".text.", 6) == 0 ? section + 6 : NULL;
}

/* The first section called PREFIX and NAME. */
static bool find_section(const struct cubin *cubin, const char *prefix, const char *name,
                         Elf64_Shdr *section) {
    const size_t length = strlen(prefix);
    for (uint32_t i = 0; i < cubin->sections; i++) {
        const char *own = section_name(cubin, i);
        if (strncmp(own, prefix, length) == 0 && strcmp(own + length, name) == 0) {
            *section = get_section(cubin, i);
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
    const Elf64_Shdr section = get_section(cubin, index);
    return (section.sh_type == SHT_STRTAB && section.sh_size > 0 &&
            cubin->data[section.sh_offset + section.sh_size - 1] == '\0') ||
           explain(why, "%s: section %" PRIu32 " is no table of strings", what, index);
}

static bool check_header(struct cubin *cubin, attn_error *why) {
    if (cubin->bytes < sizeof(Elf64_Ehdr) || memcmp(cubin->data, "\177ELF\2\1\1", 7) != 0) {
        return explain(why,
                       "not a cubin: its %zu bytes do not begin as a 64-bit little-endian ELF "
                       "file does",
                       cubin->bytes);
    }
    const Elf64_Ehdr header = get_header(cubin);
    if (header.e_machine != MACHINE_CUDA) {
        return explain(why, "not a cubin: ELF machine %u, expected %d", header.e_machine,
                       MACHINE_CUDA);
    }
    /* From ABI version 8 on the architecture is in the second byte of the flags, before in the
     * first. */
    const bool second = header.e_ident[EI_ABIVERSION] >= 8;
    cubin->sm = (second ? header.e_flags >> 8 : header.e_flags) & 0xff;
    cubin->linked = header.e_type == ET_EXEC;
    cubin->sections = header.e_shnum;
    cubin->section_names = header.e_shstrndx;
    if (header.e_shentsize != sizeof(Elf64_Shdr) || cubin->sections == 0 ||
        !inside(header.e_shoff, cubin->sections * sizeof(Elf64_Shdr), cubin->bytes)) {
        return explain(why, "truncated: %" PRIu32 " section headers at %" PRIu64 " of %zu bytes",
                       cubin->sections, header.e_shoff, cubin->bytes);
    }
    return true;
}

static bool check_sections(const struct cubin *cubin, attn_error *why) {
    for (uint32_t i = 0; i < cubin->sections; i++) {
        const Elf64_Shdr section = get_section(cubin, i);
        if (!takes_no_bytes(section.sh_type) &&
            !inside(section.sh_offset, section.sh_size, cubin->bytes)) {
            return explain(why,
                           "truncated: section %" PRIu32 " has %" PRIu64 " bytes at %" PRIu64
                           ", the file %zu bytes",
                           i, section.sh_size, section.sh_offset, cubin->bytes);
        }
    }
    if (!check_strings(cubin, cubin->section_names, "names of sections", why)) {
        return false;
    }
    const uint64_t size = get_section(cubin, cubin->section_names).sh_size;
    for (uint32_t i = 0; i < cubin->sections; i++) {
        if (get_section(cubin, i).sh_name >= size) {
            return explain(why, "section %" PRIu32 ": its name lies outside the names", i);
        }
    }
    return true;
}

static bool check_symbols(struct cubin *cubin, attn_error *why) {
    uint32_t index = 0;
    while (index < cubin->sections && get_section(cubin, index).sh_type != SHT_SYMTAB) {
        index++;
    }
    if (index == cubin->sections) {
        return explain(why, "no table of symbols among its %" PRIu32 " sections", cubin->sections);
    }
    const Elf64_Shdr table = get_section(cubin, index);
    cubin->symbol_table = index;
    cubin->symbol_names = table.sh_link;
    cubin->symbols = (uint32_t)(table.sh_size / sizeof(Elf64_Sym));
    if (table.sh_size % sizeof(Elf64_Sym) != 0 || table.sh_size / sizeof(Elf64_Sym) > UINT32_MAX) {
        return explain(why, "symbols: %" PRIu64 " bytes, expected a multiple of %zu", table.sh_size,
                       sizeof(Elf64_Sym));
    }
    if (!check_strings(cubin, table.sh_link, "names of symbols", why)) {
        return false;
    }
    const uint64_t names = get_section(cubin, table.sh_link).sh_size;
    for (uint32_t i = 0; i < cubin->symbols; i++) {
        const Elf64_Sym symbol = get_symbol(cubin, i);
        if (symbol.st_name >= names) {
            return explain(why, "symbol %" PRIu32 ": its name lies outside the names", i);
        }
        cubin->entries += is_entry(&symbol);
    }
    return true;
}

bool cubin_open(struct cubin *cubin, const void *data, size_t bytes, attn_error *why) {
    *cubin = (struct cubin){.data = data, .bytes = bytes};
    return check_header(cubin, why) && check_sections(cubin, why) && check_symbols(cubin, why);
}

bool cubin_names(const struct cubin *cubin, const char *name) {
    for (uint32_t i = 0; i < cubin->symbols; i++) {
        const Elf64_Sym symbol = get_symbol(cubin, i);
        if (strcmp(symbol_name(cubin, &symbol), name) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- .nv.info -------------------------------------------------------------------------------- */

struct attribute {
    unsigned format, code;
    const unsigned char *bytes; /* what follows format and code */
    uint64_t payload;           /* of a sized one, after its two bytes of size */
};

/* The attribute at *at, which moves past it. False and no sentence at the end; false and a sentence
 * where it makes no sense. */
static bool next_attribute(const struct cubin *cubin, const Elf64_Shdr *info, uint64_t *at,
                           struct attribute *attribute, attn_error *why) {
    const uint64_t size = takes_no_bytes(info->sh_type) ? 0 : info->sh_size;
    const char *name = string_of(cubin, cubin->section_names, info->sh_name);
    why->text[0] = '\0';
    if (*at >= size) {
        return false;
    }
    if (size - *at < 4) {
        return explain(why, "%.64s ends within an attribute", name);
    }
    const unsigned char *p = cubin->data + info->sh_offset + *at;
    const uint64_t payload = p[0] == FORMAT_SIZED ? read16(p + 2) : 0;
    if (p[0] < FORMAT_NONE || p[0] > FORMAT_SIZED || payload > size - *at - 4) {
        return explain(
            why, "%.64s: attribute of format %u and %" PRIu64 " bytes at %" PRIu64 " of %" PRIu64,
            name, p[0], payload, *at, size);
    }
    *attribute = (struct attribute){p[0], p[1], p + 2, payload};
    *at += 4 + payload;
    return true;
}

/* Registers and stack. The largest value counts, should there be several. */
static bool read_needs(const struct cubin *cubin, struct cubin_entry *entry, attn_error *why) {
    struct {
        const char *what;
        unsigned code;
        int64_t value;
    } needs[] = {{"registers", REGISTER_COUNT, NONE},
                 {"frame", FRAME_SIZE, NONE},
                 {"stack", MIN_STACK_SIZE, NONE}};
    enum { NEEDS = sizeof needs / sizeof *needs };
    struct attribute attribute = {0};
    Elf64_Shdr info;
    uint64_t at = 0;
    if (!find_section(cubin, ".nv.info", "", &info)) {
        return explain(why, "kernel %.64s: there is no section .nv.info", entry->name);
    }
    while (next_attribute(cubin, &info, &at, &attribute, why)) {
        for (int i = 0; i < NEEDS && attribute.payload == 8; i++) {
            const int64_t value = read32(attribute.bytes + 6);
            if (attribute.code == needs[i].code && read32(attribute.bytes + 2) == entry->symbol &&
                value > needs[i].value) {
                needs[i].value = value;
            }
        }
    }
    if (!cubin->linked) { /* what it calls is not known yet */
        needs[2].value = needs[1].value;
    }
    for (int i = 0; i < NEEDS && why->text[0] == '\0'; i++) {
        if (needs[i].value < 0) {
            explain(why, "kernel %.64s: .nv.info does not tell its %s (attribute 0x%x)",
                    entry->name, needs[i].what, needs[i].code);
        }
    }
    entry->registers = (uint32_t)needs[0].value;
    entry->frame_bytes = (uint32_t)needs[1].value;
    entry->stack_bytes =
        (uint32_t)(needs[2].value > needs[1].value ? needs[2].value : needs[1].value);
    return why->text[0] == '\0';
}

static bool read_barriers(const struct cubin *cubin, struct cubin_entry *entry, attn_error *why) {
    struct attribute attribute = {0};
    Elf64_Shdr info;
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

static bool read_shared(const struct cubin *cubin, struct cubin_entry *entry, attn_error *why) {
    const uint64_t kept = cubin->linked && cubin->sm >= FIRST_WITH_RESERVED ? RESERVED_SHARED : 0;
    Elf64_Shdr shared;
    if (!find_section(cubin, ".nv.shared.", entry->name, &shared)) {
        return true;
    }
    if (shared.sh_size < kept || shared.sh_size - kept > INT32_MAX) {
        return explain(why,
                       "kernel %.64s: %" PRIu64 " bytes of shared memory, of which the system "
                       "keeps %" PRIu64,
                       entry->name, shared.sh_size, kept);
    }
    entry->shared_bytes = (uint32_t)(shared.sh_size - kept);
    return true;
}

/* ---- entries --------------------------------------------------------------------------------- */

/* Whether the symbol is a function in a section of the file, and no kernel. */
static bool is_callee(const struct cubin *cubin, const Elf64_Sym *symbol) {
    return ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && !is_entry(symbol) &&
           symbol->st_shndx < cubin->sections;
}

/* Functions in the entry's section, or in a section that is called as they are: any kernel may call
 * those. One in the section of another kernel is that kernel's. */
static void count_callees(const struct cubin *cubin, struct cubin_entry *entry) {
    for (uint32_t i = 0; i < cubin->symbols; i++) {
        const Elf64_Sym symbol = get_symbol(cubin, i);
        if (!is_callee(cubin, &symbol)) {
            continue;
        }
        const char *name = symbol_name(cubin, &symbol);
        const char *text = text_of(section_name(cubin, symbol.st_shndx));
        entry->inside += symbol.st_shndx == entry->section;
        if (symbol.st_shndx == entry->section || (text != NULL && strcmp(text, name) == 0)) {
            const bool builtin = strncmp(name, "$__internal_", 12) == 0;
            entry->builtins += builtin;
            entry->helpers += !builtin;
        }
    }
}

static bool read_entry(const struct cubin *cubin, uint32_t index, struct cubin_entry *entry,
                       attn_error *why) {
    const Elf64_Sym symbol = get_symbol(cubin, index);
    *entry = (struct cubin_entry){
        .name = symbol_name(cubin, &symbol), .symbol = index, .section = symbol.st_shndx};
    if (symbol.st_shndx >= cubin->sections ||
        text_of(section_name(cubin, symbol.st_shndx)) == NULL) {
        return explain(why, "kernel %.64s: it is in section %u, which holds no code", entry->name,
                       symbol.st_shndx);
    }
    const Elf64_Shdr text = get_section(cubin, symbol.st_shndx);
    if (takes_no_bytes(text.sh_type) || !inside(symbol.st_value, symbol.st_size, text.sh_size) ||
        symbol.st_size == 0 || symbol.st_size % CUBIN_INSTRUCTION != 0) {
        return explain(why,
                       "kernel %.64s: %" PRIu64 " bytes of code at %" PRIu64 " of %" PRIu64
                       ", expected a multiple of %d",
                       entry->name, symbol.st_size, symbol.st_value, text.sh_size,
                       CUBIN_INSTRUCTION);
    }
    entry->code = cubin->data + text.sh_offset + symbol.st_value;
    entry->code_bytes = (size_t)symbol.st_size;
    entry->code_at = (size_t)symbol.st_value;
    count_callees(cubin, entry);
    return read_needs(cubin, entry, why) && read_barriers(cubin, entry, why) &&
           read_shared(cubin, entry, why);
}

/* Of the kernels of that name, or NULL: of all, the index-th. */
static bool find_entry(const struct cubin *cubin, const char *name, uint32_t index,
                       struct cubin_entry *entry, attn_error *why) {
    uint32_t i = 0;
    Elf64_Sym symbol;
    for (uint32_t before = 0; i < cubin->symbols; i++) {
        symbol = get_symbol(cubin, i);
        if (is_entry(&symbol) && (name == NULL || strcmp(symbol_name(cubin, &symbol), name) == 0) &&
            before++ == index) {
            return read_entry(cubin, i, entry, why);
        }
    }
    return name != NULL
               ? explain(why, "no kernel called %.128s among its %" PRIu32, name, cubin->entries)
               : explain(why, "kernel %" PRIu32 " of %" PRIu32, index, cubin->entries);
}

bool cubin_entry(const struct cubin *cubin, uint32_t index, struct cubin_entry *entry,
                 attn_error *why) {
    return find_entry(cubin, NULL, index, entry, why);
}

bool cubin_find(const struct cubin *cubin, const char *name, struct cubin_entry *entry,
                attn_error *why) {
    return find_entry(cubin, name, 0, entry, why);
}

/* ---- instructions ---------------------------------------------------------------------------- */

/* Confirmed by compiling PTX that holds a known number of them (tests/cli/test_sass.sh), and by
 * comparison with nvdisasm (tests/meta/confirm_sass.sh). */
static bool is_tensor(unsigned opcode) {
    static const unsigned MMAS[] = {
        0x23c,        /* HMMA */
        0x237,        /* IMMA */
        0x23d,        /* BMMA */
        0x23f,        /* DMMA */
        0x9f0, 0xdf0, /* HGMMA */
        0x9f1,        /* IGMMA */
        0x9f2,        /* BGMMA */
        0x9f3, 0xdf3, /* QGMMA */
    };
    bool found = false;
    for (size_t i = 0; i < sizeof MMAS / sizeof *MMAS; i++) {
        found = found || MMAS[i] == opcode;
    }
    return found;
}

/* In any form of operands. */
static bool is_local(unsigned opcode) {
    enum { LDL = 0x983, STL = 0x387, MNEMONIC = 0x1ff };
    return ((opcode ^ LDL) & MNEMONIC) == 0 || ((opcode ^ STL) & MNEMONIC) == 0;
}

/* Whether the instruction at this offset into the entry's code is the kernel's own, not one of a
 * function that lies in the same section. */
static bool owns(const struct cubin *cubin, const struct cubin_entry *entry, size_t offset) {
    const uint64_t at = entry->code_at + offset;
    for (uint32_t i = 0; entry->inside > 0 && i < cubin->symbols; i++) {
        const Elf64_Sym symbol = get_symbol(cubin, i);
        if (symbol.st_shndx == entry->section && is_callee(cubin, &symbol) &&
            at >= symbol.st_value && at - symbol.st_value < symbol.st_size) {
            return false;
        }
    }
    return true;
}

void sass_count(const struct cubin *cubin, const struct cubin_entry *entry,
                struct sass_counts *counts) {
    memset(counts, 0, sizeof *counts);
    for (size_t at = 0; at < entry->code_bytes; at += CUBIN_INSTRUCTION) {
        if (owns(cubin, entry, at)) {
            const unsigned opcode = read16(entry->code + at) & 0xfff;
            counts->tensor += is_tensor(opcode);
            counts->local += is_local(opcode);
            counts->instructions++;
        }
    }
}
