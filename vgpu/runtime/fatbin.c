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

enum { KIND_PTX = 1, FLAG_COMPRESSED = 0x2000 | 0x8000 /* LZ4, zstd */ };
#define FATBIN_MAGIC 0xBA55ED50U

/* sm_90a alone runs .target sm_90a. */
static bool runs(const char *ptx, uint32_t arch, int sm) {
    const char *target = strstr(ptx, ".target sm_");
    const char *after = target != NULL ? target + strlen(".target sm_") : "";
    after += strspn(after, "0123456789");
    const bool specific = *after >= 'a' && *after <= 'z';
    return specific ? arch == (uint32_t)sm : arch <= (uint32_t)sm;
}

char *fatbin_ptx(const void *fatbin, int sm, char *why, size_t why_size) {
    struct fatbin_header header;
    memcpy(&header, fatbin, sizeof header);
    if (header.magic != FATBIN_MAGIC) {
        snprintf(why, why_size, "it is no fatbin of a known version");
        return NULL;
    }
    const unsigned char *at = (const unsigned char *)fatbin + header.header_bytes;
    const unsigned char *end = at + header.bytes, *best = NULL;
    uint32_t best_arch = 0, other_arch = 0;
    size_t best_bytes = 0;
    bool compressed = false;
    while (at < end) {
        struct entry_header entry = {0};
        const size_t known = offsetof(struct entry_header, decompressed_bytes);
        memcpy(&entry, at, known);
        const unsigned char *image = at + entry.header_bytes;
        if (entry.kind == KIND_PTX && (entry.flags & FLAG_COMPRESSED) != 0) {
            compressed = true;
        } else if (entry.kind == KIND_PTX && !runs((const char *)image, entry.arch, sm)) {
            other_arch = entry.arch;
        } else if (entry.kind == KIND_PTX && entry.arch >= best_arch) {
            best = image;
            best_arch = entry.arch;
            best_bytes = strnlen((const char *)image, (size_t)entry.padded_bytes);
        }
        at = image + entry.padded_bytes;
    }
    if (best != NULL) {
        char *ptx = malloc(best_bytes + 1);
        if (ptx != NULL) {
            memcpy(ptx, best, best_bytes);
            ptx[best_bytes] = '\0';
        }
        snprintf(why, why_size, "out of memory");
        return ptx;
    }
    if (other_arch != 0) {
        snprintf(why, why_size, "its PTX is for sm_%u, which an sm_%d does not run", other_arch,
                 sm);
    } else {
        snprintf(why, why_size, "its PTX is %s: compile it by attest nvcc%s",
                 compressed ? "compressed" : "missing",
                 compressed ? ", or with nvcc -no-compress" : ", without -rdc=true");
    }
    return NULL;
}
