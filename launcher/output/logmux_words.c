/* Gets what failed workers left, and has files written by the output process for the agent. */
#include "launcher/output/logmux_internal.h"

#include <stdlib.h>
#include <string.h>

void logmux_forget_words(struct logmux *m)
{
    for (int i = 0; i < m->o.max_workers; i++) {
        free(m->asked[i].paths);
        free(m->asked[i].words.core);
        lines_tail_free(&m->asked[i].words.tail);
        m->asked[i] = (struct asked){.is_asked = false};
    }
    m->waits_for = m->writes;
}

static void send_question(struct logmux *m, int local)
{
    const struct asked *a = &m->asked[local];
    const struct output_head head = {
        .word = OUTPUT_TELL, .n = a->question, .number = local, .round = m->rounds, .pid = m->pid};
    if (m->pid)
        logmux_send(m, &head, a->paths ? a->paths : "\0", a->paths ? a->n_paths : 2, NULL, 0);
}

/* Both with their NULs. */
static char *join(const char *record, const char *core, size_t *ret_n)
{
    const size_t n = strlen(record) + 1, m = strlen(core) + 1;
    char *both = malloc(n + m);
    if (!both)
        return NULL;
    memcpy(both, record, n);
    memcpy(both + n, core, m);
    *ret_n = n + m;
    return both;
}

void logmux_ask(struct logmux *m, int local, const char *record, const char *core)
{
    struct asked *a = &m->asked[local];
    if (a->is_asked)
        return;
    a->is_asked = true;
    a->question = ++m->questions;
    a->paths = join(record ? record : "", core ? core : "", &a->n_paths);
    a->words.core = core && core[0] ? strdup(core) : NULL;
    m->waits_for += 2;
    send_question(m, local);
}

void logmux_send_questions(struct logmux *m)
{
    for (int i = 0; i < m->o.max_workers && m->waits_for > 0; i++)
        if (m->asked[i].is_asked && !(m->asked[i].words.has_tail && m->asked[i].words.has_record))
            send_question(m, i);
}

/* NULL: the answer came too late. */
static struct asked *asked_of(struct logmux *m, const struct output_head *h, int question)
{
    if (h->round != m->rounds || h->number < 0 || h->number >= m->o.max_workers)
        return NULL;
    struct asked *a = &m->asked[h->number];
    return a->is_asked && a->question == question ? a : NULL;
}

void logmux_on_tail(struct logmux *m, const struct output_message *a)
{
    struct asked *q = asked_of(m, &a->head, a->head.n);
    if (!q || q->words.has_tail)
        return;
    lines_tail_set(&q->words.tail, a->body, a->n);
    q->words.has_tail = true;
    m->waits_for--;
}

void logmux_on_record(struct logmux *m, const struct output_message *a)
{
    struct asked *q = asked_of(m, &a->head, a->head.n / OUTPUT_ASKED);
    if (!q || q->words.has_record)
        return;
    q->words.has_record = true;
    q->words.found_record = (a->head.n & OUTPUT_HAS_RECORD) && a->n == sizeof q->words.record;
    q->words.found_core = a->head.n & OUTPUT_HAS_CORE;
    if (q->words.found_record)
        memcpy(&q->words.record, a->body, sizeof q->words.record);
    m->waits_for--;
}

static void write_file(struct logmux *m, const char *path, const char *text, size_t n, bool is_log)
{
    const size_t named = strlen(path) + 1, most = OUTPUT_BODY_MAX - named;
    struct output_head head = {.word = OUTPUT_WRITE, .number = is_log};
    struct buf body;
    buf_init(&body, OUTPUT_BODY_MAX);
    for (size_t at = 0; !head.n && m->pid && named < OUTPUT_BODY_MAX; at += most) {
        const size_t part = n - at < most ? n - at : most;
        head.n = at + part == n;
        buf_clear(&body);
        if (buf_add(&body, path, named) == 0 && buf_add(&body, text + at, part) == 0)
            logmux_send(m, &head, body.data, body.len, NULL, 0);
    }
    m->waits_for += head.n;
    m->writes += head.n;
    buf_free(&body);
}

void logmux_write_file(struct logmux *m, const char *path, const char *text, size_t n)
{
    write_file(m, path, text, n, false);
}

void logmux_write_log(struct logmux *m, const char *path, const char *text, size_t n)
{
    write_file(m, path, text, n, true);
}

void logmux_on_wrote(struct logmux *m, const struct output_message *a)
{
    if (a->n > 0)
        logmux_print(m, "%s", a->body);
    m->waits_for -= m->writes > 0;
    m->writes -= m->writes > 0;
}

const struct logmux_words *logmux_words(const struct logmux *m, int local)
{
    return m->asked[local].is_asked ? &m->asked[local].words : NULL;
}

int logmux_pid(const struct logmux *m)
{
    return (int)m->pid;
}

bool logmux_has_scratch(const struct logmux *m)
{
    return m->o.scratch && atomic_load(&m->o.page->scratch) != OUTPUT_SCRATCH_NONE;
}

bool logmux_has_answers(const struct logmux *m)
{
    return m->waits_for == 0 || m->is_cut_off;
}
