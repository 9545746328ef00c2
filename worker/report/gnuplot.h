/* gnuplot, run in a new folder under $TMPDIR: without a shell and with fixed file names, so no path is ever quoted. */
#ifndef CRUN_WORKER_REPORT_GNUPLOT_H
#define CRUN_WORKER_REPORT_GNUPLOT_H

#include <limits.h>
#include <stdio.h>

struct err;

struct gnuplot {
    char dir[PATH_MAX];
};

int gnuplot_begin(struct gnuplot *g, struct err *e);
/* A new file in the folder; NULL with *e set. */
FILE *gnuplot_create(const struct gnuplot *g, const char *name, struct err *e);
/* Close it; an error if not all was written. */
int gnuplot_finish(FILE *f, const char *name, struct err *e);
/* Run the folder's plot.gp, which draws plot.png there, and put that in place of png: written beside it and renamed.
 * -ENOENT if gnuplot is not installed; -EIO with what it wrote; -ETIMEDOUT after a minute, when it is killed;
 * ERR_OUTPUT if png cannot be written. Blocks. */
int gnuplot_draw(const struct gnuplot *g, const char *png, struct err *e);
/* The folder and all in it go. */
void gnuplot_end(const struct gnuplot *g);

#endif
