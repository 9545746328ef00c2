/* Authentication by token, beyond what address and uid prove; see gate.h. */
#include "common/base/err.h"
#include "common/base/log.h"
#include "rendezvousd/gate/tokens.h"
#include "rendezvousd/net/gate_impl.h"
#include "rendezvousd/net/server_impl.h"
#include <stdio.h>
#include <string.h>

#define WRONG "WRONGPASS invalid username-password pair or user is disabled."

int64_t gate_auth_timeout_ms(const struct conn *c)
{
    return c->s->o.gate->o.auth_timeout_ms;
}

bool gate_owns_space(const struct conn *c)
{
    return c->s->o.gate && c->s->o.gate->o.own_spaces && c->peer->by_token;
}

bool gate_is_operator(const struct conn *c)
{
    const char *list = c->s->o.gate ? c->s->o.gate->o.operators : NULL;
    const size_t n = c->principal ? strlen(c->principal) : 0;
    for (const char *p = list; p && *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == n && memcmp(p, c->principal, n) == 0)
            return true;
    return c->trust == TRUST_FULL && !list;
}

static bool principal_text(const struct request_arg *a, char ret[AUTH_PRINCIPAL_MAX + 1])
{
    if (a->n == 0 || a->n > AUTH_PRINCIPAL_MAX || memchr(a->p, 0, a->n))
        return false;
    memcpy(ret, a->p, a->n);
    ret[a->n] = 0;
    return true;
}

const char *gate_printable(const char *text, char ret[AUTH_PRINCIPAL_MAX + 1])
{
    size_t i = 0;
    for (; text[i] && i < AUTH_PRINCIPAL_MAX; i++)
        ret[i] = text[i];
    ret[i] = 0;
    for (i = 0; ret[i]; i++)
        if (ret[i] < '!' || ret[i] > '~')
            ret[i] = '?';
    return ret;
}

void gate_challenge(struct conn *c, const struct request_arg *principal, const struct request_arg *nonce)
{
    struct gate *g = c->s->o.gate;
    char name[AUTH_PRINCIPAL_MAX + 1], own_nonce[AUTH_HEX + 1], proof[AUTH_HEX + 1];
    struct err e;
    if (!g || !gate_has_tokens(g)) { /* whoever is here is trusted already */
        reply_status(&c->reply, "OK");
        return;
    }
    if (!principal_text(principal, name)) {
        reply_error(&c->reply, "ERR a principal has 1 to %d characters", AUTH_PRINCIPAL_MAX);
        return;
    }
    const struct auth_token *t = tokens_find(g->tokens, name, strlen(name));
    int rc = auth_server_challenge(&c->peer->challenge, t, name, nonce->p, nonce->n, g->instance, own_nonce, proof, &e);
    if (rc < 0) {
        reply_error(&c->reply, "ERR %s", e.text);
        return;
    }
    strcpy(c->peer->wants, name);
    reply_array(&c->reply, 3);
    reply_text(&c->reply, own_nonce);
    reply_text(&c->reply, proof);
    reply_text(&c->reply, g->instance);
}

static void wrong(struct conn *c, const char *how, const char *principal)
{
    char name[AUTH_PRINCIPAL_MAX + 1];
    gate_refused(c, "wrong %s for principal '%s'", how, gate_printable(principal, name));
    reply_error(&c->reply, WRONG);
    c->last_words = true;
}

void gate_prove(struct conn *c, const struct request_arg *proof)
{
    struct gate *g = c->s->o.gate;
    if (!g || !gate_has_tokens(g)) {
        reply_status(&c->reply, "OK");
        return;
    }
    if (!c->peer->wants[0]) {
        reply_error(&c->reply, "ERR STORE.PROVE without STORE.AUTH before it");
        return;
    }
    /* the token file may have been read again since the challenge */
    const struct auth_token *t = tokens_find(g->tokens, c->peer->wants, strlen(c->peer->wants));
    bool right = auth_server_check(&c->peer->challenge, proof->p, proof->n) && t;
    if (!right)
        wrong(c, "proof", c->peer->wants);
    else if (gate_raise(c, t->principal))
        reply_status(&c->reply, "OK");
    c->peer->wants[0] = 0;
}

/* Find the token. All are compared, so that the time taken reveals nothing. */
static const struct auth_token *match(const struct tokens *tokens, const struct request_arg *user,
                                      const struct request_arg *password)
{
    const struct auth_token *found = NULL;
    for (size_t i = 0; i < tokens_count(tokens); i++) {
        const struct auth_token *t = tokens_at(tokens, i);
        bool name = !user || auth_equal(t->principal, strlen(t->principal), user->p, user->n);
        if (auth_equal(t->secret, strlen(t->secret), password->p, password->n) && name)
            found = t;
    }
    return found;
}

bool gate_password(struct conn *c, const struct request_arg *user, const struct request_arg *password)
{
    struct gate *g = c->s->o.gate;
    char name[AUTH_PRINCIPAL_MAX + 1] = "?";
    if (!g || !gate_has_tokens(g)) {
        reply_error(&c->reply,
                    "ERR AUTH <password> called without any password configured for the default user. Are you "
                    "sure your configuration is correct?");
        return false;
    }
    if (!g->o.plain_auth) {
        gate_refused(c, "plain AUTH is off");
        reply_error(&c->reply,
                    "ERR plain AUTH is off, for it shows the secret to the network: use STORE.AUTH, or start the "
                    "server with --allow-plain-auth");
        return false;
    }
    const struct auth_token *t = match(g->tokens, user, password);
    if (t)
        return gate_raise(c, t->principal);
    if (user)
        principal_text(user, name);
    wrong(c, "password", name);
    return false;
}
