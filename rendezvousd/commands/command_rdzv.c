/* The RDZV.* commands: reference/protocol.md says what each verb takes and answers. command_rdzv_party.c:
 * connections as parties. */
#include "rendezvousd/commands/command_rdzv.h"
#include "common/auth/auth.h"
#include "common/base/err.h"
#include "common/rdzv/homes/rdzv_claim.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "rendezvousd/commands/command_impl.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/net/server_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MAX_MS 3600000
#define ASK_MIN_MS 100
#define ASK_MAX_MS 60000
#define FIELDS_MAX 65536 /* bytes of a record: it is searched once for each possible field */

/* --- replies */

void rdzv_say_error_(struct conn *c, int rc, const struct err *e)
{
    if (rc == -EREMOTE) {
        say_standby(c);
        return;
    }
    static const struct {
        int rc;
        const char *word;
    } words[] = {{ERR_FENCED, "FENCED"}, {ERR_REFUSED, "REFUSED"}, {ERR_MISMATCH, "DIFFERS"},
                 {-ENOENT, "NOJOB"},     {-EDQUOT, "LIMIT"},       {-ENOMEM, "OOM"},
                 {-EAGAIN, "BUSY"},      {-ESTALE, "NOTERM"},      {-EBUSY, "FEW"}};
    const char *word = "ERR";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].rc == rc)
            word = words[i].word;
    reply_error(&c->reply, "%s %s", word, e->text);
}

static void say_done(struct conn *c, int rc, const struct err *e)
{
    if (rc < 0)
        rdzv_say_error_(c, rc, e);
    else
        reply_status(&c->reply, "OK");
}

/* --- arguments */

/* False: the error is in the reply. */
static bool copy_name(struct conn *c, const struct request_arg *a, const char *what, size_t least, size_t most,
                      char *ret)
{
    if (a->n < least || a->n > most || memchr(a->p, 0, a->n)) {
        reply_error(&c->reply, "ERR %s of %zu bytes: expected %zu to %zu, none of them 0", what, a->n, least, most);
        return false;
    }
    memcpy(ret, a->p, a->n);
    ret[a->n] = 0;
    return true;
}

/* Copy run id and, unless NULL, node id; false: the error is in the reply. */
static bool copy_names(struct conn *c, const struct request *rq, char *run, char *node)
{
    return copy_name(c, &rq->argv[1], "run id", 0, JOBS_RUN_MAX, run) &&
           (!node || copy_name(c, &rq->argv[2], "node id", 1, RDZV_ID_MAX, node));
}

/* May this client use the rendezvous? Members of a round may use only the keys of its bootstrap store, which has the
 * same port. */
static bool admit(struct conn *c)
{
    if (!c->s->jobs)
        reply_error(&c->reply, "ERR this server hosts no rendezvous");
    else if (c->trust != TRUST_FULL)
        reply_error(&c->reply, "NOPERM the rendezvous of this server takes those that have authenticated");
    else
        return true;
    return false;
}

static bool read_names(struct conn *c, const struct request *rq, char *run, char *node)
{
    return admit(c) && copy_names(c, rq, run, node);
}

static bool read_number(struct conn *c, const struct request_arg *a, const char *what, int64_t max, int64_t *ret)
{
    if (request_i64(a->p, a->n, ret) && *ret >= 0 && *ret <= max)
        return true;
    reply_error(&c->reply, "ERR %s '%.*s': expected a number from 0 to %lld", what, a->n < 64 ? (int)a->n : 64, a->p,
                (long long)max);
    return false;
}

/* Join the arguments from `first` on with single spaces. */
static int join_fields(const struct request *rq, size_t first, struct buf *out, struct err *e)
{
    out->max = FIELDS_MAX;
    for (size_t i = first; i < rq->argc; i++) {
        int rc = i > first ? buf_addstr(out, " ") : 0;
        rc = rc < 0 ? rc : buf_add(out, rq->argv[i].p, rq->argv[i].n);
        if (rc == -E2BIG)
            return err_set(e, -EINVAL, "a record of more than %d bytes", FIELDS_MAX);
        if (rc < 0)
            return err_set(e, rc, "no memory for a record");
    }
    return 0;
}

