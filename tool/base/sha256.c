/* SPDX-License-Identifier: Apache-2.0
 *
 * sha256.c - see sha256.h. Names are those of the standard.
 */
#include "base/sha256.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 64, LENGTH_AT = 56, WORDS = 8, ROUNDS = 64 };

static const uint32_t K[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void compress(uint32_t h[WORDS], const unsigned char block[BLOCK]) {
    uint32_t w[ROUNDS];
    for (int t = 0; t < 16; t++) {
        const unsigned char *p = block + 4 * t;
        w[t] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    for (int t = 16; t < ROUNDS; t++) {
        const uint32_t s0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
        const uint32_t s1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], last = h[7];
    for (int t = 0; t < ROUNDS; t++) {
        const uint32_t sum1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
        const uint32_t sum0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
        const uint32_t ch = (e & f) ^ (~e & g);
        const uint32_t maj = (a & b) ^ (a & c) ^ (b & c);
        const uint32_t t1 = last + sum1 + ch + K[t] + w[t];
        last = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + sum0 + maj;
    }
    const uint32_t v[WORDS] = {a, b, c, d, e, f, g, last};
    for (int i = 0; i < WORDS; i++) {
        h[i] += v[i];
    }
}

void sha256_text(const void *data, size_t bytes, char text[SHA256_TEXT]) {
    uint32_t h[WORDS] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const unsigned char *next = data;
    size_t left = bytes;
    for (; left >= BLOCK; left -= BLOCK, next += BLOCK) {
        compress(h, next);
    }
    unsigned char last[2 * BLOCK] = {0};
    if (left > 0) {
        memcpy(last, next, left);
    }
    last[left] = 0x80;
    const size_t ends = left < LENGTH_AT ? BLOCK : sizeof last;
    for (size_t i = 0; i < 8; i++) {
        last[ends - 1 - i] = (unsigned char)((uint64_t)bytes * 8 >> 8 * i);
    }
    for (size_t i = 0; i < ends; i += BLOCK) {
        compress(h, last + i);
    }
    for (int i = 0; i < WORDS; i++) {
        snprintf(text + 8 * i, 9, "%08x", (unsigned)h[i]);
    }
}

bool sha256_file(const char *path, char text[SHA256_TEXT]) {
    struct stat info;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    void *data = file >= 0 && fstat(file, &info) == 0
                     ? mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0)
                     : MAP_FAILED;
    if (data != MAP_FAILED) {
        sha256_text(data, (size_t)info.st_size, text);
        munmap(data, (size_t)info.st_size);
    }
    if (file >= 0) {
        close(file);
    }
    return data != MAP_FAILED;
}
