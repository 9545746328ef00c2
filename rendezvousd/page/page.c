/* The status page and what it reads (page.h): who asks, jobs as JSON, call stacks. */
#include "rendezvousd/page/page.h"
#include "common/auth/auth.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/http/http_auth.h"
#include "common/http/http_server.h"
#include "common/json/json_write.h"
#include "rendezvousd/history/history.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/net/gate.h"
#include "rendezvousd/page/status_page.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACKS_MS 3000

struct page {
    struct page_options o;
    struct jobs_asking *asking; /* a question about the job `asked`; NULL: none is under way */
    char asked[AUTH_PRINCIPAL_MAX + JOBS_RUN_MAX + 2];
    struct buf answer; /* the answer to it; empty: not there yet, or fetched already */
    uv_timer_t *late;  /* allocated separately, because it closes later */
};

/* --- who asks */

static bool shows(const void *credentials, const struct auth_token *t)
{
    return http_auth_matches(credentials, t);
}

/* The principal whose rendezvous token the request shows. The secret comes in clear text, so it is accepted from
 * other hosts only if it is an HTTP token, too. */
static const char *own_principal(const struct page *p, const struct http_answer *a, const struct http_credentials *c)
{
    if (!(gate_is_local_reader(http_peer_fd(a)) || http_shows_token(a)))
        return NULL;
    return gate_reader(p->o.gate, shows, c);
}

/* False: what they show is nobody's. */
bool page_look_who(const struct page *p, const struct http_answer *a, struct history_reader *ret)
{
    struct http_credentials c;
    http_credentials(a, &c);
    *ret = (struct history_reader){.queue = p->o.any_host};
    if (c.shown) {
        ret->principal = own_principal(p, a, &c);
        ret->all = !ret->principal && http_shows_token(a);
    } else {
        ret->all = !http_has_tokens(a) && gate_trusts_reader(p->o.gate, http_peer_fd(a));
    }
    const bool good = !c.shown || ret->principal || ret->all;
    if (!good)
        gate_refuse_reader(p->o.gate, http_peer_fd(a), c.principal);
    explicit_bzero(&c, sizeof c);
    return good;
}

static bool sees_any(const struct history_reader *who)
{
    return who->all || who->queue || who->principal;
}

/* page=1: the status page asks, and shows a form of its own for the token. */
int page_ask_for_token(struct http_answer *a)
{
    a->no_prompt = http_argument(a, "page") != NULL;
    return http_refuse(a, 401,
                       "whose jobs? Show a token, as Bearer SECRET or Basic with a principal and its secret: one of "
                       "--token-file for one's own jobs (on this host), one of --http-token-file for all");
}

/* 1: go on; else what the page returns. */
static int let_in(const struct page *p, struct http_answer *a, struct history_reader *ret)
{
    return page_look_who(p, a, ret) && sees_any(ret) ? 1 : page_ask_for_token(a);
}

/* --- pages */

static void add_reader(const struct page *p, const struct history_reader *who, bool good, struct json_write *w)
{
    json_begin(w, "reader", '{');
    if (who->principal)
        json_text(w, "name", who->principal);
    json_text(w, "sees", who->all ? "all" : who->queue ? "queue" : who->principal ? "own" : "none");
    json_bool(w, "wrong", !good);
    json_bool(w, "can_log_in", gate_has_tokens(p->o.gate) || p->o.has_tokens);
    json_end(w, '}');
}

static int add_jobs(const struct page *p, const struct history_reader *who, const char *run, size_t first,
                    const char *of, struct json_write *w, struct err *e)
{
    struct buf list = {0};
    const char *principal = who->all || who->queue ? of : who->principal;
    if (!sees_any(who))
        return 0;
    int rc = jobs_status_from(p->o.jobs, principal, run, first, &list, e);
    if (rc == 0) /* its members go on with ours */
        rc = buf_add(w->out, ",", 1);
    if (rc == 0)
        rc = buf_add(w->out, list.data + 1, list.len - 2);
    if (rc == 0 && !run)
        history_add_figures(p->o.history, who, w);
    buf_free(&list);
    return rc;
}

/* /api/jobs?run=ID&from=N: only that job, with its nodes after the first N. principal=NAME: only jobs of that
 * principal among those that the reader may see. page=1: a reader who may see nothing gets an answer that says so,
 * instead of a 401. */
int page_jobs(struct page *p, struct http_answer *a)
{
    const char *run = http_argument(a, "run"), *from = http_argument(a, "from");
    struct history_reader who;
    struct json_write w = {.out = &a->body};
    struct err e;
    char *end = NULL;
    unsigned long first = from && isdigit((unsigned char)*from) ? strtoul(from, &end, 10) : 0;
    const bool good = page_look_who(p, a, &who);
    if (!http_argument(a, "page") && (!good || !sees_any(&who)))
        return page_ask_for_token(a);
    if (from && (!run || !end || *end))
        return http_refuse(a, 400, "from=: expected a number, and a run=");
    json_begin(&w, NULL, '{');
    json_text(&w, "version", CRUN_VERSION);
    add_reader(p, &who, good, &w);
    const int rc = add_jobs(p, &who, run, first, http_argument(a, "principal"), &w, &e);
    if (rc == -ENOENT || rc == -EINVAL) {
        buf_clear(&a->body);
        return http_refuse(a, rc == -ENOENT ? 404 : 409, e.text);
    }
    json_end(&w, '}');
    a->type = "application/json";
    return rc < 0 ? rc : w.rc;
}