static int decode_event(const char *fields, size_t n, enum rdzv_event_kind kind, const char *node,
                        struct rdzv_event *ret, struct err *e)
{
    struct buf b = {0};
    char word[16];
    int rc = rdzv_field_find(fields, n, "kind", word, sizeof word);
    if (rc == 0)
        rc = rdzv_field_text(&b, "kind", rdzv_event_name(kind));
    else if (rc == 1 && strcmp(word, rdzv_event_name(kind)) != 0)
        rc = -EINVAL;
    if (rc < 0)
        err_set(e, -EINVAL, "kind=: expected %s, or none at all", rdzv_event_name(kind));
    if (rc >= 0 && n) {
        rc = b.len ? buf_addstr(&b, " ") : 0;
        rc = rc < 0 ? rc : buf_add(&b, fields, n);
    }
    if (rc >= 0)
        rc = rdzv_event_decode(b.data, b.len, ret, e);
    buf_free(&b);
    strcpy(ret->node, node);
    return rc;
}

/* --- verbs */

static int join(struct conn *c, const char *run, const char *node, const struct buf *fields, struct jobs_joined *ret,
                struct err *e)
{
    struct rdzv_event ev;
    struct rdzv_config settings;
    struct jobs_party *p = rdzv_party_of_(c, e);
    if (!p)
        return -ENOMEM;
    jobs_got(p, (uint64_t)rdzv_field_number(fields->data, fields->len, "got", 0));
    rdzv_config_defaults(&settings); /* agents send all settings; a person, only the ones that matter */
    TRY(rdzv_config_decode(fields->data, fields->len, &settings, e));
    TRY(decode_event(fields->data, fields->len, RDZV_JOIN, node, &ev, e));
    return jobs_join(p, run, &ev, &settings, ret, e);
}

static int joined_record(const struct jobs_joined *j, struct buf *out)
{
    TRY(rdzv_field_text(out, "instance", j->instance));
    TRY(rdzv_field_int(out, "epoch", (long long)j->epoch));
    TRY(rdzv_field_int(out, "seq", (long long)j->seq));
    TRY(rdzv_field_int(out, "v", RDZV_PROTOCOL));
    TRY(rdzv_field_int(out, "first_round", (long long)j->first_round));
    if (j->few)
        TRY(rdzv_field_int(out, "few", 1));
    return j->beside ? rdzv_field_text(out, "serves", j->beside) : 0;
}

/* Which state it keeps, that a node with a list of daemons knows two states from one. "": its own. */
static int add_state(const struct conn *c, struct buf *out)
{
    return rdzv_field_text(out, "state_id", c->s->standby ? c->s->standby->state : "");
}

void command_rdzv_join(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1], node[RDZV_ID_MAX + 1];
    struct jobs_joined joined;
    struct buf fields = {0}, answer = {0};
    struct err e = {0};
    if (!read_names(c, rq, run, node))
        return;
    int rc = join_fields(rq, 3, &fields, &e);
    if (rc == 0)
        rc = join(c, run, node, &fields, &joined, &e);
    buf_free(&fields);
    if (rc < 0) {
        rdzv_say_error_(c, rc, &e);
        return;
    }
    rc = joined_record(&joined, &answer);
    if (rc == 0 && !jobs_is_embedded(c->s->jobs))
        rc = add_state(c, &answer);
    rdzv_say_record_(c, rc, &answer);
}

/* TERM run node epoch seen round: names the leader that the node dials; first request on a connection. */
void command_rdzv_term(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1], node[RDZV_ID_MAX + 1], epoch[RDZV_EPOCH_MAX + 1], seen[RDZV_EPOCH_MAX + 1];
    struct err e = {0};
    int64_t round;
    if (!read_names(c, rq, run, node) || !copy_name(c, &rq->argv[3], "epoch", 1, RDZV_EPOCH_MAX, epoch) ||
        !copy_name(c, &rq->argv[4], "highest epoch", 0, RDZV_EPOCH_MAX, seen) ||
        !read_number(c, &rq->argv[5], "round", INT64_MAX, &round))
        return;
    struct jobs_party *p = rdzv_party_of_(c, &e);
    const int rc = p ? jobs_term(p, run, epoch, seen, (uint64_t)round, &e) : -ENOMEM;
    const char *instance = rc < 0 ? "" : jobs_term_instance(p);
    char answer[64];
    snprintf(answer, sizeof answer, "OK%s%s", instance[0] ? " " : "", instance);
    if (rc < 0)
        rdzv_say_error_(c, rc, &e);
    else
        reply_status(&c->reply, answer);
}

