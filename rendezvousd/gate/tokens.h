/* The room rendezvousd/gate: the facts by which rendezvousd/net/gate.h decides who may come in. For an accepted
 * connection it asks for the address (peer_addr.h) and, on this host, the uid (peer_uid.h); a token that is shown is
 * looked up here. Refusals go to audit.h, as a log line or a count.
 *
 * The token file of a server in its present form, and names of principals, which stay valid when it changes. */
#ifndef CRUN_RENDEZVOUSD_TOKENS_H
#define CRUN_RENDEZVOUSD_TOKENS_H

#include "common/auth/auth.h"

struct err;
struct tokens;

/* path: a file or "fd:N"; own: if path is NULL, use the user's own tokens (auth_tokens_own). Neither: there are
 * none. path is borrowed. */
int tokens_open(struct tokens **ret, const char *path, bool own, struct err *e);
void tokens_close(struct tokens *t); /* NULL allowed */

/* Read the file again; on failure the old tokens stay. ERR_USAGE for a descriptor, which can be read only once. */
int tokens_reload(struct tokens *t, struct err *e);

size_t tokens_count(const struct tokens *t);
bool tokens_were_drawn(const struct tokens *t);
const struct auth_token *tokens_at(const struct tokens *t, size_t i);
const struct auth_token *tokens_find(const struct tokens *t, const char *principal, size_t n); /* NULL: none */

/* A principal that has had a connection; valid until tokens_close(). */
struct principal {
    struct principal *next;
    size_t connections, buffer_bytes; /* the server's, of its connections */
    char name[AUTH_PRINCIPAL_MAX + 1];
};
struct principal *tokens_principal(struct tokens *t, const char *name); /* NULL: no memory */

#endif
