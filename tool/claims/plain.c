/* SPDX-License-Identifier: Apache-2.0
 *
 * plain.c - see plain.h.
 */
#include "claims/plain.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void put(struct plain *plain, char letter, char *begin, char *end) {
    plain->place[plain->end - plain->text] = (struct span){begin, end};
    *plain->end++ = letter;
}

/* ---- letters --------------------------------------------------------------------------------- */

static const struct range {
    uint32_t first, last;
    char letter; /* 0: cannot be seen */
} RANGES[] = {
    {0x85, 0x85, ' '},
    {0xa0, 0xa0, ' '},
    {0xad, 0xad, 0},
    {0xb2, 0xb3, '2'}, /* raised digits, and fractions: some digit */
    {0xb5, 0xb5, 'u'},
    {0xb9, 0xb9, '1'},
    {0xbc, 0xbe, '1'},
    {0xd7, 0xd7, TIMES_SIGN},
    {0x34f, 0x34f, 0},
    {0x3bc, 0x3bc, 'u'},
    {0x3c7, 0x3c7, TIMES_SIGN}, /* chi */
    {0x425, 0x425, 'X'},        /* Cyrillic */
    {0x445, 0x445, 'x'},
    {0x61c, 0x61c, 0},
    {0x1680, 0x1680, ' '},
    {0x180e, 0x180e, 0},
    {0x2000, 0x200a, ' '},
    {0x200b, 0x200f, 0},
    {0x2010, 0x2011, '-'},
    {0x2028, 0x2029, ' '},
    {0x202a, 0x202e, 0},
    {0x202f, 0x202f, ' '},
    {0x205f, 0x205f, ' '},
    {0x2060, 0x206f, 0},
    {0x2070, 0x2079, '0'},
    {0x2212, 0x2212, '-'},
    {0x2573, 0x2573, TIMES_SIGN}, /* drawn; ballot; product */
    {0x2715, 0x2716, TIMES_SIGN},
    {0x2a09, 0x2a09, TIMES_SIGN},
    {0x2a2f, 0x2a2f, TIMES_SIGN},
    {0x3000, 0x3000, ' '},
    {0xfe00, 0xfe0f, 0},
    {0xfeff, 0xfeff, 0},
};

static char letter_of(uint32_t code) {
    if (code < 0x80) {
        return iscntrl((int)code) ? ' ' : (char)code;
    }
    if (code >= 0xff01 && code <= 0xff5e) { /* wide forms of ASCII */
        return (char)(code - 0xfee0);
    }
    for (size_t i = 0; i < sizeof RANGES / sizeof *RANGES; i++) {
        if (code >= RANGES[i].first && code <= RANGES[i].last) {
            return RANGES[i].letter;
        }
    }
    return OTHER_SIGN;
}

/* The character of UTF-8 that begins here; a byte that begins none is a letter of its own. */
static const char *read_utf8(const char *at, const char *end, uint32_t *code) {
    const unsigned char first = (unsigned char)*at++;
    int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
    *code = more > 0 ? first & (0x3fU >> more) : first < 0x80 ? first : 0xfffdU;
    for (; more > 0 && at < end && ((unsigned char)*at & 0xc0) == 0x80; more--) {
        *code = *code << 6 | ((unsigned char)*at++ & 0x3f);
    }
    return at;
}

static const struct {
    const char *name;
    uint32_t code;
} ENTITIES[] = {
    {"micro;", 0xb5},    {"mu;", 0x3bc},       {"times;", 0xd7},
    {"nbsp;", 0xa0},     {"ensp;", 0x2002},    {"emsp;", 0x2003},
    {"thinsp;", 0x2009}, {"hairsp;", 0x200a},  {"numsp;", 0x2007},
    {"puncsp;", 0x2008}, {"shy;", 0xad},       {"zwnj;", 0x200c},
    {"zwj;", 0x200d},    {"NoBreak;", 0x2060}, {"ZeroWidthSpace;", 0x200b},
    {"Tab;", ' '},       {"NewLine;", ' '},    {"minus;", 0x2212},
    {"hyphen;", 0x2010}, {"period;", '.'},
};

/* "&micro;", "&#181;", "&#xb5;": NULL where none begins. */
static const char *read_entity(const char *at, const char *end, uint32_t *code) {
    const size_t room = (size_t)(end - at) - 1;
    if (room > 2 && at[1] == '#') {
        const bool hex = at[2] == 'x' || at[2] == 'X';
        const char *digits = at + 2 + hex;
        char *stop;
        const unsigned long value = strtoul(digits, &stop, hex ? 16 : 10);
        *code = value > 0 && value < 0x110000 ? (uint32_t)value : 0xfffdU;
        return isxdigit((unsigned char)*digits) && stop < end && *stop == ';' ? stop + 1 : NULL;
    }
    for (size_t i = 0; i < sizeof ENTITIES / sizeof *ENTITIES; i++) {
        const size_t length = strlen(ENTITIES[i].name);
        if (room >= length && memcmp(at + 1, ENTITIES[i].name, length) == 0) {
            *code = ENTITIES[i].code;
            return at + 1 + length;
        }
    }
    return NULL;
}

