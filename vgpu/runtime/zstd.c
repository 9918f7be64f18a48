/* SPDX-License-Identifier: Apache-2.0
 *
 * zstd.c - see zstd.h. The format is that of RFC 8878: a frame of blocks; a compressed block has
 * literals, coded by Huffman, and sequences (copy so many literals, then so many bytes from
 * before), coded by three FSE tables. The checksum of a frame is not checked.
 */
#include "runtime/zstd.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_MOST = 128 << 10,
    HUFFMAN_BITS = 11,
    HUFFMAN_SYMBOLS = 256,
    FSE_BITS = 9,
    FSE_SYMBOLS = 256,
    WEIGHT_BITS = 6 /* of the FSE table of Huffman weights */
};

struct span {
    const unsigned char *at, *end;
};

static size_t left(struct span in) {
    return (size_t)(in.end - in.at);
}

/* Takes `bytes` off the front; false: there are fewer. */
static bool take(struct span *in, size_t bytes, struct span *out) {
    if (bytes > left(*in)) {
        return false;
    }
    *out = (struct span){in->at, in->at + bytes};
    in->at += bytes;
    return true;
}

/* A number of 1 to 8 bytes, the least significant first. */
static bool take_number(struct span *in, size_t bytes, uint64_t *value) {
    struct span part;
    if (!take(in, bytes, &part)) {
        return false;
    }
    *value = 0;
    for (size_t i = bytes; i > 0; i--) {
        *value = *value << 8 | part.at[i - 1];
    }
    return true;
}

static unsigned top_bit(uint64_t value) { /* of a value that is not 0 */
    return 63U - (unsigned)__builtin_clzll(value);
}

/* ---- bits ------------------------------------------------------------------------------------ */

/* `count` (at most 32) bits of the bytes, from bit number `from` on; those before the first byte
 * and past the last are 0. */
static uint32_t bits_at(struct span in, int64_t from, unsigned count) {
    uint64_t value = 0;
    const int64_t first = from >= 0 ? from / 8 : -((7 - from) / 8);
    for (int64_t i = first; i <= first + 4; i++) {
        const bool inside = i >= 0 && i < (int64_t)left(in);
        value |= (inside ? (uint64_t)in.at[i] : 0) << (8 * (i - first));
    }
    return (uint32_t)(value >> (from - 8 * first) & ((UINT64_C(1) << count) - 1));
}

/* Streams are read from their end, where a 1 marks the last bit. */
struct stream {
    struct span bytes;
    int64_t at; /* bits that are left; below 0: more were read than there are */
};

static bool stream_open(struct stream *stream, struct span bytes) {
    if (left(bytes) == 0 || bytes.end[-1] == 0) {
        return false;
    }
    *stream = (struct stream){bytes, 8 * (int64_t)(left(bytes) - 1) + top_bit(bytes.end[-1])};
    return true;
}

static uint32_t stream_read(struct stream *stream, unsigned count) {
    stream->at -= count;
    return bits_at(stream->bytes, stream->at, count);
}

/* ---- FSE ------------------------------------------------------------------------------------- */

struct fse {
    unsigned log; /* of its states */
    struct {
        uint8_t symbol, bits;
        uint16_t base; /* the next state is this and `bits` of the stream */
    } states[1 << FSE_BITS];
};

/* From the weights of the symbols, whose sum is 1 << log; -1 stands for less than 1. */
static void fse_build(struct fse *table, const int16_t *weights, unsigned symbols, unsigned log) {
    const unsigned size = 1U << log, step = (size >> 1) + (size >> 3) + 3;
    uint16_t next[FSE_SYMBOLS] = {0};
    unsigned high = size, at = 0;
    *table = (struct fse){.log = log};
    for (unsigned s = 0; s < symbols; s++) {
        next[s] = weights[s] > 0 ? (uint16_t)weights[s] : 1;
        if (weights[s] < 0) {
            table->states[--high].symbol = (uint8_t)s;
        }
    }
    for (unsigned s = 0; s < symbols; s++) {
        for (int i = 0; i < weights[s]; i++) {
            table->states[at].symbol = (uint8_t)s;
            do {
                at = (at + step) & (size - 1);
            } while (at >= high && high > 0);
        }
    }
    for (unsigned i = 0; i < size; i++) {
        const unsigned state = next[table->states[i].symbol]++;
        const unsigned bits = log - top_bit(state);
        table->states[i].bits = (uint8_t)bits;
        table->states[i].base = (uint16_t)((state << bits) - size);
    }
}

