/* Who may come in, and what it may do then. */
#include "common/err.h"
#include "common/log.h"
#include "rendezvousd/peer_uid.h"
#include "rendezvousd/server_impl.h"
#include <errno.h>
#include <unistd.h>

#define MODULE "server"

const char *gate_admit(struct conn *c)
{
    struct server *s = c->s;
    c->trust = TRUST_FULL;
    if (s->clients > s->o.max_clients)
        return "ERR max number of clients reached";
    if (!s->o.same_uid_only)
        return NULL;
    int fd;
    uid_t uid;
    struct err e;
    if (uv_fileno((uv_handle_t *)&c->tcp, &fd) < 0)
        return "ERR the connection is broken";
    int rc = peer_uid(fd, &uid, &e);
    if (rc == -EREMOTE || (rc == 0 && uid == geteuid()))
        return NULL;
    if (rc < 0)
        log_warn(MODULE, "connection refused: %s", e.text);
    else
        log_warn(MODULE, "connection of uid %u refused: only uid %u may use this server", (unsigned)uid,
                 (unsigned)geteuid());
    return "NOPERM this server takes local connections of its own user only";
}
