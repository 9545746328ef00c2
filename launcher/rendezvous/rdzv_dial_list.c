/* Dials of several endpoints, the first of which to answer wins. See rdzv_dial.h. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/container_of.h"
#include "common/base/err.h"
#include "launcher/rendezvous/rdzv_dial.h"

struct dial_list {
    uv_loop_t *loop;
    const struct endpoint *to;
    int n, first, begun, live;
    struct way {
        struct dial_list *d;
        struct dial *dial; /* NULL: not begun, or over */
    } ways[DIAL_LIST_MAX];
    int64_t timeout_ms;
    uv_timer_t next;
    bool over;
    int why, which; /* of a dial that failed: -errno, which is a refusal only if all are; and the last one */
    char text[512];
    void (*done)(void *arg, int which, int fd, const char *text);
    void *arg;
};

static void on_closed(uv_handle_t *h)
{
    free(container_of((uv_timer_t *)h, struct dial_list, next));
}

void dial_list_cancel(struct dial_list *d)
{
    if (!d || d->over)
        return;
    d->over = true;
    for (int i = 0; i < d->n; i++)
        dial_cancel(d->ways[i].dial);
    uv_close((uv_handle_t *)&d->next, on_closed);
}

static void end(struct dial_list *d, int which, int fd, const char *text)
{
    void (*const done)(void *, int, int, const char *) = d->done;
    void *const arg = d->arg;
    dial_list_cancel(d);
    done(arg, which, fd, text);
}

static bool is_refusal(int rc)
{
    return rc == -ECONNREFUSED || rc == -ECONNRESET;
}

static void failed(struct dial_list *d, int which, int rc, const char *text)
{
    if (!d->why || !is_refusal(rc)) { /* what is said of all is what is wrong with one that may still be there */
        d->why = rc;
        d->which = which;
        snprintf(d->text, sizeof d->text, "%s", text);
    }
    if (d->begun < d->n)
        uv_timer_start(&d->next, d->next.timer_cb, 0, 0);
    else if (d->live == 0)
        end(d, d->which, d->why, d->text);
}

static void on_dialled(void *arg, int fd, const char *text)
{
    struct way *w = arg;
    struct dial_list *d = w->d;
    const int which = (int)(w - d->ways);
    w->dial = NULL;
    d->live--;
    if (fd >= 0)
        end(d, which, fd, text);
    else
        failed(d, which, fd, text);
}

static void on_next(uv_timer_t *t)
{
    struct dial_list *d = container_of(t, struct dial_list, next);
    const int i = (d->first + d->begun++) % d->n;
    struct err e = {0};
    if (d->begun < d->n)
        uv_timer_start(&d->next, on_next, DIAL_HEAD_START_MS, 0);
    const int rc = dial_start(&d->ways[i].dial, d->loop, &d->to[i], d->timeout_ms, on_dialled, &d->ways[i], &e);
    d->live += rc == 0;
    if (rc < 0)
        failed(d, i, rc, e.text);
}

int dial_list_start(struct dial_list **ret, uv_loop_t *loop, const struct endpoint *to, int n, int first,
                    int64_t timeout_ms, void (*done)(void *arg, int which, int fd, const char *text), void *arg,
                    struct err *e)
{
    struct dial_list *d = calloc(1, sizeof *d);
    if (!d)
        return err_errno(e, ENOMEM, "connect");
    *d = (struct dial_list){
        .loop = loop, .to = to, .n = n, .first = first, .timeout_ms = timeout_ms, .done = done, .arg = arg};
    for (int i = 0; i < n; i++)
        d->ways[i].d = d;
    uv_timer_init(loop, &d->next);
    uv_update_time(loop);
    uv_timer_start(&d->next, on_next, 0, 0);
    *ret = d;
    return 0;
}
