/* SPDX-License-Identifier: Apache-2.0
 *
 * svg.c - see svg.h.
 */
#include "report/svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/html.h"

/* The drawing, in units that are pixels where it is shown at its own size. */
enum {
    WIDTH = 460,
    HEIGHT = 300,
    LEFT = 58,
    RIGHT = 16,
    BOTTOM = 48,
    LEGEND_ROW = 18,
    TICKS_MOST = 24,
    TICK_TEXT = 24
};

struct axis {
    enum svg_scale scale;
    bool whole;
    double low, high; /* the values at its ends */
    double from, to;  /* where they are drawn */
    double ticks[TICKS_MOST];
    int tick_count;
};

struct drawing {
    FILE *out;
    const struct svg_plot *plot;
    struct axis x, y;
};

/* ---- axes ------------------------------------------------------------------------------------ */

static bool has_place(enum svg_scale scale, double value) {
    return isfinite(value) && (scale == SVG_LINEAR || value > 0);
}

static bool is_drawn(const struct svg_plot *plot, const struct svg_point *point) {
    return has_place(plot->x.scale, point->x) && has_place(plot->y.scale, point->y);
}

static double position(const struct axis *axis, double value) {
    const double share = axis->scale == SVG_LINEAR
                             ? (value - axis->low) / (axis->high - axis->low)
                             : log(value / axis->low) / log(axis->high / axis->low);
    return axis->from + share * (axis->to - axis->from);
}

static void add_tick(struct axis *axis, double value) {
    if (value >= axis->low && value <= axis->high && axis->tick_count < TICKS_MOST) {
        axis->ticks[axis->tick_count++] = value;
    }
}

/* Powers of the base, at most eight; the fewer decades there are, the more ticks each has. */
static void ticks_log(struct axis *axis) {
    static const double STEPS[] = {1, 2, 5, 1.5, 3, 4, 6, 8};
    const double base = axis->scale == SVG_LOG2 ? 2 : 10;
    const int first = (int)floor(log(axis->low) / log(base));
    const int last = (int)ceil(log(axis->high) / log(base)), stride = 1 + (last - first) / 9;
    const double decades = log10(axis->high / axis->low);
    const int steps = axis->scale == SVG_LOG2 || decades > 4 ? 1 : decades > 0.9 ? 3 : 8;
    for (int power = first; power <= last; power += stride) {
        for (int i = 0; i < steps; i++) {
            add_tick(axis, STEPS[i] * pow(base, power));
        }
    }
}

/* The step is 1, 2 or 5 times a power of ten. */
static void ticks_linear(struct axis *axis) {
    const double rough = (axis->high - axis->low) / 5;
    const double power = pow(10.0, floor(log10(rough))), share = rough / power;
    const double rounded = power * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10);
    const double step = axis->whole ? fmax(1.0, rounded) : rounded;
    const double first = ceil(axis->low / step - 1e-9);
    for (int i = 0; (first + i) * step <= axis->high && axis->tick_count < TICKS_MOST; i++) {
        axis->ticks[axis->tick_count++] = (first + i) * step;
    }
}

/* Room around the values; without one, anything that can be drawn. */
static void fit_axis(struct axis *axis, double low, double high) {
    const double span = axis->scale == SVG_LINEAR ? high - low : 0.0;
    if (!(low <= high)) {
        low = 1;
        high = 2;
    }
    if (axis->scale == SVG_LINEAR) {
        axis->low = axis->whole ? low - fmax(0.3, 0.05 * span) : low >= 0 ? 0 : low - 0.05 * span;
        axis->high = high + fmax(axis->whole ? 0.3 : 0.0, 0.05 * span);
        axis->high = axis->high > axis->low ? axis->high : axis->low + 1;
        ticks_linear(axis);
        return;
    }
    const double room = fmax(1.15, sqrt(fmax(1.0, 2 * low / high)));
    axis->low = low / room;
    axis->high = high * room;
    ticks_log(axis);
}

/* Returns how many points have no place. */
static size_t fit_axes(const struct svg_plot *plot, struct axis *x, struct axis *y) {
    size_t undrawn = 0;
    double low[2] = {INFINITY, INFINITY}, high[2] = {-INFINITY, -INFINITY};
    for (size_t s = 0; s < plot->series_count; s++) {
        for (size_t i = 0; i < plot->series[s].count; i++) {
            const struct svg_point *p = &plot->series[s].points[i];
            if (!is_drawn(plot, p)) {
                undrawn++;
                continue;
            }
            const double bottom = has_place(plot->y.scale, p->low) ? fmin(p->low, p->y) : p->y;
            const double top = has_place(plot->y.scale, p->high) ? fmax(p->high, p->y) : p->y;
            low[0] = fmin(low[0], p->x);
            high[0] = fmax(high[0], p->x);
            low[1] = fmin(low[1], bottom);
            high[1] = fmax(high[1], top);
        }
    }
    fit_axis(x, low[0], high[0]);
    fit_axis(y, low[1], high[1]);
    return undrawn;
}

