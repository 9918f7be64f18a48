/* SPDX-License-Identifier: Apache-2.0
 *
 * test_cubin.c - proves that the reader of cubins tells what `ptxas -v` said of the same kernels,
 * counts their instructions, and answers damaged files with a sentence.
 *
 * The cubins were made from tests/data/fuzz_cubin/two_kernels.ptx, whose instructions are known.
 */
#include "test.h"
#include "tool/stages/inspect/cubin.h"

#include <stdlib.h>

enum { FILE_MAX = 1 << 15, SECTION = 64 };

struct file {
    unsigned char bytes[FILE_MAX];
    size_t size;
};

static const char *const ARCHS[] = {"sm_80", "sm_90"};
enum { ARCH_COUNT = 2 };

static struct file load(const char *arch) {
    static struct file file;
    char path[128];
    snprintf(path, sizeof path, "tests/data/fuzz_cubin/%s.cubin", arch);
    FILE *in = fopen(path, "rb");
    file.size = in != NULL ? fread(file.bytes, 1, FILE_MAX, in) : 0;
    CHECK_MSG(file.size > 0, "%s cannot be read", path);
    if (in != NULL) {
        fclose(in);
    }
    return file;
}

/* All that there is to be read. A copy of its very size lets sanitizers see a step outside. */
static bool read_all(const unsigned char *bytes, size_t size, attn_error *why) {
    unsigned char *copy = malloc(size > 0 ? size : 1);
    struct cubin cubin;
    why->text[0] = '\0';
    memcpy(copy, bytes, size);
    bool good = cubin_open(&cubin, copy, size, why);
    for (uint32_t i = 0; good && i < cubin.entries; i++) {
        struct cubin_entry entry;
        good = cubin_entry(&cubin, i, &entry, why);
        if (good) {
            static struct sass_counts counts;
            sass_count(&cubin, &entry, &counts);
            CHECK(counts.instructions <= (int64_t)entry.code_bytes / CUBIN_INSTRUCTION);
        }
    }
    free(copy);
    return good;
}

TEST(figures_are_those_of_ptxas) {
    for (int a = 0; a < ARCH_COUNT; a++) {
        const struct file file = load(ARCHS[a]);
        struct cubin cubin;
        struct cubin_entry entry;
        attn_error why = {""};
        if (!CHECK_MSG(cubin_open(&cubin, file.bytes, file.size, &why), "%s", why.text)) {
            return;
        }
        CHECK_EQ(cubin.sm, a == 0 ? 80 : 90);
        CHECK_EQ(cubin.entries, 2);
        CHECK_MSG(cubin_find(&cubin, "alpha", &entry, &why), "%s", why.text);
        CHECK_STR(entry.name, "alpha");
        CHECK_EQ(entry.registers, 22);
        CHECK_EQ(entry.frame_bytes, 64);
        CHECK_EQ(entry.stack_bytes, 64);
        CHECK_EQ(entry.shared_bytes, 512);
        CHECK_EQ(entry.barriers, 3);
        CHECK_EQ(entry.helpers, 0);
        CHECK_MSG(cubin_find(&cubin, "beta", &entry, &why), "%s", why.text);
        CHECK_EQ(entry.registers, a == 0 ? 10 : 8);
        CHECK_EQ(entry.stack_bytes, 0);
        CHECK_EQ(entry.shared_bytes, 0);
        CHECK_EQ(entry.barriers, 0);
        CHECK_EQ(entry.helpers, 1);
        CHECK_EQ(entry.builtins, 0);
        CHECK(!cubin_names(&cubin, "vprintf"));
    }
}

/* What ptxas -v said of the same kernels with -g and with -c: the system's 1024 bytes are in the
 * first, though no section says so, and not in the second, whose memory takes no bytes either. */
TEST(debug_and_relocatable) {
    static const char *const names[] = {"sm_90_debug", "sm_90_relocatable"};
    static const bool linked[] = {true, false};
    for (int i = 0; i < 2; i++) {
        const struct file file = load(names[i]);
        struct cubin cubin;
        struct cubin_entry entry;
        attn_error why = {""};
        if (!CHECK_MSG(cubin_open(&cubin, file.bytes, file.size, &why), "%s", why.text)) {
            continue;
        }
        CHECK_EQ(cubin.linked, linked[i]);
        CHECK_MSG(cubin_find(&cubin, "alpha", &entry, &why), "%s", why.text);
        CHECK_EQ(entry.shared_bytes, 512);
        CHECK_EQ(entry.frame_bytes, 64);
        CHECK_EQ(entry.stack_bytes, 64);
        CHECK_MSG(cubin_find(&cubin, "beta", &entry, &why), "%s", why.text);
        CHECK_EQ(entry.shared_bytes, 0);
    }
}

TEST(names) {
    const struct file file = load("prints");
    struct cubin cubin;
    attn_error why = {""};
    if (CHECK_MSG(cubin_open(&cubin, file.bytes, file.size, &why), "%s", why.text)) {
        CHECK(cubin_names(&cubin, "vprintf"));
        CHECK(!cubin_names(&cubin, "printf"));
    }
}

/* The PTX has 3 MMAs, 1 load and 2 stores of local memory in alpha. beta calls its helper once,
 * and the helper's instructions are not its own. */
