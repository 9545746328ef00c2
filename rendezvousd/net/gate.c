/* Who comes in; see gate.h. */
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/net/addr.h"
#include "common/net/ssl_lib.h"
#include "common/net/tls_stream.h"
#include "rendezvousd/gate/peer_uid.h"
#include "rendezvousd/gate/tokens.h"
#include "rendezvousd/net/conn_impl.h"
#include "rendezvousd/net/gate_impl.h"
#include "rendezvousd/net/server_impl.h"
#include "rendezvousd/net/spaces.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#define MODULE "gate"

/* --- life */

static int open_tls(const struct gate *g, struct tls_context **ret, struct err *e)
{
    if (!g->o.tls_cert)
        return 0;
    return tls_context_server(ret, g->o.tls_cert, g->o.tls_key ? g->o.tls_key : g->o.tls_cert, g->o.tls_client_ca, e);
}

int gate_create(struct gate **ret, const struct gate_options *o, struct err *e)
{
    struct gate *g = calloc(1, sizeof *g);
    if (!g)
        return err_set(e, -ENOMEM, "no memory for a gate");
    g->o = *o;
    g->o.max_unauthenticated = o->max_unauthenticated ? o->max_unauthenticated : 1000;
    g->o.auth_timeout_ms = o->auth_timeout_ms ? o->auth_timeout_ms : 2000;
    int rc = tokens_open(&g->tokens, o->token_file, o->own_token && !o->insecure, e);
    if (rc == 0)
        rc = auth_random_hex(g->instance, sizeof g->instance / 2, e);
    if (rc == 0 && tokens_count(g->tokens) > 0 && !crypto_lib(e))
        rc = -ENOENT; /* better now than at the first client */
    if (rc == 0)
        rc = open_tls(g, &g->tls, e);
    if (rc < 0)
        gate_destroy(g);
    else
        *ret = g;
    return rc;
}

void gate_destroy(struct gate *g)
{
    if (!g)
        return;
    audit_finish(&g->audit);
    tokens_close(g->tokens);
    tls_context_free(g->tls);
    struct address *a, *next;
    HASH_ITER (hh, g->addresses, a, next) {
        HASH_DEL(g->addresses, a);
        free(a);
    }
    free(g);
}

int gate_reload(struct gate *g, struct err *e)
{
    struct tls_context *tls = NULL;
    TRY(open_tls(g, &tls, e));
    int rc = tokens_reload(g->tokens, e);
    if (rc < 0) {
        tls_context_free(tls);
        return rc;
    }
    tls_context_free(g->tls); /* streams keep what they need of it */
    g->tls = tls;
    return 0;
}

size_t gate_dismiss_removed(struct gate *g, struct server *s)
{
    size_t n = 0;
    for (struct conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        if (!c->peer || !c->peer->by_token || tokens_find(g->tokens, c->principal, strlen(c->principal)))
            continue;
        log_warn("audit", "closed peer=%s reason=principal '%s' is no longer in the token file",
                 peer_addr_text(&c->peer->addr), c->principal);
        conn_close(c);
        n++;
    }
    return n;
}

bool gate_has_tokens(const struct gate *g)
{
    return tokens_count(g->tokens) > 0;
}

const char *gate_own_principal(const struct gate *g)
{
    return gate_has_tokens(g) ? tokens_name(g->tokens, tokens_at(g->tokens, 0)->principal) : "local";
}

bool gate_token_was_drawn(const struct gate *g)
{
    return tokens_were_drawn(g->tokens);
}

void gate_stats(const struct gate *g, struct gate_stats *ret)
{
    *ret = (struct gate_stats){
        .refused = g->refused, .authenticated = g->authenticated, .unauthenticated = g->unauthenticated};
}

struct tls_context *gate_tls(const struct server *s)
{
    return s->o.gate ? s->o.gate->tls : NULL;
}

bool gate_tls_only(const struct server *s)
{
    return s->o.gate && s->o.gate->o.tls_only;
}

/* --- refusals */

void gate_refused(struct conn *c, const char *fmt, ...)
{
    struct audit once = {0};
    struct gate *g = c->s->o.gate;
    char reason[256];
    if (c->peer->audited)
        return;
    c->peer->audited = true;
    if (g)
        g->refused++;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(reason, sizeof reason, fmt, ap);
    va_end(ap);
    audit_refusal(g ? &g->audit : &once, clock_ms(), peer_addr_text(&c->peer->addr), reason);
}

/* --- addresses */

