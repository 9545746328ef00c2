/* Sends crun's own texts to the output process, and writes those that it does not take (own_texts.h). */
#include "launcher/output/own_texts.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "launcher/output/output_wire.h"

#define ROUND_BYTES 512 /* bytes of one direct write: poll(2)'s "writable" promises at least that many */

/* A text that no process is known to have taken yet. */
struct text {
    struct text *next;
    uint64_t number;
    int64_t due_ms; /* then it is written directly */
    size_t n;
    char bytes[];
};

struct own_texts {
    struct output_page *page;
    void (*send)(void *arg, uint64_t number, const char *bytes, size_t n);
    void *arg;
    struct text *first, *last;
    uint64_t numbered;
    bool is_alone; /* there is no output process */
    uv_timer_t overdue;
};

static void drop_first(struct own_texts *t)
{
    struct text *x = t->first;
    t->first = x->next;
    if (!t->first)
        t->last = NULL;
    free(x);
}

static void drop_taken(struct own_texts *t)
{
    while (t->first && t->first->number <= atomic_load(&t->page->claimed))
        drop_first(t);
}

static bool may_write(void)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT);
}

static void write_round(const struct text *x)
{
    for (size_t at = 0; at < x->n && may_write();) {
        const ssize_t n = write(STDERR_FILENO, x->bytes + at, x->n - at < ROUND_BYTES ? x->n - at : ROUND_BYTES);
        if (n <= 0)
            return;
        at += (size_t)n;
    }
}

static void write_overdue(struct own_texts *t, int64_t now_ms)
{
    drop_taken(t);
    while (t->first && t->first->due_ms <= now_ms && may_write()) {
        if (output_claim(t->page, t->first->number))
            write_round(t->first);
        drop_taken(t);
    }
}

static void on_overdue(uv_timer_t *timer)
{
    struct own_texts *t = timer->data;
    write_overdue(t, clock_ms());
    if (t->first)
        uv_timer_start(&t->overdue, on_overdue, OWN_TEXTS_MS, 0);
}

struct own_texts *own_texts_create(uv_loop_t *loop, struct output_page *page,
                                   void (*send)(void *arg, uint64_t number, const char *bytes, size_t n), void *arg)
{
    struct own_texts *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->page = page;
    t->send = send;
    t->arg = arg;
    uv_timer_init(loop, &t->overdue);
    t->overdue.data = t;
    return t;
}

void own_texts_add(struct own_texts *t, const char *bytes, size_t n)
{
    struct text *x = malloc(sizeof *x + n);
    drop_taken(t);
    if (!x)
        return;
    *x = (struct text){.number = ++t->numbered, .due_ms = clock_deadline(OWN_TEXTS_MS), .n = n};
    memcpy(x->bytes, bytes, n);
    if (t->last)
        t->last->next = x;
    else
        t->first = x;
    t->last = x;
    t->send(t->arg, x->number, bytes, n);
    if (t->is_alone)
        write_overdue(t, INT64_MAX);
    else if (!uv_is_active((uv_handle_t *)&t->overdue))
        uv_timer_start(&t->overdue, on_overdue, OWN_TEXTS_MS, 0);
}

void own_texts_send_again(struct own_texts *t)
{
    drop_taken(t);
    for (const struct text *x = t->first; x; x = x->next)
        t->send(t->arg, x->number, x->bytes, x->n);
}

void own_texts_go_round(struct own_texts *t, bool always)
{
    t->is_alone = t->is_alone || always;
    write_overdue(t, INT64_MAX);
}

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

void own_texts_destroy(struct own_texts *t)
{
    if (!t)
        return;
    while (t->first)
        drop_first(t);
    uv_close((uv_handle_t *)&t->overdue, on_closed);
}
