/* SPDX-License-Identifier: Apache-2.0
 *
 * html_check.h - reads a page as a browser would and says whether it is what the project writes:
 * tags and attributes of a short list, each closed, values in double quotes. Markup that came from
 * a string is none of it.
 */
#ifndef HTML_CHECK_H
#define HTML_CHECK_H

#include <stdbool.h>
#include <stddef.h>

/* True, or false and the reason with the place. */
bool html_check(const char *page, char *why, size_t size);

#endif /* HTML_CHECK_H */
