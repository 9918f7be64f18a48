/* SPDX-License-Identifier: Apache-2.0
 *
 * source.c - the kernels' sources: a copy with a candidate's constants, and what a source
 * from outside, and the PTX of any, must not contain.
 *
 * Invariant: the hash is over every file that the compiler will read of the tree, as it will read
 * it; a source from outside reads no other file.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/message.h"
#include "evolve/evolve.h"

enum { FILES_MOST = 32, SOURCE_MOST = 256 << 10, PATH_SIZE = 4096 };

struct source_file {
    char name[64];
    char *text;
    size_t bytes;
};

struct sources {
    struct source_file files[FILES_MOST];
    int count;
};

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

/* ---- reading --------------------------------------------------------------------------------- */

static char *kernel_file(const char *tree, const char *name, size_t *bytes, attn_error *why) {
    char path[PATH_SIZE];
    const int length = snprintf(path, sizeof path, "%s/src/kernels/%s", tree, name);
    if (length < 0 || length >= PATH_SIZE) {
        explain(why, "tree = %.100s...: the path is too long", tree);
        return NULL;
    }
    return file_read(path, bytes, why);
}

/* A name in quotes behind #include, from *at on; false: there is none any more. */
static bool next_include(const char **at, char name[64], const char **line, const char **end) {
    const char *found = *at;
    while ((found = strstr(found, "#include")) != NULL) {
        const char *quote = found + strlen("#include");
        quote += strspn(quote, " \t");
        const char *close = *quote == '"' ? strpbrk(quote + 1, "\"\n") : NULL;
        *at = quote;
        if (close != NULL && *close == '"' && close - quote - 1 < 64) {
            snprintf(name, 64, "%.*s", (int)(close - quote - 1), quote + 1);
            *line = found;
            *end = close + 1;
            *at = *end;
            return true;
        }
        found = quote;
    }
    return false;
}

static bool collect(struct sources *all, const char *tree, const char *name, const char *text,
                    attn_error *why) {
    for (int i = 0; i < all->count; i++) {
        if (strcmp(all->files[i].name, name) == 0) {
            return true;
        }
    }
    if (all->count == FILES_MOST) {
        return explain(why, "more than %d files, expected a kernel", (int)FILES_MOST);
    }
    struct source_file *file = &all->files[all->count];
    file->text = text != NULL ? strdup(text) : kernel_file(tree, name, &file->bytes, why);
    if (file->text == NULL) {
        return text == NULL ? false : explain(why, "out of memory");
    }
    file->bytes = strlen(file->text);
    snprintf(file->name, sizeof file->name, "%s", name);
    all->count++;
    const char *at = file->text, *line = NULL, *end = NULL;
    char other[64];
    bool good = true;
    while (good && next_include(&at, other, &line, &end)) {
        good = collect(all, tree, other, NULL, why);
    }
    return good;
}

static void sources_free(struct sources *all) {
    for (int i = 0; i < all->count; i++) {
        free(all->files[i].text);
    }
}

