/* Sends and receives the messages between two stages of a pipeline. */
#include "worker/pipeline/mail.h"

#include "common/base/err.h"
#include "worker/device/device.h"

static const struct device_async *async_of(const struct lane *l)
{
    return l->device->ops->async;
}

bool lane_enqueues(const struct lane *l)
{
    return async_of(l) && !l->comm->ops->host_buffers;
}

int lane_open(struct lane *ret, struct comm *c, enum comm_channel ch, int peer, struct device *d, struct err *e)
{
    *ret = (struct lane){.comm = c, .channel = ch, .peer = peer, .device = d};
    return c && d->ops->async ? d->ops->async->open(d, &ret->stream, e) : 0;
}

void lane_close(struct lane *l)
{
    if (!l->stream)
        return;
    (void)async_of(l)->sync(l->device, l->stream, NULL); /* what fails has ended, too */
    async_of(l)->close(l->device, l->stream);
    l->stream = NULL;
}

int mail_open(struct mail *m, struct device *d, size_t bytes, struct err *e)
{
    const struct device_async *a = d->ops->async;
    *m = (struct mail){0};
    if (bytes == 0)
        return 0;
    TRY(d->ops->alloc(d, bytes, &m->memory, e));
    TRY(a ? a->event_open(d, &m->full, e) : 0);
    return a ? a->event_open(d, &m->empty, e) : 0;
}

void mail_settle(struct mail *m)
{
    struct err ignored;
    (void)comm_wait(m->request, &ignored);
    m->request = NULL;
}

void mail_close(struct mail *m, struct device *d)
{
    const struct device_async *a = d->ops->async;
    mail_settle(m);
    if (a) {
        a->event_close(d, m->full);
        a->event_close(d, m->empty);
    }
    if (m->memory)
        d->ops->release(d, m->memory);
    *m = (struct mail){0};
}

static int await_request(struct mail *m, struct err *e)
{
    struct comm_request *r = m->request;
    m->request = NULL;
    return comm_wait(r, e);
}

int mail_ask(struct lane *l, struct mail *m, size_t bytes, struct err *e)
{
    const struct device_async *a = async_of(l);
    TRY(a ? a->follow(l->device, m->empty, l->stream, e) : 0);
    TRY(l->comm->ops->irecv(l->comm, l->channel, m->memory, bytes, l->peer, l->stream, &m->request, e));
    if (!lane_enqueues(l))
        return 0;
    TRY(await_request(m, e));
    return a->mark(l->device, m->full, l->stream, e);
}

int mail_await(const struct lane *l, struct mail *m, struct err *e)
{
    const struct device_async *a = async_of(l);
    TRY(await_request(m, e));
    return lane_enqueues(l) ? a->follow(l->device, m->full, a->compute(l->device), e) : 0;
}

int mail_used(const struct lane *l, const struct mail *m, struct err *e)
{
    const struct device_async *a = async_of(l);
    return a ? a->mark(l->device, m->empty, a->compute(l->device), e) : 0;
}

int mail_room(const struct lane *l, struct mail *m, struct err *e)
{
    const struct device_async *a = async_of(l);
    TRY(await_request(m, e));
    return lane_enqueues(l) ? a->follow(l->device, m->empty, a->compute(l->device), e) : 0;
}

int mail_send(struct lane *l, struct mail *m, size_t bytes, struct err *e)
{
    const struct device_async *a = async_of(l);
    if (a) {
        TRY(a->mark(l->device, m->full, a->compute(l->device), e));
        TRY(a->follow(l->device, m->full, l->stream, e));
    }
    TRY(l->comm->ops->isend(l->comm, l->channel, m->memory, bytes, l->peer, l->stream, &m->request, e));
    if (!lane_enqueues(l))
        return 0;
    TRY(await_request(m, e));
    return a->mark(l->device, m->empty, l->stream, e);
}
