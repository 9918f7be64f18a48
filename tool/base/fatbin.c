/* SPDX-License-Identifier: Apache-2.0
 *
 * fatbin.c - see fatbin.h. NVIDIA does not document fatbins; the fields below are those of what
 * fatbinary of CUDA 12 and 13 writes. An LZ4 block is as its public description says.
 */
#include "base/fatbin.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

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

enum {
    HEADERS = sizeof(struct fatbin_header) + sizeof(struct entry_header),
    KIND_CUBIN = 2,
    FLAG_LZ4 = 0x2000,
    FLAG_ZSTD = 0x8000,
    LZ4_MOST = 255 /* bytes that one compressed byte can become */
};
#define FATBIN_MAGIC 0xBA55ED50U

/* ---- LZ4 ------------------------------------------------------------------------------------- */

struct span {
    const unsigned char *at, *end;
};

/* A length of 15 in the token goes on in bytes that are added to it, up to the first below 255. */
static bool read_length(struct span *in, size_t *length) {
    unsigned char more = *length == 15 ? 255 : 0;
    while (more == 255) {
        if (in->at == in->end) {
            return false;
        }
        more = *in->at++;
        *length += more;
    }
    return true;
}

/* The block as sequences of a token, literals and a match; the last has literals only. False: it is
 * none, or of another size. */
static bool decompress(struct span in, unsigned char *out, size_t bytes) {
    size_t to = 0;
    while (in.at < in.end) {
        const unsigned token = *in.at++;
        size_t literals = token >> 4, match = token & 15;
        if (!read_length(&in, &literals) || literals > (size_t)(in.end - in.at) ||
            literals > bytes - to) {
            return false;
        }
        memcpy(out + to, in.at, literals);
        in.at += literals;
        to += literals;
        if (in.at == in.end) {
            return to == bytes;
        }
        if (in.end - in.at < 2) {
            return false;
        }
        const size_t distance = in.at[0] | (size_t)in.at[1] << 8;
        in.at += 2;
        if (!read_length(&in, &match) || distance == 0 || distance > to || match + 4 > bytes - to) {
            return false;
        }
        for (match += 4; match > 0; match--, to++) { /* it may repeat what it writes */
            out[to] = out[to - distance];
        }
    }
    return false;
}

/* ---- the fatbin ------------------------------------------------------------------------------ */

/* Those of the only image, whose bytes follow. False and the reason: there is no such image. */
static bool read_headers(const void *data, size_t bytes, struct entry_header *entry,
                         attn_error *why) {
    struct fatbin_header header;
    if (bytes < HEADERS) {
        return explain(why, "a fatbin of %zu bytes is truncated", bytes);
    }
    memcpy(&header, data, sizeof header);
    memcpy(entry, (const char *)data + sizeof header, sizeof *entry);
    if (header.magic != FATBIN_MAGIC || header.header_bytes != sizeof header ||
        entry->header_bytes != sizeof *entry) {
        return explain(why, "it is no fatbin of a known version");
    }
    if (header.bytes != bytes - sizeof header || entry->padded_bytes != bytes - HEADERS ||
        entry->image_bytes > bytes - HEADERS) {
        return explain(why, "a fatbin of %zu bytes is truncated, or has several images", bytes);
    }
    return (entry->kind == KIND_CUBIN && (entry->flags & (FLAG_LZ4 | FLAG_ZSTD)) == FLAG_LZ4) ||
           explain(why, "kind %u and flags 0x%" PRIx64 " in a fatbin, expected LZ4 of a cubin",
                   (unsigned)entry->kind, entry->flags);
}

void *fatbin_cubin(const void *data, size_t bytes, size_t *cubin_bytes, attn_error *why) {
    struct entry_header entry = {0};
    if (!read_headers(data, bytes, &entry, why)) {
        return NULL;
    }
    const uint64_t size = entry.decompressed_bytes;
    const bool possible = size > 0 && size <= (uint64_t)entry.image_bytes * LZ4_MOST;
    unsigned char *cubin = possible ? malloc((size_t)size) : NULL;
    if (possible && cubin == NULL) {
        explain(why, "out of memory for a cubin of %" PRIu64 " bytes", size);
        return NULL;
    }
    const unsigned char *image = (const unsigned char *)data + HEADERS;
    if (!possible ||
        !decompress((struct span){image, image + entry.image_bytes}, cubin, (size_t)size)) {
        explain(why, "%" PRIu32 " bytes are no LZ4 block of %" PRIu64, entry.image_bytes, size);
        free(cubin);
        return NULL;
    }
    *cubin_bytes = (size_t)size;
    return cubin;
}
