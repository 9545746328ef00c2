/* Decides which connections are admitted, and what they may do (gate.h). */
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
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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
        rc = -ENOENT; /* fail now rather than at the first client */
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
    struct source *a, *next;
    HASH_ITER (hh, g->sources, a, next) {
        HASH_DEL(g->sources, a);
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
    const struct principal *p =
        gate_has_tokens(g) ? tokens_principal(g->tokens, tokens_at(g->tokens, 0)->principal) : NULL;
    return p ? p->name : "local";
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

/* --- sources */

/* Find the source, or make it. NULL: no memory. */
static struct source *source_of(struct gate *g, const uint8_t key[16])
{
    struct source *a;
    HASH_FIND(hh, g->sources, key, 16, a);
    if (a)
        return a;
    a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    memcpy(a->key, key, 16);
    HASH_ADD(hh, g->sources, key, 16, a);
    if (a->hh.tbl)
        return a;
    free(a);
    return NULL;
}

static struct source *address_of(struct gate *g, const struct peer_addr *of)
{
    uint8_t key[16] = {0};
    memcpy(key, of->ip, addr_is_v4(of->ip) ? 16 : 8);
    return source_of(g, key);
}

/* A source for a user. Its key begins with ff, like no address of a peer: that is multicast. */
static struct source *user_of(struct gate *g, uid_t uid)
{
    uint8_t key[16] = {0xff};
    memcpy(key + 8, &uid, sizeof uid);
    return source_of(g, key);
}

static void leave_source(struct gate *g, struct source *a)
{
    if (a->all > 0 || a->unauthenticated > 0)
        return;
    HASH_DEL(g->sources, a);
    free(a);
}

/* --- strangers: those who have yet to authenticate */

/* At most half of all connections. */
static size_t places(const struct server *s)
{
    const size_t half = s->o.max_clients / 2 + 1, most = s->o.gate->o.max_unauthenticated;
    return most < half ? most : half;
}

/* The source of a connection. Only when places are scarce is the kernel asked for the user of a connection within
 * this host. */
static struct source *where_from(struct conn *c)
{
    struct gate *g = c->s->o.gate;
    struct source *user = NULL;
    uid_t uid;
    int fd;
    if (g->unauthenticated >= places(c->s) / 4 && peer_addr_is_loopback(&c->peer->addr) &&
        uv_fileno((uv_handle_t *)&c->tcp, &fd) == 0 && peer_uid(&c->s->uid_asker, fd, &uid, NULL) == 0)
        user = user_of(g, uid);
    return user ? user : c->peer->address;
}

static void become_stranger(struct conn *c)
{
    struct gate *g = c->s->o.gate;
    struct gate_peer *p = c->peer;
    p->from = where_from(c);
    p->from->unauthenticated++;
    p->unauthenticated = true;
    p->c = c;
    g->unauthenticated++;
    DL_APPEND(g->strangers, p);
}

static void be_no_stranger(struct conn *c)
{
    struct gate *g = c->s->o.gate;
    struct gate_peer *p = c->peer;
    if (!p->unauthenticated)
        return;
    p->unauthenticated = false;
    DL_DELETE(g->strangers, p);
    g->unauthenticated--;
    p->from->unauthenticated--;
    leave_source(g, p->from);
}

/* --- while all places are taken */

#define GREEDY_MS 250 /* ms for a stranger whose source holds more than half of all places */
#define SLOW_MS 1000

/* Has the connection sent nothing, not even bytes that are still to be read? */
static bool is_silent(const struct conn *c)
{
    int fd, n = 0;
    return !c->front && !c->tls && uv_fileno((const uv_handle_t *)&c->tcp, &fd) == 0 && ioctl(fd, FIONREAD, &n) == 0 &&
           n == 0;
}

static bool is_greedy(const struct conn *c)
{
    return c->peer->from->unauthenticated > places(c->s) / 2;
}

static int64_t age_ms(const struct conn *c)
{
    return (int64_t)uv_now(c->s->loop) - c->since_ms;
}

static int64_t hurried_ms(const struct conn *c)
{
    const int64_t most = is_silent(c) ? 0 : is_greedy(c) ? GREEDY_MS : SLOW_MS;
    return most < gate_auth_timeout_ms(c) ? most : gate_auth_timeout_ms(c);
}

/* Find the stranger to close first. Among those that have sent nothing, the oldest of a greedy source, else the
 * oldest. If all have sent something, the oldest of a greedy source, else the oldest. NULL: there is none, or all
 * are being closed. */
static struct conn *find_first(const struct gate *g, size_t half)
{
    enum { GREEDY_SILENT, SILENT, GREEDY, ANY };
    struct conn *best[ANY + 1] = {NULL};
    struct gate_peer *p;
    DL_FOREACH (g->strangers, p) {
        const bool greedy = p->from->unauthenticated > half;
        if ((!greedy && best[SILENT]) || p->c->timer_kind != TIMER_AUTH)
            continue;
        const int rank = is_silent(p->c) ? (greedy ? GREEDY_SILENT : SILENT) : greedy ? GREEDY : ANY;
        best[rank] = best[rank] ? best[rank] : p->c;
        if (rank == GREEDY_SILENT)
            break;
    }
    int i = 0;
    while (i < ANY && !best[i])
        i++;
    return best[i];
}

static bool is_full(const struct server *s)
{
    return s->o.gate && (s->o.gate->unauthenticated >= places(s) || s->clients >= s->o.max_clients);
}

bool gate_make_room(struct server *s)
{
    struct conn *first = is_full(s) ? find_first(s->o.gate, places(s) / 2) : NULL;
    if (!first)
        return !s->o.gate || s->o.gate->unauthenticated < places(s);
    const int64_t left = hurried_ms(first) - age_ms(first);
    first->peer->hurried = true;
    if (left > 0) {
        conn_set_timer(first, TIMER_AUTH, left);
        return s->o.gate->unauthenticated < places(s);
    }
    gate_too_late(first);
    conn_say_last_words(first);
    conn_flush(first);
    return true;
}

int64_t gate_time_left_ms(struct conn *c)
{
    struct gate_peer *p = c->peer;
    if (!p->hurried)
        return 0;
    const int64_t most = is_full(c->s) ? hurried_ms(c) : gate_auth_timeout_ms(c), left = most - age_ms(c);
    p->hurried = is_full(c->s);
    return left;
}

/* A stranger has not authenticated in time. This is not a refusal: the network may have delayed its request, and it
 * may try again. */
void gate_too_late(struct conn *c)
{
    const bool early = c->peer->hurried && age_ms(c) < gate_auth_timeout_ms(c);
    const long long ms = (long long)(early ? age_ms(c) : gate_auth_timeout_ms(c));
    const char *why = early ? ", and others wait for a place" : "";
    gate_refused(c, "not authenticated within %lld ms%s", ms, why);
    reply_error(&c->reply, "TIMEOUT not authenticated within %lld ms%s", ms, why);
    be_no_stranger(c); /* frees its place before its last words are written */
}

/* Limit connections per address; loopback is exempt. */
static const char *too_many(struct conn *c)
{
    const struct gate *g = c->s->o.gate;
    if (peer_addr_is_loopback(&c->peer->addr) || g->o.max_per_address == 0 ||
        c->peer->address->all <= g->o.max_per_address)
        return NULL;
    gate_refused(c, "more than %zu connections of this address", g->o.max_per_address);
    return "LIMIT too many connections of this address";
}

const char *gate_peer_host(const struct conn *c)
{
    return peer_addr_host(&c->peer->addr);
}

const char *gate_peer_text(const struct conn *c)
{
    return c->peer ? peer_addr_text(&c->peer->addr) : "?"; /* a connection without a socket (tests/fuzz) */
}

/* A peer that got our proof closed without sending its own: most likely it found ours wrong. */
static void left_unconvinced(struct conn *c)
{
    const struct gate *g = c->s->o.gate;
    char name[AUTH_PRINCIPAL_MAX + 1];
    if (!c->peer->wants[0] || c->peer->by_token || (c->end != END_OF_FILE && c->end != END_RESET))
        return;
    if (g && g->o.stranger)
        g->o.stranger(g->o.arg, peer_addr_host(&c->peer->addr));
    else
        gate_refused(c,
                     "it asked as principal '%s', saw our proof and left: its token is another one than ours, or its "
                     "connection broke",
                     gate_printable(c->peer->wants, name));
}

void gate_count_buffers(struct conn *c, size_t bytes)
{
    if (c->peer && c->peer->of)
        c->peer->of->buffer_bytes += bytes - c->charged;
}

size_t gate_buffers(const struct conn *c)
{
    return c->peer && c->peer->of ? c->peer->of->buffer_bytes : c->charged;
}

static void leave_principal(struct conn *c)
{
    struct principal *p = c->peer->of;
    if (!p)
        return;
    p->connections--;
    p->buffer_bytes -= c->charged;
    c->peer->of = NULL;
}

void gate_leave(struct conn *c)
{
    struct gate_peer *p = c->peer;
    struct gate *g = c->s->o.gate;
    if (!p)
        return;
    left_unconvinced(c);
    if (g) {
        be_no_stranger(c);
        leave_principal(c);
        p->address->all--;
        leave_source(g, p->address);
    }
    explicit_bzero(p, sizeof *p);
    free(p);
    c->peer = NULL;
    server_accept_waiting(c->s);
}

/* --- coming in */

/* Connections that one principal may have. */
static size_t share_of_principal(const struct server *s)
{
    const struct gate *g = s->o.gate;
    return g->o.max_per_principal ? g->o.max_per_principal : gate_fair_share(s, s->o.max_clients);
}

size_t gate_fair_share(const struct server *s, size_t all)
{
    return s->o.gate && tokens_count(s->o.gate->tokens) > 1 ? all / 2 : all;
}

static bool join_principal(struct conn *c, struct principal *p)
{
    if (c->peer->of == p)
        return true;
    if (p->connections >= share_of_principal(c->s)) {
        gate_refused(c, "principal '%s' has %zu connections, the most it may have", p->name, p->connections);
        reply_error(&c->reply,
                    "LIMIT principal '%s' has %zu connections, the most it may have (--max-clients-per-principal)",
                    p->name, p->connections);
        c->last_words = true;
        return false;
    }
    leave_principal(c);
    c->peer->of = p;
    p->connections++;
    p->buffer_bytes += c->charged;
    return true;
}

bool gate_raise(struct conn *c, const char *name)
{
    struct gate *g = c->s->o.gate;
    struct principal *p = tokens_principal(g->tokens, name);
    if (p && !join_principal(c, p))
        return false;
    if (!p || (g->o.own_spaces && spaces_use(c, p->name, NULL) < 0)) {
        reply_error(&c->reply, "LIMIT no memory for a connection of principal '%s'", name);
        c->last_words = true;
        return false;
    }
    bool first = c->trust == TRUST_NONE;
    c->trust = TRUST_FULL;
    c->principal = p->name;
    c->peer->by_token = true;
    g->authenticated++;
    if (first)
        conn_trusted(c);
    be_no_stranger(c);
    server_accept_waiting(c->s);
    return true;
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
    become_stranger(c);
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
    const struct peer_list *members = c->s->members;
    if (peer_list_has(members, &c->peer->addr))
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

/* Has the peer gone before the kernel could be asked about it? Then this is not a refusal. (If it is still there, it
 * is, for example, in another network namespace.) */
static bool has_left(int fd)
{
    struct tcp_info info;
    socklen_t n = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 && info.tcpi_state != TCP_ESTABLISHED;
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
        return must_authenticate(c); /* the answer is the same for every user, so do not ask the kernel */
    if (uv_fileno((uv_handle_t *)&c->tcp, &fd) < 0)
        return "ERR the connection is broken";
    int rc = peer_uid(&c->s->uid_asker, fd, &uid, &e);
    if (rc == -EREMOTE)
        return admit_remote(c);
    if (rc == 0)
        return admit_local(c, uid);
    if (g && gate_has_tokens(g) && !g->o.own_uid_only)
        return must_authenticate(c);
    if (has_left(fd))
        log_debug("audit", "peer=%s: %s", peer_addr_text(&c->peer->addr), e.text);
    else
        gate_refused(c, "%s", e.text);
    return "NOPERM this server takes local connections of its own user only";
}

/* Set up c->peer. False: no memory. */
static bool know_peer(struct conn *c)
{
    struct gate *g = c->s->o.gate;
    struct gate_peer *p = calloc(1, sizeof *p);
    if (p)
        peer_addr_read(&c->tcp, &p->addr);
    if (p && g && !(p->address = address_of(g, &p->addr))) {
        free(p);
        p = NULL;
    }
    if (p && g)
        p->address->all++;
    c->peer = p;
    return p;
}

const char *gate_admit(struct conn *c)
{
    struct gate *g = c->s->o.gate;
    if (!know_peer(c))
        return "ERR no memory for another client";
    if (c->s->clients > c->s->o.max_clients)
        return "ERR max number of clients reached";
    const char *no = admit(c);
    return no || !g ? no : too_many(c);
}