/* Reads the weights in front of `in`. */
static bool fse_read(struct fse *table, struct span *in, unsigned most_bits,
                     unsigned most_symbols) {
    int16_t weights[FSE_SYMBOLS] = {0};
    const unsigned log = bits_at(*in, 0, 4) + 5;
    int64_t at = 4;
    unsigned symbols = 0;
    if (log > most_bits) {
        return false;
    }
    for (int rest = 1 << log; rest > 0; symbols++) {
        const unsigned bits = top_bit((unsigned)rest + 1) + 1;
        const unsigned half = (1U << (bits - 1)) - 1;
        const unsigned spare = (1U << bits) - 1 - ((unsigned)rest + 1);
        unsigned value = bits_at(*in, at, bits);
        at += bits;
        if ((value & half) < spare) { /* such a value takes one bit less */
            value &= half;
            at--;
        } else if (value > half) {
            value -= spare;
        }
        if (symbols >= most_symbols) {
            return false;
        }
        weights[symbols] = (int16_t)((int)value - 1);
        rest -= weights[symbols] < 0 ? 1 : weights[symbols];
        for (unsigned zeros = weights[symbols] == 0 ? 3 : 0; zeros == 3;) {
            zeros = bits_at(*in, at, 2);
            at += 2;
            symbols += zeros;
            if (symbols >= most_symbols) {
                return false;
            }
        }
        if (rest < 0) {
            return false;
        }
    }
    struct span used;
    fse_build(table, weights, symbols, log);
    return take(in, (size_t)(at + 7) / 8, &used);
}

/* A table of one symbol, which takes no bits. */
static void fse_constant(struct fse *table, unsigned symbol) {
    table->log = 0;
    table->states[0].symbol = (uint8_t)symbol;
    table->states[0].bits = 0;
    table->states[0].base = 0;
}

static void fse_step(const struct fse *table, unsigned *state, struct stream *stream) {
    const unsigned bits = table->states[*state].bits;
    *state = table->states[*state].base + stream_read(stream, bits);
}

/* ---- Huffman --------------------------------------------------------------------------------- */

struct huffman {
    unsigned log; /* 0: there is no table yet */
    struct {
        uint8_t symbol, bits;
    } codes[1 << HUFFMAN_BITS];
};

/* The weight of the last symbol completes the others. */
static bool huffman_build(struct huffman *table, uint8_t *weights, unsigned symbols) {
    unsigned sum = 0, filled = 0;
    for (unsigned s = 0; s < symbols; s++) {
        if (weights[s] > HUFFMAN_BITS) {
            return false;
        }
        sum += weights[s] > 0 ? 1U << (weights[s] - 1) : 0;
    }
    const unsigned log = sum > 0 ? top_bit(sum) + 1 : HUFFMAN_BITS + 1;
    const unsigned rest = (1U << log) - sum;
    if (log > HUFFMAN_BITS || (rest & (rest - 1)) != 0 || symbols >= HUFFMAN_SYMBOLS) {
        return false;
    }
    weights[symbols++] = (uint8_t)(top_bit(rest) + 1);
    for (unsigned weight = 1; weight <= log; weight++) {
        for (unsigned s = 0; s < symbols; s++) {
            for (unsigned i = 0; weights[s] == weight && i < 1U << (weight - 1); i++, filled++) {
                table->codes[filled].symbol = (uint8_t)s;
                table->codes[filled].bits = (uint8_t)(log + 1 - weight);
            }
        }
    }
    table->log = log;
    return true;
}

