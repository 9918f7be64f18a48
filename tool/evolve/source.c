/* SPDX-License-Identifier: Apache-2.0
 *
 * source.c - what a proposer's source, and the PTX of any source, must not contain.
 *
 * Invariant: a source that is allowed reads no other file than those of src/kernels.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/message.h"
#include "evolve/evolve.h"

enum { SOURCE_MOST = 256 << 10 };

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

/* ---- what a source must not contain ---------------------------------------------------------- */

/* Without comments, continued lines joined: as the compiler's preprocessor sees it. For free(). */
static char *strip(const char *text) {
    char *out = must(malloc(strlen(text) + 1)), *to = out;
    char quote = '\0';
    for (const char *at = text; *at != '\0'; at++) {
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
    *to = '\0';
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
        char file[64], path[EVOLVE_PATH];
        snprintf(file, sizeof file, "%.*s", (int)(length < 60 ? length : 60), name + 1);
        snprintf(path, sizeof path, "%s/src/kernels/%s", tree, file);
        if (length == 0 || length >= 60 || *file == '/' || strstr(file, "..") != NULL ||
            access(path, R_OK) != 0) {
            const size_t shown = strcspn(name, "\n");
            return explain(why, "#include %.*s, expected a file of src/kernels in quotes",
                           (int)(shown < 40 ? shown : 40), name);
        }
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
    bool good = true;
    for (size_t i = 0; i < sizeof FORBIDDEN / sizeof *FORBIDDEN && good; i++) {
        good = strstr(plain, FORBIDDEN[i]) == NULL || explain(why, "it contains %s", FORBIDDEN[i]);
    }
    good = good && includes_allowed(tree, plain, why);
    free(plain);
    return good;
}

/* ---- what PTX must not contain --------------------------------------------------------------- */

/* Special registers that tell a thread its place and nothing else. */
static const char SPECIAL[] =
    " tid ntid ctaid nctaid laneid warpid clusterid nclusterid cluster_ctaid cluster_nctaid "
    "cluster_ctarank cluster_nctarank lanemask_eq lanemask_lt lanemask_le lanemask_gt lanemask_ge "
    "dynamic_smem_size SP SPL ";

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
        if (!good && length < 40) {
            char word[48];
            snprintf(word, sizeof word, " %.*s ", (int)length, at + 1);
            good = strstr(SPECIAL, word) != NULL;
        }
        if (!good) {
            return explain(why, "it reads %%%.*s: a kernel sees no timer, counter or SM id",
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
