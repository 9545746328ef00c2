/* Commands by which a client identifies itself, proves that, and chooses its key-space. */
#include "rendezvousd/commands/commands.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/net/server_impl.h"
#include "rendezvousd/net/spaces.h"
#include <string.h>

void command_store_auth(struct conn *c, const struct request *rq)
{
    gate_challenge(c, &rq->argv[1], &rq->argv[2]);
}

void command_store_prove(struct conn *c, const struct request *rq)
{
    gate_prove(c, &rq->argv[1]);
}

void command_auth(struct conn *c, const struct request *rq)
{
    if (rq->argc > 3)
        reply_error(&c->reply, "ERR syntax error");
    else if (gate_password(c, rq->argc == 3 ? &rq->argv[1] : NULL, &rq->argv[rq->argc - 1]))
        reply_status(&c->reply, "OK");
}

/* Back to where the connection began. */
static int use_own(struct conn *c)
{
    if (gate_owns_space(c))
        return spaces_use(c, c->principal, NULL);
    conn_use_space(c, c->s->space);
    return 0;
}

static int use_job(struct conn *c, const struct request_arg *run)
{
    char name[JOBS_RUN_MAX + 1];
    if (run->n > JOBS_RUN_MAX || memchr(run->p, 0, run->n)) {
        reply_error(&c->reply, "ERR run id of %zu bytes: expected 1 to %d without NUL", run->n, JOBS_RUN_MAX);
        return 1;
    }
    memcpy(name, run->p, run->n);
    name[run->n] = 0;
    const char *owner = c->s->jobs ? jobs_owner(c->s->jobs, c->principal, name) : NULL;
    if (owner)
        return spaces_use(c, owner, name);
    reply_error(&c->reply, "NOJOB run '%s' is unknown here: nobody has joined it, or it was forgotten", name);
    return 1;
}

void command_store_use(struct conn *c, const struct request *rq)
{
    if (rq->argc > 2) {
        reply_error(&c->reply, "ERR wrong number of arguments for 'store.use' command");
        return;
    }
    int rc = rq->argc == 2 && rq->argv[1].n > 0 ? use_job(c, &rq->argv[1]) : use_own(c);
    if (rc == 0)
        reply_status(&c->reply, "OK");
    else if (rc < 0)
        reply_error(&c->reply, "OOM no memory for a key-space");
}
