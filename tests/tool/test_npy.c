/* SPDX-License-Identifier: Apache-2.0
 *
 * test_npy.c - proves that .npy files are read and written as NumPy means them, and that a file
 * which is malformed, truncated or lying about its size gives one sentence and no array.
 *
 * Bad files are made in memory: a preamble, a header text, some bytes of data.
 */
#include "test.h"
#include "tool/base/npy.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* A file in memory. */
struct bytes {
    unsigned char data[80000];
    size_t size;
};

static void add(struct bytes *file, const void *data, size_t size) {
    memcpy(file->data + file->size, data, size);
    file->size += size;
}

/* Preamble, header and `payload` bytes 0, 1, 2, ... */
static void build(struct bytes *file, int major, const char *header, size_t payload) {
    const size_t length = strlen(header);
    const unsigned char start[12] = {0x93,
                                     'N',
                                     'U',
                                     'M',
                                     'P',
                                     'Y',
                                     (unsigned char)major,
                                     0,
                                     (unsigned char)length,
                                     (unsigned char)(length >> 8),
                                     0,
                                     0};
    file->size = 0;
    add(file, start, major == 1 ? 10 : 12);
    add(file, header, length);
    for (size_t i = 0; i < payload; i++) {
        file->data[file->size++] = (unsigned char)i;
    }
}

static bool read_bytes(const struct bytes *file, struct npy *array, attn_error *why) {
    FILE *in = fmemopen((void *)file->data, file->size, "rb");
    const bool good = npy_read(in, NPY_ATTENTION, array, why);
    fclose(in);
    return good;
}

/* The file is refused with a sentence that contains `part`, and leaves no array. */
#define CHECK_REFUSED(file, part)                                                                  \
    do {                                                                                           \
        struct npy array_;                                                                         \
        attn_error why_ = {""};                                                                    \
        CHECK(!read_bytes(file, &array_, &why_));                                                  \
        CHECK_CONTAINS(why_.text, part);                                                           \
        CHECK(strchr(why_.text, '\n') == NULL);                                                    \
        CHECK(array_.data == NULL && array_.bytes == 0 && array_.dims == 0);                       \
        npy_free(&array_);                                                                         \
    } while (0)

static struct bytes file;

TEST(round_trip_of_every_type_and_rank) {
    static const int64_t shapes[][4] = {{3, 2, 5, 7}, {1, 1, 1, 1}, {0, 2, 3, 4}, {4, 1, 6, 2}};
    for (int type = NPY_FLOAT32; type <= NPY_UINT16; type++) {
        for (int dims = 0; dims <= 4; dims++) {
            for (int s = 0; s < 4; s++) {
                struct npy array = {.type = (enum npy_type)type, .dims = dims};
                array.bytes = npy_type_size(array.type);
                for (int d = 0; d < dims; d++) {
                    array.shape[d] = shapes[s][d];
                    array.bytes *= (size_t)shapes[s][d];
                }
                unsigned char data[1024];
                for (size_t i = 0; i < sizeof data; i++) {
                    data[i] = (unsigned char)(7 * i + 1);
                }
                array.data = data;
                FILE *both = tmpfile();
                CHECK(npy_write(both, &array));
                CHECK_EQ((ftell(both) - (long)array.bytes) % 64, 0);
                rewind(both);
                struct npy back;
                attn_error why = {""};
                CHECK_MSG(npy_read(both, NPY_ATTENTION, &back, &why), "%s", why.text);
                CHECK_EQ(back.type, array.type);
                CHECK_EQ(back.dims, dims);
                CHECK_EQ(back.bytes, array.bytes);
                CHECK(memcmp(back.shape, array.shape, sizeof array.shape) == 0);
                CHECK(back.bytes == 0 || memcmp(back.data, data, back.bytes) == 0);
                CHECK_EQ((uintptr_t)back.data % NPY_ALIGNMENT, 0);
                npy_free(&back);
                fclose(both);
            }
        }
    }
}