/* Weights that two states of one FSE table take turns to give, to the end of the stream. */
static bool weights_of_fse(struct span in, uint8_t *weights, unsigned *symbols) {
    struct fse table;
    struct stream stream;
    if (!fse_read(&table, &in, WEIGHT_BITS, HUFFMAN_SYMBOLS) || !stream_open(&stream, in)) {
        return false;
    }
    unsigned states[2], turn = 0;
    states[0] = stream_read(&stream, table.log);
    states[1] = stream_read(&stream, table.log);
    for (*symbols = 0; *symbols + 2 < HUFFMAN_SYMBOLS; turn ^= 1) {
        weights[(*symbols)++] = table.states[states[turn]].symbol;
        fse_step(&table, &states[turn], &stream);
        if (stream.at < 0) {
            weights[(*symbols)++] = table.states[states[turn ^ 1]].symbol;
            return true;
        }
    }
    return false;
}

static bool huffman_read(struct huffman *table, struct span *in) {
    uint8_t weights[HUFFMAN_SYMBOLS] = {0};
    uint64_t head;
    struct span part;
    unsigned symbols;
    if (!take_number(in, 1, &head)) {
        return false;
    }
    if (head < 128) {
        return take(in, (size_t)head, &part) && weights_of_fse(part, weights, &symbols) &&
               huffman_build(table, weights, symbols);
    }
    symbols = (unsigned)head - 127;
    if (!take(in, (symbols + 1) / 2, &part)) {
        return false;
    }
    for (unsigned s = 0; s < symbols; s++) {
        weights[s] = s % 2 == 0 ? part.at[s / 2] >> 4 : part.at[s / 2] & 15;
    }
    return huffman_build(table, weights, symbols);
}

static bool huffman_decode(const struct huffman *table, struct span in, unsigned char *out,
                           size_t bytes) {
    struct stream stream;
    if (!stream_open(&stream, in)) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        const uint32_t code = bits_at(stream.bytes, stream.at - table->log, table->log);
        out[i] = table->codes[code].symbol;
        stream.at -= table->codes[code].bits;
    }
    return stream.at == 0;
}

/* ---- literals -------------------------------------------------------------------------------- */

enum { TABLE_LITERALS, TABLE_OFFSETS, TABLE_MATCHES, TABLES };

struct decoder {
    unsigned char *out;
    size_t made, room;
    struct huffman huffman;
    struct fse tables[TABLES];
    bool has_tables;
    uint64_t offsets[3]; /* the last ones */
    unsigned char literals[BLOCK_MOST];
    size_t literal_count;
};

/* One stream, or four with the sizes of three in front. */
static bool huffman_streams(struct decoder *d, struct span in, unsigned streams) {
    const size_t count = d->literal_count, each = streams == 1 ? count : (count + 3) / 4;
    uint64_t sizes[4] = {0};
    for (unsigned i = 0; i + 1 < streams; i++) {
        if (!take_number(&in, 2, &sizes[i])) {
            return false;
        }
    }
    for (unsigned i = 0; i < streams; i++) {
        struct span part = in;
        const size_t begin = i * each, end = i + 1 == streams ? count : begin + each;
        if (begin > end || end > count ||
            (i + 1 < streams && !take(&in, (size_t)sizes[i], &part)) ||
            !huffman_decode(&d->huffman, part, d->literals + begin, end - begin)) {
            return false;
        }
    }
    return true;
}

static bool read_literals(struct decoder *d, struct span *in) {
    enum { RAW, REPEATED, HUFFMAN, HUFFMAN_AGAIN };
    if (left(*in) == 0) {
        return false;
    }
    const unsigned kind = *in->at & 3, format = *in->at >> 2 & 3;
    const bool coded = kind >= HUFFMAN;
    const unsigned head = coded         ? (format < 2 ? 3 : format + 2)
                          : format == 1 ? 2
                          : format == 3 ? 3
                                        : 1;
    const unsigned bits = coded ? (format < 2 ? 10 : 4 * format + 6) : 20;
    uint64_t sizes;
    struct span part;
    if (!take_number(in, head, &sizes)) {
        return false;
    }
    sizes >>= coded || format % 2 == 1 ? 4 : 3;
    d->literal_count = (size_t)(sizes & ((1U << bits) - 1));
    const size_t bytes = coded         ? (size_t)(sizes >> bits & ((1U << bits) - 1))
                         : kind == RAW ? d->literal_count
                                       : 1;
    if (d->literal_count > BLOCK_MOST || !take(in, bytes, &part)) {
        return false;
    }
    if (kind == RAW) {
        memcpy(d->literals, part.at, bytes);
    } else if (kind == REPEATED) {
        memset(d->literals, *part.at, d->literal_count);
    }
    return !coded ||
           ((kind == HUFFMAN_AGAIN ? d->huffman.log > 0 : huffman_read(&d->huffman, &part)) &&
            huffman_streams(d, part, format == 0 ? 1 : 4));
}

