/* Parses and prints the options on graces, time limits and signals. See stops.h. */
#include "launcher/config/stops.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/include/crun.h"

static const struct {
    int signo;
    const char *name;
} signals[] = {
#define X(s) {s, #s},
    STOPS_SIGNALS(X)
#undef X
};

int stops_parse_grace(const char *text, void *field, struct err *e)
{
    double *s = field, seconds;
    struct err why;
    if (strcmp(text, "same") == 0)
        *s = -1;
    else if (parse_seconds(text, "", &seconds, &why) < 0 || seconds > STOPS_GRACE_MAX)
        return err_set(e, ERR_USAGE, "expected a time such as 90 or 10m, up to 5d, or 'same'");
    else
        *s = seconds;
    return 0;
}

int stops_parse_limit(const char *text, void *field, struct err *e)
{
    double *s = field, seconds;
    struct err why;
    if (strcmp(text, "auto") == 0)
        *s = -1;
    else if (strcmp(text, "off") == 0)
        *s = 0;
    else if (parse_seconds(text, "", &seconds, &why) < 0 || seconds < 1 || seconds > STOPS_LIMIT_MAX)
        return err_set(e, ERR_USAGE, "expected a time such as 90m or 4h, from 1 s to 365d, 'auto' or 'off'");
    else
        *s = seconds;
    return 0;
}

int stops_settle_limit(struct stops *s, const char *end_text, int64_t now_s, struct err *e)
{
    if (s->time_limit >= 0)
        return 0;
    s->time_limit = 0;
    if (!end_text || !*end_text)
        return 0;
    char *end;
    errno = 0;
    const long long at = strtoll(end_text, &end, 10);
    if (errno || *end || at <= 0)
        return err_set(e, ERR_USAGE, "--time-limit auto: SLURM_JOB_END_TIME is '%.60s', expected seconds since 1970",
                       end_text);
    const double left = (double)(at - now_s) - s->drain - STOPS_INSIST_MS / 1000.0;
    s->time_limit = left > 1 ? left : 1;
    return 0;
}

/* --- signals */

/* "SIGTERM" or "TERM", n bytes, blanks around it left out as torchrun does; index into signals[], -1: none of them. */
static int find_signal(const char *text, size_t n)
{
    for (; n > 0 && *text == ' '; n--)
        text++;
    while (n > 0 && text[n - 1] == ' ')
        n--;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        const char *name = signals[i].name;
        if ((strlen(name) == n && strncmp(name, text, n) == 0) ||
            (strlen(name + 3) == n && strncmp(name + 3, text, n) == 0))
            return (int)i;
    }
    return -1;
}

/* The n bytes of text at word, which cannot be read; "" where they are all of it, and said already. Returns out. */
#define WHICH_MAX 64
static const char *which_word(const char *text, const char *word, size_t n, char out[WHICH_MAX])
{
    out[0] = '\0';
    if (n < strlen(text))
        snprintf(out, WHICH_MAX, ", got '%.*s'", n < 40 ? (int)n : 40, word);
    return out;
}

static int refuse_signal(const char *text, const char *word, size_t n, struct err *e)
{
    char known[160] = "", which[WHICH_MAX];
    for (size_t i = 0, len = 0; i < sizeof signals / sizeof *signals && len < sizeof known; i++)
        len += (size_t)snprintf(known + len, sizeof known - len, "%s%s", i ? ", " : "", signals[i].name);
    return err_set(e, ERR_USAGE, "expected signals that can be handled: %s%s", known, which_word(text, word, n, which));
}

int stops_parse_signals(const char *text, void *field, struct err *e)
{
    struct stops_signals *s = field, found = {.names = ""};
    size_t len = 0;
    sigemptyset(&found.set);
    for (const char *p = text;; p++) {
        const size_t n = strcspn(p, ",");
        const int i = find_signal(p, n);
        if (i < 0)
            return refuse_signal(text, p, n, e);
        if (sigismember(&found.set, signals[i].signo) == 0)
            len +=
                (size_t)snprintf(found.names + len, sizeof found.names - len, "%s%s", len ? "," : "", signals[i].name);
        sigaddset(&found.set, signals[i].signo);
        p += n;
        if (!*p)
            break;
    }
    *s = found;
    return 0;
}

int stops_parse_forwarded(const char *text, void *field, struct err *e)
{
    struct stops_signals *s = field;
    if (strcmp(text, "none") != 0)
        return stops_parse_signals(text, field, e);
    *s = (struct stops_signals){.names = ""};
    sigemptyset(&s->set);
    return 0;
}

const char *stops_signal_name(int signo)
{
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signals[i].signo == signo)
            return signals[i].name;
    return "";
}

int stops_signal_of(const char *text)
{
    const int i = find_signal(text, strcspn(text, " "));
    return i < 0 ? 0 : signals[i].signo;
}

int stops_parse_signal(const char *text, void *field, struct err *e)
{
    int *signo = field;
    const int i = find_signal(text, strlen(text));
    if (i < 0 && strcmp(text, "none") != 0)
        return refuse_signal(text, text, strlen(text), e);
    *signo = i < 0 ? 0 : signals[i].signo;
    return 0;
}

/* --- codes */

static int read_range(const char *text, size_t n, int64_t *first, int64_t *last)
{
    char word[16];
    struct err why;
    if (n >= sizeof word)
        return -1;
    memcpy(word, text, n);
    word[n] = '\0';
    char *dash = strchr(word, '-');
    if (dash)
        *dash = '\0';
    if (parse_i64(word, "", 1, 255, first, &why) < 0 || parse_i64(dash ? dash + 1 : word, "", 1, 255, last, &why) < 0)
        return -1;
    return *first <= *last ? 0 : -1;
}

int stops_parse_codes(const char *text, void *field, struct err *e)
{
    struct stops_codes *codes = field, found = {.bits = {0}};
    char which[WHICH_MAX];
    for (const char *p = text; strcmp(text, "none") != 0; p++) {
        const size_t n = strcspn(p, ",");
        int64_t first, last;
        if (read_range(p, n, &first, &last) < 0)
            return err_set(e, ERR_USAGE, "expected codes from 1 to 255 such as 3,77,130-139, or none%s",
                           which_word(text, p, n, which));
        for (int64_t c = first; c <= last; c++)
            found.bits[c / 32] |= 1u << (c % 32);
        p += n;
        if (!*p)
            break;
    }
    *codes = found;
    return 0;
}

bool stops_fatal(const struct stops *s, int code)
{
    return code > 0 && code < 256 && s->fatal.bits[code / 32] >> (code % 32) & 1u;
}

/* --- graces */

void stops_settle(struct stops *s)
{
    s->resize = s->resize < 0 ? s->shutdown : s->resize;
    s->drain = s->drain < 0 ? s->shutdown : s->drain;
}

int64_t stops_grace_ms(const struct stops *s, int reason)
{
    switch (reason) {
    case CRUN_STOP_RESIZE:
        return (int64_t)(s->resize * 1000);
    case CRUN_STOP_DRAIN:
        return (int64_t)(s->drain * 1000);
    default:
        return (int64_t)(s->shutdown * 1000);
    }
}

int64_t stops_insist_ms(int64_t grace_ms)
{
    return grace_ms > 2 * STOPS_INSIST_MS ? grace_ms - STOPS_INSIST_MS : grace_ms / 2;
}

int64_t stops_longest_ms(const struct stops *s)
{
    return (int64_t)((fmax(s->shutdown, fmax(s->resize, s->drain)) + s->kill) * 1000);
}
