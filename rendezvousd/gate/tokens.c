/* Reads a server's token file, and finds tokens and principals in it (tokens.h). */
#include "rendezvousd/gate/tokens.h"
#include "common/auth/auth.h"
#include "common/base/err.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct tokens {
    struct auth_tokens all;
    const char *path; /* NULL: the user's own, or none */
    bool own, drawn;
    struct principal *principals;
};

static int load(const struct tokens *t, struct auth_tokens *ret, bool *ret_drawn, struct err *e)
{
    enum auth_origin origin = AUTH_FROM_FILE;
    *ret_drawn = false;
    if (t->path)
        return auth_tokens_read(ret, t->path, e);
    if (!t->own)
        return 0;
    TRY(auth_tokens_own(ret, NULL, &origin, e));
    *ret_drawn = origin == AUTH_FROM_DRAWN;
    return 0;
}

int tokens_open(struct tokens **ret, const char *path, bool own, struct err *e)
{
    struct tokens *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, -ENOMEM, "no memory for tokens");
    t->path = path;
    t->own = own;
    int rc = load(t, &t->all, &t->drawn, e);
    if (rc < 0)
        free(t);
    else
        *ret = t;
    return rc;
}

void tokens_close(struct tokens *t)
{
    if (!t)
        return;
    while (t->principals) {
        struct principal *p = t->principals;
        t->principals = p->next;
        free(p);
    }
    auth_tokens_free(&t->all);
    free(t);
}

int tokens_reload(struct tokens *t, struct err *e)
{
    struct auth_tokens fresh = {0};
    bool drawn;
    if (t->path)
        return auth_tokens_reread(&t->all, t->path, e);
    if (t->drawn)
        return 0; /* there is nothing to read again */
    TRY(load(t, &fresh, &drawn, e));
    auth_tokens_free(&t->all);
    t->all = fresh;
    return 0;
}

size_t tokens_count(const struct tokens *t)
{
    return t->all.n;
}

bool tokens_were_drawn(const struct tokens *t)
{
    return t->drawn;
}

const struct auth_token *tokens_at(const struct tokens *t, size_t i)
{
    return &t->all.v[i];
}

const struct auth_token *tokens_find(const struct tokens *t, const char *principal, size_t n)
{
    return auth_tokens_find(&t->all, principal, n);
}

struct principal *tokens_principal(struct tokens *t, const char *name)
{
    struct principal *p;
    for (p = t->principals; p; p = p->next)
        if (strcmp(p->name, name) == 0)
            return p;
    if (!(p = calloc(1, sizeof *p)))
        return NULL;
    strncpy(p->name, name, AUTH_PRINCIPAL_MAX);
    p->next = t->principals;
    t->principals = p;
    return p;
}
