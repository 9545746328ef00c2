/* Writes log lines to stderr (log.h). */
#include "common/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/choice.h"
#include "common/base/clock.h"
#include "common/base/utf8.h"

static _Atomic int max_level = LOG_WARN;

/* The newest prefix is in place prefix_seq % 2. A reader starts again only if another prefix was written meanwhile.
 * A prefix that is still being written, or never will be, as after a fork in the middle, blocks no reader. */
enum { PREFIX_WORDS = LOG_PREFIX_MAX / sizeof(uint64_t) };
static _Atomic uint32_t prefix_seq;
static _Atomic uint64_t prefix_words[2][PREFIX_WORDS];

static void (*redirect)(void *arg, const char *line, size_t n);
static void *redirect_arg;

static const char *const level_names[] = {LOG_LEVELS(CHOICE_NAME)};

void log_init(enum log_level max, const char *prefix)
{
    uint64_t words[PREFIX_WORDS] = {0};
    const uint32_t next = atomic_load_explicit(&prefix_seq, memory_order_relaxed) + 1;
    max_level = (int)max;
    snprintf((char *)words, sizeof words, "%s", prefix);
    /* a reader that sees a word of the new prefix also sees that prefix_seq has changed */
    atomic_thread_fence(memory_order_release);
    for (int i = 0; i < PREFIX_WORDS; i++)
        atomic_store_explicit(&prefix_words[next % 2][i], words[i], memory_order_relaxed);
    atomic_store_explicit(&prefix_seq, next, memory_order_release);
}

void log_prefix(char out[LOG_PREFIX_MAX])
{
    uint64_t words[PREFIX_WORDS];
    uint32_t seq;
    do {
        seq = atomic_load_explicit(&prefix_seq, memory_order_acquire);
        for (int i = 0; i < PREFIX_WORDS; i++)
            words[i] = atomic_load_explicit(&prefix_words[seq % 2][i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
    } while (atomic_load_explicit(&prefix_seq, memory_order_relaxed) != seq);
    memcpy(out, words, sizeof words);
}

enum log_level log_level(void)
{
    return (enum log_level)max_level;
}

void log_redirect(void (*out)(void *arg, const char *line, size_t n), void *arg)
{
    redirect = out;
    redirect_arg = arg;
}

void log_line(enum log_level level, const char *module, const char *fmt, ...)
{
    if ((int)level > max_level)
        return;
    char line[2048], when[CLOCK_ISO_LEN], prefix[LOG_PREFIX_MAX];
    log_prefix(prefix);
    int n = snprintf(line, sizeof line, "%s %s %s%s%s: ", clock_iso(when, sizeof when), level_names[level], prefix,
                     prefix[0] ? " " : "", module);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (len > sizeof line - 2)
        len = sizeof line - 2;
    printable_make(line + n, len - (size_t)n);
    line[len++] = '\n';
    if (redirect) {
        redirect(redirect_arg, line, len);
        return;
    }
    ssize_t ignored = write(STDERR_FILENO, line, len);
    (void)ignored;
}