void command_rdzv_next(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1], node[RDZV_ID_MAX + 1];
    int64_t seq, timeout_ms, from = 0, got = 0;
    struct err e = {0};
    struct jobs_party *p;
    const size_t left = rq->argc - 5;
    const bool pages = left > 0 && request_arg_is(&rq->argv[5], "from");
    if (left % 2 || left > (pages ? 4 : 2) || (left > 2 * pages && !request_arg_is(&rq->argv[5 + 2 * pages], "got"))) {
        reply_error(&c->reply, "ERR expected RDZV.NEXT run node seq timeout [FROM group-rank] [GOT answers]");
        return;
    }
    if (!read_names(c, rq, run, node) || !read_number(c, &rq->argv[3], "sequence number", INT64_MAX, &seq) ||
        !read_number(c, &rq->argv[4], "timeout", TIMEOUT_MAX_MS, &timeout_ms) ||
        (pages && !read_number(c, &rq->argv[6], "group rank", RDZV_NODES_MAX, &from)) ||
        (left > 2 * pages && !read_number(c, &rq->argv[6 + 2 * pages], "answers", INT64_MAX, &got)))
        return;
    if (!(p = rdzv_party_of_(c, &e))) {
        rdzv_say_error_(c, -ENOMEM, &e);
        return;
    }
    jobs_got(p, (uint64_t)got);
    size_t before = c->reply.out.len;
    int rc = jobs_next(p, run, node, (uint64_t)seq, (int)from, &e);
    if (rc < 0)
        rdzv_say_error_(c, rc, &e);
    else if (c->reply.out.len == before && !c->reply.failed)
        conn_block(c, &rdzv_next_ops_, NULL, jobs_next_hurries(p) ? 1 : timeout_ms);
}

/* A daemon is no host of a list, and says so: who asks may have typed a list of daemons. */
static void say_daemon(struct conn *c)
{
    struct buf out = {0};
    int rc = rdzv_field_int(&out, "daemon", 1);
    rc = rc < 0 ? rc : rdzv_field_int(&out, "leads", server_leads(c->s));
    rc = rc < 0 ? rc : add_state(c, &out);
    rdzv_say_record_(c, rc, &out);
}

/* SEATS run node: which seats a host of a list hears. */
void command_rdzv_seats(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1], node[RDZV_ID_MAX + 1];
    struct jobs_seats seats;
    struct buf out = {0};
    struct err e = {0};
    if (!read_names(c, rq, run, node))
        return;
    if (!jobs_is_embedded(c->s->jobs)) {
        say_daemon(c);
        return;
    }
    int rc = jobs_seats(c->s->jobs, run, node, &seats, &e);
    if (rc < 0) {
        rdzv_say_error_(c, rc, &e);
        return;
    }
    rc = rdzv_field_int(&out, "heard", seats.heard);
    rc = rc < 0 ? rc : rdzv_field_int(&out, "round", (long long)seats.round);
    rc = rc < 0 || !seats.over ? rc : rdzv_field_int(&out, "over", 1);
    rdzv_say_record_(c, rc, &out);
}

static void claim(struct conn *c, const struct request *rq, enum rdzv_event_kind kind)
{
    char run[JOBS_RUN_MAX + 1], node[RDZV_ID_MAX + 1];
    struct rdzv_event ev;
    struct buf fields = {0};
    struct err e = {0};
    int64_t round = 0;
    if (!read_names(c, rq, run, node) ||
        (kind != RDZV_LEAVE && !read_number(c, &rq->argv[3], "round", INT64_MAX, &round)))
        return;
    struct jobs_party *p = rdzv_party_of_(c, &e);
    int rc = p ? 0 : -ENOMEM;
    if (rc == 0 && kind != RDZV_DONE)
        rc = join_fields(rq, kind == RDZV_FAIL ? 4 : 3, &fields, &e);
    if (rc == 0)
        rc = decode_event(fields.data, fields.len, kind, node, &ev, &e);
    ev.round = (uint64_t)round;
    if (rc == 0)
        rc = jobs_claim(p, run, &ev, &e);
    buf_free(&fields);
    say_done(c, rc, &e);
}

void command_rdzv_fail(struct conn *c, const struct request *rq)
{
    claim(c, rq, RDZV_FAIL);
}

void command_rdzv_done(struct conn *c, const struct request *rq)
{
    claim(c, rq, RDZV_DONE);
}

void command_rdzv_leave(struct conn *c, const struct request *rq)
{
    claim(c, rq, RDZV_LEAVE);
}

void command_rdzv_drain(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1];
    struct err e = {0};
    if (read_names(c, rq, run, NULL))
        say_done(c, jobs_drain(c->s->jobs, c->principal ? c->principal : "", run, &e), &e);
}

void command_rdzv_stop(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1];
    const char *who = c->principal ? c->principal : "";
    struct err e = {0};
    if (read_names(c, rq, run, NULL))
        say_done(c, jobs_stop(c->s->jobs, who, run, who, &e), &e);
}