TEST(headers_that_numpy_writes) {
    static const char *const good[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }            \n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}",
        "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2, 3,)}\n",
        "{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}\n",
        "  { 'shape' : ( 2 ,3 ) ,'fortran_order':False,'descr':'<f4' , }\n",
    };
    for (int major = 1; major <= 3; major++) {
        for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
            build(&file, major, good[i], 24);
            struct npy array;
            attn_error why = {""};
            if (CHECK_MSG(read_bytes(&file, &array, &why), "%s: %s", good[i], why.text)) {
                CHECK_EQ(array.dims, 2);
                CHECK_EQ(array.shape[0], 2);
                CHECK_EQ(array.shape[1], 3);
                CHECK_EQ(((unsigned char *)array.data)[23], 23);
            }
            npy_free(&array);
        }
    }
}

TEST(malformed_headers) {
    static const struct {
        const char *header, *sentence;
    } bad[] = {
        {"", "not a dict"},
        {"[]", "not a dict"},
        {"{", "key"},
        {"{}", "'descr' is missing"},
        {"{'descr': '<f4', 'fortran_order': False}", "'shape' is missing"},
        {"{'descr': '<f4', 'shape': (1,)}", "'fortran_order' is missing"},
        {"{'fortran_order': False, 'shape': (1,)}", "'descr' is missing"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)", "no comma or brace"},
        {"{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}", "no comma or brace"},
        {"{'descr' '<f4', 'fortran_order': False, 'shape': (1,)}", "key and a colon"},
        {"{descr: '<f4', 'fortran_order': False, 'shape': (1,)}", "key and a colon"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", "unknown key 'x'"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "repeated key"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", "after the dict"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "neither True nor False"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}", "Fortran order"},
        {"{'descr': 5, 'fortran_order': False, 'shape': (1,)}", "not a type"},
        {"{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}", "holds '<f4, '"},
        {"{'descr': '<f4", "not a type"},
        {"{'descr': '<\\x66', 'fortran_order': False, 'shape': (1,)}", "not a type"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", "holds '<f8'"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", "big-endian '>f4'"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (1,)}", "holds '|b1'"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "holds '|O'"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "records"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': [1]}", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1)}", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 1}", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (,)}", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,,2)}", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1.5,)}", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0x10,)}", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1L,)}", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", "dimensions"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        build(&file, 1, bad[i].header, 4);
        CHECK_REFUSED(&file, bad[i].sentence);
    }
}

TEST(sizes_that_overflow_or_lie) {
    static const struct {
        const char *shape, *sentence;
    } bad[] = {
        {"(9223372036854775808,)", "2^63"},
        {"(99999999999999999999999999,)", "2^63"},
        {"(9223372036854775807,)", "address space"},
        {"(4294967296, 4294967296)", "address space"},
        {"(2147483648, 2147483648, 2147483648, 2147483648)", "address space"},
        {"(3037000500, 3037000500, 2)", "address space"},
        {"(2305843009213693951,)", "truncated"}, /* 2^63 - 4 bytes: no memory is requested */
        {"(1099511627776,)", "truncated"},
        {"(1000000, 1000)", "truncated"},
        {"(5,)", "truncated: shape (5,) of float32 needs 20 bytes of data, 16 are there"},
        {"(3,)", "more than the 12 bytes"},
        {"(0, 9223372036854775807)", "more than the 0 bytes"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char header[256];
        snprintf(header, sizeof header, "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }\n",
                 bad[i].shape);
        build(&file, 2, header, 16);
        CHECK_REFUSED(&file, bad[i].sentence);
    }
    build(&file, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9223372036854775807), }",
          0);
    struct npy empty;
    attn_error why;
    CHECK(read_bytes(&file, &empty, &why));
    CHECK_EQ(empty.bytes, 0);
    npy_free(&empty);
}

