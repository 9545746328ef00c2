/* A communicator's record outlives it while groups that are still open point to it. An abort holds the lock of the
 * parent's record while it goes through the children, so that none is freed under it; locks are taken from parents to
 * children only. */
#include "worker/comm/kin.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/base/err.h"

struct comm_kin {
    pthread_mutex_t lock; /* the rest */
    int holders;          /* the communicator itself, and its open groups */
    struct comm_kin *parent;
    struct comm_kin *first, *next; /* first: groups; next: of the same parent, under its lock */
    struct comm *self;
    int cancel_fd;
};

int comm_kin_begin(struct comm *c, int cancel_fd, struct err *e)
{
    c->kin = calloc(1, sizeof *c->kin);
    if (!c->kin)
        return err_set(e, -ENOMEM, "no memory for a communicator");
    pthread_mutex_init(&c->kin->lock, NULL);
    c->kin->holders = 1;
    c->kin->self = c;
    c->kin->cancel_fd = cancel_fd;
    return 0;
}

int comm_kin_cancel_fd(const struct comm *c)
{
    return c->kin->cancel_fd;
}

void comm_kin_add(struct comm *parent, struct comm *child)
{
    struct comm_kin *p = parent->kin, *k = child->kin;
    pthread_mutex_lock(&p->lock);
    p->holders++;
    k->parent = p;
    k->next = p->first;
    p->first = k;
    pthread_mutex_unlock(&p->lock);
}

void comm_kin_abort(struct comm *c)
{
    if (!c->kin)
        return;
    pthread_mutex_lock(&c->kin->lock);
    for (struct comm_kin *k = c->kin->first; k; k = k->next)
        k->self->ops->abort(k->self);
    pthread_mutex_unlock(&c->kin->lock);
}

static void drop(struct comm_kin *k)
{
    pthread_mutex_lock(&k->lock);
    const bool last = --k->holders == 0;
    pthread_mutex_unlock(&k->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&k->lock);
    free(k);
}

void comm_kin_end(struct comm *c)
{
    struct comm_kin *k = c->kin, *p = k ? k->parent : NULL;
    if (!k)
        return;
    if (p) {
        pthread_mutex_lock(&p->lock);
        struct comm_kin **at = &p->first;
        while (*at != k)
            at = &(*at)->next;
        *at = k->next;
        pthread_mutex_unlock(&p->lock);
        drop(p);
    }
    c->kin = NULL;
    drop(k);
}
