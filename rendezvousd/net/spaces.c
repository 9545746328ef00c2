/* Keeps key-spaces by principal and job, and their limits of memory (spaces.h). */
#include "rendezvousd/net/spaces.h"
#include "common/base/seeded_hash.h"
#include "rendezvousd/net/server_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct named_space {
    struct space *space;
    UT_hash_handle hh;
    size_t n;
    char name[]; /* n bytes: the principal; for a job also a 0 and its run id */
};

/* Make a struct with only the name; the caller frees it. NULL: no memory. */
static struct named_space *name_it(const char *principal, const char *run)
{
    const size_t n = strlen(principal), m = run ? strlen(run) + 1 : 0;
    struct named_space *sp = calloc(1, sizeof *sp + n + m + 1);
    if (!sp)
        return NULL;
    sp->n = n + m;
    memcpy(sp->name, principal, n);
    if (run)
        memcpy(sp->name + n + 1, run, m - 1);
    return sp;
}

static struct named_space *find_space(struct server *s, const struct named_space *named)
{
    struct named_space *found;
    HASH_FIND(hh, s->spaces, named->name, named->n, found);
    return found;
}

/* Memory that all key-spaces of one principal take; lives as long as the server. */
struct share {
    struct keyspace_total total;
    UT_hash_handle hh;
    char principal[];
};

static struct keyspace_total *share_of(struct server *s, const char *principal)
{
    struct share *sh;
    HASH_FIND_STR(s->shares, principal, sh);
    if (sh || !(sh = calloc(1, sizeof *sh + strlen(principal) + 1)))
        return sh ? &sh->total : NULL;
    strcpy(sh->principal, principal);
    sh->total.above = &s->memory;
    sh->total.max_bytes =
        s->o.max_principal_bytes ? s->o.max_principal_bytes : gate_fair_share(s, s->o.max_memory_bytes);
    HASH_ADD_STR(s->shares, principal, sh);
    if (sh->hh.tbl)
        return &sh->total;
    free(sh);
    return NULL;
}

int spaces_use(struct conn *c, const char *principal, const char *run)
{
    struct server *s = c->s;
    struct keyspace_total *share = share_of(s, principal);
    struct named_space *fresh = share ? name_it(principal, run) : NULL, *n = fresh ? find_space(s, fresh) : NULL;
    if (fresh && !n && space_create(&fresh->space, s, run ? s->o.max_job_bytes : s->o.max_memory_bytes) == 0) {
        HASH_ADD_KEYPTR(hh, s->spaces, fresh->name, fresh->n, fresh);
        if (fresh->hh.tbl)
            n = fresh;
        else
            space_release(fresh->space);
    }
    if (n && n == fresh)
        keyspace_share(n->space->keys, share);
    else
        free(fresh);
    if (!n)
        return -ENOMEM;
    conn_use_space(c, n->space);
    return 0;
}

static void drop(struct server *s, struct named_space *n)
{
    HASH_DEL(s->spaces, n);
    space_release(n->space);
    free(n);
}

void spaces_drop(struct server *s, const char *principal, const char *run)
{
    struct named_space *named = name_it(principal, run), *n = named ? find_space(s, named) : NULL;
    if (n)
        drop(s, n);
    free(named);
}

void spaces_drop_all(struct server *s)
{
    struct named_space *n, *next;
    HASH_ITER (hh, s->spaces, n, next)
        drop(s, n);
}

void spaces_free_shares(struct server *s)
{
    struct share *sh, *next;
    HASH_ITER (hh, s->shares, sh, next) {
        HASH_DEL(s->shares, sh);
        free(sh);
    }
}
