/* SPDX-License-Identifier: Apache-2.0
 *
 * fatbin.c - see runtime.h. NVIDIA does not document fatbins; the fields below are those of what
 * fatbinary of CUDA 13 writes: a header, then entries of a header and an image each.
 *
 * Invariant: the image that is taken is the PTX with the highest target that the GPU can run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/runtime.h"
#include "runtime/zstd.h"

struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* after this header */
};

struct entry_header {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t padded_bytes; /* of what follows: the image, then padding */
    uint32_t image_bytes, unknown;
    uint16_t minor, major;
    uint32_t arch, name_offset, name_bytes;
    uint64_t flags, reserved;
    uint64_t decompressed_bytes;
};

enum { KIND_PTX = 1, FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000, TEXT_MOST = 1 << 28 };
#define FATBIN_MAGIC 0xBA55ED50U

/* What was found so far: the best text, or why there is none. */
struct search {
    int sm;
    char *ptx;
    uint32_t arch; /* of the text; of one that the GPU does not run */
    const char *trouble;
};

/* sm_90a alone runs .target sm_90a. */
static bool runs(const char *ptx, uint32_t arch, int sm) {
    const char *target = strstr(ptx, ".target sm_");
    const char *after = target != NULL ? target + strlen(".target sm_") : "";
    after += strspn(after, "0123456789");
    const bool specific = *after >= 'a' && *after <= 'z';
    return specific ? arch == (uint32_t)sm : arch <= (uint32_t)sm;
}

/* The text of an entry, for free(); NULL: `trouble` says why. */
static char *text_of(const struct entry_header *entry, const unsigned char *image,
                     const char **trouble) {
    const bool compressed = (entry->flags & (FLAG_LZ4 | FLAG_ZSTD)) != 0;
    const uint64_t bytes = compressed ? entry->decompressed_bytes : entry->padded_bytes;
    if ((entry->flags & FLAG_LZ4) != 0 || bytes > TEXT_MOST) {
        *trouble = "is compressed in a way that is not known: compile it with attest nvcc, or with "
                   "nvcc -no-compress";
        return NULL;
    }
    char *text = calloc(1, (size_t)bytes + 1);
    if (text != NULL && !compressed) {
        memcpy(text, image, (size_t)bytes);
    } else if (text != NULL &&
               !zstd_decode(image, entry->image_bytes, (unsigned char *)text, (size_t)bytes)) {
        free(text);
        *trouble = "cannot be decompressed: compile it with attest nvcc";
        return NULL;
    }
    *trouble = text != NULL ? *trouble : "does not fit into memory";
    return text;
}

static void look_at(struct search *search, const struct entry_header *entry,
                    const unsigned char *image) {
    if (entry->kind != KIND_PTX || (search->ptx != NULL && entry->arch < search->arch)) {
        return;
    }
    char *text = text_of(entry, image, &search->trouble);
    if (text == NULL || !runs(text, entry->arch, search->sm)) {
        search->arch = search->ptx == NULL ? entry->arch : search->arch;
        free(text);
        return;
    }
    free(search->ptx);
    search->ptx = text;
    search->arch = entry->arch;
}

/* Looks at the entries; false: they do not end where the fatbin does. */
static bool look_at_all(struct search *search, const unsigned char *at, uint64_t left) {
    const size_t known = offsetof(struct entry_header, decompressed_bytes);
    while (left > 0) {
        struct entry_header entry = {0};
        if (left < known) {
            return false;
        }
        memcpy(&entry, at, known);
        if (entry.header_bytes < known || entry.header_bytes > left ||
            entry.padded_bytes > left - entry.header_bytes ||
            (entry.kind == KIND_PTX && entry.image_bytes > entry.padded_bytes)) {
            return false;
        }
        memcpy(&entry, at, entry.header_bytes < sizeof entry ? known : sizeof entry);
        look_at(search, &entry, at + entry.header_bytes);
        at += entry.header_bytes + entry.padded_bytes;
        left -= entry.header_bytes + entry.padded_bytes;
    }
    return true;
}

char *fatbin_ptx(const void *fatbin, size_t size, int sm, char *why, size_t why_size) {
    struct search search = {.sm = sm};
    struct fatbin_header header = {0};
    if (size >= sizeof header) {
        memcpy(&header, fatbin, sizeof header);
    }
    if (header.magic != FATBIN_MAGIC) {
        snprintf(why, why_size, "it is no fatbin of a known version");
        return NULL;
    }
    if (header.header_bytes > size || header.bytes > size - header.header_bytes ||
        !look_at_all(&search, (const unsigned char *)fatbin + header.header_bytes, header.bytes)) {
        snprintf(why, why_size, "the fatbin is damaged, or not whole");
        free(search.ptx);
        return NULL;
    }
    if (search.ptx == NULL && search.trouble != NULL) {
        snprintf(why, why_size, "its PTX %s", search.trouble);
    } else if (search.ptx == NULL && search.arch != 0) {
        snprintf(why, why_size, "its PTX is for sm_%u, which an sm_%d does not run", search.arch,
                 sm);
    } else if (search.ptx == NULL) {
        snprintf(why, why_size, "its PTX is missing: compile it with attest nvcc");
    }
    return search.ptx;
}