/* ---- sequences ------------------------------------------------------------------------------- */

/* Codes below `plain` are lengths less `shift`; of the others `extra` says the bits that follow. */
static const uint8_t LITERAL_EXTRA[] = {1, 1, 1, 1,  2,  2,  3,  3,  4,  6,
                                        7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint8_t MATCH_EXTRA[] = {1, 1, 1, 1,  2,  2,  3,  3,  4,  4, 5,
                                      7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const int16_t LITERAL_WEIGHTS[] = {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
                                          2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
static const int16_t MATCH_WEIGHTS[] = {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                                        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                                        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};
static const int16_t OFFSET_WEIGHTS[] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1,  1,  1,  1,  1, 1,
                                         1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};

static const struct {
    const int16_t *weights; /* where the frame gives none */
    uint8_t log, most_log, symbols;
} CODES[TABLES] = {
    {LITERAL_WEIGHTS, 6, 9, 36}, {OFFSET_WEIGHTS, 5, 8, 29}, {MATCH_WEIGHTS, 6, 9, 53}};

static size_t length_of(unsigned code, unsigned plain, unsigned shift, const uint8_t *extra,
                        struct stream *stream) {
    size_t base = plain;
    for (unsigned i = plain; i < code; i++) {
        base += (size_t)1 << extra[i - plain];
    }
    return code < plain ? code + shift : base + shift + stream_read(stream, extra[code - plain]);
}

/* How the tables of this block are given: 2 bits each. */
static bool read_tables(struct decoder *d, struct span *in, unsigned modes) {
    enum { DEFAULT, CONSTANT, READ, AGAIN };
    for (unsigned t = 0; t < TABLES; t++) {
        const unsigned mode = modes >> (6 - 2 * t) & 3;
        struct fse *table = &d->tables[t];
        uint64_t symbol;
        if (mode == DEFAULT) {
            fse_build(table, CODES[t].weights, CODES[t].symbols, CODES[t].log);
        } else if (mode == CONSTANT) {
            if (!take_number(in, 1, &symbol)) {
                return false;
            }
            fse_constant(table, (unsigned)symbol);
        } else if (mode == READ ? !fse_read(table, in, CODES[t].most_log, FSE_SYMBOLS)
                                : !d->has_tables) {
            return false;
        }
    }
    d->has_tables = true;
    return true;
}

/* 1 to 3 name one of the last offsets, or the one after it if no literals are copied. */
static uint64_t offset_of(struct decoder *d, uint64_t value, bool no_literals) {
    uint64_t *last = d->offsets;
    const unsigned which = value > 3 ? 3 : (unsigned)value - 1 + no_literals;
    const uint64_t offset = value > 3 ? value - 3 : which == 3 ? last[0] - 1 : last[which];
    if (which > 0) {
        last[2] = which > 1 ? last[1] : last[2];
        last[1] = last[0];
        last[0] = offset;
    }
    return offset;
}

static bool copy_literals(struct decoder *d, size_t *used, size_t count) {
    if (count > d->literal_count - *used || count > d->room - d->made) {
        return false;
    }
    memcpy(d->out + d->made, d->literals + *used, count);
    *used += count;
    d->made += count;
    return true;
}

static bool run_sequences(struct decoder *d, struct span in, uint64_t count) {
    struct stream stream;
    unsigned states[TABLES], codes[TABLES];
    size_t used = 0;
    if (count > 0 && !stream_open(&stream, in)) {
        return false;
    }
    for (unsigned t = 0; t < TABLES && count > 0; t++) {
        states[t] = stream_read(&stream, d->tables[t].log);
    }
    for (uint64_t i = 0; i < count; i++) {
        for (unsigned t = 0; t < TABLES; t++) {
            codes[t] = d->tables[t].states[states[t]].symbol;
        }
        if (codes[TABLE_LITERALS] > 35 || codes[TABLE_MATCHES] > 52 || codes[TABLE_OFFSETS] > 31) {
            return false;
        }
        const unsigned bits = codes[TABLE_OFFSETS];
        const uint64_t value = (UINT64_C(1) << bits) + stream_read(&stream, bits);
        size_t match = length_of(codes[TABLE_MATCHES], 32, 3, MATCH_EXTRA, &stream);
        const size_t literals = length_of(codes[TABLE_LITERALS], 16, 0, LITERAL_EXTRA, &stream);
        const uint64_t offset = offset_of(d, value, literals == 0);
        if (stream.at < 0 || !copy_literals(d, &used, literals) || offset == 0 ||
            offset > d->made || match > d->room - d->made) {
            return false;
        }
        for (; match > 0; match--, d->made++) { /* it may repeat what it writes */
            d->out[d->made] = d->out[d->made - offset];
        }
        for (unsigned t = 0; t < TABLES && i + 1 < count; t++) {
            const unsigned order[TABLES] = {TABLE_LITERALS, TABLE_MATCHES, TABLE_OFFSETS};
            fse_step(&d->tables[order[t]], &states[order[t]], &stream);
        }
    }
    return copy_literals(d, &used, d->literal_count - used);
}

static bool read_block(struct decoder *d, struct span in) {
    uint64_t count = 0, more = 0, modes = 0;
    if (!read_literals(d, &in) || !take_number(&in, 1, &count)) {
        return false;
    }
    if (count >= 128 && !take_number(&in, count == 255 ? 2 : 1, &more)) {
        return false;
    }
    count = count == 255 ? more + 0x7f00 : count >= 128 ? ((count - 128) << 8) + more : count;
    if (count > 0 && (!take_number(&in, 1, &modes) || !read_tables(d, &in, (unsigned)modes))) {
        return false;
    }
    return run_sequences(d, in, count);
}

/* ---- the frame ------------------------------------------------------------------------------- */

static bool read_head(struct span *in) {
    static const size_t DICTIONARY[] = {0, 1, 2, 4}, SIZE[] = {0, 2, 4, 8};
    uint64_t magic = 0, head = 0;
    struct span skipped;
    if (!take_number(in, 4, &magic) || magic != 0xfd2fb528U || !take_number(in, 1, &head)) {
        return false;
    }
    const bool single = (head >> 5 & 1) != 0;
    const size_t size = head >> 6 == 0 ? single : SIZE[head >> 6];
    return (head & 3) == 0 && take(in, !single + DICTIONARY[head & 3] + size, &skipped);
}

static bool decode(struct decoder *d, struct span in) {
    enum { RAW, REPEATED, COMPRESSED };
    uint64_t head = 0;
    if (!read_head(&in)) {
        return false;
    }
    while ((head & 1) == 0) {
        struct span block;
        if (!take_number(&in, 3, &head)) {
            return false;
        }
        const unsigned kind = head >> 1 & 3;
        const size_t bytes = (size_t)(head >> 3);
        if (!take(&in, kind == REPEATED ? 1 : bytes, &block) || kind > COMPRESSED ||
            (kind != COMPRESSED && bytes > d->room - d->made) ||
            (kind == COMPRESSED && !read_block(d, block))) {
            return false;
        }
        if (kind == RAW) {
            memcpy(d->out + d->made, block.at, bytes);
        } else if (kind == REPEATED) {
            memset(d->out + d->made, *block.at, bytes);
        }
        d->made += kind != COMPRESSED ? bytes : 0;
    }
    return d->made == d->room;
}

bool zstd_decode(const unsigned char *in, size_t in_bytes, unsigned char *out, size_t out_bytes) {
    struct decoder *d = calloc(1, sizeof *d);
    if (d == NULL) {
        return false;
    }
    d->out = out;
    d->room = out_bytes;
    d->offsets[0] = 1;
    d->offsets[1] = 4;
    d->offsets[2] = 8;
    const bool good = decode(d, (struct span){in, in + in_bytes});
    free(d);
    return good;
}
