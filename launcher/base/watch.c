/* Watches a descriptor with a libuv handle that is allocated separately (watch.h). */
#include "launcher/base/watch.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "common/base/err.h"

struct watch {
    uv_poll_t poll; /* first: freed through its handle */
    int events;
    bool on;
    void (*fn)(void *arg);
    void *arg;
};

int watch_open(struct watch **ret, uv_loop_t *loop, int fd, int events, void (*fn)(void *arg), void *arg, struct err *e)
{
    struct watch *w = calloc(1, sizeof *w);
    if (!w)
        return err_errno(e, ENOMEM, "watch of a descriptor");
    int rc = uv_poll_init(loop, &w->poll, fd);
    if (rc < 0) {
        free(w);
        return err_set(e, rc, "cannot watch descriptor %d: %s", fd, uv_strerror(rc));
    }
    w->events = events;
    w->fn = fn;
    w->arg = arg;
    *ret = w;
    return 0;
}

static void on_ready(uv_poll_t *p, int status, int events)
{
    struct watch *w = (struct watch *)p;
    if (w->on)
        w->fn(w->arg);
}

void watch_set(struct watch *w, bool on)
{
    if (w->on == on)
        return;
    w->on = on;
    if (on)
        uv_poll_start(&w->poll, w->events, on_ready);
    else
        uv_poll_stop(&w->poll);
}

static void on_closed(uv_handle_t *h)
{
    free(h);
}

void watch_close(struct watch *w)
{
    if (!w)
        return;
    w->on = false;
    uv_poll_stop(&w->poll);
    uv_close((uv_handle_t *)&w->poll, on_closed);
}
