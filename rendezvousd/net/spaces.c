/* See spaces.h. */
#include "rendezvousd/net/spaces.h"
#include "common/base/seeded_hash.h"
#include "rendezvousd/net/server_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct named_space {
    struct space *space;
    UT_hash_handle hh;
    char name[]; /* the kind as one letter, then the name */
};

static struct named_space *find_space(struct server *s, enum space_kind kind, const char *name)
{
    struct named_space *n;
    size_t len = strlen(name) + 1;
    char *key = malloc(len);
    if (!key)
        return NULL;
    key[0] = kind == SPACE_OF_JOB ? 'j' : 'p';
    memcpy(key + 1, name, len - 1);
    HASH_FIND(hh, s->spaces, key, len, n);
    free(key);
    return n;
}

static struct named_space *make(struct server *s, enum space_kind kind, const char *name)
{
    size_t len = strlen(name), max = kind == SPACE_OF_JOB ? s->o.max_job_bytes : s->o.max_memory_bytes;
    struct named_space *n = calloc(1, sizeof *n + len + 2);
    if (!n || space_create(&n->space, s, max) < 0) {
        free(n);
        return NULL;
    }
    n->name[0] = kind == SPACE_OF_JOB ? 'j' : 'p';
    memcpy(n->name + 1, name, len);
    HASH_ADD_KEYPTR(hh, s->spaces, n->name, len + 1, n);
    return n;
}

int spaces_use(struct conn *c, enum space_kind kind, const char *name)
{
    struct named_space *n = find_space(c->s, kind, name);
    if (!n)
        n = make(c->s, kind, name);
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

void spaces_drop(struct server *s, enum space_kind kind, const char *name)
{
    struct named_space *n = find_space(s, kind, name);
    if (n)
        drop(s, n);
}

void spaces_drop_all(struct server *s)
{
    struct named_space *n, *next;
    HASH_ITER (hh, s->spaces, n, next)
        drop(s, n);
}
