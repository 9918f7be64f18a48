/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fatbin.c - proves that a cubin comes out of its fatbin as it went in, and that a damaged
 * fatbin is answered with a sentence.
 *
 * The fatbins were made by cmake/compress_image.sh from tests/data/fuzz_cubin/sm_*.cubin.
 */
#include "attn_inspect.h"
#include "test.h"
#include "tool/base/fatbin.h"
#include "tool/base/file.h"
#include "tool/base/sha256.h"

#include <stdlib.h>

enum { HEADERS = 80, AT_KIND = 16, AT_IMAGE = 32, AT_FLAGS = 57, AT_SIZE = 72 };

static char *load(const char *kind, const char *arch, size_t *bytes) {
    char path[128];
    attn_error why = {""};
    snprintf(path, sizeof path, "tests/data/fuzz_%s/%s.%s", kind, arch, kind);
    char *data = file_read(path, bytes, &why);
    if (!CHECK_MSG(data != NULL, "%s", why.text)) {
        abort();
    }
    return data;
}

/* A copy of its very size lets sanitizers see a step outside. */
static void refused(const void *data, size_t bytes, const char *part) {
    attn_error why = {""};
    size_t size = 0;
    void *copy = malloc(bytes > 0 ? bytes : 1);
    memcpy(copy, data, bytes);
    CHECK(fatbin_cubin(copy, bytes, &size, &why) == NULL);
    CHECK_CONTAINS(why.text, part);
    free(copy);
}

TEST(the_cubin_comes_back) {
    static const char *const archs[] = {"sm_80", "sm_90"};
    for (int i = 0; i < 2; i++) {
        attn_error why = {""};
        size_t bytes, expected, got = 0;
        char *fatbin = load("fatbin", archs[i], &bytes),
             *cubin = load("cubin", archs[i], &expected);
        char *read = fatbin_cubin(fatbin, bytes, &got, &why);
        CHECK_MSG(read != NULL && got == expected && memcmp(read, cubin, got) == 0, "%s: %zu, %s",
                  archs[i], got, why.text);
        free(read);
        free(cubin);
        free(fatbin);
    }
}

/* Those of this library, by the hashes that their logs have of the files. */
TEST(the_librarys_cubins_come_back) {
    attn_variant variant = {.size = sizeof variant};
    int cubins = 0;
    for (int32_t i = 0; attn_variant_get(NULL, i, &variant, NULL) == ATTN_OK; i++) {
        attn_image image = {.size = sizeof image};
        for (int32_t k = 0; attn_variant_image(NULL, variant.name, k, &image, NULL) == ATTN_OK;
             k++) {
            char line[SHA256_TEXT + 8], hash[SHA256_TEXT];
            attn_error why = {""};
            size_t bytes = 0;
            if (image.kind != ATTN_IMAGE_COMPRESSED_CUBIN) {
                continue;
            }
            void *cubin = fatbin_cubin(image.data, image.bytes, &bytes, &why);
            if (CHECK_MSG(cubin != NULL, "%s %s: %s", variant.name, image.arch, why.text)) {
                sha256_text(cubin, bytes, hash);
                snprintf(line, sizeof line, "sha256 %s", hash);
                CHECK_MSG(strncmp(image.log, line, strlen(line)) == 0, "%s %s", variant.name,
                          image.arch);
            }
            free(cubin);
            cubins++;
        }
    }
    if (cubins == 0) {
        SKIP("the library has no GPU kernels");
    }
}

TEST(damaged) {
    size_t bytes;
    char *fatbin = load("fatbin", "sm_80", &bytes), *edited = malloc(bytes);
    for (size_t cut = 0; cut < bytes; cut++) {
        refused(fatbin, cut, "truncated");
    }
    uint32_t image;
    memcpy(&image, fatbin + AT_IMAGE, sizeof image);
    for (uint32_t cut = 0; cut < image; cut++) { /* the block alone */
        memcpy(edited, fatbin, bytes);
        memcpy(edited + AT_IMAGE, &cut, sizeof cut);
        refused(edited, bytes, "no LZ4 block");
    }
    static const struct {
        size_t at;
        unsigned char value;
        const char *part;
    } EDITS[] = {
        {0, 0x7F, "no fatbin"},
        {6, 24, "no fatbin"},
        {8, 0, "truncated, or has several images"},
        {AT_KIND, 1, "kind 1"},
        {AT_KIND + 4, 0x48, "no fatbin"},
        {AT_IMAGE + 3, 0xFF, "truncated"},
        {AT_FLAGS, 0x80, "expected LZ4"},
        {AT_FLAGS, 0x00, "expected LZ4"},
        {AT_SIZE, 0x01, "no LZ4 block"},
        {AT_SIZE + 5, 0x01, "no LZ4 block"}, /* a tebibyte */
    };
    for (size_t i = 0; i < sizeof EDITS / sizeof *EDITS; i++) {
        memcpy(edited, fatbin, bytes);
        edited[EDITS[i].at] = (char)EDITS[i].value;
        refused(edited, bytes, EDITS[i].part);
    }
    free(edited);
    free(fatbin);
}

/* Blocks by hand, in the headers of a real fatbin; "" is refused. */
TEST(blocks) {
    static const struct {
        const char *block;
        size_t bytes;
        const char *text;
    } CASES[] = {
        {"\x50hello", 6, "hello"},
        {"\x32xyz\x03\x00\x50-last", 12, "xyzxyzxyz-last"},
        {"\x1Fz\x01\x00\x01\x00", 6, "zzzzzzzzzzzzzzzzzzzzz"}, /* overlaps itself; 15 + 1 + 4 */
        {"\xF0\x00lmnopqrstuvwxyz", 17, "lmnopqrstuvwxyz"},    /* 15 + 0 literals */
        {"\x10z\x00\x00\x00", 5, ""},                          /* distance 0 */
        {"\x10z\x02\x00\x00", 5, ""},                          /* before the beginning */
        {"\x10z\x01", 3, ""},                                  /* half a distance */
        {"\x10z\x01\x00", 4, ""},                              /* ends with a match */
        {"\x1Fz\x01\x00\x01\x00", 6, ""},                      /* a match past the end */
        {"\xF0\xFF\xFF", 3, ""},                               /* a length without end */
        {"\x60hello", 6, ""},                                  /* literals past the end */
        {"", 0, ""},
    };
    size_t whole;
    char *fatbin = load("fatbin", "sm_80", &whole);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const uint32_t image = (uint32_t)CASES[i].bytes;
        const uint64_t expected = strlen(CASES[i].text), any = 5;
        memcpy(fatbin + AT_IMAGE, &image, sizeof image);
        memcpy(fatbin + AT_SIZE, expected > 0 ? &expected : &any, sizeof expected);
        memcpy(fatbin + HEADERS, CASES[i].block, CASES[i].bytes);
        if (expected == 0) {
            refused(fatbin, whole, "no LZ4 block");
            continue;
        }
        attn_error why = {""};
        size_t got = 0;
        char *read = fatbin_cubin(fatbin, whole, &got, &why);
        CHECK_MSG(read != NULL && got == expected && memcmp(read, CASES[i].text, got) == 0,
                  "block %zu: %s", i, why.text);
        free(read);
    }
    free(fatbin);
}

TEST_MAIN()
