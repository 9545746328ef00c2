/* Messages between ranks as threads.
 *   - Whoever comes second copies: a send finds the receive that waits for it in its box, or the other way round. It
 *     copies without the lock, so that messages of others go meanwhile; whoever waits for one that has met its other
 *     side waits for its end, which is near.
 *   - A message that has been copied is done, whatever happens to its ranks afterwards.
 *   - send() leaves a copy in the box where nobody waits; nobody waits for that one's end.
 * What goes wrong: the peer is gone and its message has not come, the deadline, an abort, two sizes. */
#include "worker/comm/local_group.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"

struct message {
    struct comm_request base; /* comm NULL: nobody waits, freed when received */
    struct message *next;     /* of the box, under the group's lock */
    struct message **box;
    const void *from; /* of a send */
    void *to;         /* of a receive */
    void *copy;       /* send(): from's memory */
    size_t bytes, other_bytes;
    int peer;
    bool met;  /* is out of its box: being copied */
    bool done; /* copied, or found to differ in size */
};

static struct message **box_of(struct group *g, enum comm_channel ch, int from, int to)
{
    return &g->boxes[((size_t)ch * (size_t)g->world + (size_t)from) * (size_t)g->world + (size_t)to];
}

static void message_free(struct message *m)
{
    free(m->copy);
    free(m);
}

void local_boxes_free(struct group *g)
{
    for (size_t i = 0; i < COMM_CHANNELS * (size_t)g->world * (size_t)g->world; i++) {
        for (struct message *m = g->boxes[i], *next; m; m = next) {
            next = m->next;
            message_free(m); /* copies: all requests have been waited for */
        }
    }
}

/* Lock held. Is this rank itself still good? Others' failures are no matter here. */
static int own_failure(struct local *l, struct err *e)
{
    if (atomic_load(&l->aborted))
        return err_set(e, -ECANCELED, "the communicator was aborted");
    if (l->group->gone[l->base.rank])
        return err_set(e, l->group->failed, "the communicator has failed");
    return 0;
}

/* Lock held, but not while it copies. */
static void deliver(struct group *g, struct message *send, struct message *recv)
{
    send->met = recv->met = true;
    send->other_bytes = recv->bytes;
    recv->other_bytes = send->bytes;
    if (send->bytes == recv->bytes) {
        pthread_mutex_unlock(&g->lock);
        memcpy(recv->to, send->from, send->bytes);
        pthread_mutex_lock(&g->lock);
    }
    send->done = recv->done = true;
    if (!send->base.comm)
        message_free(send);
}

/* Lock held. */
static void match(struct message *m, struct group *g)
{
    struct message *other = *m->box;
    if (!other || !other->from == !m->from) {
        struct message **at = m->box;
        while (*at)
            at = &(*at)->next;
        *at = m;
        return;
    }
    *m->box = other->next;
    m->from ? deliver(g, m, other) : deliver(g, other, m);
    pthread_cond_broadcast(&g->change);
}

static int check_peer(const struct comm *c, int peer, struct err *e)
{
    if (peer >= 0 && peer < c->world)
        return 0;
    return err_set(e, -EINVAL, "a message with rank %d of a world of %d", peer, c->world);
}

static int post(struct local *l, enum comm_channel ch, struct message m, struct comm_request **ret, struct err *e)
{
    struct group *g = l->group;
    *ret = NULL;
    TRY(check_peer(&l->base, m.peer, e));
    if (m.bytes == 0)
        return 0;
    struct message *mine = malloc(sizeof *mine);
    if (!mine)
        return err_set(e, -ENOMEM, "no memory for a message");
    *mine = m;
    mine->base.comm = &l->base;
    mine->box = m.from ? box_of(g, ch, l->base.rank, m.peer) : box_of(g, ch, m.peer, l->base.rank);
    pthread_mutex_lock(&g->lock);
    int rc = own_failure(l, e);
    if (rc == 0)
        match(mine, g);
    pthread_mutex_unlock(&g->lock);
    if (rc < 0)
        free(mine);
    else
        *ret = &mine->base;
    return rc;
}

int local_isend(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                struct comm_request **ret, struct err *e)
{
    return post(local_of(c), ch, (struct message){.from = buf, .bytes = bytes, .peer = peer}, ret, e);
}

int local_irecv(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int peer, void *stream,
                struct comm_request **ret, struct err *e)
{
    return post(local_of(c), ch, (struct message){.to = buf, .bytes = bytes, .peer = peer}, ret, e);
}

int local_send(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
               struct err *e)
{
    struct local *l = local_of(c);
    struct group *g = l->group;
    TRY(check_peer(c, peer, e));
    if (bytes == 0)
        return 0;
    struct message *m = calloc(1, sizeof *m);
    void *copy = malloc(bytes);
    if (!m || !copy) {
        free(m);
        free(copy);
        return err_set(e, -ENOMEM, "no memory for a message of %zu bytes", bytes);
    }
    memcpy(copy, buf, bytes);
    *m =
        (struct message){.from = copy, .copy = copy, .bytes = bytes, .peer = peer, .box = box_of(g, ch, c->rank, peer)};
    pthread_mutex_lock(&g->lock);
    int rc = own_failure(l, e);
    if (rc == 0 && g->gone[peer])
        rc = err_set(e, -ECONNRESET, "send: rank %d went away", peer);
    if (rc == 0)
        match(m, g);
    else
        message_free(m);
    pthread_mutex_unlock(&g->lock);
    return rc;
}

/* Lock held: 0 while there is hope. */
static int hopeless(struct local *l, const struct message *m, bool late, struct err *e)
{
    const char *what = m->from ? "send" : "recv";
    TRY(own_failure(l, e));
    if (l->group->gone[m->peer])
        return err_set(e, -ECONNRESET, "%s: rank %d went away", what, m->peer);
    if (late)
        return err_set(e, -ETIMEDOUT, "%s: no answer from rank %d within %lld ms", what, m->peer,
                       (long long)l->timeout_ms);
    return 0;
}

/* Lock held. */
static void take_back(struct message *m)
{
    struct message **at = m->box;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
}

static int wait_locked(struct local *l, struct message *m, struct err *e)
{
    const struct timespec until = clock_timespec(clock_deadline(l->timeout_ms));
    bool late = false;
    int rc = 0;
    while (!m->done && rc == 0)
        if (m->met)
            pthread_cond_wait(&l->group->change, &l->group->lock);
        else if ((rc = hopeless(l, m, late, e)) == 0)
            late = pthread_cond_timedwait(&l->group->change, &l->group->lock, &until) == ETIMEDOUT;
    if (!m->done)
        take_back(m);
    else if (m->bytes != m->other_bytes)
        rc = err_set(e, -EMSGSIZE, "%s of %zu bytes: rank %d has one of %zu bytes", m->from ? "send" : "recv", m->bytes,
                     m->peer, m->other_bytes);
    if (rc < 0)
        group_fail(l->group, rc, l->base.rank);
    return rc;
}

int local_wait(struct comm_request *r, struct err *e)
{
    struct message *m = (struct message *)r;
    struct local *l = local_of(r->comm);
    pthread_mutex_lock(&l->group->lock);
    int rc = wait_locked(l, m, e);
    pthread_mutex_unlock(&l->group->lock);
    message_free(m);
    return rc;
}
