/* Access over HTTP: for readers that would be admitted here, too. See gate.h. */
#include "common/base/clock.h"
#include "rendezvousd/gate/peer_uid.h"
#include "rendezvousd/gate/tokens.h"
#include "rendezvousd/net/gate_impl.h"
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const char *gate_reader(const struct gate *g, bool (*shows)(const void *arg, const struct auth_token *t),
                        const void *arg)
{
    const struct auth_token *found = NULL;
    for (size_t i = 0; i < tokens_count(g->tokens); i++)
        if (shows(arg, tokens_at(g->tokens, i)))
            found = tokens_at(g->tokens, i);
    return found ? found->principal : NULL;
}

bool gate_trusts_reader(const struct gate *g, int fd)
{
    int asker = -1;
    uid_t uid;
    if (gate_has_tokens(g) && !g->o.trust_local)
        return false;
    if (g->o.insecure)
        return true;
    const int rc = peer_uid(&asker, fd, &uid, NULL);
    peer_uid_close(&asker);
    return rc == 0 && (uid == geteuid() || uid == 0);
}

static void read_peer(int fd, struct peer_addr *ret)
{
    struct sockaddr_storage sa = {0};
    socklen_t n = sizeof sa;
    if (getpeername(fd, (struct sockaddr *)&sa, &n) < 0)
        sa.ss_family = AF_UNSPEC;
    peer_addr_of(&sa, ret);
}

bool gate_is_local_reader(int fd)
{
    struct peer_addr a;
    read_peer(fd, &a);
    return a.known && peer_addr_is_loopback(&a);
}

void gate_refuse_reader(struct gate *g, int fd, const char *principal)
{
    struct peer_addr a;
    char name[AUTH_PRINCIPAL_MAX + 1], reason[160];
    read_peer(fd, &a);
    g->refused++;
    snprintf(reason, sizeof reason, "wrong secret over HTTP%s%s%s", principal[0] ? ", as principal '" : "",
             gate_printable(principal, name), principal[0] ? "'" : "");
    audit_refusal(&g->audit, clock_ms(), peer_addr_text(&a), reason);
}
