/* What ranks that are threads of one process share: where they meet, and how one that fails ends the others' waits. */
#include "worker/comm/local_group.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"

void group_free(struct group *g)
{
    for (int i = 0; i < COMM_CHANNELS; i++) {
        free(g->channels[i].slots);
        free(g->channels[i].here);
    }
    if (g->boxes)
        local_boxes_free(g);
    free(g->boxes);
    free(g->gone);
    pthread_cond_destroy(&g->change);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static bool reserve(struct group *g)
{
    const size_t world = (size_t)g->world;
    bool ok = true;
    for (int i = 0; i < COMM_CHANNELS; i++) {
        g->channels[i].slots = calloc(world, sizeof *g->channels[i].slots);
        g->channels[i].here = calloc(world, sizeof *g->channels[i].here);
        ok = ok && g->channels[i].slots && g->channels[i].here;
    }
    g->boxes = calloc(COMM_CHANNELS * world * world, sizeof(struct message *));
    g->gone = calloc(world, sizeof *g->gone);
    return ok && g->boxes && g->gone;
}

struct group *group_create(int world)
{
    struct group *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->change, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&g->lock, NULL);
    g->world = g->open = world;
    if (reserve(g))
        return g;
    group_free(g);
    return NULL;
}

void group_fail(struct group *g, int code, int culprit)
{
    g->gone[culprit] = true;
    if (g->failed == 0) {
        g->failed = code;
        g->culprit = culprit;
    }
    pthread_cond_broadcast(&g->change);
}

void group_leave(struct group *g, int rank)
{
    pthread_mutex_lock(&g->lock);
    group_fail(g, -ECONNRESET, rank);
    bool last = --g->open == 0;
    pthread_mutex_unlock(&g->lock);
    if (last)
        group_free(g);
}

static int missing(const struct channel *ch, int world, int64_t timeout_ms, struct err *e)
{
    char list[256] = "";
    size_t len = 0;
    for (int r = 0; r < world; r++)
        if (!ch->here[r] && len < sizeof list - 16)
            len += (size_t)snprintf(list + len, sizeof list - len, " %d", r);
    return err_set(e, -ETIMEDOUT, "no answer within %lld ms from rank%s", (long long)timeout_ms, list);
}

int group_failure(struct local *l, struct err *e)
{
    struct group *g = l->group;
    if (atomic_load(&l->aborted))
        return err_set(e, -ECANCELED, "the communicator was aborted");
    if (g->failed == -ECONNRESET)
        return err_set(e, g->failed, "rank %d went away", g->culprit);
    if (g->failed)
        return err_set(e, g->failed, "the communicator has failed on rank %d", g->culprit);
    return 0;
}

int group_arrive(struct local *l, enum comm_channel which, const void *in, void *out, struct err *e)
{
    struct group *g = l->group;
    struct channel *ch = &g->channels[which];
    const struct timespec until = clock_timespec(clock_deadline(l->timeout_ms));
    pthread_mutex_lock(&g->lock);
    int rc = group_failure(l, e);
    if (rc == 0) {
        ch->slots[l->base.rank] = (struct slot){in, out};
        ch->here[l->base.rank] = true;
        uint64_t round = ch->round;
        if (++ch->arrived == g->world) {
            ch->round++;
            pthread_cond_broadcast(&g->change);
        }
        while (ch->round == round && rc == 0) {
            if (pthread_cond_timedwait(&g->change, &g->lock, &until) == ETIMEDOUT && ch->round == round) {
                rc = missing(ch, g->world, l->timeout_ms, e);
                group_fail(g, -ETIMEDOUT, l->base.rank);
            } else if (ch->round == round) {
                rc = group_failure(l, e);
            }
        }
    }
    pthread_mutex_unlock(&g->lock);
    return rc;
}

void group_depart(struct local *l, enum comm_channel which)
{
    struct group *g = l->group;
    struct channel *ch = &g->channels[which];
    pthread_mutex_lock(&g->lock);
    uint64_t finished = ch->finished;
    if (++ch->left == g->world) {
        ch->left = ch->arrived = 0;
        memset(ch->here, 0, (size_t)g->world * sizeof *ch->here);
        ch->finished++;
        pthread_cond_broadcast(&g->change);
    }
    while (ch->finished == finished)
        pthread_cond_wait(&g->change, &g->lock);
    pthread_mutex_unlock(&g->lock);
}