/* 512, 16k (of 1024 on an axis of powers of two), 0.25, 200k: as short as it can be said. */
static void tick_text(enum svg_scale scale, double value, char text[TICK_TEXT]) {
    static const char *const UNITS[] = {"", "k", "M", "G", "T"};
    const double kilo = scale == SVG_LOG2 ? 1024 : 1000;
    const double least = scale == SVG_LOG2 ? 1024 : 10000;
    int unit = 0;
    if (fabs(value) >= least) {
        while (unit < 4 && fabs(value) >= kilo) {
            value /= kilo;
            unit++;
        }
    }
    snprintf(text, TICK_TEXT, "%.4g%s", fabs(value) < 1e-12 ? 0.0 : value, UNITS[unit]);
}

static void put_axes(FILE *out, const struct svg_plot *plot, const struct axis *x,
                     const struct axis *y) {
    char text[TICK_TEXT];
    fputs("<g class=\"grid\" aria-hidden=\"true\">", out);
    for (int i = 0; i < y->tick_count; i++) {
        const double at = position(y, y->ticks[i]);
        html_put(out, "<path d=\"M%.1f %.1fH%.1f\"/>", x->from, at, x->to);
    }
    for (int i = 0; i < x->tick_count; i++) {
        html_put(out, "<path d=\"M%.1f %.1fv4\"/>", position(x, x->ticks[i]), y->from);
    }
    html_put(out, "<path class=\"base\" d=\"M%.1f %.1fH%.1f\"/></g>\n<g class=\"ticks\">", x->from,
             y->from, x->to);
    for (int i = 0; i < y->tick_count; i++) {
        tick_text(y->scale, y->ticks[i], text);
        html_put(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"end\">%s</text>", x->from - 7,
                 position(y, y->ticks[i]) + 4, text);
    }
    for (int i = 0; i < x->tick_count; i++) {
        tick_text(x->scale, x->ticks[i], text);
        html_put(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"mid\">%s</text>",
                 position(x, x->ticks[i]), y->from + 18, text);
    }
    html_put(out, "<text x=\"%.1f\" y=\"%d\" class=\"mid axis\">%s</text>", (x->from + x->to) / 2,
             HEIGHT - 8, plot->x.title);
    html_put(out,
             "<text transform=\"translate(14 %.1f) rotate(-90)\" class=\"mid axis\">%s</text>"
             "</g>\n",
             (y->from + y->to) / 2, plot->y.title);
}

/* ---- series ---------------------------------------------------------------------------------- */

/* A shape for each colour, so that the colour is not all that tells them apart. */
static void put_mark(FILE *out, const char *class, int colour, double x, double y) {
    static const char *const SHAPES[SVG_COLOURS] = {
        "m-3.8 0a3.8 3.8 0 1 0 7.6 0a3.8 3.8 0 1 0 -7.6 0z",
        "m-3.8 -3.8h7.6v7.6h-7.6z",
        "m0 -4.8l4.8 7.6h-9.6z",
        "m0 -4.8l4.8 4.8l-4.8 4.8l-4.8 -4.8z",
        "m0 4.8l4.8 -7.6h-9.6z",
        "m-4.8 -1.2h9.6v2.4h-9.6z",
    };
    html_put(out, "<path class=\"%s\" d=\"M%.1f %.1f%s\">", class, x, y,
             SHAPES[colour % SVG_COLOURS]);
}

static const char *class_of(const struct svg_series *series, char text[64]) {
    snprintf(text, 64, "c%d%s%s", series->colour < SVG_GREY ? series->colour : SVG_GREY,
             (series->marks & SVG_DASHED) != 0 ? " dashed" : "",
             (series->marks & SVG_FAINT) != 0 ? " faint" : "");
    return text;
}

/* One path: a line through the points, or (SVG_FAINT) a dot for each. */
static void put_path(const struct drawing *drawing, const struct svg_series *series,
                     const char *class) {
    const bool dots = (series->marks & SVG_FAINT) != 0;
    bool pen_down = false;
    html_put(drawing->out, "<path class=\"%s\" d=\"", class);
    for (size_t i = 0; i < series->count; i++) {
        const struct svg_point *p = &series->points[i];
        if (!is_drawn(drawing->plot, p)) {
            continue;
        }
        const double x = position(&drawing->x, p->x), y = position(&drawing->y, p->y);
        html_put(drawing->out, "%s%.1f %.1f%s", pen_down ? "L" : "M", x, y, dots ? "h0" : "");
        pen_down = !dots;
    }
    fputs("\"/>", drawing->out);
}

