/* Parses the options about output, and answers which stream goes where (log_conf.h). */
#include "launcher/output/log_conf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "launcher/output/log_prefix.h"

#define RANK_MAX 1000000

/* --- parsing */

/* Read the digits at *p and move *p behind them; -1: no digits, or more than RANK_MAX. */
static int parse_rank(const char **p)
{
    int n = 0;
    if (**p < '0' || **p > '9')
        return -1;
    for (; **p >= '0' && **p <= '9'; ++*p) {
        n = 10 * n + (**p - '0');
        if (n > RANK_MAX)
            return -1;
    }
    return n;
}

static bool parse_range(const char **p, struct log_range *r)
{
    r->first = r->last = parse_rank(p);
    if (r->first >= 0 && **p == '-') {
        ++*p;
        r->last = parse_rank(p);
    }
    return r->first >= 0 && r->last >= r->first;
}

/* Parse one item; blanks around it are allowed, as in torchrun. */
static bool parse_item(const char **p, struct log_range *r)
{
    *p += strspn(*p, " ");
    if (!parse_range(p, r))
        return false;
    *p += strspn(*p, " ");
    return true;
}

int log_conf_parse_ranks(const char *text, void *field, struct err *e)
{
    struct log_ranks r = {0};
    for (const char *p = text; *p || r.n > 0; p++) {
        if (r.n == LOG_RANGES_MAX)
            return err_set(e, ERR_USAGE, "expected at most %d ranks or ranges", LOG_RANGES_MAX);
        if (!parse_item(&p, &r.v[r.n++]) || (*p && *p != ','))
            return err_set(e, ERR_USAGE, "expected ranks and ranges as in 0,2,5-7");
        if (!*p)
            break;
    }
    *(struct log_ranks *)field = r;
    return 0;
}

int log_conf_parse_ptys(const char *text, void *field, struct err *e)
{
    static const struct log_ranks none, all = {.n = 1, .v = {{0, RANK_MAX}}};
    if (strcmp(text, "none") == 0 || strcmp(text, "all") == 0) {
        *(struct log_ranks *)field = text[0] == 'a' ? all : none;
        return 0;
    }
    return log_conf_parse_ranks(text, field, e);
}

bool log_conf_has_pty(const struct log_conf *c, int rank)
{
    return c->ptys.n > 0 && log_ranks_has(&c->ptys, rank);
}

static bool parse_part(const char **p, struct log_spec_part *part)
{
    *part = (struct log_spec_part){.ranks = {0, RANK_MAX}};
    if (**p == '*') {
        ++*p;
    } else {
        part->global = **p == 'g';
        *p += part->global;
        if (!parse_range(p, &part->ranks))
            return false;
    }
    if (**p != ':' || (*p)[1] < '0' || (*p)[1] > '3')
        return false;
    part->streams = (*p)[1] - '0';
    *p += 2;
    return true;
}

int log_conf_parse_spec(const char *text, void *field, struct err *e)
{
    struct log_spec s = {0};
    const char *p = text;
    if (p[0] >= '0' && p[0] <= '3' && !p[1]) {
        s.n = 1;
        s.v[0] = (struct log_spec_part){{0, RANK_MAX}, false, p[0] - '0'};
        p++;
    }
    while (*p) {
        if (s.n == LOG_RANGES_MAX)
            return err_set(e, ERR_USAGE, "expected at most %d parts", LOG_RANGES_MAX);
        if (!parse_part(&p, &s.v[s.n++]) || (*p && (*p != ',' || !p[1])))
            return err_set(e, ERR_USAGE,
                           "expected 0 to 3 (1: stdout, 2: stderr, 3: both), or that per local rank as in 0:1,1:2 or "
                           "0-3:3,*:1; g before global ranks");
        p += *p == ',';
    }
    *(struct log_spec *)field = s;
    return 0;
}

int log_conf_parse_bytes(const char *text, void *field, struct err *e)
{
    return parse_bytes(text, 0, field, e);
}

/* --- meaning */

bool log_ranks_has(const struct log_ranks *r, int rank)
{
    for (int i = 0; i < r->n; i++)
        if (rank >= r->v[i].first && rank <= r->v[i].last)
            return true;
    return r->n == 0;
}