void command_rdzv_report(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1], node[RDZV_ID_MAX + 1];
    struct buf fields = {0};
    struct err e = {0};
    if (!read_names(c, rq, run, node))
        return;
    struct jobs_party *p = rdzv_party_of_(c, &e);
    int rc = p ? join_fields(rq, 3, &fields, &e) : -ENOMEM;
    if (rc == 0)
        rc = jobs_report(p, run, node, fields.data, fields.len, &e);
    buf_free(&fields);
    say_done(c, rc, &e);
}

void command_rdzv_postmortem(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1], node[RDZV_ID_MAX + 1];
    struct err e = {0};
    if (!read_names(c, rq, run, node))
        return;
    struct jobs_party *p = rdzv_party_of_(c, &e);
    const int rc = p ? jobs_postmortem(p, run, node, rq->argv[3].p, rq->argv[3].n, &e) : -ENOMEM;
    say_done(c, rc, &e);
}

void command_rdzv_answer(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1], node[RDZV_ID_MAX + 1];
    struct err e = {0};
    int64_t id;
    if (!read_names(c, rq, run, node) || !read_number(c, &rq->argv[3], "question", INT64_MAX, &id))
        return;
    struct jobs_party *p = rdzv_party_of_(c, &e);
    say_done(c, p ? jobs_answer(p, run, node, (uint64_t)id, rq->argv[4].p, rq->argv[4].n, &e) : -ENOMEM, &e);
}

/* ASK run what timeout [RANK rank] */
void command_rdzv_ask(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1];
    struct jobs_ask q = {.rank = -1};
    int64_t rank = -1;
    const bool stacks = request_arg_is(&rq->argv[2], "stacks"), logs = request_arg_is(&rq->argv[2], "logs");
    if ((!stacks && !logs) || rq->argc > 6 || rq->argc == 5 ||
        (rq->argc == 6 && !request_arg_is(&rq->argv[4], "rank"))) {
        reply_error(&c->reply, "ERR expected RDZV.ASK run stacks|logs timeout [RANK rank]");
        return;
    }
    if (!read_names(c, rq, run, NULL) || !read_number(c, &rq->argv[3], "timeout", ASK_MAX_MS, &q.ms) ||
        (rq->argc == 6 && !read_number(c, &rq->argv[5], "rank", INT32_MAX, &rank)))
        return;
    if (q.ms < ASK_MIN_MS) {
        reply_error(&c->reply, "ERR timeout %lld: expected %d to %d ms", (long long)q.ms, ASK_MIN_MS, ASK_MAX_MS);
        return;
    }
    q.what = stacks ? "stacks" : "logs";
    q.rank = (int)rank;
    rdzv_ask_(c, run, &q);
}

/* Add finished jobs from the history: to the answer about all jobs, or as the answer about a forgotten run. */
static int add_ended(struct conn *c, const char *principal, const char *run, struct buf *out)
{
    struct buf list = {0};
    const int n = c->s->o.ended(c->s->o.ended_arg, principal, run, &list);
    int rc = n < 0 ? n : n == 0 && run ? -ENOENT : 0;
    if (rc == 0 && out->len > 0)
        out->len--; /* the brace */
    if (rc == 0)
        rc = buf_printf(out, "%s\"ended\":%s}", run ? "{" : ",", list.data);
    buf_free(&list);
    return rc;
}

void command_rdzv_status(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1];
    const char *principal = c->principal ? c->principal : "";
    struct buf out = {0};
    struct err e = {0};
    int64_t first = 0;
    int rc;
    if (rq->argc > 4 || (rq->argc == 3 && !request_arg_is(&rq->argv[2], "brief")) ||
        (rq->argc == 4 && !request_arg_is(&rq->argv[2], "from"))) {
        reply_error(&c->reply, "ERR expected RDZV.STATUS [run [BRIEF | FROM node]]");
        return;
    }
    if (!admit(c) || (rq->argc > 1 && !copy_names(c, rq, run, NULL)) ||
        (rq->argc == 4 && !read_number(c, &rq->argv[3], "first node", INT32_MAX, &first)))
        return;
    if (rq->argc == 3)
        rc = jobs_status_brief(c->s->jobs, principal, run, &out, &e);
    else
        rc = jobs_status_from(c->s->jobs, principal, rq->argc > 1 ? run : NULL, (size_t)first, &out, &e);
    if (c->s->o.ended && ((rc == 0 && rq->argc == 1) || (rc == -ENOENT && rq->argc == 2)))
        rc = add_ended(c, principal, rq->argc == 1 ? NULL : run, &out);
    if (rc < 0) {
        buf_free(&out);
        rdzv_say_error_(c, rc, &e);
    } else {
        rdzv_say_record_(c, 0, &out);
    }
}

