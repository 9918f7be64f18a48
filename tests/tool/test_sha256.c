/* SPDX-License-Identifier: Apache-2.0
 *
 * test_sha256.c - proves the hash by the standard's own examples, and at each length around the
 * places where a block ends, by hashes that GNU coreutils made.
 */
#include "test.h"
#include "tool/base/sha256.h"

#include <stdlib.h>
#include <unistd.h>

static void check(const char *text, size_t bytes, const char *expected) {
    char hash[SHA256_TEXT];
    sha256_text(text, bytes, hash);
    CHECK_STR(hash, expected);
}

TEST(examples_of_the_standard) {
    check("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    check(two, strlen(two), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    enum { MILLION = 1000000 };
    char *many = malloc(MILLION);
    memset(many, 'a', MILLION);
    check(many, MILLION, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(many);
}

TEST(around_the_end_of_a_block) {
    char text[128];
    memset(text, 'x', sizeof text);
    check(text, 55, "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
    check(text, 56, "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
    check(text, 63, "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
    check(text, 64, "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
    check(text, 65, "9537c5fdf120482f7d58d25e9ed583f52c02b4e304ea814db1633ad565aed7e9");
    check(text, 119, "000b48d4edf0fa7bee3c6236ecd2785baa5db4eeb8bb54341b029e0d9fa5fb0c");
    check(text, 120, "13f05a0b594787f5ecd315edc96141bd3243203d1b7d4f0836f37308b276ba98");
    check(text, 127, "70156a14adbabf98cff3a71c7084b417abf057a8efd27329ca36b7202c87d81f");
}

TEST(every_byte_counts) {
    char text[200] = {0}, clean[SHA256_TEXT], changed[SHA256_TEXT];
    sha256_text(text, sizeof text, clean);
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] ^= 1;
        sha256_text(text, sizeof text, changed);
        CHECK_MSG(strcmp(clean, changed) != 0, "byte %zu does not count", i);
        text[i] ^= 1;
    }
}

TEST(a_file) {
    char path[] = "/tmp/test_sha256.XXXXXX", text[SHA256_TEXT];
    const int file = mkstemp(path);
    CHECK_EQ(write(file, "abc", 3), 3);
    CHECK_EQ(close(file), 0);
    CHECK(sha256_file(path, text));
    CHECK_STR(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK_EQ(unlink(path), 0);
    CHECK(!sha256_file(path, text));
}

TEST_MAIN()