void kernel_file_name(const char *kernel, char name[64]) {
    /* as src/kernels/families.def has it; elsewhere file and family have one name */
    static const char *const files[][2] = {{"fwd_hopper", "hopper/forward.cu"},
                                           {"fwd_hopper_causal", "hopper/forward_causal.cu"},
                                           {"fwd_hopper_full", "hopper/forward_full.cu"},
                                           {"fwd_hopper_split", "hopper/split.cu"},
                                           {"fwd_hopper_decode", "hopper/decode.cu"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (strcmp(kernel, files[i][0]) == 0) {
            snprintf(name, 64, "%s", files[i][1]);
            return;
        }
    }
    snprintf(name, 64, "%s%s.cu", strcmp(kernel, SOURCE_OUTSIDE) == 0 ? "" : "portable/", kernel);
}

char *source_of(const char *tree, const char *kernel, attn_error *why) {
    char name[64], other[64];
    size_t bytes = 0;
    kernel_file_name(kernel, name);
    char *text = kernel_file(tree, name, &bytes, why);
    const char *at = text, *line = NULL, *end = NULL;
    while (text != NULL && next_include(&at, other, &line, &end)) {
        const size_t length = strlen(other);
        if (length < 4 || strcmp(other + length - 3, ".cu") != 0) {
            continue;
        }
        char *inner = kernel_file(tree, other, &bytes, why);
        char *whole = NULL;
        if (inner == NULL ||
            asprintf(&whole, "%.*s\n%s\n%s", (int)(line - text), text, inner, end) < 0) {
            whole = NULL;
        }
        free(inner);
        free(text);
        text = whole;
        at = whole;
    }
    return text;
}

/* ---- constants ------------------------------------------------------------------------------- */

/* Replaces the value in every `NAME = value` of an enum; returns how often, -1 without memory. */
static int set_constant(struct source_file *file, const char *constant, int value) {
    const size_t length = strlen(constant);
    int count = 0;
    for (char *at = strstr(file->text, constant); at != NULL; at = strstr(at + length, constant)) {
        const size_t before = (size_t)(at - file->text);
        if ((before > 0 && is_word(at[-1])) || strncmp(at + length, " = ", 3) != 0) {
            continue;
        }
        const char *rest = at + length + strcspn(at + length, ",}#");
        char *changed = NULL;
        if (asprintf(&changed, "%.*s%s = %d\n%s", (int)before, file->text, constant, value, rest) <
            0) {
            return -1;
        }
        free(file->text);
        file->text = changed;
        file->bytes = strlen(changed);
        at = changed + before;
        count++;
    }
    return count;
}

static bool set_constants(struct sources *all, const struct family *family,
                          const struct knobs *knobs, attn_error *why) {
    for (int k = KNOB_SOURCE; k < KNOB_COUNT; k++) {
        const int *list = NULL;
        int count = 0;
        if (knob_values(family, (enum knob)k, &list) == 0 || knobs->value[k] == KNOB_AUTO) {
            continue;
        }
        for (int i = 0; i < all->count; i++) {
            const int one =
                set_constant(&all->files[i], knob_constant((enum knob)k), knobs->value[k]);
            if (one < 0) {
                return explain(why, "out of memory");
            }
            count += one;
        }
        if (count == 0) {
            return explain(why, "%s has no constant %s", family->name, knob_constant((enum knob)k));
        }
    }
    return true;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct source_file *)a)->name, ((const struct source_file *)b)->name);
}

static bool hash_files(const struct sources *all, char hash[SHA256_TEXT], attn_error *why) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    for (int i = 0; file != NULL && i < all->count; i++) {
        char one[SHA256_TEXT];
        sha256_text(all->files[i].text, all->files[i].bytes, one);
        fprintf(file, "%s %s\n", one, all->files[i].name);
    }
    if (file == NULL || fclose(file) != 0) {
        free(text);
        return explain(why, "out of memory");
    }
    sha256_text(text, bytes, hash);
    free(text);
    return true;
}

static bool make_folders(const char *folder, attn_error *why) {
    const char *const names[] = {"src", "src/kernels", "src/kernels/common", "src/kernels/portable",
                                 "src/kernels/hopper"};
    char path[PATH_SIZE];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (mkdir(path, 0777) != 0 && errno != EEXIST) {
            return explain(why, "%s: cannot make the folder: %s", path, strerror(errno));
        }
    }
    return true;
}

bool source_write(const char *tree, const char *folder, const struct family *family,
                  const struct knobs *knobs, const char *source, char hash[SHA256_TEXT],
                  attn_error *why) {
    struct sources all = {.count = 0};
    char name[64];
    /* under a name of its own, so that it can include the kernel that it is to replace */
    kernel_file_name(source != NULL ? SOURCE_OUTSIDE : family->kernel, name);
    bool good = collect(&all, tree, name, source, why) && set_constants(&all, family, knobs, why) &&
                make_folders(folder, why);
    qsort(all.files, (size_t)all.count, sizeof *all.files, by_name);
    for (int i = 0; i < all.count && good; i++) {
        char path[PATH_SIZE];
        snprintf(path, sizeof path, "%s/src/kernels/%s", folder, all.files[i].name);
        good = write_file(path, all.files[i].text, all.files[i].bytes, why);
    }
    good = good && hash_files(&all, hash, why);
    sources_free(&all);
    return good;
}

