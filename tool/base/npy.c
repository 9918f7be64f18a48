/* SPDX-License-Identifier: Apache-2.0
 *
 * npy.c - see npy.h. Reading is in three steps, each a function: the preamble (magic, version,
 * header length), the header (a cursor over a Python dict literal), the data.
 */
#include "base/npy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/message.h"

static const char MAGIC[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};
enum { FIRST_CHUNK = 1 << 20 };

struct type_info {
    const char *descr, *name;
    size_t size;
};
static const struct type_info TYPES[] = {
    [NPY_FLOAT32] = {"<f4", "float32", 4}, [NPY_FLOAT16] = {"<f2", "float16", 2},
    [NPY_UINT16] = {"<u2", "uint16", 2},   [NPY_FLOAT64] = {"<f8", "float64", 8},
    [NPY_INT8] = {"|i1", "int8", 1},       [NPY_INT16] = {"<i2", "int16", 2},
    [NPY_INT32] = {"<i4", "int32", 4},     [NPY_INT64] = {"<i8", "int64", 8},
    [NPY_UINT32] = {"<u4", "uint32", 4},   [NPY_UINT64] = {"<u8", "uint64", 8},
    [NPY_UINT8] = {"|u1", "uint8", 1},     [NPY_BOOL] = {"|b1", "bool", 1},
};

/* The types that a caller takes. */
struct types {
    enum npy_type first, last;
    const char *names, *descrs;
};
static const struct types TAKEN[] = {
    [NPY_ATTENTION] = {NPY_FLOAT32, NPY_UINT16, "float32, float16 or uint16",
                       "'<f4' (float32), '<f2' (float16) or '<u2' (bfloat16)"},
    [NPY_NUMBERS] = {NPY_FLOAT32, NPY_UINT8, "numbers",
                     "'<f8', '<f4', '<f2' or an integer like '<i4'"},
    [NPY_MASKS] = {NPY_UINT8, NPY_BOOL, "bool or uint8", "'|b1' (bool) or '|u1' (uint8)"},
    [NPY_LOGITS] = {NPY_FLOAT32, NPY_FLOAT32, "float32", "'<f4' (float32)"},
    [NPY_LENGTHS] = {NPY_INT32, NPY_INT32, "int32", "'<i4' (int32)"},
};

const char *npy_type_name(enum npy_type type) {
    return TYPES[type].name;
}

size_t npy_type_size(enum npy_type type) {
    return TYPES[type].size;
}

const char *npy_shape_text(const int64_t *shape, int dims, char *buffer, size_t size) {
    size_t used = (size_t)snprintf(buffer, size, "(");
    for (int d = 0; d < dims && used < size; d++) {
        used += (size_t)snprintf(buffer + used, size - used, "%s%lld", d == 0 ? "" : ", ",
                                 (long long)shape[d]);
    }
    if (used < size) {
        snprintf(buffer + used, size - used, dims == 1 ? ",)" : ")");
    }
    return buffer;
}

/* ---- the header: a Python dict literal ------------------------------------------------------- */

/* A text that ends with NUL, and the place up to which it was understood. */
struct cursor {
    const char *at;
    const struct types *types;
    bool ended; /* a key had no comma after it */
};

static void skip_space(struct cursor *c) {
    c->at += strspn(c->at, " \t\r\n\f\v");
}

static bool take(struct cursor *c, const char *word) {
    skip_space(c);
    const size_t length = strlen(word);
    const bool is = strncmp(c->at, word, length) == 0;
    c->at += is ? length : 0;
    return is;
}

/* 'text' or "text" without escapes; too long a text is no string of ours. */
static bool take_string(struct cursor *c, char *text, size_t size) {
    skip_space(c);
    const char quote = *c->at;
    if (quote != '\'' && quote != '"') {
        return false;
    }
    const char *end = strchr(c->at + 1, quote);
    const size_t length = end != NULL ? (size_t)(end - c->at) - 1 : size;
    if (length >= size || memchr(c->at + 1, '\\', length) != NULL) {
        return false;
    }
    memcpy(text, c->at + 1, length);
    text[length] = '\0';
    c->at = end + 1;
    return true;
}

static bool take_descr(struct cursor *c, struct npy *array, attn_error *why) {
    char descr[32];
    skip_space(c);
    if (*c->at == '[') {
        return explain(why, "holds records, expected a plain array of %s", c->types->names);
    }
    if (!take_string(c, descr, sizeof descr)) {
        return explain(why, "malformed header: 'descr' is not a type");
    }
    for (int type = (int)c->types->first; type <= (int)c->types->last; type++) {
        if (strcmp(descr, TYPES[type].descr) == 0) {
            array->type = (enum npy_type)type;
            return true;
        }
    }
    return explain(why, "holds %s'%s', expected %s", descr[0] == '>' ? "big-endian " : "", descr,
                   c->types->descrs);
}

