/* SPDX-License-Identifier: Apache-2.0
 *
 * svg.c - see svg.h.
 */
#include "report/svg.h"

#include <math.h>

#include "report/html.h"

/* The drawing, in units that are pixels where it is shown at its own size. */
enum {
    WIDTH = 460,
    HEIGHT = 300,
    LEFT = 58,
    RIGHT = WIDTH - 16,
    TOP = 28,
    BOTTOM = HEIGHT - 48,
    LEGEND = 10,
    LEGEND_ENTRY = 200,
    X_TICKS = 8,
    Y_TICKS = 5,
    TICK_TEXT = 24
};

struct drawing {
    FILE *out;
    double first, last, top; /* x from first to last, y from 0 to top */
};

/* ---- axes ------------------------------------------------------------------------------------ */

static bool has_place(const struct svg_point *point) {
    return isfinite(point->x) && point->x > 0 && isfinite(point->y) && point->y >= 0;
}

static bool has_bar(const struct svg_point *point) {
    return isfinite(point->low) && isfinite(point->high) && point->low >= 0;
}

static double x_of(const struct drawing *d, double x) {
    return LEFT + (RIGHT - LEFT) * (log(x) - log(d->first)) / (log(d->last) - log(d->first));
}

static double y_of(const struct drawing *d, double y) {
    return BOTTOM - (BOTTOM - TOP) * (y / d->top);
}

/* Leaves room around the points and has a power of two on the x axis. Without points, any range is
 * drawn. Returns how many points have no place. */
static size_t fit_axes(const struct svg_plot *plot, struct drawing *d) {
    size_t unplaced = 0;
    double least = INFINITY, most = 0, top = 0;
    for (size_t s = 0; s < plot->line_count; s++) {
        for (size_t i = 0; i < plot->lines[s].count; i++) {
            const struct svg_point *p = &plot->lines[s].points[i];
            if (!has_place(p)) {
                unplaced++;
                continue;
            }
            least = fmin(least, p->x);
            most = fmax(most, p->x);
            top = fmax(top, has_bar(p) ? fmax(p->y, p->high) : p->y);
        }
    }
    const double room = fmax(1.15, sqrt(fmax(1.0, 2 * least / most)));
    d->first = isfinite(least) ? least / room : 1;
    d->last = isfinite(least) ? most * room : 2;
    d->top = top > 1e-9 ? 1.05 * top : 1;
    return unplaced;
}

/* 512, 16k (k: `kilo`, 1024 or 1000), 0.25. */
static const char *tick_text(double value, double kilo, char text[TICK_TEXT]) {
    static const char *const UNITS[] = {"", "k", "M", "G", "T"};
    int unit = 0;
    for (; unit < 4 && value >= kilo; unit++) {
        value /= kilo;
    }
    snprintf(text, TICK_TEXT, "%.4g%s", value, UNITS[unit]);
    return text;
}

/* Powers of two, X_TICKS at most. */
static void put_x_ticks(const struct drawing *d) {
    const int first = (int)ceil(log2(d->first)), last = (int)floor(log2(d->last));
    for (int power = first; power <= last; power += 1 + (last - first) / X_TICKS) {
        const double at = x_of(d, ldexp(1, power));
        char text[TICK_TEXT];
        html_put(d->out,
                 "<path d=\"M%.1f %dv4\"/><text x=\"%.1f\" y=\"%d\" class=\"mid\">%s</text>", at,
                 BOTTOM, at, BOTTOM + 18, tick_text(ldexp(1, power), 1024, text));
    }
}

/* The step is 1, 2 or 5 times a power of ten. */
static void put_y_ticks(const struct drawing *d) {
    const double rough = d->top / Y_TICKS, power = pow(10, floor(log10(rough)));
    const double share = rough / power;
    const double step = power * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10);
    for (int i = 0; i * step <= d->top; i++) {
        const double at = y_of(d, i * step);
        char text[TICK_TEXT];
        html_put(d->out,
                 "<path d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" class=\"end\">%s</text>", LEFT,
                 at, RIGHT, LEFT - 7, at + 4, tick_text(i * step, 1000, text));
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void put_mark(FILE *out, const char *class, double x, double y) {
    html_put(
        out,
        "<path class=\"%s\" d=\"M%.1f %.1fm-3.8 0a3.8 3.8 0 1 0 7.6 0a3.8 3.8 0 1 0 -7.6 0z\">",
        class, x, y);
}

static void put_points(const struct drawing *d, const struct svg_line *line) {
    for (size_t i = 0; i < line->count; i++) {
        const struct svg_point *p = &line->points[i];
        if (!has_place(p)) {
            continue;
        }
        if (has_bar(p)) {
            html_put(d->out, "<path class=\"bar\" d=\"M%.1f %.1fV%.1f\"/>", x_of(d, p->x),
                     y_of(d, p->low), y_of(d, p->high));
        }
        put_mark(d->out, "point", x_of(d, p->x), y_of(d, p->y));
        if (p->label != NULL) {
            html_put(d->out, "<title>%s</title>", p->label);
        }
        fputs("</path>", d->out);
    }
}

/* With its entry of the legend. */
static void put_line(const struct drawing *d, const struct svg_line *line, size_t number) {
    const double entry = LEFT + (double)number * LEGEND_ENTRY;
    const char *to = "M";
    html_put(d->out, "<g class=\"%s\"><path class=\"line\" d=\"", line->bound ? "bound" : "ours");
    for (size_t i = 0; i < line->count; i++) {
        if (has_place(&line->points[i])) {
            html_put(d->out, "%s%.1f %.1f", to, x_of(d, line->points[i].x),
                     y_of(d, line->points[i].y));
            to = "L";
        }
    }
    html_put(d->out, "M%.1f %dh22\"/>", entry, LEGEND);
    if (!line->bound) {
        put_points(d, line);
        put_mark(d->out, "key", entry + 11, LEGEND);
        fputs("</path>", d->out);
    }
    html_put(d->out, "<text x=\"%.1f\" y=\"%d\">%s</text></g>\n", entry + 28, LEGEND + 4,
             line->name);
}

void svg_plot(FILE *out, const struct svg_plot *plot) {
    struct drawing d = {.out = out};
    const size_t unplaced = fit_axes(plot, &d);
    html_put(out,
             "<figure class=\"plot\"><figcaption><b>%s</b> <span>%s</span></figcaption>\n"
             "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s: %s over %s\">\n"
             "<g class=\"grid\">",
             plot->title, plot->subtitle, WIDTH, HEIGHT, plot->title, plot->y, plot->x);
    put_x_ticks(&d);
    put_y_ticks(&d);
    html_put(out,
             "<text x=\"%d\" y=\"%d\" class=\"mid\">%s</text>"
             "<text transform=\"translate(14 %d) rotate(-90)\" class=\"mid\">%s</text></g>\n",
             (LEFT + RIGHT) / 2, HEIGHT - 8, plot->x, (TOP + BOTTOM) / 2, plot->y);
    for (size_t i = 0; i < plot->line_count; i++) {
        put_line(&d, &plot->lines[i], i);
    }
    fputs("</svg>\n", out);
    if (unplaced > 0) {
        html_put(out, "<p class=\"note\">%zu points have no place on these axes.</p>\n", unplaced);
    }
    fputs("</figure>\n", out);
}
