/* Writes workers' lines to the console: prefix, colour, rate limit (log_console.h). */
#include "launcher/output/log_console.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/output/log_conf.h"

#define SECOND_MS 1000

struct log_console {
    uv_loop_t *loop;
    struct log_console_options o;
    struct sink sinks[2]; /* stdout, stderr */
    struct sink *to[2];   /* both are the first if they are one file: lines must not cut into each other */
    bool open[2];         /* for each sink: the last byte written did not end a line (as it comes) */
    bool color[2];
    bool timed;        /* the prefix contains the time */
    uint64_t left_out; /* number of dropped lines */
    bool limited;      /* lines were dropped; the timer prints how many */
    uv_timer_t *timer; /* allocated separately, because it closes after we are freed */
};

static bool colored(const struct log_conf *c, int fd)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    if (c->color != LOG_COLOR_AUTO)
        return c->color == LOG_COLOR_ALWAYS;
    return !(no && *no) && !(term && strcmp(term, "dumb") == 0) && isatty(fd);
}

static bool same_file(int a, int b)
{
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int log_console_create(struct log_console **ret, uv_loop_t *loop, const struct log_console_options *o, struct err *e)
{
    struct log_console *c = calloc(1, sizeof *c);
    if (!c || !(c->timer = calloc(1, sizeof *c->timer))) {
        free(c);
        return err_errno(e, ENOMEM, "console");
    }
    c->loop = loop;
    c->o = *o;
    c->timed = log_prefix_uses_time(o->conf->template);
    uv_timer_init(loop, c->timer);
    c->timer->data = c;
    sink_open(&c->sinks[0], loop, STDOUT_FILENO, o->drained, o->arg);
    c->to[0] = c->to[1] = &c->sinks[0];
    if (!same_file(STDOUT_FILENO, STDERR_FILENO)) {
        sink_open(&c->sinks[1], loop, STDERR_FILENO, o->drained, o->arg);
        c->to[1] = &c->sinks[1];
    }
    c->color[0] = colored(o->conf, STDOUT_FILENO);
    c->color[1] = colored(o->conf, STDERR_FILENO);
    *ret = c;
    return 0;
}

/* --- prefixes */

static int render(struct log_console *c, struct log_voice *v)
{
    char now[CLOCK_ISO_LEN];
    if (c->timed)
        v->names.time = clock_iso(now, sizeof now);
    buf_clear(&v->prefix);
    return c->o.conf->prefix ? log_prefix_render(c->o.conf->template, &v->names, &v->prefix) : 0;
}

int log_voice_open(struct log_console *c, struct log_voice *v, struct err *e)
{
    buf_init(&v->prefix, 1u << 16);
    return render(c, v) < 0 ? err_errno(e, ENOMEM, "prefix of a worker's lines") : 0;
}

void log_voice_close(struct log_voice *v)
{
    buf_free(&v->prefix);
}

const struct buf *log_console_prefix(struct log_console *c, struct log_voice *v)
{
    if (c->timed)
        render(c, v); /* if memory runs out, the line has no prefix */
    return &v->prefix;
}

/* Add the prefix, in one of the colours by rank; for stderr in bold. */
static void add_prefix(struct log_console *c, bool is_err, int local, const struct buf *prefix)
{
    static const char *const colors[] = {"36", "32", "33", "35", "34", "96", "92", "93", "95", "94"};
    struct sink *s = c->to[is_err];
    const char *color = colors[local % (int)(sizeof colors / sizeof *colors)];
    if (prefix->len == 0)
        return;
    if (!c->color[is_err]) {
        sink_add(s, prefix->data, prefix->len);
        return;
    }
    sink_add(s, is_err ? "\033[1;" : "\033[", is_err ? 4 : 2);
    sink_add(s, color, strlen(color));
    sink_add(s, "m", 1);
    sink_add(s, prefix->data, prefix->len);
    sink_add(s, "\033[0m", 4);
}

static bool *is_open(struct log_console *c, bool is_err)
{
    return &c->open[c->to[is_err] - c->sinks];
}

/* Not behind a bar or a prompt. */
static struct sink *begin_line(struct log_console *c, bool is_err)
{
    bool *open = is_open(c, is_err);
    if (*open)
        sink_add(c->to[is_err], "\n", 1);
    *open = false;
    return c->to[is_err];
}

static void print_line(struct log_console *c, struct log_voice *v, const char *line, size_t n)
{
    struct sink *s = begin_line(c, v->is_err);
    add_prefix(c, v->is_err, v->names.local_rank, log_console_prefix(c, v));
    sink_add(s, line, n);
    sink_add(s, "\n", 1);
}

/* --- rate limit */

static void print_left_out(struct log_console *c, struct log_voice *v)
{
    char text[96];
    int n = snprintf(text, sizeof text, "(%llu lines left out: --log-rate %lld)", (unsigned long long)v->left_out,
                     (long long)c->o.conf->rate);
    v->left_out = 0;
    print_line(c, v, text, (size_t)n);
}

static bool admit(struct log_console *c, struct log_voice *v)
{
    const int64_t rate = c->o.conf->rate, now = (int64_t)uv_now(c->loop) / SECOND_MS;
    if (rate == 0)
        return true;
    if (v->second != now) {
        v->second = now;
        v->shown = 0;
        if (v->left_out > 0)
            print_left_out(c, v);
    }
    if (v->shown++ < rate)
        return true;
    v->left_out++;
    c->left_out++;
    return false;
}

static bool print_all_left_out(struct log_console *c)
{
    const int64_t now = (int64_t)uv_now(c->loop) / SECOND_MS;
    bool more = false;
    for (int i = 0; i < 2 * c->o.max_workers; i++) {
        struct log_voice *v = c->o.voice(c->o.arg, i / 2, i % 2);
        if (v && v->left_out > 0 && v->second != now)
            print_left_out(c, v);
        more = more || (v && v->left_out > 0);
    }
    return more;
}

/* --- in all */

static void on_timer(uv_timer_t *t)
{
    struct log_console *c = t->data;
    c->limited = c->limited && print_all_left_out(c);
    if (c->limited)
        uv_timer_start(c->timer, on_timer, SECOND_MS, 0);
    log_console_kick(c);
}

void log_console_line(struct log_console *c, struct log_voice *v, const char *line, size_t n)
{
    if (admit(c, v)) {
        print_line(c, v, line, n);
        return;
    }
    c->limited = true;
    if (!uv_is_active((uv_handle_t *)c->timer))
        uv_timer_start(c->timer, on_timer, SECOND_MS, 0);
}

void log_console_print(struct log_console *c, const char *text, size_t n)
{
    sink_add(begin_line(c, true), text, n);
    sink_kick(c->to[1]);
}

void log_console_vprint(struct log_console *c, const char *fmt, va_list ap)
{
    char text[1024] = "crun: ";
    vsnprintf(text + 6, sizeof text - 7, fmt, ap);
    strcat(text, "\n");
    log_console_print(c, text, strlen(text));
}

void log_console_end_round(struct log_console *c)
{
    for (int i = 0; c->limited && i < 2 * c->o.max_workers; i++) {
        struct log_voice *v = c->o.voice(c->o.arg, i / 2, i % 2);
        if (v && v->left_out > 0)
            print_left_out(c, v);
    }
    c->limited = false;
    uv_timer_stop(c->timer);
    log_console_kick(c);
}

void log_console_kick(struct log_console *c)
{
    sink_kick(c->to[0]);
    if (c->to[1] != c->to[0])
        sink_kick(c->to[1]);
}

bool log_console_full(const struct log_console *c)
{
    return sink_full(c->to[0]) || sink_full(c->to[1]);
}

void log_console_as_it_comes(struct log_console *c, bool is_err, const char *bytes, size_t n)
{
    sink_add(c->to[is_err], bytes, n);
    if (n > 0)
        *is_open(c, is_err) = bytes[n - 1] != '\n';
}

struct sink *log_console_sink(struct log_console *c, int i)
{
    return i == 0 || c->to[1] == &c->sinks[1] ? &c->sinks[i] : NULL;
}

static void on_timer_closed(uv_handle_t *h)
{
    free(h);
}

uint64_t log_console_left_out(const struct log_console *c)
{
    return c->left_out;
}

void log_console_destroy(struct log_console *c)
{
    if (!c)
        return;
    for (int i = 0; i < 2; i++)
        if (log_console_sink(c, i))
            sink_close(&c->sinks[i]);
    uv_close((uv_handle_t *)c->timer, on_timer_closed);
    free(c);
}