static bool take_order(struct cursor *c, struct npy *array, attn_error *why) {
    (void)array;
    return take(c, "False") ||
           (take(c, "True")
                ? explain(why, "is in Fortran order, expected C order (numpy.ascontiguousarray)")
                : explain(why, "malformed header: 'fortran_order' is neither True nor False"));
}

static bool take_shape(struct cursor *c, struct npy *array, attn_error *why) {
    bool good = take(c, "("), more = good;
    for (array->dims = 0; more && !take(c, ")");) {
        if (array->dims == NPY_MAX_DIMS) {
            return explain(why, "has more than %d dimensions", NPY_MAX_DIMS);
        }
        skip_space(c);
        char *end;
        errno = 0;
        good = *c->at >= '0' && *c->at <= '9';
        array->shape[array->dims++] = good ? strtoll(c->at, &end, 10) : 0;
        if (errno != 0) {
            return explain(why, "has a dimension of 2^63 or more");
        }
        c->at = good ? end : c->at;
        more = good && take(c, ",");
        if (good && !more) { /* only the last size goes without it; "(5)" is a number, no tuple */
            good = array->dims > 1 && take(c, ")");
        }
    }
    return good || explain(why, "malformed header: 'shape' is not a tuple of sizes");
}

static const struct {
    const char *name;
    bool (*take)(struct cursor *c, struct npy *array, attn_error *why);
} KEYS[] = {{"descr", take_descr}, {"fortran_order", take_order}, {"shape", take_shape}};
enum { KEY_COUNT = sizeof KEYS / sizeof *KEYS };

static bool take_key(struct cursor *c, const char *text, bool seen[KEY_COUNT], struct npy *array,
                     attn_error *why) {
    char key[32];
    if (!take_string(c, key, sizeof key) || !take(c, ":")) {
        return explain(why, "malformed header: a key and a colon are expected at byte %zu",
                       (size_t)(c->at - text));
    }
    int which = 0;
    while (which < KEY_COUNT && strcmp(key, KEYS[which].name) != 0) {
        which++;
    }
    if (which == KEY_COUNT || seen[which]) {
        return explain(why, "malformed header: %s key '%s'",
                       which == KEY_COUNT ? "unknown" : "repeated", key);
    }
    seen[which] = true;
    if (!KEYS[which].take(c, array, why)) {
        return false;
    }
    c->ended = !take(c, ",");
    return !c->ended || take(c, "}") ||
           explain(why, "malformed header: no comma or brace after '%s'", key);
}

static bool parse_header(const char *text, const struct types *types, struct npy *array,
                         attn_error *why) {
    struct cursor cursor = {text, types, false};
    bool seen[KEY_COUNT] = {false};
    if (!take(&cursor, "{")) {
        return explain(why, "malformed header: it is not a dict");
    }
    while (!cursor.ended && !take(&cursor, "}")) {
        if (!take_key(&cursor, text, seen, array, why)) {
            return false;
        }
    }
    skip_space(&cursor);
    if (*cursor.at != '\0') {
        return explain(why, "malformed header: text after the dict");
    }
    for (int i = 0; i < KEY_COUNT; i++) {
        if (!seen[i]) {
            return explain(why, "malformed header: '%s' is missing", KEYS[i].name);
        }
    }
    return true;
}

/* ---- preamble -------------------------------------------------------------------------------- */

static bool read_exactly(FILE *in, void *buffer, size_t size, const char *what, attn_error *why) {
    if (fread(buffer, 1, size, in) == size) {
        return true;
    }
    if (ferror(in)) {
        return explain(why, "cannot read: %s", strerror(errno));
    }
    return explain(why, "truncated: the file ends within %s", what);
}

static bool read_header(FILE *in, const struct types *types, struct npy *array, attn_error *why) {
    unsigned char preamble[8];
    if (!read_exactly(in, preamble, sizeof preamble, "its first 8 bytes", why)) {
        return false;
    }
    if (memcmp(preamble, MAGIC, sizeof MAGIC) != 0) {
        return explain(why, "is not a .npy file (no \\x93NUMPY at its start)");
    }
    const int major = preamble[6], minor = preamble[7];
    if (major < 1 || major > 3 || minor != 0) {
        return explain(why, "has format version %d.%d, expected 1.0, 2.0 or 3.0", major, minor);
    }
    unsigned char digits[4] = {0};
    if (!read_exactly(in, digits, major == 1 ? 2 : 4, "its header", why)) {
        return false;
    }
    const size_t length =
        digits[0] | (size_t)digits[1] << 8 | (size_t)digits[2] << 16 | (size_t)digits[3] << 24;
    if (length > NPY_MAX_HEADER) {
        return explain(why, "has a header of %zu bytes, expected at most %d", length,
                       NPY_MAX_HEADER);
    }
    char *text = must(malloc(length + 1));
    text[length] = '\0';
    bool good = read_exactly(in, text, length, "its header", why);
    if (good && memchr(text, '\0', length) != NULL) {
        good = explain(why, "malformed header: it holds a NUL byte");
    }
    good = good && parse_header(text, types, array, why);
    free(text);
    return good;
}