/* /api/history?after=N: finished jobs. */
int page_history(struct page *p, struct http_answer *a)
{
    struct history_reader who;
    char *end = NULL;
    const char *after = http_argument(a, "after");
    const unsigned long long number = after && isdigit((unsigned char)*after) ? strtoull(after, &end, 10) : 0;
    const int rc = let_in(p, a, &who);
    if (rc != 1)
        return rc;
    if (after && (!end || *end))
        return http_refuse(a, 400, "after=: expected a number");
    a->type = "application/json";
    return history_list(p->o.history, &who, number, &a->body);
}

/* /api/job?instance=ID: all of one. */
int page_job(struct page *p, struct http_answer *a)
{
    struct history_reader who;
    struct err e;
    const char *instance = http_argument(a, "instance");
    int rc = let_in(p, a, &who);
    if (rc != 1)
        return rc;
    if (!instance)
        return http_refuse(a, 400, "instance=: expected that of a job in /api/jobs or /api/history");
    a->type = "application/json";
    rc = history_job(p->o.history, &who, instance, &a->body, &e);
    return rc == -ENOENT ? http_refuse(a, 404, e.text) : rc;
}

/* --- what all ranks do */

static void on_answered(void *arg)
{
    struct page *p = arg;
    if (jobs_ask_end(p->asking, &p->answer) < 0)
        p->asked[0] = '\0';
    p->asking = NULL;
    uv_timer_stop(p->late);
}

static void on_late(uv_timer_t *t)
{
    on_answered(t->data);
}

static int ask(struct page *p, struct http_answer *a, const char *principal, const char *run, const char *key)
{
    const struct jobs_ask q = {.what = "stacks", .rank = -1, .ms = STACKS_MS, .answered = on_answered, .arg = p};
    struct err e;
    if (p->asking)
        return http_refuse(a, 409, "the nodes of another job are being asked: ask again in a moment");
    const int rc = jobs_ask(&p->asking, p->o.jobs, principal, run, &q, &e);
    if (rc < 0)
        return http_refuse(a, rc == -ENOENT ? 404 : 409, e.text);
    buf_free(&p->answer);
    snprintf(p->asked, sizeof p->asked, "%s", key);
    uv_timer_start(p->late, on_late, STACKS_MS, 0);
    return 0;
}

/* /api/stacks?run=ID[&principal=NAME]: {"wait":true} until the answers of jobs_ask() are there, which are given
 * once. */
int page_stacks(struct page *p, struct http_answer *a)
{
    struct history_reader who;
    char key[sizeof p->asked];
    const char *run = http_argument(a, "run"), *of = http_argument(a, "principal");
    int rc = let_in(p, a, &who);
    if (rc != 1)
        return rc;
    if (!run || !(who.all || who.principal))
        return http_refuse(a, run ? 403 : 400,
                           run ? "the stacks of a job are for its principal" : "run=: expected one");
    const char *principal = who.all ? of : who.principal;
    snprintf(key, sizeof key, "%s\n%s", principal ? principal : "", run);
    const bool same = strcmp(key, p->asked) == 0;
    a->type = "application/json";
    if (same && p->answer.len > 0) {
        rc = buf_add(&a->body, p->answer.data, p->answer.len);
        buf_free(&p->answer);
        return rc;
    }
    rc = same && p->asking ? 0 : ask(p, a, principal, run, key);
    return rc == 0 && a->body.len == 0 ? buf_addstr(&a->body, "{\"wait\":true}") : rc;
}

int page_main(struct page *p, struct http_answer *a)
{
    (void)p;
    a->type = "text/html; charset=utf-8";
    return buf_add(&a->body, status_page, status_page_len);
}

int page_open(struct page **ret, uv_loop_t *loop, const struct page_options *o, struct err *e)
{
    struct page *p = calloc(1, sizeof *p);
    uv_timer_t *late = calloc(1, sizeof *late);
    if (!p || !late) {
        free(p);
        free(late);
        return err_set(e, -ENOMEM, "no memory for the status page");
    }
    p->o = *o;
    p->late = late;
    uv_timer_init(loop, late);
    late->data = p;
    *ret = p;
    return 0;
}

static void on_late_closed(uv_handle_t *t)
{
    free(t);
}

void page_close(struct page *p)
{
    if (!p)
        return;
    if (p->asking)
        jobs_ask_end(p->asking, NULL);
    buf_free(&p->answer);
    uv_close((uv_handle_t *)p->late, on_late_closed);
    free(p);
}
