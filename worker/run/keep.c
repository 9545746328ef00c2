/* Keeps checkpoints in the memory of the nodes, and takes them up again. */
#include "worker/run/keep.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/include/crun.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/run/settle.h"
#include "worker/run/step.h"
#include "worker/session/memory_slot.h"
#include "worker/session/outlive.h"
#include "worker/session/session.h"
#include "worker/state/holders.h"

static_assert(sizeof(struct settled) <= MEMORY_SLOT_NOTE, "where a run stands is kept beside its state");

enum { LEAST_STEPS = 2 /* from the beginning of a round to the first copy: how long steps take is known then */ };

/* What a copy and a run must share, beside the shape of the state. */
static uint32_t kin_of(const struct snapshot_identity *id)
{
    const int64_t of[] = {id->seed, id->batch, id->num_labels, id->image_size, id->channels, id->sequence_length};
    uint32_t crc = crc32c(0, id->model, strlen(id->model) + 1);
    crc = crc32c(crc, id->optimizer, strlen(id->optimizer) + 1);
    return crc32c(crc, of, sizeof of);
}

/* keeps: else another rank of the node has the same copy. */
static int open_slot(struct keep *k, struct session *s, int place, bool keeps, struct err *e)
{
    const int fd = crun_node_memory();
    if (fd < 0)
        return err_set(e, -ENOTSUP, "no crun is there that keeps memory from round to round");
    if (!keeps)
        return 0;
    return memory_slot_open(&k->slot, fd, place, &s->state, kin_of(&s->identity), e);
}

int keep_open(struct keep *k, struct session *s, int place, int64_t round, struct err *e)
{
    struct err why;
    bool keeps;
    keep_close(k);
    s->kept = 0;
    if (s->cfg->memory_checkpoints == 0 || s->cfg->evaluate)
        return 0;
    TRY(outlive_keeps(s, place, &keeps, e));
    int64_t can = open_slot(k, s, place, keeps, &why) == 0;
    if (!can)
        log_warn("keep", "--memory-checkpoints: %s: nothing is kept", why.text);
    TRY(s->comm->ops->all_reduce(s->comm, COMM_CONTROL, &can, 1, DT_I64, COMM_MIN, NULL, e));
    if (!can) {
        keep_close(k);
        return 0;
    }
    k->share = s->cfg->memory_checkpoints / 100;
    k->round = round;
    if (!k->slot)
        return 0;
    s->kept = (int64_t)memory_slot_bytes(k->slot);
    log_info("keep", "checkpoints in memory take %lld bytes", (long long)s->kept);
    return 0;
}

void keep_close(struct keep *k)
{
    memory_slot_close(k->slot);
    *k = (struct keep){0};
}

/* --- going back */

struct offer {
    struct memory_copy copies[MEMORY_SLOT_HALVES];
};

static bool is_newer(const struct memory_copy *a, const struct memory_copy *b)
{
    return a->updates != b->updates ? a->updates > b->updates : a->round > b->round;
}

static bool has_copy(const struct offer *o, const struct memory_copy *c)
{
    for (int i = 0; i < MEMORY_SLOT_HALVES; i++)
        if (o->copies[i].updates == c->updates && o->copies[i].round == c->round)
            return true;
    return false;
}

/* The newest copy that is older than *before; updates -1: there is none. */
static struct memory_copy next_older(const struct offer *all, int world, const struct memory_copy *before)
{
    struct memory_copy best = {.updates = -1};
    for (int r = 0; r < world; r++)
        for (int i = 0; i < MEMORY_SLOT_HALVES; i++) {
            const struct memory_copy *c = &all[r].copies[i];
            if (c->updates >= 0 && is_newer(before, c) && is_newer(c, &best))
                best = *c;
        }
    return best;
}

/* The newest step whose copies make a whole state; here[]: who has one. updates -1: there is none. */
static struct memory_copy choose(const struct layout *l, const struct offer *all, int world, bool *here)
{
    struct memory_copy c = {.updates = INT64_MAX};
    struct err lacking;
    while ((c = next_older(all, world, &c)).updates >= 0) {
        bool any = false;
        for (int r = 0; r < world; r++) {
            here[r] = has_copy(&all[r], &c);
            any = any || here[r];
        }
        if (any && holders_check(l, here, &lacking) == 0)
            break;
    }
    return c;
}

static int gather_offers(const struct keep *k, struct comm *c, struct offer *all, struct err *e)
{
    struct offer mine;
    memset(&mine, 0, sizeof mine);
    for (int i = 0; i < MEMORY_SLOT_HALVES; i++)
        mine.copies[i].updates = -1;
    if (k->slot)
        memory_slot_find(k->slot, mine.copies);
    return c->ops->all_gather(c, COMM_CONTROL, &mine, all, sizeof mine, NULL, e);
}

int keep_take_up(struct keep *k, struct step *t, struct comm *c, int64_t least, bool *has, struct settled *s,
                 struct err *e)
{
    struct offer *all = calloc((size_t)c->world, sizeof *all);
    bool *here = calloc((size_t)c->world, sizeof *here);
    struct memory_copy found = {.updates = -1};
    int rc = all && here ? 0 : err_errno(e, ENOMEM, "checkpoints in memory");
    if (rc == 0 && k->share > 0)
        rc = gather_offers(k, c, all, e);
    if (rc == 0 && k->share > 0)
        found = choose(&t->state->own->layout, all, c->world, here);
    const bool any = rc == 0 && found.updates >= 0 && found.updates >= least;
    if (any && here[c->rank]) {
        rc = memory_slot_restore(k->slot, found, s, sizeof *s, e);
        *has = rc == 0;
    }
    free(all);
    free(here);
    return rc < 0 || !any ? rc : settle(t, c, false, has, s, NULL, e);
}

/* --- keeping */

void keep_begin(struct keep *k, const struct position *at)
{
    if (k->slot)
        memory_slot_forget_beyond(k->slot, at->updates);
    k->last = at->updates;
    k->last_ns = clock_ns();
    k->due = at->updates + LEAST_STEPS;
}

bool keep_due(const struct keep *k, const struct position *at)
{
    return k->share > 0 && at->updates >= k->due;
}

/* So many steps take so long that took_ns are no more than the share of it. */
static int64_t steps_for(const struct keep *k, int64_t updates, int64_t began_ns, int64_t took_ns)
{
    const double steps = (double)(updates - k->last),
                 step_ns = (double)(began_ns - k->last_ns) / (steps > 0 ? steps : 1);
    const double n = ceil((double)took_ns / k->share / (step_ns > 1 ? step_ns : 1));
    return n < 1 ? 1 : n > 1e9 ? (int64_t)1e9 : (int64_t)n;
}

int keep_step(struct keep *k, struct comm *c, const struct settled *s, struct err *e)
{
    const int64_t began = clock_ns(), updates = s->at.updates;
    if (k->slot)
        TRY(memory_slot_keep(k->slot, (struct memory_copy){.updates = updates, .round = k->round}, s, sizeof *s, e));
    const int64_t copied = clock_ns();
    int64_t wait = steps_for(k, updates, began, copied - began + k->agree_ns);
    TRY(c->ops->all_reduce(c, COMM_CONTROL, &wait, 1, DT_I64, COMM_MAX, NULL, e));
    k->last = updates;
    k->last_ns = clock_ns();
    k->agree_ns = k->last_ns - copied;
    k->due = updates + wait;
    log_debug("keep", "step %lld is in memory, after %.1f ms; the next one in %lld steps", (long long)updates,
              (double)(k->last_ns - began) / 1e6, (long long)wait);
    return 0;
}
