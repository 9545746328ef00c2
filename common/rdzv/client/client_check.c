/* What must hold of a client after each of its steps, whatever the server says (client.h). A broken rule is a mistake
 * of ours, and what would follow is worse than an end: a node that waits for ever, or workers without a lease. */
#include <assert.h>

#include "common/rdzv/client/client_impl.h"

static bool wants_its_rendezvous(const struct client *c)
{
    return c->mode == CLIENT_JOINING || c->mode == CLIENT_RUNNING || c->mode == CLIENT_DONE;
}

static bool next_is_asked(const struct client *c)
{
    for (unsigned i = c->asked_first; i != c->asked_last; i++)
        if (c->asked[i % CLIENT_ASKED_MAX].what == ASK_NEXT)
            return true;
    return false;
}

static void check_connection(const struct client *c)
{
    const bool asks = c->asked_first != c->asked_last, seeks = c->o.elected && !c->epoch[0];
    assert(c->asked_last - c->asked_first <= CLIENT_ASKED_MAX);
    assert(!c->connected || !c->dialling);
    assert(!c->up || c->connected);
    assert(c->up || (!asks && !c->named && !c->acked)); /* nothing is left of the connection before */
    assert(c->next_open == next_is_asked(c));           /* the oldest answer belongs to the oldest request */
    /* else the node waits for ever */
    assert(!wants_its_rendezvous(c) || c->connected || c->dialling || c->retry_at != INT64_MAX || seeks);
    assert(!wants_its_rendezvous(c) || !c->up || asks || c->retry_at != INT64_MAX);
}

void client_check_(const struct client *c)
{
    check_connection(c);
    assert(c->mode == CLIENT_RUNNING || !c->alive_on); /* without workers there is no grace */
    assert(wants_its_rendezvous(c) || !c->failing);
    assert(c->mode != CLIENT_RUNNING || c->joined);
    assert(c->mode != CLIENT_OVER || c->retry_at == INT64_MAX);
}