/* ---- what a source must not contain ---------------------------------------------------------- */

/* Without comments, continued lines joined: as the compiler's preprocessor sees it. For free(). */
static char *strip(const char *text) {
    char *out = malloc(strlen(text) + 1), *to = out;
    char quote = '\0';
    for (const char *at = text; out != NULL && *at != '\0'; at++) {
        if (at[0] == '\\' && at[1] == '\n') {
            at++;
        } else if (quote == '\0' && at[0] == '/' && at[1] == '/') {
            while (at[1] != '\0' && at[1] != '\n') {
                at++;
            }
        } else if (quote == '\0' && at[0] == '/' && at[1] == '*') {
            const char *end = strstr(at + 2, "*/");
            *to++ = ' ';
            at = end != NULL ? end + 1 : at + strlen(at) - 1;
        } else {
            if (quote != '\0' && at[0] == '\\' && at[1] != '\0') {
                *to++ = *at++;
            } else if (quote == '\0' ? at[0] == '"' || at[0] == '\'' : at[0] == quote) {
                quote = quote == '\0' ? at[0] : '\0';
            } else if (at[0] == '\n') {
                quote = '\0';
            }
            *to++ = *at;
        }
    }
    if (out != NULL) {
        *to = '\0';
    }
    return out;
}

static const char *const FORBIDDEN[] = {
    "__has_include", "__has_embed", "include_next", "#import",       "#embed", "%:", "??",
    "__DATE__",      "__TIME__",    "incbin",       "__TIMESTAMP__",
};

/* Each directive that names a file names one of the kernels'. */
static bool includes_allowed(const char *tree, const char *text, attn_error *why) {
    for (const char *at = strchr(text, '#'); at != NULL; at = strchr(at + 1, '#')) {
        const char *word = at + 1 + strspn(at + 1, " \t");
        if (strncmp(word, "include", 7) != 0) {
            continue;
        }
        const char *name = word + 7 + strspn(word + 7, " \t");
        const size_t length = *name == '"' ? strcspn(name + 1, "\"\n") : 0;
        char file[64];
        size_t bytes = 0;
        attn_error absent;
        snprintf(file, sizeof file, "%.*s", (int)(length < 60 ? length : 60), name + 1);
        char *found = length > 0 && length < 60 && *file != '/' && strstr(file, "..") == NULL
                          ? kernel_file(tree, file, &bytes, &absent)
                          : NULL;
        if (found == NULL) {
            const size_t shown = strcspn(name, "\n");
            return explain(why, "#include %.*s, expected a file of src/kernels in quotes",
                           (int)(shown < 40 ? shown : 40), name);
        }
        free(found);
    }
    return true;
}

bool source_allowed(const char *tree, const char *text, attn_error *why) {
    if (strlen(text) > SOURCE_MOST) {
        return explain(why, "%zu bytes, expected %d at most", strlen(text), (int)SOURCE_MOST);
    }
    for (const char *at = text; *at != '\0'; at++) {
        if (*at != '\n' && *at != '\t' && (*at < ' ' || *at > '~')) {
            return explain(why, "byte 0x%02x, expected ASCII", (unsigned char)*at);
        }
    }
    char *plain = strip(text);
    if (plain == NULL) {
        return explain(why, "out of memory");
    }
    bool good = true;
    for (size_t i = 0; i < sizeof FORBIDDEN / sizeof *FORBIDDEN && good; i++) {
        good = strstr(plain, FORBIDDEN[i]) == NULL || explain(why, "it contains %s", FORBIDDEN[i]);
    }
    good = good && includes_allowed(tree, plain, why);
    free(plain);
    return good;
}

