/* SPDX-License-Identifier: Apache-2.0
 *
 * test_output.c - proves that several outputs take their names together or not at all: where one of
 * them cannot, every target is what it was before, and no temporary file is left.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"
#include "tool/base/output.h"
#include "tool/base/temporary.h"

static char before[TEMPORARY_SIZE * 2];

/* A folder of its own to be in. */
static bool enter(char folder[TEMPORARY_SIZE]) {
    attn_error why = {""};
    return CHECK(getcwd(before, sizeof before) != NULL) &&
           CHECK_MSG(temporary_folder(folder, "output", &why), "%s", why.text) &&
           CHECK_EQ(chdir(folder), 0);
}

static void leave(const char *folder) {
    static const char *const names[] = {"a", "b", "a_link", "b_link", "blocked"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (unlink(names[i]) != 0) {
            rmdir(names[i]);
        }
    }
    CHECK_EQ(chdir(before), 0);
    CHECK_MSG(rmdir(folder) == 0, "%s: %s", folder, strerror(errno)); /* nothing else is in it */
}

static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* "": there is no such file. Valid until the next call. */
static const char *text_of(const char *path) {
    static char text[64];
    FILE *file = fopen(path, "r");
    text[0] = '\0';
    if (file != NULL) {
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
    }
    return text;
}

static bool write_new(struct output *output, const char *path) {
    attn_error why = {""};
    return CHECK_MSG(output_open(output, path, &why), "%s: %s", path, why.text) &&
           CHECK(fputs("new", output->file) >= 0) && CHECK(output_finish(output, &why));
}

static int hidden_files(void) {
    DIR *folder = opendir(".");
    int count = 0;
    if (folder == NULL) {
        return -1;
    }
    for (const struct dirent *e; (e = readdir(folder)) != NULL;) {
        count += strncmp(e->d_name, ".attest-", 8) == 0;
    }
    closedir(folder);
    return count;
}

/* Publishes a and b; `blocked` (0 or 1, or 2: none) becomes a folder once it has been opened. */
static void publish_two(bool old, int blocked) {
    static const char *const names[] = {"a", "b"};
    char folder[TEMPORARY_SIZE];
    struct output a = {.slot = -1}, b = {.slot = -1};
    struct output *const both[] = {&a, &b};
    attn_error why = {""};
    if (!enter(folder)) {
        return;
    }
    for (int i = 0; old && i < 2; i++) {
        put(names[i], "old");
    }
    if (write_new(&a, "a") && write_new(&b, "b")) {
        CHECK_EQ(hidden_files(), 2);
        if (blocked < 2) {
            unlink(names[blocked]);
            CHECK_EQ(mkdir(names[blocked], 0777), 0);
        }
        CHECK_EQ((int)output_publish_all(both, 2, &why), blocked);
        for (int i = 0; i < 2; i++) {
            CHECK_STR(text_of(names[i]), blocked == 2 ? "new" : old && i != blocked ? "old" : "");
            CHECK(old || blocked == 2 || i == blocked || access(names[i], F_OK) != 0);
        }
        CHECK((why.text[0] != '\0') == (blocked < 2));
    }
    output_discard(&a);
    output_discard(&b);
    CHECK_EQ(hidden_files(), 0);
    leave(folder);
}

TEST(both_or_none) {
    for (int blocked = 0; blocked <= 2; blocked++) {
        publish_two(false, blocked);
        publish_two(true, blocked);
    }
}

/* Beside one that is written in place, which no failure of another can take back. */
TEST(one_of_them_in_place) {
    char folder[TEMPORARY_SIZE];
    struct output null = {.slot = -1}, a = {.slot = -1};
    struct output *const both[] = {&null, &a};
    attn_error why = {""};
    if (enter(folder) && write_new(&null, "/dev/null") && write_new(&a, "a")) {
        CHECK_EQ(null.slot, -1);
        CHECK_EQ((int)output_publish_all(both, 2, &why), 2);
        CHECK_STR(text_of("a"), "new");
        struct stat info;
        CHECK(stat("/dev/null", &info) == 0 && S_ISCHR(info.st_mode));
    }
    output_discard(&null);
    output_discard(&a);
    leave(folder);
}

/* Links stay, also through a failure, and lead to the new file, the old one, or none. */
TEST(through_links) {
    for (int old = 0; old < 2; old++) {
        for (int fails = 0; fails < 2; fails++) {
            char folder[TEMPORARY_SIZE];
            struct output a = {.slot = -1}, b = {.slot = -1};
            struct output *const both[] = {&a, &b};
            struct stat info;
            attn_error why = {""};
            if (!enter(folder)) {
                return;
            }
            CHECK(symlink("b_link", "a_link") == 0 && symlink("a", "b_link") == 0);
            if (old) {
                put("a", "old");
            }
            if (write_new(&a, "a_link") && write_new(&b, "blocked")) {
                CHECK(!fails || mkdir("blocked", 0777) == 0);
                CHECK_EQ((int)output_publish_all(both, 2, &why), fails ? 1 : 2);
                CHECK_STR(text_of("a"), !fails ? "new" : old ? "old" : "");
                CHECK(lstat("a_link", &info) == 0 && S_ISLNK(info.st_mode));
                CHECK(lstat("b_link", &info) == 0 && S_ISLNK(info.st_mode));
            }
            output_discard(&a);
            output_discard(&b);
            leave(folder);
        }
    }
}

TEST_MAIN()