/* One letter as it is; returns where to go on. */
static char *put_letter(struct plain *plain, char *at, char *end) {
    uint32_t code = 0;
    const char *next = *at == '&' ? read_entity(at, end, &code) : NULL;
    next = next != NULL ? next : read_utf8(at, end, &code);
    char *stop = at + (next - at);
    const char letter = letter_of(code);
    if (letter != 0) {
        put(plain, letter, at, stop);
    }
    return stop;
}

/* ---- what is not seen ------------------------------------------------------------------------ */

/* Behind the tag that begins here, or behind the place where a link leads; NULL: neither. */
static char *hidden_end(char *at, char *end) {
    const size_t room = (size_t)(end - at);
    char close = 0;
    if (room > 2 && at[0] == '<' &&
        (isalpha((unsigned char)at[1]) || at[1] == '/' || at[1] == '!')) {
        close = '>';
    } else if (room > 2 && at[0] == ']' && (at[1] == '(' || at[1] == '[')) {
        close = at[1] == '(' ? ')' : ']';
    }
    char *found = close != 0 ? memchr(at + 1, close, room - 1) : NULL;
    return found != NULL ? found + 1 : NULL;
}

/* A tag that parts what stands before it from what stands behind it. */
static bool parts(const char *tag) {
    static const char *const NAMES[] = {"td", "th", "tr", "br", "p",  "div",
                                        "li", "ul", "ol", "hr", "h1", "table"};
    const char *name = tag + 1 + (tag[1] == '/');
    for (size_t i = 0; tag[0] == '<' && i < sizeof NAMES / sizeof *NAMES; i++) {
        const size_t length = strlen(NAMES[i]);
        if (strncasecmp(name, NAMES[i], length) == 0 && !isalnum((unsigned char)name[length])) {
            return true;
        }
    }
    return false;
}

/* ---- Markdown -------------------------------------------------------------------------------- */

/* What makes text bold, code or a link; _ does so at the border of a word only. */
static bool is_markup(const char *at, const char *begin, const char *end) {
    if (*at != '_') {
        return strchr("*`~[]", *at) != NULL;
    }
    const char *before = at, *behind = at;
    while (before > begin && before[-1] == '_') {
        before--;
    }
    while (behind < end && *behind == '_') {
        behind++;
    }
    return before == begin || behind == end || !isalnum((unsigned char)before[-1]) ||
           !isalnum((unsigned char)*behind);
}

/* Behind a line's end, and what makes the next one part of a quotation. */
static char *put_newline(struct plain *plain, char *at, char *end) {
    put(plain, ' ', at, at + 1);
    for (at++; at < end && (*at == ' ' || *at == '>'); at++) {
    }
    return at;
}

/* Either what is seen or what is not. */
static void read_side(struct plain *plain, char *begin, char *end, bool hidden) {
    for (char *at = begin; at < end;) {
        char *over = hidden_end(at, end);
        if (over != NULL) {
            for (char *c = at; hidden && c < over;) {
                c = put_letter(plain, c, over);
            }
            if (!hidden && parts(at)) {
                put(plain, ' ', at, over);
            }
            at = over;
        } else if (at[0] == '\\' && at + 1 < end && ispunct((unsigned char)at[1])) {
            if (!hidden) {
                put(plain, at[1], at, at + 2);
            }
            at += 2;
        } else if (hidden || *at == '\0' || *at == HIDDEN_SIGN || is_markup(at, begin, end)) {
            at++;
        } else {
            at = *at == '\n' ? put_newline(plain, at, end) : put_letter(plain, at, end);
        }
    }
    put(plain, OTHER_SIGN, end, end);
}

bool plain_read(struct plain *plain, char *begin, char *end) {
    const size_t room = 2 * (size_t)(end - begin) + 3;
    *plain = (struct plain){.text = malloc(room), .place = malloc(room * sizeof *plain->place)};
    if (plain->text == NULL || plain->place == NULL) {
        plain_free(plain);
        return false;
    }
    plain->end = plain->text;
    read_side(plain, begin, end, false);
    plain->seen = plain->end - 1;
    read_side(plain, begin, end, true);
    *plain->end = '\0';
    return true;
}

void plain_free(struct plain *plain) {
    free(plain->text);
    free(plain->place);
    *plain = (struct plain){0};
}
