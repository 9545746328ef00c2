/* Prints how far training is, in the lines of one of several programs. */
#include "worker/report/progress.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/base/clock.h"

#define REDRAW_NS 100000000 /* ten times a second */
#define PLAIN_WIDTH 256
#define TEXT_CAP 512

void progress_init(struct progress *p, enum progress_format format, int every, const char *prefix)
{
    static const int usual[] = {[PROGRESS_PLAIN] = 10,
                                [PROGRESS_TORCH] = 10,
                                [PROGRESS_APEX] = 10,
                                [PROGRESS_ARTICLE] = 100,
                                [PROGRESS_CAFFE2] = 1};
    *p = (struct progress){.format = format,
                           .terminal = format == PROGRESS_PLAIN && !prefix[0] && isatty(STDERR_FILENO) == 1,
                           .every = every > 0 ? every : usual[format],
                           .prefix = prefix};
}

static int terminal_width(void)
{
    struct winsize w;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_col == 0)
        return 80;
    return w.ws_col;
}

/* One write per line. The bar is for people: if stderr is gone, training goes on. */
static void write_line(const char *before, const char *text, const char *after)
{
    char all[TEXT_CAP + 64];
    int n = snprintf(all, sizeof all, "%s%s%s", before, text, after);
    ssize_t ignored = write(STDERR_FILENO, all, (size_t)n < sizeof all ? (size_t)n : sizeof all - 1);
    (void)ignored;
}

/* PyTorch's example tells of the first step of every `every`, the others of the last. */
static bool due(const struct progress *p, const struct progress_state *s)
{
    if (p->format == PROGRESS_PLAIN)
        return s->step == s->steps_per_epoch || s->total_done == s->total_steps || s->total_done % p->every == 0;
    return (p->format == PROGRESS_TORCH ? s->step - 1 : s->step) % p->every == 0;
}

/* Apex measures time between two lines, not of a step. */
static void since_last_line(struct progress *p, struct progress_state *s)
{
    p->since.steps++;
    p->since.seconds += s->time.now;
    p->since.rate_seconds += s->time.now * s->rate.now;
    if (p->format != PROGRESS_APEX || p->since.seconds <= 0)
        return;
    s->rate.now = p->since.rate_seconds / p->since.seconds;
    s->time.now = p->since.seconds / (double)p->since.steps;
}

static void redraw(struct progress *p, const struct progress_state *s, bool last)
{
    char text[TEXT_CAP];
    int64_t now = clock_ns();
    if (!last && p->last_ns && now - p->last_ns < REDRAW_NS)
        return;
    p->last_ns = now;
    p->open_line = true;
    write_line("\r", progress_text(p->format, s, terminal_width() - 1, text, sizeof text), "\033[K");
}

void progress_step(struct progress *p, const struct progress_state *state)
{
    struct progress_state s = *state;
    char text[TEXT_CAP];
    if (p->terminal) {
        redraw(p, &s, s.step == s.steps_per_epoch || s.total_done == s.total_steps);
        return;
    }
    if (s.step == 1)
        memset(&p->since, 0, sizeof p->since);
    since_last_line(p, &s);
    if (!due(p, &s))
        return;
    memset(&p->since, 0, sizeof p->since);
    write_line(p->prefix, progress_text(p->format, &s, PLAIN_WIDTH, text, sizeof text), "\n");
}

void progress_test(struct progress *p, const struct progress_state *s)
{
    char text[TEXT_CAP];
    if ((p->format == PROGRESS_TORCH || p->format == PROGRESS_APEX) && due(p, s))
        write_line(p->prefix, progress_test_text(p->format, s, text, sizeof text), "\n");
}

void progress_end_line(struct progress *p)
{
    if (p->open_line)
        write_line("", "", "\n");
    p->open_line = false;
}
