/* SPDX-License-Identifier: Apache-2.0
 *
 * print.c - vprintf and __assertfail, which kernels call and the CUDA runtime provides.
 *
 * The second argument of vprintf points to the values in local memory, each aligned to its size: 4
 * bytes for int, 8 for long, double and pointers. The text is kept by the cluster until it is
 * merged, so that the output order is fixed.
 *
 * Invariant: printf of the host gets formats that were parsed here, one conversion each with a
 * value of its type; a kernel cannot print beyond its own memory.
 */
#include "ops/call.h"

#include <stdio.h>
#include <string.h>

#include "machine/access.h"
#include "machine/machine.h"
#include "report/finding.h"

enum { MAX_TEXT = 4096, MAX_FIELD = 1024, MAX_SPEC = 32 };

/* ---- a thread's memory ---- */

struct reader {
    struct warp *warp;
    const struct op *op;
    uint32_t lane;
};

static uint64_t read_value(const struct reader *r, int space, uint64_t address, uint32_t bytes) {
    uint64_t addresses[LANES] = {0}, value = 0;
    unsigned char values[LANES][8] = {{0}};
    addresses[r->lane] = address;
    thread_memory(r->warp, r->op, 1U << r->lane, space, addresses, bytes, false, values, 0);
    memcpy(&value, values[r->lane], bytes);
    return value;
}

static uint64_t argument(const struct reader *r, uint32_t index) {
    const struct call *call = r->op->extra;
    const struct ptx_variable *v = call->arguments[index];
    return read_value(r, PTX_PARAM, v->address, v->size == 4 ? 4 : 8);
}

/* A string of the device; cut where the buffer ends. */
static void read_string(const struct reader *r, uint64_t address, char *buffer, size_t size) {
    size_t length = 0;
    if (address == 0) {
        snprintf(buffer, size, "(null)");
        return;
    }
    while (length + 1 < size) {
        const char c = (char)read_value(r, SPACE_GENERIC, address + length, 1);
        if (c == '\0') {
            break;
        }
        buffer[length++] = c;
    }
    buffer[length] = '\0';
}

/* ---- vprintf ---- */

struct printer {
    struct reader reader;
    uint64_t values; /* where the next value is */
    char text[MAX_TEXT];
    size_t used;
};

static void put(struct printer *p, const char *text, size_t length) {
    const size_t room = sizeof p->text - p->used;
    length = length < room ? length : room;
    memcpy(p->text + p->used, text, length);
    p->used += length;
}

static uint64_t next_value(struct printer *p, uint32_t bytes) {
    p->values = (p->values + bytes - 1) / bytes * bytes;
    const uint64_t value = read_value(&p->reader, SPACE_GENERIC, p->values, bytes);
    p->values += bytes;
    return value;
}

/* A conversion taken apart: flags, width and precision; 8-byte values; the letter. */
struct conversion {
    char spec[MAX_SPEC];
    bool wide;
    char letter;
};

static bool is_of(char c, const char *set) {
    return c != '\0' && strchr(set, c) != NULL;
}

/* Reads one after '%'; returns what follows it. */
static const char *parse_conversion(struct printer *p, const char *at, struct conversion *out) {
    size_t n = 0;
    out->spec[n++] = '%';
    while (is_of(*at, "-+ #0123456789.*") && n + 16 < sizeof out->spec) {
        if (*at == '*') {
            const int written = snprintf(out->spec + n, sizeof out->spec - n, "%d",
                                         (int)(int32_t)next_value(p, 4) % MAX_FIELD);
            n += written > 0 ? (size_t)written : 0;
        } else {
            out->spec[n++] = *at;
        }
        at++;
    }
    out->spec[n] = '\0';
    out->wide = false;
    while (is_of(*at, "hlLqjzt")) {
        out->wide = out->wide || *at != 'h';
        at++;
    }
    out->letter = *at;
    return *at != '\0' ? at + 1 : at;
}