/* Requests of operators about everybody's jobs: LIST, DRAIN run [principal], EVICT run [principal]. */
void command_rdzv_admin(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1], principal[AUTH_PRINCIPAL_MAX + 1] = "";
    const char *who = c->principal ? c->principal : "", *of = NULL;
    const struct request_arg *verb = &rq->argv[1];
    const bool list = request_arg_is(verb, "list"), drains = request_arg_is(verb, "drain");
    struct buf out = {0};
    struct err e = {0};
    int rc;
    if (list ? rq->argc != 2 : (!drains && !request_arg_is(verb, "evict")) || rq->argc < 3 || rq->argc > 4) {
        reply_error(&c->reply, "ERR expected RDZV.ADMIN LIST, or DRAIN or EVICT run [principal]");
        return;
    }
    if (!admit(c))
        return;
    if (!gate_is_operator(c)) {
        gate_refused(c, "principal '%s' asked for '%.5s' of jobs, and is no operator", who, verb->p);
        reply_error(&c->reply, "NOPERM principal '%s' is no operator of this rendezvous (--operators)", who);
        return;
    }
    if (!list && !copy_name(c, &rq->argv[2], "run id", 0, JOBS_RUN_MAX, run))
        return;
    if (rq->argc == 4 && !copy_name(c, &rq->argv[3], "principal", 1, AUTH_PRINCIPAL_MAX, principal))
        return;
    of = rq->argc == 4 ? principal : NULL;
    if (list)
        rc = jobs_status_from(c->s->jobs, NULL, NULL, 0, &out, &e);
    else
        rc = drains ? jobs_drain(c->s->jobs, of, run, &e) : jobs_evict(c->s->jobs, of, run, who, &e);
    if (rc == 0 && list) {
        rdzv_say_record_(c, 0, &out);
        return;
    }
    buf_free(&out);
    say_done(c, rc, &e);
}

static void say_round(struct conn *c, int rc, const char *run, const char *node, int64_t round, const char *ok)
{
    if (rc == ERR_FENCED)
        reply_error(&c->reply, "FENCED this is not the bootstrap store of round %lld of run '%s'", (long long)round,
                    run);
    else if (rc < 0)
        reply_error(&c->reply, "REFUSED node '%s' is no member of round %lld", node, (long long)round);
    else
        reply_status(&c->reply, ok);
}

/* ALIVE: run id and node id are passed on unchanged; the bootstrap store knows which ones it expects. */
void command_rdzv_alive(struct conn *c, const struct request *rq)
{
    char run[JOBS_RUN_MAX + 1], node[RDZV_ID_MAX + 1];
    int64_t round;
    if (!c->s->o.alive) {
        reply_error(&c->reply, "ERR this server is no bootstrap store");
        return;
    }
    if (!copy_names(c, rq, run, node) || !read_number(c, &rq->argv[3], "round", INT64_MAX, &round))
        return;
    int rc = c->s->o.alive(c->s->o.alive_arg, run, node, (uint64_t)round);
    say_round(c, rc, run, node, round, rc > 0 ? "MAJORITY" : "ALIVE");
}

/* Pass on what a node of the round reports to group rank 0. */
static void tell(struct conn *c, const struct request *rq, int what)
{
    char run[JOBS_RUN_MAX + 1], node[RDZV_ID_MAX + 1], answer[SERVER_ANSWER_MAX] = "OK";
    int64_t round;
    if (!c->s->o.tell) {
        reply_error(&c->reply, "ERR this server is no bootstrap store");
        return;
    }
    if (!copy_names(c, rq, run, node) || !read_number(c, &rq->argv[3], "round", INT64_MAX, &round))
        return;
    const struct request_arg *text = &rq->argv[4];
    const struct server_tell t = {
        .what = what, .run = run, .node = node, .round = (uint64_t)round, .text = text->p, .n = text->n};
    const int rc = c->s->o.tell(c->s->o.tell_arg, &t, answer);
    say_round(c, rc, run, node, round, answer);
}

/* Which of its workers failed. */
void command_rdzv_failure(struct conn *c, const struct request *rq)
{
    tell(c, rq, SERVER_TELL_FAILURE);
}

/* What its workers' steps are made of. */
void command_rdzv_steps(struct conn *c, const struct request *rq)
{
    tell(c, rq, SERVER_TELL_STEPS);
}

/* QUIET: the node's workers have given no sign of life for long. */
void command_rdzv_quiet(struct conn *c, const struct request *rq)
{
    tell(c, rq, SERVER_TELL_QUIET);
}
