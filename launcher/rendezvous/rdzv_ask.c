/* Opens one blocking connection, proves the caller's identity and asks one question. See rdzv_ask.h. */
#include "launcher/rendezvous/rdzv_ask.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/auth/auth.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/job/slurm.h"
#include "common/net/tls_stream.h"
#include "common/rdzv/wire/rdzv_wire.h"

#define GREETING_MAX ((size_t)1 << 16) /* bytes of an answer of a server that has proved nothing */
#define ANSWER_MAX ((size_t)256 << 20)

int rdzv_ask_init(struct rdzv_ask *a, const char *endpoint, struct err *e)
{
    int port;
    resp_init(&a->conn, -1);
    TRY(home_parse_endpoint(endpoint, RDZV_PORT, a->host, &port, e));
    snprintf(a->port, sizeof a->port, "%d", port);
    return 0;
}

int rdzv_ask(struct rdzv_ask *a, int argc, const char *const *argv, redisReply **ret, struct err *e)
{
    size_t lens[6];
    redisReply *r;
    for (int i = 0; i < argc; i++)
        lens[i] = strlen(argv[i]);
    TRY(resp_append(&a->conn, argc, argv, lens, e));
    TRY(resp_exchange(&a->conn, 1, &r, clock_deadline(a->timeout_ms), e));
    if (r->type == REDIS_REPLY_ERROR) {
        int rc = err_set(e, ERR_REFUSED, "%s", rdzv_refusal(r->str));
        freeReplyObject(r);
        return rc;
    }
    *ret = r;
    return 0;
}

static bool is_text(const redisReply *r)
{
    return r->type == REDIS_REPLY_STRING;
}

static int prove(struct rdzv_ask *a, const struct auth_client *c, const redisReply *r, struct err *e)
{
    char proof[AUTH_HEX + 1];
    redisReply *ok;
    if (r->type == REDIS_REPLY_STATUS)
        return 0; /* no proof is asked for */
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 3 || !is_text(r->element[0]) || !is_text(r->element[1]) ||
        !is_text(r->element[2]))
        return err_set(e, ERR_CORRUPT, "the answer to STORE.AUTH is none");
    if (auth_client_answer(c, r->element[0]->str, (size_t)r->element[0]->len, r->element[1]->str,
                           (size_t)r->element[1]->len, r->element[2]->str, (size_t)r->element[2]->len, proof, e) < 0)
        return err_wrap(e, "name the secret that this job or server has (CRUN_TOKEN, or --token-file)");
    TRY(rdzv_ask(a, 2, (const char *const[]){"STORE.PROVE", proof}, &ok, e));
    freeReplyObject(ok);
    return 0;
}

static int authenticate(struct rdzv_ask *a, struct err *e)
{
    struct auth_tokens tokens;
    struct auth_client c;
    enum auth_origin origin;
    redisReply *r = NULL;
    TRY(auth_tokens_own(&tokens, a->token_file, &origin, e));
    int rc = auth_client_begin(&c, &tokens.v[0], e);
    auth_tokens_free(&tokens);
    if (rc == 0)
        rc = rdzv_ask(a, 3, (const char *const[]){"STORE.AUTH", c.token.principal, c.nonce}, &r, e);
    if (rc == 0) {
        rc = prove(a, &c, r, e);
        freeReplyObject(r);
    }
    auth_client_end(&c);
    return rc;
}

static int start_tls(struct rdzv_ask *a, struct err *e)
{
    struct tls_context *context;
    if (!a->tls && !a->ca)
        return 0;
    TRY(tls_context_client(&context, a->ca, NULL, NULL, e));
    int rc = resp_start_tls(&a->conn, context, a->host, clock_deadline(a->timeout_ms), e);
    tls_context_free(context);
    return rc;
}

int rdzv_ask_open(struct rdzv_ask *a, struct err *e)
{
    if (a->conn.fd >= 0)
        return 0;
    TRY(resp_dial(&a->conn, a->host, a->port, clock_deadline(a->timeout_ms), e));
    a->conn.max_reply = GREETING_MAX;
    int rc = start_tls(a, e);
    if (rc == 0)
        rc = authenticate(a, e);
    a->conn.max_reply = ANSWER_MAX;
    if (rc < 0)
        resp_hang_up(&a->conn);
    return rc;
}

void rdzv_ask_finish(struct rdzv_ask *a)
{
    resp_finish(&a->conn);
}
