/* What the options on output say: types and parsers. Pure. */
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

/* "3", or per rank "0:1,1:2" as torchrun has it; here also "0-7:3", "g8-15:1" (global ranks) and "*:2" (all). */
struct log_spec {
    int n;
    struct log_spec_part {
        struct log_range ranks;
        bool global;
        int streams; /* enum log_streams */
    } v[LOG_RANGES_MAX];
};

/* "a,b,,c": "a" or "b,c". NULL-terminated, one allocation. */
struct log_words {
    char **v;
};

enum log_layout_kind { LOG_LAYOUT_CRUN, LOG_LAYOUT_TORCHRUN };
enum log_color { LOG_COLOR_AUTO, LOG_COLOR_ALWAYS, LOG_COLOR_NEVER };
enum log_show { LOG_SHOW_ALL, LOG_SHOW_FIRST_FAILURE };

struct log_conf {
    const char *dir; /* NULL: no files; LOG_CONF_NOWHERE as well */
    bool dir_chosen; /* by log_conf_settle(): nobody typed it */
    /* If files are asked for, but not where: a folder of this job's alone in a shared one, "…_XXXXXX"; NULL:
     * LOG_CONF_DEFAULT_DIR. */
    const char *default_dir;
    bool dir_is_private;    /* .dir is .default_dir */
    bool only_named;        /* no stream goes to a file that redirects and tee do not name */
    bool prefix;            /* on the console */
    bool prefix_by_default; /* nobody asked for it */
    const char *template;   /* of the prefix */
    struct log_spec redirects, tee;
    struct log_ranks local_ranks, ranks; /* shown on the console */
    struct log_ranks ptys;               /* ranks of the job whose streams are a terminal of their own; n == 0: none */
    const char *out_filters, *err_filters;
    int layout, color, show;
    int64_t rotate_bytes, rotate_keep, max_bytes; /* of each file; 0: no limit, all are kept */
    int64_t rate;                                 /* lines per second and rank on the console, 0: no limit */
};

#define LOG_CONF_NOWHERE "/dev/null" /* torchrun's word for: no files */
#define LOG_CONF_DEFAULT_DIR "logs"  /* where files are asked for, but not where */

/* Parsers for the option table. */
int log_conf_parse_ranks(const char *text, void *field, struct err *e);
int log_conf_parse_spec(const char *text, void *field, struct err *e);
int log_conf_parse_bytes(const char *text, void *field, struct err *e);

/* Contradictions are refused (ERR_USAGE); c->dir becomes what it stands for: NULL where no files are written. */
int log_conf_settle(struct log_conf *c, struct err *e);

int log_conf_parse_ptys(const char *text, void *field, struct err *e); /* ranks, "all" or "none" */
bool log_conf_has_pty(const struct log_conf *c, int rank);

/* Somebody asked for the console to be made of lines, even those of a worker that is alone on it. */
bool log_conf_asks_for_lines(const struct log_conf *c);

/* Some stream goes to a file and the console. */
bool log_conf_tees(const struct log_conf *c);

bool log_ranks_has(const struct log_ranks *r, int rank);
/* What the last part that names the rank says; LOG_NONE if none does. */
int log_spec_of(const struct log_spec *s, int local, int rank);

/* Which of a rank's streams go where; a set of enum log_streams each. A tee outdoes a redirect. */
struct log_routes {
    int console, file;
};
struct log_routes log_conf_routes(const struct log_conf *c, int local, int rank);

/* No line of any worker reaches the console. */
bool log_conf_hides_all(const struct log_conf *c);

/* 0, or -ENOMEM. */
int log_words_split(const char *text, struct log_words *ret);
bool log_words_match(const struct log_words *w, const char *line, size_t n); /* one of them is part of the line */
void log_words_free(struct log_words *w);

#endif