static struct address *address_of(struct gate *g, const uint8_t of[16])
{
    struct address *a;
    uint8_t ip[16] = {0};
    memcpy(ip, of, addr_is_v4(of) ? 16 : 8);
    HASH_FIND(hh, g->addresses, ip, 16, a);
    if (a)
        return a;
    a = calloc(1, sizeof *a);
    if (!a)
        abort(); /* small and of fixed size */
    memcpy(a->ip, ip, 16);
    HASH_ADD(hh, g->addresses, ip, 16, a);
    return a;
}

/* Count c from now on as one that has yet to authenticate, or no longer. */
static void count_unauthenticated(struct conn *c, bool yes)
{
    struct gate *g = c->s->o.gate;
    if (c->peer->unauthenticated == yes)
        return;
    c->peer->unauthenticated = yes;
    struct address *a = address_of(g, c->peer->addr.ip);
    if (yes) {
        g->unauthenticated++;
        a->unauthenticated++;
        c->peer->c = c;
        DL_APPEND(g->strangers, c->peer);
    } else {
        DL_DELETE(g->strangers, c->peer);
        g->unauthenticated--;
        a->unauthenticated--;
        server_accept_waiting(c->s);
    }
}

bool gate_has_room(const struct server *s)
{
    return !s->o.gate || s->o.gate->unauthenticated < s->o.gate->o.max_unauthenticated;
}

/* --- while all places are taken */

#define SILENT_MS 250 /* a client sends its first request at once */
#define SLOW_MS 1000

static bool is_silent(const struct conn *c)
{
    return !c->front && !c->tls;
}

static int64_t age_ms(const struct conn *c)
{
    return (int64_t)uv_now(c->s->loop) - c->since_ms;
}

static int64_t hurried_ms(const struct conn *c)
{
    const int64_t most = is_silent(c) ? SILENT_MS : SLOW_MS;
    return most < gate_auth_timeout_ms(c) ? most : gate_auth_timeout_ms(c);
}

void gate_make_haste(struct server *s)
{
    struct gate_peer *p, *first = NULL;
    if (!s->o.gate || gate_has_room(s))
        return;
    DL_FOREACH (s->o.gate->strangers, p) {
        if (p->c->timer_kind != TIMER_AUTH) /* it has its last words already */
            continue;
        first = first ? first : p;
        if (is_silent(p->c)) {
            first = p;
            break;
        }
    }
    if (!first || first->hurried)
        return;
    first->hurried = true;
    const int64_t left = hurried_ms(first->c) - age_ms(first->c);
    conn_set_timer(first->c, TIMER_AUTH, left > 0 ? left : 0);
}

int64_t gate_time_left_ms(struct conn *c)
{
    struct gate_peer *p = c->peer;
    if (!p->hurried)
        return 0;
    const int64_t most = gate_has_room(c->s) ? gate_auth_timeout_ms(c) : hurried_ms(c), left = most - age_ms(c);
    p->hurried = !gate_has_room(c->s);
    return left;
}

/* No denial: the network may have delayed the peer's request. Who tries again may be in time. */
void gate_too_late(struct conn *c)
{
    const long long ms = (long long)(c->peer->hurried ? hurried_ms(c) : gate_auth_timeout_ms(c));
    gate_refused(c, "not authenticated within %lld ms", ms);
    reply_error(&c->reply, "TIMEOUT not authenticated within %lld ms", ms);
    count_unauthenticated(c, false); /* its place is free before it has taken its last words */
}

/* --- shares */

/* No address beyond loopback takes more than its share of connections, or of the places of those yet to
 * authenticate. */
static const char *too_many(struct conn *c, const struct address *a)
{
    const struct gate *g = c->s->o.gate;
    if (peer_addr_is_loopback(&c->peer->addr))
        return NULL;
    if (g->o.max_per_address > 0 && a->all > g->o.max_per_address) {
        gate_refused(c, "more than %zu connections of this address", g->o.max_per_address);
        return "LIMIT too many connections of this address";
    }
    if (a->unauthenticated > g->o.max_unauthenticated / 2) {
        gate_refused(c, "more than %zu connections of this address have yet to authenticate",
                     g->o.max_unauthenticated / 2);
        return "LIMIT too many connections of this address have yet to authenticate";
    }
    return NULL;
}

const char *gate_peer_host(const struct conn *c)
{
    return peer_addr_host(&c->peer->addr);
}

const char *gate_peer_text(const struct conn *c)
{
    return c->peer ? peer_addr_text(&c->peer->addr) : "?"; /* a connection without a socket (tests/fuzz) */
}

