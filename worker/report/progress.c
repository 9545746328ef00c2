#include "worker/report/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/clock.h"

#define REDRAW_NS 100000000 /* ten times a second */
#define LINE_CAP 256

char *progress_duration(double seconds, char *out, int cap)
{
    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(out, (size_t)cap, "?");
        return out;
    }
    long long s = llround(seconds);
    if (s < 60)
        snprintf(out, (size_t)cap, "%llds", s);
    else if (s < 3600)
        snprintf(out, (size_t)cap, "%lldm%02llds", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, (size_t)cap, "%lldh%02lldm", s / 3600, s % 3600 / 60);
    else
        snprintf(out, (size_t)cap, "%lldd%02lldh", s / 86400, s % 86400 / 3600);
    return out;
}

/* Append a part if it fits; false (and nothing appended) if not. */
__attribute__((format(printf, 4, 5))) static bool add(char *out, int room, bool first, const char *fmt, ...)
{
    char part[LINE_CAP];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(part, sizeof part, fmt, ap);
    va_end(ap);
    size_t at = strlen(out);
    if (!first && (int)(at + 2 + strlen(part)) > room)
        return false;
    sprintf(out + at, "%s%s", first ? "" : "  ", part);
    return true;
}

static int digits(int64_t n)
{
    int d = 1;
    while (n >= 10 && d < 19) {
        n /= 10;
        d++;
    }
    return d;
}

char *progress_format(const struct progress_state *s, int width, char *out, int cap)
{
    char line[2 * LINE_CAP] = "", eta[24];
    int room = width < LINE_CAP ? width : LINE_CAP;
    progress_duration(s->eta_seconds, eta, sizeof eta);
    double wait = s->data_wait >= 0 && s->data_wait <= 1 ? 100 * s->data_wait : 0;
    (void)(add(line, room, true, "Epoch %" PRId64 "/%" PRId64 " [%*" PRId64 "/%" PRId64 "]", s->epoch + 1, s->epochs,
               digits(s->steps_per_epoch), s->step, s->steps_per_epoch) &&
           add(line, room, false, "loss %.4f", s->loss) && add(line, room, false, "Acc@1 %6.2f", s->acc1) &&
           add(line, room, false, "%.1f img/s", s->images_per_sec) && add(line, room, false, "ETA %s", eta) &&
           add(line, room, false, "data wait %.0f%%", wait));
    snprintf(out, (size_t)cap, "%s", line);
    return out;
}

void progress_init(struct progress *p, int every)
{
    *p = (struct progress){.terminal = isatty(STDERR_FILENO) == 1, .every = every > 0 ? every : 1};
}

static int terminal_width(void)
{
    struct winsize w;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_col == 0)
        return 80;
    return w.ws_col;
}

/* One write per line. The bar is for people: if stderr is gone, training goes on. */
static void put(const char *before, const char *line, const char *after)
{
    char all[2 * LINE_CAP + 16];
    int n = snprintf(all, sizeof all, "%s%s%s", before, line, after);
    ssize_t ignored = write(STDERR_FILENO, all, (size_t)n);
    (void)ignored;
}

void progress_step(struct progress *p, const struct progress_state *s)
{
    char line[2 * LINE_CAP];
    bool last = s->step == s->steps_per_epoch || s->total_done == s->total_steps;
    if (!p->terminal) {
        if (last || s->total_done % p->every == 0)
            put("", progress_format(s, LINE_CAP, line, sizeof line), "\n");
        return;
    }
    int64_t now = clock_ns();
    if (!last && p->last_ns && now - p->last_ns < REDRAW_NS)
        return;
    p->last_ns = now;
    p->open_line = true;
    put("\r", progress_format(s, terminal_width() - 1, line, sizeof line), "\033[K");
}

void progress_end_line(struct progress *p)
{
    if (p->open_line)
        put("", "", "\n");
    p->open_line = false;
}
