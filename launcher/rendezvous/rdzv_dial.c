/* Looks a name up on a thread and connects to its addresses in turns (RFC 8305). See rdzv_dial.h. */
#include "launcher/rendezvous/rdzv_dial.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/net/resolve.h"

#define TRIES_MAX 16

struct attempt {
    struct dial *d;
    uv_poll_t poll;
    int fd; /* -1: not begun, or over */
    bool watched;
};

struct dial {
    uv_loop_t *loop;
    struct endpoint to;
    struct lookup *lookup;
    uv_poll_t looked_up;
    bool looking;
    struct addrinfo *found, *order[TRIES_MAX];
    struct addrinfo *listed[TRIES_MAX]; /* of a list, one each */
    int n, next, live;                  /* addresses; the next to try; under way */
    struct attempt tries[TRIES_MAX];
    uv_timer_t patience, head_start;
    int refused, failed, no_way; /* errno of an attempt that ended so, 0: none did */
    int open_handles;
    bool over;
    void (*done)(void *arg, int fd, const char *text);
    void *arg;
};

/* --- the end */

static void on_closed(uv_handle_t *h)
{
    struct dial *d = h->data;
    if (--d->open_handles > 0)
        return;
    if (d->found)
        freeaddrinfo(d->found);
    for (int i = 0; i < TRIES_MAX && d->listed[i]; i++)
        freeaddrinfo(d->listed[i]);
    free(d);
}

static void on_try_closed(uv_handle_t *h)
{
    h->data = ((struct attempt *)h->data)->d;
    on_closed(h);
}

static void stop_try(struct attempt *t)
{
    if (!t->watched)
        return;
    t->watched = false;
    t->d->live--;
    uv_poll_stop(&t->poll);
    uv_close((uv_handle_t *)&t->poll, on_try_closed);
}

static void drop_try(struct attempt *t)
{
    stop_try(t);
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
}

static void stop_looking(struct dial *d)
{
    if (!d->looking)
        return;
    d->looking = false;
    uv_poll_stop(&d->looked_up);
    uv_close((uv_handle_t *)&d->looked_up, on_closed);
}

void dial_cancel(struct dial *d)
{
    if (!d || d->over)
        return;
    d->over = true;
    stop_looking(d);
    resolve_abandon(d->lookup);
    for (int i = 0; i < d->next; i++)
        drop_try(&d->tries[i]);
    uv_close((uv_handle_t *)&d->patience, on_closed);
    uv_close((uv_handle_t *)&d->head_start, on_closed);
}

static void end(struct dial *d, int fd, const char *text)
{
    void (*done)(void *, int, const char *) = d->done;
    void *arg = d->arg;
    dial_cancel(d);
    done(arg, fd, text);
}

static void fail(struct dial *d, int why)
{
    char text[512];
    const char *form = strchr(d->to.host, ',')   ? "%.400s port %s: %s"
                       : strchr(d->to.host, ':') ? "[%.400s]:%s: %s"
                                                 : "%.400s:%s: %s";
    snprintf(text, sizeof text, form, d->to.host, d->to.port, strerror(why));
    end(d, -why, text);
}

static void on_patience(uv_timer_t *t)
{
    struct dial *d = t->data;
    fail(d, ETIMEDOUT);
}

/* --- addresses */

/* The one whose turn it is comes first. */
static void rotate(struct dial *d)
{
    struct addrinfo *before[TRIES_MAX];
    memcpy(before, d->order, sizeof before);
    for (int i = 0; i < d->n; i++)
        d->order[i] = before[((unsigned)i + d->to.turn) % (unsigned)d->n];
}

/* One by one from either family, that of the first address first. */
static void order_addresses(struct dial *d)
{
    const int first = d->found->ai_family;
    struct addrinfo *a = d->found, *b = d->found;
    while (d->n < TRIES_MAX && (a || b)) {
        while (a && a->ai_family != first)
            a = a->ai_next;
        while (b && b->ai_family == first)
            b = b->ai_next;
        if (a) {
            d->order[d->n++] = a;
            a = a->ai_next;
        }
        if (b && d->n < TRIES_MAX) {
            d->order[d->n++] = b;
            b = b->ai_next;
        }
    }
    rotate(d);
}

static void try_next(struct dial *d);

static void on_head_start(uv_timer_t *t)
{
    struct dial *d = t->data;
    try_next(d);
}

static void tried(struct attempt *t, int why)
{
    struct dial *d = t->d;
    drop_try(t);
    if (why == ECONNREFUSED || why == ECONNRESET)
        d->refused = why;
    else if (why == ENETUNREACH || why == EADDRNOTAVAIL || why == EAFNOSUPPORT)
        d->no_way = why; /* this host has no IPv6, say: that tells nothing of who listens */
    else
        d->failed = why;
    try_next(d);
}

