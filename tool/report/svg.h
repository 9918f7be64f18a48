/* SPDX-License-Identifier: Apache-2.0
 *
 * svg.h - plots as SVG inside a page of html.h: lines and points over one or two log axes. Each is
 * a <figure> with a visible title and a text for those who cannot see it.
 *
 *     const struct svg_point points[] = {{512, 210, 208, 213, "S 512: 210"}, {1024, 330, ...}};
 *     const struct svg_series series[] = {{"ours", points, 2, SVG_LINE | SVG_POINTS, 0}};
 *     svg_plot(out, &(struct svg_plot){
 *         .title = "Throughput", .x = {"sequence", SVG_LOG2}, .y = {"TFLOP/s", SVG_LINEAR},
 *         .series = series, .series_count = 1});
 *
 * Colours and fonts are classes of html_style.c, so that a plot follows the page from light to
 * dark; each colour of points has a shape of its own as well.
 *
 * Invariant: what is drawn is what was given: a point that has no place on its axis (NaN, infinite,
 * not above 0 on a log axis) is left out and counted below the plot, never moved.
 */
#ifndef ATTEST_REPORT_SVG_H
#define ATTEST_REPORT_SVG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum svg_scale {
    SVG_LINEAR, /* from 0 where nothing is below it */
    SVG_LOG2,
    SVG_LOG10
};

struct svg_axis {
    const char *title;
    enum svg_scale scale;
    bool whole; /* SVG_LINEAR, of numbers that are counted: from the first, ticks at integers */
};

struct svg_point {
    double x, y;
    double low, high;  /* of y, a thin bar; NaN: none */
    const char *label; /* shown when the pointer rests on it; NULL: none */
};

/* SVG_FAINT: small dots without bars and labels, of which there may be thousands. */
enum svg_marks { SVG_LINE = 1, SVG_POINTS = 2, SVG_DASHED = 4, SVG_FAINT = 8 };

enum { SVG_COLOURS = 6, SVG_GREY = SVG_COLOURS }; /* 0: ours; SVG_GREY: bounds and the like */

struct svg_series {
    const char *name; /* for the legend; NULL: not in it */
    const struct svg_point *points;
    size_t count;
    unsigned marks; /* of enum svg_marks */
    int colour;
};

struct svg_plot {
    const char *title, *subtitle; /* subtitle may be NULL */
    struct svg_axis x, y;
    const struct svg_series *series;
    size_t series_count;
};

void svg_plot(FILE *out, const struct svg_plot *plot);

#endif /* ATTEST_REPORT_SVG_H */
