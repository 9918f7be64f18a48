/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.c - main() for the fuzz targets where libFuzzer is not: `fuzz_x FOLDER [ROUNDS]` feeds the
 * target an empty input, each file of FOLDER (where there is one), then ROUNDS random changes of
 * them. The target finds its own faults (it aborts, or a sanitizer does).
 *
 * Invariant: the same folder gives the same inputs in the same order on every machine, so that the
 * number printed for a crash is enough to see it again. It proves little by itself: the search is
 * libFuzzer's, this keeps what was found from coming back.
 */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Of a target that has one. */
__attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size,
                                                     unsigned seed);

enum { INPUT_MAX = 1 << 16, FILES_MAX = 1024, ROUNDS_DEFAULT = 2000, CHANGES_MAX = 8 };

struct input {
    uint8_t *bytes;
    size_t size;
};

static char progress[512]; /* what runs, for the signal handler */

static void on_crash(int number) {
    const ssize_t written = write(STDERR_FILENO, progress, strlen(progress));
    (void)written;
    signal(number, SIG_DFL);
    raise(number);
}

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* A copy of exactly the input's size, so that a sanitizer sees a read past its end. */
static void feed(const uint8_t *bytes, size_t size) {
    uint8_t *const copy = malloc(size ? size : 1);
    if (!copy) {
        abort();
    }
    memcpy(copy, bytes, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static int visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static struct input read_file(const char *path) {
    struct input input = {malloc(INPUT_MAX), 0};
    FILE *const file = fopen(path, "rb");
    if (!input.bytes || !file) {
        fprintf(stderr, "replay: cannot read %s\n", path);
        exit(1);
    }
    input.size = fread(input.bytes, 1, INPUT_MAX, file);
    fclose(file);
    return input;
}

/* Reads and feeds the files of the folder in the order of their names; returns their number. */
static size_t feed_folder(const char *folder, struct input *inputs) {
    struct dirent **entries;
    const int found = scandir(folder, &entries, visible, alphasort);
    size_t count = 0;
    for (int i = 0; i < found; i++) {
        if (count < FILES_MAX) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
            snprintf(progress, sizeof progress, "replay: crash on %s\n", entries[i]->d_name);
            inputs[count] = read_file(path);
            feed(inputs[count].bytes, inputs[count].size);
            count++;
        }
        free(entries[i]);
    }
    if (found >= 0) {
        free(entries);
    }
    return count;
}

/* Flips, overwrites and cuts; buffer holds INPUT_MAX bytes. Returns the new size. */
static size_t change(uint8_t *buffer, size_t size, uint64_t *state) {
    static const uint8_t edge[] = {0, 1, 0x7F, 0x80, 0xFF};
    const uint64_t changes = 1 + next_random(state) % CHANGES_MAX;
    for (uint64_t c = 0; c < changes; c++) {
        const uint64_t kind = next_random(state) % 8;
        if (kind == 0 || size == 0) {
            size_t grown = next_random(state) % 256;
            for (; grown > 0 && size < INPUT_MAX; grown--) {
                buffer[size++] = (uint8_t)next_random(state);
            }
        } else if (kind == 1) {
            size = next_random(state) % size;
        } else if (kind < 4) {
            buffer[next_random(state) % size] = edge[next_random(state) % sizeof edge];
        } else {
            buffer[next_random(state) % size] ^= (uint8_t)(1u << (next_random(state) % 8));
        }
    }
    return size;
}

int main(int argc, char **argv) {
    static struct input inputs[FILES_MAX];
    static uint8_t buffer[INPUT_MAX];
    const long rounds = argc > 2 ? atol(argv[2]) : ROUNDS_DEFAULT;
    uint64_t state = 1;

    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER [ROUNDS]\n", argv[0]);
        return 2;
    }
    signal(SIGSEGV, on_crash);
    signal(SIGABRT, on_crash);
    snprintf(progress, sizeof progress, "replay: crash on the empty input\n");
    feed(buffer, 0);
    const size_t files = feed_folder(argv[1], inputs);
    for (long round = 0; round < rounds; round++) {
        size_t size = 0;
        if (files > 0) {
            const struct input *const input = &inputs[next_random(&state) % files];
            size = input->size;
            memcpy(buffer, input->bytes, size);
        }
        if (LLVMFuzzerCustomMutator && next_random(&state) % 4 != 0) {
            size = LLVMFuzzerCustomMutator(buffer, size, INPUT_MAX, (unsigned)next_random(&state));
        } else {
            size = change(buffer, size, &state);
        }
        snprintf(progress, sizeof progress, "replay: crash in round %ld\n", round);
        feed(buffer, size);
    }
    for (size_t i = 0; i < files; i++) {
        free(inputs[i].bytes);
    }
    printf("%zu files and %ld changes of them replayed\n", files, rounds);
    return 0;
}