static void put_field(struct printer *p, const char *field, int length) {
    if (length > 0) {
        put(p, field, (size_t)length < MAX_FIELD ? (size_t)length : MAX_FIELD - 1);
    }
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static void put_conversion(struct printer *p, struct conversion *c) {
    char field[MAX_FIELD], string[MAX_FIELD];
    const size_t end = strlen(c->spec);
    const char letter[2] = {c->letter, '\0'};
    if (is_of(c->letter, "diouxX")) {
        snprintf(c->spec + end, sizeof c->spec - end, "ll%s", letter);
        const bool is_signed = is_of(c->letter, "di");
        const uint64_t bits = next_value(p, c->wide ? 8 : 4);
        const long long value = c->wide || !is_signed ? (long long)bits : (int32_t)bits;
        put_field(p, field, snprintf(field, sizeof field, c->spec, value));
        return;
    }
    snprintf(c->spec + end, sizeof c->spec - end, "%s", letter);
    if (is_of(c->letter, "eEfFgGaA")) {
        const uint64_t bits = next_value(p, 8);
        double value;
        memcpy(&value, &bits, sizeof value);
        put_field(p, field, snprintf(field, sizeof field, c->spec, value));
    } else if (c->letter == 's') {
        read_string(&p->reader, next_value(p, 8), string, sizeof string);
        put_field(p, field, snprintf(field, sizeof field, c->spec, string));
    } else if (c->letter == 'c') {
        put_field(p, field, snprintf(field, sizeof field, c->spec, (int)next_value(p, 4)));
    } else if (c->letter == 'p') {
        put_field(p, field,
                  snprintf(field, sizeof field, "0x%llx", (unsigned long long)next_value(p, 8)));
    } else if (c->letter == '%') {
        put(p, "%", 1);
    } else {
        put(p, c->spec, strlen(c->spec)); /* no conversion: as it stands */
    }
}
#pragma GCC diagnostic pop

/* Returns the number of conversions, as vprintf on a GPU does. */
static uint32_t print_lane(struct printer *p, const char *format) {
    uint32_t conversions = 0;
    while (*format != '\0') {
        const size_t plain = strcspn(format, "%");
        put(p, format, plain);
        format += plain;
        if (*format == '%') {
            struct conversion conversion;
            format = parse_conversion(p, format + 1, &conversion);
            put_conversion(p, &conversion);
            conversions += conversion.letter != '%';
        }
    }
    cluster_print(p->reader.warp->cta->cluster, p->text, p->used);
    return conversions;
}

void run_vprintf(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct call *call = op->extra;
    unsigned char results[LANES][8] = {{0}};
    uint64_t addresses[LANES] = {0};
    for (uint32_t lane = 0; lane < LANES; lane++) {
        if ((mask >> lane & 1) == 0) {
            continue;
        }
        struct printer printer = {.reader = {warp, op, lane}};
        char format[MAX_TEXT];
        read_string(&printer.reader, argument(&printer.reader, 0), format, sizeof format);
        printer.values = argument(&printer.reader, 1);
        const uint32_t conversions = print_lane(&printer, format);
        memcpy(results[lane], &conversions, sizeof conversions);
        addresses[lane] = call->result_count > 0 ? call->results[0]->address : 0;
    }
    if (call->result_count > 0) {
        thread_memory(warp, op, mask, PTX_PARAM, addresses, 4, true, results, 0);
    }
}

/* ---- __assertfail ---- */

void run_assertfail(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct reader reader = {warp, op, (uint32_t)__builtin_ctz(mask)};
    char message[256], file[256], function[256];
    read_string(&reader, argument(&reader, 0), message, sizeof message);
    read_string(&reader, argument(&reader, 1), file, sizeof file);
    read_string(&reader, argument(&reader, 3), function, sizeof function);
    report(warp, op, FINDING_ASSERT, mask, NULL, "%s:%u: %s: assertion `%s` failed", file,
           (uint32_t)argument(&reader, 2), function, message);
    cluster_stop(warp->cta->cluster);
}
