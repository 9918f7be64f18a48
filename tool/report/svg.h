/* SPDX-License-Identifier: Apache-2.0
 *
 * svg.h - one plot as SVG inside a page of html.h: lines over a log2 axis, from 0 up. It is a
 * <figure> with a visible title and a text for those who cannot see it.
 *
 *     const struct svg_point points[] = {{512, 210, 208, 213, "S 512: 210"}, {1024, 330, ...}};
 *     const struct svg_line lines[] = {{"ours", points, 2, false}};
 *     svg_plot(out, &(struct svg_plot){.title = "Throughput", .x = "sequence", .y = "TFLOP/s",
 *                                      .lines = lines, .line_count = 1});
 *
 * Colours and fonts are classes of html_style.c, so that a plot is light or dark as the page.
 *
 * Invariant: what is drawn is what was given: a point that has no place on its axis (NaN, infinite,
 * x not above 0, y below 0) is left out and counted below the plot, never moved.
 */
#ifndef ATTEST_REPORT_SVG_H
#define ATTEST_REPORT_SVG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct svg_point {
    double x, y;
    double low, high;  /* of y, a thin bar; NaN: none */
    const char *label; /* shown when the pointer rests on it; NULL: none */
};

struct svg_line {
    const char *name; /* for the legend */
    const struct svg_point *points;
    size_t count;
    bool bound; /* dashed and grey, without marks: what cannot be exceeded */
};

struct svg_plot {
    const char *title, *subtitle;
    const char *x, *y; /* what the axes show */
    const struct svg_line *lines;
    size_t line_count;
};

void svg_plot(FILE *out, const struct svg_plot *plot);

#endif /* ATTEST_REPORT_SVG_H */
