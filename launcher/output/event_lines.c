/* Sends lines of the event log to the output process, and keeps those not confirmed (event_lines.h). */
#include "launcher/output/event_lines.h"

#include <stdlib.h>
#include <string.h>

#include "launcher/output/output_wire.h"

struct line {
    struct line *next;
    uint64_t number;
    size_t n;
    char text[];
};

struct event_lines {
    struct output_page *page;
    void (*send)(void *arg, uint64_t number, const char *line, size_t n);
    void *arg;
    struct line *first, *last;
    size_t bytes;
    uint64_t numbered;
};

static void drop_first(struct event_lines *l)
{
    struct line *x = l->first;
    l->first = x->next;
    if (!l->first)
        l->last = NULL;
    l->bytes -= x->n;
    free(x);
}

static void drop_written(struct event_lines *l)
{
    while (l->first && l->first->number <= atomic_load(&l->page->events))
        drop_first(l);
}

struct event_lines *event_lines_create(struct output_page *page,
                                       void (*send)(void *arg, uint64_t number, const char *line, size_t n), void *arg)
{
    struct event_lines *l = calloc(1, sizeof *l);
    if (l)
        *l = (struct event_lines){.page = page, .send = send, .arg = arg};
    return l;
}

void event_lines_add(struct event_lines *l, const char *line, size_t n)
{
    drop_written(l);
    l->numbered++;
    struct line *x = line && l->bytes + n <= EVENT_LINES_MAX ? malloc(sizeof *x + n) : NULL;
    if (!x)
        return;
    *x = (struct line){.number = l->numbered, .n = n};
    memcpy(x->text, line, n);
    if (l->last)
        l->last->next = x;
    else
        l->first = x;
    l->last = x;
    l->bytes += n;
    l->send(l->arg, x->number, line, n);
}

void event_lines_send_again(struct event_lines *l)
{
    drop_written(l);
    for (const struct line *x = l->first; x; x = x->next)
        l->send(l->arg, x->number, x->text, x->n);
}

void event_lines_destroy(struct event_lines *l)
{
    while (l && l->first)
        drop_first(l);
    free(l);
}
