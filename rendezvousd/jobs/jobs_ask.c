/* Asks the members of a round a question, for a principal that may drain the job. A member gets the question as the
 * answer to its NEXT instead of nil: it is not news, and nothing is decided or logged. Answers are written into one
 * JSON text as they come. See jobs.h. */
#include "common/base/err.h"
#include "common/json/json_write.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A node that was asked, and has not answered yet. */
struct asked {
    char node[RDZV_ID_MAX + 1];
    bool sent, full; /* full: its answer was larger than the room that is left */
    UT_hash_handle hh;
};

struct jobs_asking {
    struct job *job; /* NULL: it is gone */
    struct jobs_ask q;
    char what[16], run[JOBS_RUN_MAX + 1];
    uint64_t id;
    struct buf record, out; /* the question; the answers */
    struct json_write w;
    struct asked *left;
    size_t awaited; /* number of nodes that may still answer */
};

static void free_asking(struct jobs_asking *a)
{
    struct asked *n, *next;
    HASH_ITER (hh, a->left, n, next) {
        HASH_DEL(a->left, n);
        free(n);
    }
    buf_free(&a->record);
    buf_free(&a->out);
    free(a);
}

static int add_member(void *arg, const struct rdzv_member *m)
{
    struct jobs_asking *a = arg;
    if (!m->member || m->done)
        return 0;
    struct asked *n = calloc(1, sizeof *n);
    if (!n)
        return -ENOMEM;
    memcpy(n->node, m->node, sizeof n->node);
    HASH_ADD_STR(a->left, node, n);
    if (!n->hh.tbl) {
        free(n);
        return -ENOMEM;
    }
    a->awaited++;
    return 0;
}

/* Write the question. Fields of old news come first, so that programs that know no questions ignore it. */
static int write_record(struct jobs_asking *a)
{
    TRY(buf_addstr(&a->record, "kind=round seq=0"));
    TRY(rdzv_field_text(&a->record, "ask", a->what));
    TRY(rdzv_field_int(&a->record, "id", (long long)a->id));
    TRY(rdzv_field_int(&a->record, "ms", a->q.ms * 4 / 5)); /* leave time for the answer to arrive */
    return rdzv_field_int(&a->record, "rank", a->q.rank);
}

static int prepare(struct jobs_asking *a)
{
    buf_init(&a->out, 3 * JOBS_ASK_BYTES); /* with the entries of nodes that have not answered */
    a->w.out = &a->out;
    TRY(rdzv_members(leader_machine(a->job->reign.leader), add_member, a));
    TRY(write_record(a));
    json_begin(&a->w, NULL, '{');
    json_text(&a->w, "run", a->run);
    json_text(&a->w, "what", a->what);
    json_begin(&a->w, "nodes", '[');
    return a->w.rc;
}

static struct asked *find_left(const struct jobs_asking *a, const char *node)
{
    struct asked *n;
    HASH_FIND_STR(a->left, node, n);
    return n;
}

void party_ask_(struct jobs_party *p)
{
    struct jobs_asking *a = p->asks && p->job ? p->job->asking : NULL;
    struct asked *n = a ? find_left(a, p->node) : NULL;
    if (!n || n->sent || !p->o.asked || jobs_may_answer(p->jobs, NULL) < 0)
        return;
    n->sent = true;
    if (p->o.addr)
        jobs_next_cancel(p); /* this answers its NEXT, like nil */
    p->o.asked(p->o.arg, a->record.data, a->record.len);
}