static void put_points(const struct drawing *drawing, const struct svg_series *series) {
    const enum svg_scale scale = drawing->plot->y.scale;
    for (size_t i = 0; i < series->count; i++) {
        const struct svg_point *p = &series->points[i];
        if (!is_drawn(drawing->plot, p)) {
            continue;
        }
        const double at = position(&drawing->x, p->x);
        if (has_place(scale, p->low) && has_place(scale, p->high)) {
            html_put(drawing->out, "<path class=\"bar\" d=\"M%.1f %.1fV%.1f\"/>", at,
                     position(&drawing->y, p->low), position(&drawing->y, p->high));
        }
        put_mark(drawing->out, "point", series->colour, at, position(&drawing->y, p->y));
        if (p->label != NULL) {
            html_put(drawing->out, "<title>%s</title>", p->label);
        }
        fputs("</path>", drawing->out);
    }
}

static void put_series(const struct drawing *drawing, const struct svg_series *series) {
    char class[64];
    html_put(drawing->out, "<g class=\"series %s\">", class_of(series, class));
    if ((series->marks & SVG_LINE) != 0) {
        put_path(drawing, series, "line");
    }
    if ((series->marks & SVG_FAINT) != 0) {
        put_path(drawing, series, "dots");
    } else if ((series->marks & SVG_POINTS) != 0) {
        put_points(drawing, series);
    }
    fputs("</g>\n", drawing->out);
}

/* ---- legend and frame ------------------------------------------------------------------------ */

/* Draws the legend, or (out NULL) only counts its rows. */
static int put_legend(FILE *out, const struct svg_plot *plot) {
    double at = LEFT;
    int row = 0;
    for (size_t s = 0; s < plot->series_count; s++) {
        const struct svg_series *series = &plot->series[s];
        if (series->name == NULL) {
            continue;
        }
        const double wide = 44 + 6.6 * fmin((double)strlen(series->name), 60); /* about */
        if (at > LEFT && at + wide > WIDTH) {
            at = LEFT;
            row++;
        }
        if (out != NULL) {
            char class[64];
            const double y = 10 + row * LEGEND_ROW;
            html_put(out, "<g class=\"series %s\">", class_of(series, class));
            if ((series->marks & SVG_LINE) != 0) {
                html_put(out, "<path class=\"line\" d=\"M%.1f %.1fh22\"/>", at, y);
            }
            if ((series->marks & SVG_POINTS) != 0) {
                put_mark(out, "key", series->colour, at + 11, y);
                fputs("</path>", out);
            }
            html_put(out, "<text x=\"%.1f\" y=\"%.1f\">%s</text></g>", at + 28, y + 4,
                     series->name);
        }
        at += wide;
    }
    return row + (at > LEFT);
}

void svg_plot(FILE *out, const struct svg_plot *plot) {
    struct drawing drawing = {
        .out = out,
        .plot = plot,
        .x = {.scale = plot->x.scale, .whole = plot->x.whole, .from = LEFT, .to = WIDTH - RIGHT},
        .y = {.scale = plot->y.scale, .whole = plot->y.whole, .from = HEIGHT - BOTTOM},
    };
    drawing.y.to = 10 + LEGEND_ROW * put_legend(NULL, plot);
    const size_t undrawn = fit_axes(plot, &drawing.x, &drawing.y);
    html_put(out, "<figure class=\"plot\"><figcaption><b>%s</b>", plot->title);
    if (plot->subtitle != NULL) {
        html_put(out, " <span>%s</span>", plot->subtitle);
    }
    html_put(out,
             "</figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" "
             "aria-label=\"%s: %s over %s\">\n",
             WIDTH, HEIGHT, plot->title, plot->y.title, plot->x.title);
    put_axes(out, plot, &drawing.x, &drawing.y);
    /* The first is ours: it lies on top. */
    for (size_t s = plot->series_count; s > 0; s--) {
        put_series(&drawing, &plot->series[s - 1]);
    }
    put_legend(out, plot);
    fputs("</svg>\n", out);
    if (undrawn > 0) {
        html_put(out, "<p class=\"note\">%zu points have no place on these axes.</p>\n", undrawn);
    }
    fputs("</figure>\n", out);
}