/* Whoever finds our proof wrong does not send its own. */
static void left_unconvinced(struct conn *c)
{
    char name[AUTH_PRINCIPAL_MAX + 1];
    if (c->peer->wants[0] && !c->peer->by_token && (c->end == END_OF_FILE || c->end == END_RESET))
        gate_refused(c,
                     "it asked as principal '%s', saw our proof and left: its token is another one than ours, or its "
                     "connection broke",
                     gate_printable(c->peer->wants, name));
}

void gate_leave(struct conn *c)
{
    struct gate_peer *p = c->peer;
    struct gate *g = c->s->o.gate;
    if (!p)
        return;
    left_unconvinced(c);
    if (g) {
        count_unauthenticated(c, false);
        struct address *a = address_of(g, p->addr.ip);
        if (--a->all == 0) {
            HASH_DEL(g->addresses, a);
            free(a);
        }
    }
    explicit_bzero(p, sizeof *p);
    free(p);
    c->peer = NULL;
}

/* --- coming in */

void gate_raise(struct conn *c, const char *name)
{
    struct gate *g = c->s->o.gate;
    const char *kept = tokens_name(g->tokens, name);
    if (!kept)
        abort(); /* small and of fixed size */
    bool first = c->trust == TRUST_NONE;
    c->trust = TRUST_FULL;
    c->principal = kept;
    c->peer->by_token = true;
    g->authenticated++;
    if (first)
        conn_trusted(c);
    if (g->o.own_spaces && spaces_use(c, kept, NULL) < 0)
        abort(); /* small and of fixed size */
    count_unauthenticated(c, false);
}

static const char *trust(struct conn *c, enum trust level, const char *principal)
{
    c->trust = level;
    c->principal = principal;
    return NULL;
}

static const char *must_authenticate(struct conn *c)
{
    c->trust = TRUST_NONE;
    count_unauthenticated(c, true);
    return NULL;
}

/* A peer on this host. */
static const char *admit_local(struct conn *c, uid_t uid)
{
    const struct gate *g = c->s->o.gate;
    const bool tokens = g && gate_has_tokens(g);
    const uid_t own = geteuid();
    if (uid == own && (!tokens || g->o.trust_local))
        return trust(c, TRUST_FULL, g ? gate_own_principal(g) : "local");
    if (tokens && (uid == own || !g->o.own_uid_only))
        return must_authenticate(c);
    gate_refused(c, "uid %u is not %u, the only one that may use this server from this host", (unsigned)uid,
                 (unsigned)own);
    return "NOPERM this server takes local connections of its own user only";
}

/* A peer on another host. */
static const char *admit_remote(struct conn *c)
{
    const struct gate *g = c->s->o.gate;
    const char *members = c->s->members;
    if (members && peer_addr_in_list(&c->peer->addr, members))
        return trust(c, TRUST_STORE, "member");
    if (g && gate_has_tokens(g))
        return must_authenticate(c);
    if (!g && !members)
        return trust(c, TRUST_FULL, "anyone");
    if (members) {
        gate_refused(c, "the address belongs to no member of the job");
        return "NOPERM this server takes connections of the members of its job only";
    }
    gate_refused(c, "no token file, so peers on other hosts cannot be distinguished");
    return "NOPERM this server has no token file, so it takes connections of its own host only";
}

static const char *admit(struct conn *c)
{
    const struct gate *g = c->s->o.gate;
    uid_t uid;
    int fd;
    struct err e;
    if (g ? g->o.insecure : !c->s->o.same_uid_only)
        return trust(c, TRUST_FULL, "anyone");
    if (g && gate_has_tokens(g) && !g->o.own_uid_only && !g->o.trust_local && !c->s->members)
        return must_authenticate(c); /* whoever it is: no need to ask the kernel */
    if (uv_fileno((uv_handle_t *)&c->tcp, &fd) < 0)
        return "ERR the connection is broken";
    int rc = peer_uid(&c->s->uid_asker, fd, &uid, &e);
    if (rc == -EREMOTE)
        return admit_remote(c);
    if (rc == 0)
        return admit_local(c, uid);
    if (g && gate_has_tokens(g) && !g->o.own_uid_only)
        return must_authenticate(c);
    gate_refused(c, "%s", e.text);
    return "NOPERM this server takes local connections of its own user only";
}

const char *gate_admit(struct conn *c)
{
    struct gate *g = c->s->o.gate;
    c->peer = calloc(1, sizeof *c->peer);
    if (!c->peer)
        abort(); /* small and of fixed size */
    peer_addr_read(&c->tcp, &c->peer->addr);
    struct address *a = g ? address_of(g, c->peer->addr.ip) : NULL;
    if (a)
        a->all++;
    if (c->s->clients > c->s->o.max_clients)
        return "ERR max number of clients reached";
    const char *no = admit(c);
    return no || !a ? no : too_many(c, a);
}