/* ---- what PTX must not contain --------------------------------------------------------------- */

static const char *const SPECIAL[] = {
    "tid",
    "ntid",
    "ctaid",
    "nctaid",
    "laneid",
    "warpid",
    "clusterid",
    "nclusterid",
    "cluster_ctaid",
    "cluster_nctaid",
    "cluster_ctarank",
    "cluster_nctarank",
    "lanemask_eq",
    "lanemask_lt",
    "lanemask_le",
    "lanemask_gt",
    "lanemask_ge",
    "dynamic_smem_size",
    "SP",
    "SPL",
};

/* %r12, %rd3, %p1: what the compiler calls its registers. %pm0 is a counter. */
static bool is_register(const char *name, size_t length) {
    size_t letters = 0;
    while (letters < length && isalpha((unsigned char)name[letters])) {
        letters++;
    }
    size_t digits = letters;
    while (digits < length && isdigit((unsigned char)name[digits])) {
        digits++;
    }
    return letters >= 1 && letters <= 3 && digits == length && digits > letters &&
           strncmp(name, "pm", 2) != 0;
}

static bool registers_allowed(const char *ptx, attn_error *why) {
    for (const char *at = strchr(ptx, '%'); at != NULL; at = strchr(at + 1, '%')) {
        size_t length = 0;
        while (is_word(at[1 + length])) {
            length++;
        }
        /* `.reg .b32 %r<12>;` declares a row of them */
        bool good = length == 0 || is_register(at + 1, length) || at[1 + length] == '<';
        for (size_t i = 0; i < sizeof SPECIAL / sizeof *SPECIAL && !good; i++) {
            good = strlen(SPECIAL[i]) == length && strncmp(SPECIAL[i], at + 1, length) == 0;
        }
        if (!good) {
            return explain(why,
                           "it reads %%%.*s: a kernel sees no timer, counter or multiprocessor",
                           (int)(length < 40 ? length : 40), at + 1);
        }
    }
    return true;
}

/* The word stands alone, from *at on. */
static const char *find_word(const char *at, const char *word) {
    const size_t length = strlen(word);
    for (at = strstr(at, word); at != NULL; at = strstr(at + length, word)) {
        if (isspace((unsigned char)at[-1]) && isspace((unsigned char)at[length])) {
            return at;
        }
    }
    return NULL;
}

bool ptx_allowed(const char *ptx, const char *entry, attn_error *why) {
    int entries = 0;
    const size_t length = strlen(entry);
    char *plain = strip(ptx); /* its comments name what was demoted */
    if (plain == NULL) {
        return explain(why, "out of memory");
    }
    bool good = true;
    for (const char *at = plain; good && (at = find_word(at, ".entry")) != NULL; entries++) {
        at += strlen(".entry") + strspn(at + strlen(".entry"), " \t\n");
        if (strncmp(at, entry, length) != 0 || is_word(at[length])) {
            good = explain(why, "it has a kernel %.40s, expected %s alone", at, entry);
        }
    }
    if (good && entries != 1) {
        good = explain(why, "it has %d kernels, expected 1", entries);
    }
    if (good && find_word(plain, ".global") != NULL) {
        good = explain(why, "it has memory that outlives a launch (.global): %.60s",
                       find_word(plain, ".global"));
    }
    for (const char *at = plain; good && (at = find_word(at, ".extern")) != NULL; at++) {
        const char *what = at + strlen(".extern") + strspn(at + strlen(".extern"), " \t\n");
        good = strncmp(what, ".shared", 7) == 0 ||
               explain(why, "it refers to something outside: %.60s", what);
    }
    if (good && strstr(plain, "nanosleep") != NULL) {
        good = explain(why, "it has nanosleep: a kernel sees no time");
    }
    good = good && registers_allowed(plain, why);
    free(plain);
    return good;
}