int log_spec_of(const struct log_spec *s, int local, int rank)
{
    for (int i = s->n - 1; i >= 0; i--) {
        const struct log_spec_part *p = &s->v[i];
        const int n = p->global ? rank : local;
        if (n >= p->ranks.first && n <= p->ranks.last)
            return p->streams;
    }
    return LOG_NONE;
}

static bool names_any(const struct log_spec *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->v[i].streams)
            return true;
    return false;
}

bool log_conf_asks_for_lines(const struct log_conf *c)
{
    return c->rate > 0 || (c->prefix && !c->prefix_by_default);
}

bool log_conf_tees(const struct log_conf *c)
{
    return names_any(&c->tee);
}

struct log_routes log_conf_routes(const struct log_conf *c, int local, int rank)
{
    struct log_routes r = {.console = LOG_BOTH, .file = c->only_named ? LOG_NONE : LOG_BOTH};
    if (names_any(&c->redirects) || names_any(&c->tee)) {
        const int redirect = log_spec_of(&c->redirects, local, rank), tee = log_spec_of(&c->tee, local, rank);
        r.console = tee | (LOG_BOTH & ~redirect);
        r.file = redirect | tee;
    }
    if (c->show == LOG_SHOW_FIRST_FAILURE)
        r = (struct log_routes){.console = LOG_NONE, .file = LOG_BOTH};
    if (!log_ranks_has(&c->local_ranks, local) || !log_ranks_has(&c->ranks, rank))
        r.console = LOG_NONE;
    if (!c->dir)
        r.file = LOG_NONE;
    return r;
}

bool log_conf_hides_all(const struct log_conf *c)
{
    const struct log_spec *r = &c->redirects;
    const bool redirected = r->n == 1 && r->v[0].streams == LOG_BOTH && r->v[0].ranks.first == 0 &&
                            r->v[0].ranks.last == RANK_MAX && !names_any(&c->tee);
    return c->show == LOG_SHOW_FIRST_FAILURE || redirected;
}

int log_conf_settle(struct log_conf *c, struct err *e)
{
    const char **const texts[] = {&c->dir, &c->out_filters, &c->err_filters};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (*texts[i] && !**texts[i])
            *texts[i] = NULL;
    if (log_prefix_check(c->template, e) < 0)
        return err_wrap(e, "--log-line-prefix-template '%s'", c->template);
    if (c->show == LOG_SHOW_FIRST_FAILURE && names_any(&c->tee))
        return err_set(e, ERR_USAGE, "--show first-failure and --tee contradict each other: leave one of them out");
    const bool files = names_any(&c->redirects) || names_any(&c->tee) || c->out_filters || c->err_filters ||
                       c->show == LOG_SHOW_FIRST_FAILURE;
    c->dir_chosen = !c->dir && files;
    c->dir_is_private = c->dir_chosen && c->default_dir;
    if (c->dir_chosen)
        c->dir = c->default_dir ? c->default_dir : LOG_CONF_DEFAULT_DIR;
    else if (c->dir && strcmp(c->dir, LOG_CONF_NOWHERE) == 0)
        c->dir = NULL;
    return 0;
}

/* --- words */

int log_words_split(const char *text, struct log_words *ret)
{
    const size_t n = text ? strlen(text) : 0;
    char **v = calloc(1, (n + 2) * sizeof *v + n + 1); /* the words' text stands behind the pointers */
    if (!v)
        return -ENOMEM;
    char *to = (char *)(v + n + 2), *word = to;
    size_t words = 0;
    for (size_t i = 0; i <= n && n > 0; i++) {
        if (text[i] == ',' && text[i + 1] == ',')
            *to++ = text[i++];
        else if (text[i] && text[i] != ',')
            *to++ = text[i];
        else {
            *to++ = '\0';
            if (*word)
                v[words++] = word;
            word = to;
        }
    }
    ret->v = v;
    return 0;
}

bool log_words_match(const struct log_words *w, const char *line, size_t n)
{
    for (char **word = w->v; word && *word; word++)
        if (memmem(line, n, *word, strlen(*word)))
            return true;
    return false;
}

void log_words_free(struct log_words *w)
{
    free(w->v);
    w->v = NULL;
}