/* ---- data ------------------------------------------------------------------------------------ */

static bool count_bytes(struct npy *array, attn_error *why) {
    int64_t bytes = (int64_t)npy_type_size(array->type);
    bool empty = false;
    for (int d = 0; d < array->dims; d++) {
        empty = empty || array->shape[d] == 0;
    }
    for (int d = 0; d < array->dims && !empty; d++) {
        if (__builtin_mul_overflow(bytes, array->shape[d], &bytes)) {
            char shape[192];
            return explain(why, "shape %s is more than the address space holds",
                           npy_shape_text(array->shape, array->dims, shape, sizeof shape));
        }
    }
    array->bytes = empty ? 0 : (size_t)bytes;
    return true;
}

/* Bytes from here to the end of a regular file; SIZE_MAX for what has no known end. */
static size_t bytes_left(FILE *in) {
    struct stat info;
    const int file = fileno(in);
    const off_t here = ftello(in);
    if (file < 0 || here < 0 || fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
        return SIZE_MAX;
    }
    return info.st_size > here ? (size_t)(info.st_size - here) : 0;
}

/* A block of `capacity` bytes that begins with the first `used` of `old`, which is freed. */
static char *enlarge(char *old, size_t used, size_t capacity) {
    void *block = NULL;
    if (posix_memalign(&block, NPY_ALIGNMENT, capacity) != 0) {
        block = NULL;
    } else if (used > 0) {
        memcpy(block, old, used);
    }
    free(old);
    return block;
}

static bool truncated(const struct npy *array, size_t there, attn_error *why) {
    char shape[192];
    return explain(why, "truncated: shape %s of %s needs %zu bytes of data, %zu are there",
                   npy_shape_text(array->shape, array->dims, shape, sizeof shape),
                   npy_type_name(array->type), array->bytes, there);
}

static bool read_data(FILE *in, struct npy *array, attn_error *why) {
    const size_t left = bytes_left(in);
    if (left < array->bytes) {
        return truncated(array, left, why);
    }
    char *data = NULL;
    size_t used = 0;
    while (used < array->bytes) {
        size_t capacity = array->bytes;
        if (left == SIZE_MAX && capacity > FIRST_CHUNK + 2 * used) {
            capacity = FIRST_CHUNK + 2 * used;
        }
        data = enlarge(data, used, capacity);
        if (data == NULL) {
            return explain(why, "out of memory for %zu bytes of data", capacity);
        }
        used += fread(data + used, 1, capacity - used, in);
        if (used < capacity) {
            free(data);
            return ferror(in) ? explain(why, "cannot read: %s", strerror(errno))
                              : truncated(array, used, why);
        }
    }
    if (fgetc(in) != EOF) {
        free(data);
        return explain(why, "holds more than the %zu bytes of data that its shape needs",
                       array->bytes);
    }
    array->data = data;
    return true;
}

bool npy_read(FILE *in, enum npy_take take, struct npy *array, attn_error *why) {
    *array = (struct npy){0};
    if (read_header(in, &TAKEN[take], array, why) && count_bytes(array, why) &&
        read_data(in, array, why)) {
        return true;
    }
    *array = (struct npy){0};
    return false;
}

bool npy_load(const char *path, enum npy_take take, struct npy *array, attn_error *why) {
    *array = (struct npy){0};
    FILE *in = fopen(path, "rb");
    if (in == NULL) {
        return explain(why, "%s", strerror(errno));
    }
    const bool good = npy_read(in, take, array, why);
    fclose(in);
    return good;
}

bool npy_write(FILE *out, const struct npy *array) {
    char shape[192];
    char header[512];
    const size_t preamble = sizeof MAGIC + 4;
    npy_shape_text(array->shape, array->dims, shape, sizeof shape);
    size_t length = (size_t)snprintf(header, sizeof header,
                                     "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                                     TYPES[array->type].descr, shape);
    while ((preamble + length + 1) % NPY_ALIGNMENT != 0) { /* so that the data can be mapped */
        header[length++] = ' ';
    }
    header[length++] = '\n';
    const unsigned char version[4] = {1, 0, (unsigned char)(length & 255),
                                      (unsigned char)(length >> 8)};
    return fwrite(MAGIC, sizeof MAGIC, 1, out) == 1 &&
           fwrite(version, sizeof version, 1, out) == 1 && fwrite(header, length, 1, out) == 1 &&
           (array->bytes == 0 || fwrite(array->data, array->bytes, 1, out) == 1);
}

void npy_free(struct npy *array) {
    free(array->data);
    *array = (struct npy){0};
}
