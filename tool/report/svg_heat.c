/* SPDX-License-Identifier: Apache-2.0
 *
 * svg_heat.c - see svg.h: the heat map. A row is a few paths, one for each shade, so that ten
 * thousand cells are a small page.
 */
#include "report/svg.h"

#include <math.h>
#include <string.h>

#include "report/html.h"

enum {
    HEIGHT = 14, /* of a row; cells are as wide, or wider where there are few */
    WIDEST = 30,
    GAP = 1,
    WIDTH = 780, /* for the cells, if they can be as narrow as that */
    TOP = 26,
    LABEL_MOST = 378, /* for the names of rows */
    SHADES = 10,
    BAD = SHADES,
    BROKEN,
    EMPTY,
    CLASSES = EMPTY
};

struct layout {
    size_t columns, shared; /* cells of a row; columns behind one */
    int left, cell;         /* where they begin; how wide one is */
};

/* NaN is the worst, then what is greater. */
static double worse(double a, double b) {
    return isnan(a) || isnan(b) ? NAN : fmax(a, b);
}

static double cell_of(const struct svg_heat *heat, const struct layout *layout, size_t row,
                      size_t cell) {
    double worst = -1;
    for (size_t i = 0; i < layout->shared; i++) {
        const size_t column = cell * layout->shared + i;
        if (column < heat->columns) {
            worst = worse(worst, heat->cell(heat->subject, row, column));
        }
    }
    return worst;
}

static int class_of(double share) {
    if (isnan(share)) {
        return BROKEN;
    }
    if (share < 0) {
        return EMPTY;
    }
    return share > 1 ? BAD : share < 1 ? (int)(share * SHADES) : SHADES - 1;
}

/* A cell is a piece of a thick line: that takes the fewest bytes. */
static void put_cells(FILE *out, const struct svg_heat *heat, const struct layout *layout,
                      size_t row, double top) {
    const int middle = (int)top + HEIGHT / 2, wide = layout->cell - GAP;
    for (int class = 0; class < CLASSES; class ++) {
        bool any = false;
        for (size_t i = 0; i < layout->columns; i++) {
            if (class_of(cell_of(heat, layout, row, i)) != class) {
                continue;
            }
            const int left = layout->left + (int)i * layout->cell;
            if (!any) {
                html_put(out, "<path class=\"h%d\" d=\"", class);
            }
            any = true;
            if (class < BAD) {
                html_put(out, "M%d %dh%d", left, middle, wide);
            } else { /* a gap in it, for those who do not see the colour */
                html_put(out, "M%d %dh%dm%d 0h%d", left, middle, wide / 3, wide - 2 * (wide / 3),
                         wide / 3);
            }
        }
        fputs(any ? "\"/>" : "", out);
    }
}

static void put_row(FILE *out, const struct svg_heat *heat, const struct layout *layout,
                    size_t row) {
    const double top = TOP + (double)row * HEIGHT;
    double worst = -1;
    size_t at = 0;
    for (size_t i = 0; i < heat->columns; i++) {
        const double share = heat->cell(heat->subject, row, i);
        if (isnan(share) || share > worst) {
            worst = share;
            at = i;
        }
        if (isnan(share)) {
            break;
        }
    }
    const char *name = heat->row_name(heat->subject, row);
    html_put(out, "<g><title>%s: ", name);
    if (isnan(worst)) {
        html_put(out, "%s %zu is broken", heat->column_title, at);
    } else if (worst < 0) {
        fputs("nothing", out);
    } else {
        html_put(out, "worst in %s %zu, %.3g of what is allowed", heat->column_title, at, worst);
    }
    html_put(out, "</title><text x=\"%d\" y=\"%.0f\" class=\"end\">%s</text>", layout->left - 6,
             top + HEIGHT - 4, name);
    put_cells(out, heat, layout, row, top);
    fputs("</g>\n", out);
}

static struct layout lay_out(const struct svg_heat *heat) {
    struct layout layout = {.columns = heat->columns, .shared = 1, .left = 60, .cell = HEIGHT};
    if (heat->columns > SVG_HEAT_COLUMNS) {
        layout.shared = (heat->columns + SVG_HEAT_COLUMNS - 1) / SVG_HEAT_COLUMNS;
        layout.columns = (heat->columns + layout.shared - 1) / layout.shared;
    }
    if (layout.columns > 0 && WIDTH / layout.columns > HEIGHT) {
        layout.cell = WIDTH / layout.columns < WIDEST ? (int)(WIDTH / layout.columns) : WIDEST;
    }
    for (size_t row = 0; row < heat->rows; row++) {
        const size_t length = strlen(heat->row_name(heat->subject, row));
        const int wide = length < 60 ? (int)(6.1 * (double)length) + 12 : LABEL_MOST;
        layout.left = wide > layout.left ? wide : layout.left;
    }
    return layout;
}

static void put_columns(FILE *out, const struct svg_heat *heat, const struct layout *layout) {
    const size_t every = layout->columns > 12 ? 10 : layout->columns > 6 ? 5 : 1;
    html_put(out, "<text x=\"%d\" y=\"18\" class=\"end axis\">%s</text>", layout->left - 6,
             heat->column_title);
    for (size_t i = 0; i < layout->columns; i += every) {
        html_put(out, "<text x=\"%.1f\" y=\"18\" class=\"mid\">%zu</text>",
                 layout->left + ((double)i + 0.5) * layout->cell, i * layout->shared);
    }
}

/* The key is HTML: it wraps where the map scrolls. */
static void put_key(FILE *out, const struct layout *layout) {
    fputs("<p class=\"scale\"><span>0</span><span class=\"ramp\" aria-hidden=\"true\">", out);
    for (int i = 0; i < SHADES; i++) {
        html_put(out, "<i class=\"h%d\"></i>", i);
    }
    html_put(out,
             "</span><span>1: all that is allowed</span><span><i class=\"h%d\"></i> more than "
             "allowed</span><span><i class=\"h%d\"></i> broken</span>",
             BAD, BROKEN);
    if (layout->shared > 1) {
        html_put(out, "<span>a cell is the worst of %zu</span>", layout->shared);
    }
    fputs("</p>\n", out);
}

void svg_heat(FILE *out, const struct svg_heat *heat) {
    const struct layout layout = lay_out(heat);
    const double width = layout.left + (double)layout.columns * layout.cell + 8;
    const double height = TOP + (double)heat->rows * HEIGHT + 4;
    html_put(out, "<figure class=\"heat\"><figcaption><b>%s</b>", heat->title);
    if (heat->subtitle != NULL) {
        html_put(out, " <span>%s</span>", heat->subtitle);
    }
    fputs("</figcaption>\n", out);
    put_key(out, &layout);
    html_put(out,
             "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"%s\">\n"
             "<svg viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\" "
             "aria-label=\"%s: %s by %s\">\n",
             heat->title, width, height, width, height, heat->title, heat->row_title,
             heat->column_title);
    put_columns(out, heat, &layout);
    for (size_t row = 0; row < heat->rows; row++) {
        put_row(out, heat, &layout, row);
    }
    fputs("</svg></div></figure>\n", out);
}