int jobs_ask(struct jobs_asking **ret, struct jobs *j, const char *principal, const char *run, const struct jobs_ask *q,
             struct err *e)
{
    struct job *job = NULL;
    TRY(job_look_up_(j, principal, run, &job, e));
    if (job->asking)
        return err_set(e, -EDQUOT, "run '%s' is being asked for its %s: ask again in a moment", run, job->asking->what);
    if (!leader_machine(job->reign.leader) || leader_is_over(job->reign.leader))
        return err_set(e, ERR_REFUSED, "run '%s' is over: nobody is left to ask", run);
    struct jobs_asking *a = calloc(1, sizeof *a);
    if (!a)
        return err_set(e, -ENOMEM, "no memory for a question");
    a->job = job;
    a->q = *q;
    a->id = ++j->askings;
    snprintf(a->what, sizeof a->what, "%s", q->what);
    snprintf(a->run, sizeof a->run, "%s", run);
    int rc = prepare(a);
    if (rc < 0)
        err_set(e, rc, "no memory for a question");
    else if (!a->left)
        rc = err_set(e, ERR_REFUSED, "run '%s' has no round just now: no workers run", run);
    if (rc < 0) {
        free_asking(a);
        return rc;
    }
    job->asking = a;
    struct jobs_party *p, *next;
    HASH_ITER (hh, job->parties, p, next)
        party_ask_(p);
    *ret = a;
    return 0;
}

/* Insert an answer. Escaping may turn a byte into six: an answer that does not fit is removed again. */
static void take_answer(struct jobs_asking *a, struct asked *n, const char *text)
{
    const size_t before = a->out.len;
    const bool comma = a->w.comma;
    json_begin(&a->w, NULL, '{');
    json_text(&a->w, "id", n->node);
    json_text(&a->w, "text", text);
    json_end(&a->w, '}');
    a->awaited--;
    if (a->w.rc == 0 && a->out.len <= JOBS_ASK_BYTES) {
        HASH_DEL(a->left, n);
        free(n);
        return;
    }
    a->out.len = before;
    a->w = (struct json_write){.out = &a->out, .comma = comma};
    n->full = true;
}

int jobs_answer(struct jobs_party *p, const char *run, const char *node, uint64_t id, const char *text, size_t n,
                struct err *e)
{
    struct job *job = NULL;
    if (n > RDZV_ANSWER_MAX || memchr(text, 0, n))
        return err_set(e, -EINVAL, "answer of %zu bytes: expected at most %d, none of them 0", n, RDZV_ANSWER_MAX);
    TRY(job_look_up_(p->jobs, p->o.principal, run, &job, e));
    struct jobs_asking *a = job->asking;
    struct asked *from = a && a->id == id ? find_left(a, node) : NULL;
    if (!from || from->full || p->job != job || strcmp(p->node, node) != 0)
        return 0; /* too late, or from a node that was not asked */
    char *copy = strndup(text, n);
    if (!copy)
        return err_set(e, -ENOMEM, "no memory for an answer");
    take_answer(a, from, copy);
    free(copy);
    if (a->awaited == 0)
        a->q.answered(a->q.arg);
    return 0;
}

static void add_missing(struct jobs_asking *a, const struct asked *n)
{
    char why[160];
    const struct jobs_party *p = a->job ? party_find_(a->job, n->node) : NULL;
    if (n->full)
        snprintf(why, sizeof why, "the answers of all nodes have %zu MiB together, and there is no room for its own",
                 JOBS_ASK_BYTES >> 20);
    else if (n->sent)
        snprintf(why, sizeof why, "it did not answer within %lld ms (a crun that knows no questions never does)",
                 (long long)a->q.ms);
    else
        snprintf(why, sizeof why, p ? "it was not heard of in that time" : "it has no connection just now");
    json_begin(&a->w, NULL, '{');
    json_text(&a->w, "id", n->node);
    json_text(&a->w, "why", why);
    json_end(&a->w, '}');
}

int jobs_ask_end(struct jobs_asking *a, struct buf *out)
{
    if (a->job)
        a->job->asking = NULL;
    for (const struct asked *n = a->left; out && n; n = n->hh.next)
        add_missing(a, n);
    json_end(&a->w, ']');
    json_end(&a->w, '}');
    const int rc = a->w.rc;
    if (out && rc == 0) {
        *out = a->out;
        a->out = (struct buf){0};
    }
    free_asking(a);
    return rc;
}

void job_drop_asking_(struct job *job)
{
    struct jobs_asking *a = job->asking;
    if (!a)
        return;
    job->asking = NULL;
    a->job = NULL;
    a->q.answered(a->q.arg);
}