static void on_connected(uv_poll_t *p, int status, int events)
{
    struct attempt *t = p->data;
    struct dial *d = t->d;
    int why = 0;
    socklen_t len = sizeof why;
    (void)status;
    (void)events;
    if (getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &why, &len) < 0)
        why = errno;
    if (why) {
        tried(t, why);
        return;
    }
    int fd = t->fd;
    stop_try(t);
    t->fd = -1;
    end(d, fd, "");
}

/* 0, or the errno of an attempt that is over already. */
static int begin_try(struct attempt *t, const struct addrinfo *a)
{
    struct dial *d = t->d;
    const int one = 1;
    t->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (t->fd < 0)
        return errno;
    setsockopt(t->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(t->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    if (connect(t->fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS)
        return errno;
    int rc = uv_poll_init(d->loop, &t->poll, t->fd);
    if (rc < 0)
        return -rc;
    t->watched = true;
    d->open_handles++;
    d->live++;
    t->poll.data = t;
    uv_poll_start(&t->poll, UV_WRITABLE, on_connected);
    return 0;
}

static void try_next(struct dial *d)
{
    if (d->next < d->n) {
        struct attempt *t = &d->tries[d->next];
        const struct addrinfo *a = d->order[d->next++];
        t->d = d;
        int why = begin_try(t, a);
        if (why)
            tried(t, why);
        else if (d->next < d->n)
            uv_timer_start(&d->head_start, on_head_start, DIAL_HEAD_START_MS, 0);
    } else if (d->live == 0) {
        fail(d, d->failed ? d->failed : d->refused ? d->refused : d->no_way ? d->no_way : EHOSTUNREACH);
    }
}

/* --- names */

static void on_looked_up(uv_poll_t *p, int status, int events)
{
    struct dial *d = p->data;
    struct lookup *l = d->lookup;
    struct err e = {0};
    (void)status;
    (void)events;
    stop_looking(d);
    d->lookup = NULL;
    int rc = resolve_take(l, d->to.host, &d->found, &e);
    if (rc < 0) {
        end(d, rc, e.text);
        return;
    }
    order_addresses(d);
    try_next(d);
}

/* "a,b,c" */
static int take_list(struct dial *d, struct err *e)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    char one[INET6_ADDRSTRLEN];
    for (const char *p = d->to.host; *p && d->n < TRIES_MAX; p += strcspn(p, ","), p += *p == ',') {
        snprintf(one, sizeof one, "%.*s", (int)strcspn(p, ","), p);
        if (getaddrinfo(one, d->to.port, &hints, &d->listed[d->n]) != 0)
            return err_set(e, -EINVAL, "'%s': expected a numeric address", one);
        d->order[d->n] = d->listed[d->n];
        d->n++;
    }
    uv_timer_start(&d->head_start, on_head_start, 0, 0);
    return 0;
}

static int look_up(struct dial *d, struct err *e)
{
    if (strchr(d->to.host, ','))
        return take_list(d, e);
    int rc = resolve_start(d->to.host, d->to.port, &d->found, &d->lookup, e);
    if (rc < 0)
        return rc;
    if (rc == 1) {
        order_addresses(d);
        uv_timer_start(&d->head_start, on_head_start, 0, 0);
        return 0;
    }
    rc = uv_poll_init(d->loop, &d->looked_up, resolve_fd(d->lookup));
    if (rc < 0)
        return err_errno(e, -rc, "look up '%s'", d->to.host);
    d->looked_up.data = d;
    d->looking = true;
    d->open_handles++;
    uv_poll_start(&d->looked_up, UV_READABLE, on_looked_up);
    return 0;
}

int dial_start(struct dial **ret, uv_loop_t *loop, const struct endpoint *to, int64_t timeout_ms,
               void (*done)(void *arg, int fd, const char *text), void *arg, struct err *e)
{
    struct dial *d = calloc(1, sizeof *d);
    if (!d)
        return err_errno(e, ENOMEM, "connect");
    d->loop = loop;
    d->to = *to;
    d->done = done;
    d->arg = arg;
    uv_timer_init(loop, &d->patience);
    uv_timer_init(loop, &d->head_start);
    d->patience.data = d->head_start.data = d;
    d->open_handles = 2;
    int rc = look_up(d, e);
    if (rc < 0) {
        dial_cancel(d);
        return rc;
    }
    uv_update_time(loop);
    uv_timer_start(&d->patience, on_patience, (uint64_t)timeout_ms, 0);
    *ret = d;
    return 0;
}
