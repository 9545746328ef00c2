/* Commands by which a client says and proves who it is. */
#include "rendezvousd/commands.h"
#include "rendezvousd/server_impl.h"

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