TEST(instructions) {
    for (int a = 0; a < ARCH_COUNT; a++) {
        const struct file file = load(ARCHS[a]);
        struct cubin cubin;
        struct cubin_entry entry;
        static struct sass_counts counts;
        attn_error why = {""};
        if (!CHECK(cubin_open(&cubin, file.bytes, file.size, &why)) ||
            !CHECK(cubin_find(&cubin, "alpha", &entry, &why))) {
            return;
        }
        sass_count(&cubin, &entry, &counts);
        CHECK_EQ(counts.tensor, 3);
        CHECK_EQ(counts.local, 3);
        CHECK_EQ(counts.instructions, (int64_t)entry.code_bytes / CUBIN_INSTRUCTION);
        CHECK(cubin_find(&cubin, "beta", &entry, &why));
        sass_count(&cubin, &entry, &counts);
        CHECK_EQ(counts.tensor, 0);
        CHECK_EQ(counts.instructions, 9);
        CHECK_EQ(entry.code_bytes, 24 * CUBIN_INSTRUCTION);
    }
}

TEST(absent_kernel) {
    const struct file file = load("sm_80");
    struct cubin cubin;
    struct cubin_entry entry;
    attn_error why = {""};
    CHECK(cubin_open(&cubin, file.bytes, file.size, &why));
    CHECK(!cubin_find(&cubin, "gamma", &entry, &why));
    CHECK_CONTAINS(why.text, "no kernel called gamma among its 2");
    CHECK(!cubin_find(&cubin, "$beta$helper", &entry, &why));
    CHECK(!cubin_entry(&cubin, 2, &entry, &why));
}

/* ---- damage ---------------------------------------------------------------------------------- */

TEST(cut_anywhere) {
    for (int a = 0; a < ARCH_COUNT; a++) {
        const struct file file = load(ARCHS[a]);
        attn_error why;
        CHECK_MSG(read_all(file.bytes, file.size, &why), "%s", why.text);
        /* The program headers come last, and are not read. */
        const size_t sections = file.bytes[60] + 256u * file.bytes[61];
        const size_t end = file.bytes[40] + 256u * file.bytes[41] + sections * SECTION;
        for (size_t size = 0; size < end; size++) {
            CHECK_MSG(!read_all(file.bytes, size, &why), "%s: %zu bytes were enough", ARCHS[a],
                      size);
            CHECK(why.text[0] != '\0');
        }
    }
}

TEST(any_byte_changed) {
    static const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
    int refused = 0;
    for (int a = 0; a < ARCH_COUNT; a++) {
        struct file file = load(ARCHS[a]);
        for (size_t at = 0; at < file.size; at++) {
            const unsigned char before = file.bytes[at];
            for (size_t v = 0; v < sizeof values; v++) {
                file.bytes[at] = values[v];
                attn_error why;
                const bool good = read_all(file.bytes, file.size, &why);
                CHECK_MSG(good == (why.text[0] == '\0'), "byte %zu = %u: \"%s\"", at, values[v],
                          why.text);
                refused += !good;
            }
            file.bytes[at] = before;
        }
    }
    CHECK(refused > 1000);
}

/* The header of the first section with this name. */
static unsigned char *section_header(struct file *file, const char *name) {
    unsigned char *headers = file->bytes + file->bytes[40] + 256u * file->bytes[41];
    const unsigned char *names = headers + (size_t)SECTION * file->bytes[62];
    const char *strings = (const char *)file->bytes + names[24] + 256u * names[25];
    for (size_t i = 0; i < file->bytes[60]; i++) {
        unsigned char *header = headers + i * SECTION;
        if (strcmp(strings + header[0] + 256u * header[1], name) == 0) {
            return header;
        }
    }
    CHECK_MSG(false, "no section %s", name);
    return headers;
}

static void refuses(const struct file *file, const char *sentence) {
    attn_error why;
    CHECK_MSG(!read_all(file->bytes, file->size, &why), "accepted, expected \"%s\"", sentence);
    CHECK_CONTAINS(why.text, sentence);
}

TEST(sentences) {
    struct file file = load("sm_80");
    file.bytes[0] = 'x';
    refuses(&file, "not a cubin");
    file = load("sm_80");
    file.bytes[18] = 62; /* x86_64 */
    refuses(&file, "ELF machine 62, expected 190");
    file = load("sm_80");
    memset(file.bytes + 40, 0xff, 8);
    refuses(&file, "section headers at 18446744073709551615");
    file = load("sm_80");
    memset(section_header(&file, ".text.alpha") + 32, 0xff, 8);
    refuses(&file, "truncated: section");
    file = load("sm_80");
    section_header(&file, ".text.alpha")[32] = 0;
    section_header(&file, ".text.alpha")[33] = 0;
    refuses(&file, "kernel alpha: 896 bytes of code");
    file = load("sm_80");
    section_header(&file, ".symtab")[4] = 1;
    refuses(&file, "no table of symbols");
    file = load("sm_80");
    section_header(&file, ".nv.info")[32]--;
    refuses(&file, ".nv.info: attribute of format 4 and 8 bytes");
    file = load("sm_80");
    section_header(&file, ".nv.info")[32]++;
    refuses(&file, ".nv.info ends within an attribute");
    file = load("sm_80");
    section_header(&file, ".nv.info")[32] = 0;
    refuses(&file, "does not tell its registers");
    file = load("sm_90");
    section_header(&file, ".nv.shared.alpha")[33] = 0; /* below the 1024 bytes of the system */
    refuses(&file, "of which the system keeps 1024");
}

TEST_MAIN()
