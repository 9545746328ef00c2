/* The options about output: types and parsers. Pure. */
#ifndef CRUN_LAUNCHER_LOG_CONF_H
#define CRUN_LAUNCHER_LOG_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

/* "0,2,5-7"; n == 0: every rank. */
#define LOG_RANGES_MAX 64
struct log_ranks {
    int n;
    struct log_range {
        int first, last; /* inclusive */
    } v[LOG_RANGES_MAX];
};

enum log_streams { LOG_NONE = 0, LOG_OUT = 1, LOG_ERR = 2, LOG_BOTH = 3 };

/* "3", or per local rank "0:1,1:2" as in torchrun; also "0-7:3", "g8-15:1" (global ranks) and "*:2" (all). */
struct log_spec {
    int n;
    struct log_spec_part {
        struct log_range ranks;
        bool global;
        int streams; /* enum log_streams */
    } v[LOG_RANGES_MAX];
};

/* List of words separated by commas; ",," stands for a comma: "a,b,,c" is "a" and "b,c". NULL-terminated, one
 * allocation. */
struct log_words {
    char **v;
};

enum log_layout_kind { LOG_LAYOUT_CRUN, LOG_LAYOUT_TORCHRUN };
enum log_color { LOG_COLOR_AUTO, LOG_COLOR_ALWAYS, LOG_COLOR_NEVER };
enum log_show { LOG_SHOW_ALL, LOG_SHOW_FIRST_FAILURE };

struct log_conf {
    const char *dir; /* NULL: no files; LOG_CONF_NOWHERE as well */
    bool dir_chosen; /* by log_conf_settle(): nobody typed it */
    /* If files are wanted, but no folder is named: a folder for this job alone inside a shared one, "…_XXXXXX";
     * NULL: LOG_CONF_DEFAULT_DIR. */
    const char *default_dir;
    bool dir_is_private;    /* .dir is .default_dir */
    bool only_named;        /* only streams that redirects and tee name go to files */
    bool prefix;            /* on the console */
    bool prefix_by_default; /* nobody asked for it */
    const char *template;   /* of the prefix */
    struct log_spec redirects, tee;
    struct log_ranks local_ranks, ranks; /* shown on the console */
    struct log_ranks ptys;               /* ranks of the job that get a pty; n == 0: none */
    const char *out_filters, *err_filters;
    int layout, color, show;
    int64_t rotate_bytes, rotate_keep, max_bytes; /* for each file; 0: no limit, keep all */
    int64_t rate;                                 /* lines per second and rank on the console, 0: no limit */
};

#define LOG_CONF_NOWHERE "/dev/null" /* torchrun's value for "no files" */
#define LOG_CONF_DEFAULT_DIR "logs"  /* used if files are wanted, but no folder is named */

/* Parsers for the option table. */
int log_conf_parse_ranks(const char *text, void *field, struct err *e);
int log_conf_parse_spec(const char *text, void *field, struct err *e);
int log_conf_parse_bytes(const char *text, void *field, struct err *e);

/* Check for contradictions (ERR_USAGE), and resolve c->dir: NULL if no files are written. */
int log_conf_settle(struct log_conf *c, struct err *e);

int log_conf_parse_ptys(const char *text, void *field, struct err *e); /* ranks, "all" or "none" */
bool log_conf_has_pty(const struct log_conf *c, int rank);

/* Does an option require that the console gets whole lines, even from a worker that is alone? */
bool log_conf_asks_for_lines(const struct log_conf *c);

/* Does any stream go to both a file and the console? */
bool log_conf_tees(const struct log_conf *c);

bool log_ranks_has(const struct log_ranks *r, int rank);
/* The value of the last part that names the rank; LOG_NONE if none does. */
int log_spec_of(const struct log_spec *s, int local, int rank);

/* Where each of a rank's streams goes; each a set of enum log_streams. Tee overrides redirect. */
struct log_routes {
    int console, file;
};
struct log_routes log_conf_routes(const struct log_conf *c, int local, int rank);

/* True if no line of any worker reaches the console. */
bool log_conf_hides_all(const struct log_conf *c);

/* 0, or -ENOMEM. */
int log_words_split(const char *text, struct log_words *ret);
/* true if one of the words is part of the line */
bool log_words_match(const struct log_words *w, const char *line, size_t n);
void log_words_free(struct log_words *w);

#endif
