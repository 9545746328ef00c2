/* Opens the cache of decoded pictures that the ranks of a node share. */
#include "worker/session/pictures.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/env_contract.h"
#include "worker/comm/comm.h"
#include "worker/comm/peers.h"
#include "worker/config/config.h"
#include "worker/data/loader/decoded_cache.h"
#include "worker/data/sets/dataset.h"
#include "worker/session/session.h"
#include "worker/session/session_build.h"

/* What a rank tells the others. */
struct seat {
    char host[96];
    int64_t node; /* of crun: several may be on one host */
    enum { NONE, FRESH, FILLED } has;
    char record[DECODED_RECORD];
};

static int create(struct session *s, size_t bytes, struct err *e)
{
    return decoded_cache_create(&s->pictures, bytes, s->train_set->n, (int)s->cfg->num_channels, e);
}

static void tell(const struct session *s, const char *what)
{
    struct decoded_stats n;
    decoded_cache_stats(s->pictures, &n);
    if (n.pictures > 0)
        log_info("data", "%zu of %zu decoded pictures %s, in %zu of %zu bytes", n.pictures, s->train_set->n, what,
                 n.bytes, n.room);
}

static bool is_neighbour(const struct seat *a, const struct seat *b)
{
    return a->node == b->node && strcmp(a->host, b->host) == 0;
}

/* Whose cache this node's is: NULL: nobody's. */
static const struct seat *host_of(const struct seat *mine, const struct seat *all, int world)
{
    const struct seat *best = NULL;
    for (int i = 0; i < world; i++)
        if (is_neighbour(mine, &all[i]) && all[i].has > (best ? best->has : NONE))
            best = &all[i];
    return best;
}

/* Instead of a fresh one of its own. */
static int join(struct session *s, const struct seat *host, struct err *e)
{
    const size_t all = (size_t)s->cfg->cache_decoded;
    struct decoded_cache *theirs = NULL;
    struct err why = {0};
    if (decoded_cache_join(&theirs, host->record, all, s->train_set->n, (int)s->cfg->num_channels, &why) == 0) {
        decoded_cache_close(s->pictures);
        s->pictures = theirs;
        tell(s, "are there already");
        return 0;
    }
    log_warn("data", "%s: this rank keeps decoded pictures by itself, in %zu bytes", why.text,
             all / (size_t)s->local_world);
    decoded_cache_close(s->pictures);
    s->pictures = NULL;
    return create(s, all / (size_t)s->local_world, e);
}

static int agree(struct session *s, const struct seat *mine, struct err *e)
{
    struct comm *c = s->comm;
    struct seat *all = calloc((size_t)c->world, sizeof *all);
    if (!all)
        return err_errno(e, ENOMEM, "places of %d ranks", c->world);
    int rc = c->ops->all_gather(c, COMM_CONTROL, mine, all, sizeof *mine, NULL, e);
    const struct seat *host = rc == 0 ? host_of(mine, all, c->world) : NULL;
    if (rc == 0 && mine->has == FRESH && host != &all[c->rank])
        rc = join(s, host, e);
    free(all);
    return rc;
}

int pictures_open(struct session *s, const struct env_contract *env, struct err *e)
{
    if (s->cfg->cache_decoded == 0 || s->cfg->evaluate)
        return 0;
    struct seat mine;
    memset(&mine, 0, sizeof mine);
    mine.node = env->group_rank;
    mine.has = s->pictures ? FILLED : session_loads(s) ? FRESH : NONE;
    peers_host_identity(mine.host, sizeof mine.host);
    if (mine.has == FRESH)
        TRY(create(s, (size_t)s->cfg->cache_decoded, e));
    if (s->pictures)
        decoded_cache_record(s->pictures, mine.record);
    return agree(s, &mine, e);
}

void pictures_close(struct session *s)
{
    if (!s->pictures)
        return;
    if (s->leads)
        tell(s, "were kept");
    decoded_cache_close(s->pictures);
    s->pictures = NULL;
}