TEST(every_truncation) {
    build(&file, 1, "{'descr': '<f2', 'fortran_order': False, 'shape': (3, 4), }\n", 24);
    const size_t whole = file.size;
    for (file.size = 1; file.size < whole; file.size++) {
        struct npy array;
        attn_error why = {""};
        CHECK_MSG(!read_bytes(&file, &array, &why), "accepted with %zu of %zu bytes", file.size,
                  whole);
        CHECK_CONTAINS(why.text, "truncated");
    }
}

TEST(preambles) {
    const char *header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n";
    build(&file, 1, header, 4);
    file.data[0] = 0x92;
    CHECK_REFUSED(&file, "not a .npy file");
    build(&file, 1, header, 4);
    file.data[6] = 0;
    CHECK_REFUSED(&file, "version 0.0");
    file.data[6] = 4;
    CHECK_REFUSED(&file, "version 4.0");
    file.data[6] = 1;
    file.data[7] = 1;
    CHECK_REFUSED(&file, "version 1.1");
    build(&file, 2, header, 4);
    file.data[10] = 1; /* 65536 bytes and more */
    CHECK_REFUSED(&file, "header of");
    file.data[11] = 255;
    CHECK_REFUSED(&file, "header of");
    build(&file, 1, header, 4);
    file.data[14] = '\0';
    CHECK_REFUSED(&file, "NUL");
}

/* The longest header that is accepted, all of it blanks after the dict. */
TEST(long_header) {
    static char header[65536];
    memset(header, ' ', sizeof header - 1);
    const char *dict = "{'descr': '<u2', 'fortran_order': False, 'shape': (1,), }";
    for (size_t i = 0; dict[i] != '\0'; i++) {
        header[i] = dict[i];
    }
    for (int major = 1; major <= 2; major++) {
        build(&file, major, header, 2);
        struct npy array;
        attn_error why = {""};
        CHECK_MSG(read_bytes(&file, &array, &why), "%s", why.text);
        CHECK_EQ(array.type, NPY_UINT16);
        npy_free(&array);
    }
}

/* A pipe has no size to ask for; more than one chunk comes through it whole. */
TEST(pipe) {
    int ends[2];
    if (!CHECK(pipe(ends) == 0)) {
        return;
    }
    static unsigned char data[3 << 20];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)(i * 31 >> 3);
    }
    const struct npy array = {.type = NPY_UINT16,
                              .dims = 1,
                              .shape = {sizeof data / 2},
                              .bytes = sizeof data,
                              .data = data};
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        FILE *out = fdopen(ends[1], "wb");
        const bool good = npy_write(out, &array) && fclose(out) == 0;
        _exit(good ? 0 : 1);
    }
    close(ends[1]);
    FILE *in = fdopen(ends[0], "rb");
    struct npy back;
    attn_error why = {""};
    CHECK_MSG(npy_read(in, NPY_ATTENTION, &back, &why), "%s", why.text);
    CHECK_EQ(back.bytes, sizeof data);
    CHECK(back.bytes == sizeof data && memcmp(back.data, data, sizeof data) == 0);
    npy_free(&back);
    fclose(in);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

TEST(files_that_cannot_be_read) {
    struct npy array;
    attn_error why;
    CHECK(!npy_load("/nonexistent/x.npy", NPY_ATTENTION, &array, &why));
    CHECK_CONTAINS(why.text, "No such file");
    CHECK(!npy_load("/", NPY_ATTENTION, &array, &why));
    CHECK(why.text[0] != '\0');
    CHECK(!npy_load("/dev/null", NPY_ATTENTION, &array, &why));
    CHECK_CONTAINS(why.text, "truncated");
}

TEST(full_disk) {
    FILE *out = fopen("/dev/full", "wb");
    if (out == NULL) {
        SKIP("no /dev/full");
    }
    static unsigned char data[1 << 16];
    const struct npy array = {.type = NPY_FLOAT32,
                              .dims = 1,
                              .shape = {sizeof data / 4},
                              .bytes = sizeof data,
                              .data = data};
    const bool written = npy_write(out, &array);
    const bool closed = fclose(out) == 0;
    CHECK(!written || !closed);
}

TEST_MAIN()
