/* Homes that have an API, in the world of elect.c: the shipped code of a home, in a fiber for each node, in place of
 * the thread that asks it (common/rdzv/leader/keeper.c). What it asks by HTTP becomes messages to the model of the API
 * (api.h): they are late, are lost, arrive twice, or after their sender is gone; so do the answers. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "common/base/err.h"
#include "common/http/http_client.h"
#include "common/rdzv/leader/rdzv_reign.h"
#include "tests/sim/api.h"
#include "tests/sim/elect_impl.h"

enum { CALLS = 256, STACK = 512 << 10, REST_MS = 2000 };

struct carried {
    char *method, *url, *header, *body;
    size_t n;
};

struct keeper {
    struct world *w;
    struct node *n;
    unsigned life;
    struct rdzv_home *home;
    struct message calls[CALLS], answer;
    unsigned first, last;
    bool busy, gone; /* gone: the process has died; nothing is answered any more */
    uint64_t request;
    int64_t looked;
    ucontext_t context, outside;
    char *stack;
};

static struct keeper keepers[NODES], *here; /* here: whose fiber runs */

/* --- within a fiber */

static int64_t node_clock(void)
{
    return clock_of(here->n);
}

static void yield(struct keeper *k)
{
    api_clock = NULL;
    here = NULL;
    swapcontext(&k->context, &k->outside);
}

/* An answer to this request, or to wait so long. */
static int await(struct keeper *k, uint64_t request)
{
    while (!k->gone && k->answer.number != request)
        yield(k);
    return k->gone ? -ECANCELED : k->answer.rc;
}

static void wake(struct keeper *k, int64_t at, uint64_t request, int rc, char *text)
{
    struct message *m = post(k->w, M_KEEPER, at);
    m->node = k->n->index;
    m->life = k->life;
    m->host = 1;
    m->number = request;
    m->rc = rc;
    m->text = text;
}

static int carry(const struct http_ask *a, int64_t deadline, struct buf *ret)
{
    struct keeper *k = here;
    struct world *w = k->w;
    if (k->gone)
        return -ECANCELED;
    const struct carried c = {.method = keep(w, a->method, strlen(a->method)),
                              .url = keep(w, a->url, strlen(a->url)),
                              .header = a->headers[0] ? keep(w, a->headers[0], strlen(a->headers[0])) : NULL,
                              .body = a->body ? keep(w, a->body, a->body_n) : NULL,
                              .n = a->body_n};
    char *text = keep(w, (const char *)&c, sizeof c);
    const int64_t left = deadline - clock_of(k->n);
    k->request++;
    for (int copies = faulty(w) && chance(w, 0.02) ? 2 : 1; copies > 0; copies--) {
        struct message *m = post(w, M_HOME, delay(w));
        m->node = k->n->index;
        m->life = k->life;
        m->number = k->request;
        m->text = text;
    }
    wake(k, w->now + (left > 0 ? left : 0), k->request, -ETIMEDOUT, NULL);
    const int rc = await(k, k->request);
    return rc > 0 && k->answer.text && buf_addstr(ret, k->answer.text) < 0 ? -ENOMEM : rc;
}

static int pause_(int64_t ms)
{
    struct keeper *k = here;
    if (k->gone)
        return -ECANCELED;
    wake(k, k->w->now + ms, ++k->request, 0, NULL);
    return await(k, k->request);
}

static int64_t lag(void)
{
    struct world *w = here->w;
    if (shared(w)->home_away_until > w->now || shared(w)->out_of_home[here->n->index] > w->now)
        return -1;
    return faulty(w) && chance(w, 0.1) ? between(w, 0, 2000) : between(w, 1, 20);
}

static int64_t world_clock(void)
{
    return W->now;
}

static const struct api_carrier etcd = {.ask = carry, .pause = pause_, .lag = lag, .clock = world_clock},
                                kube = {.ask = carry, .pause = pause_, .lag = lag, .clock = world_clock, .kube = true};

static int claim(struct keeper *k, struct message *m, struct err *e)
{
    struct buf record = {0};
    TRY(k->home->ops->identity(k->home, m->identity, e));
    if (!k->gone)
        memcpy(k->n->identity, m->identity, sizeof m->identity);
    rdzv_reign_record(m->own.epoch, m->own.node, m->identity, &record);
    m->sent = clock_of(k->n);
    const int rc = k->home->ops->claim(k->home, &m->seen, &m->own, &record, e);
    buf_free(&record);
    return rc;
}

static void carry_out(struct keeper *k, struct message m)
{
    struct rdzv_home *h = k->home;
    struct buf text = {0};
    struct err e = {0};
    if (k->looked && clock_of(k->n) - k->looked > REST_MS && h->ops->rest) {
        h->ops->rest(h);
        k->looked = 0;
    }
    m.sent = clock_of(k->n);
    switch (m.call) {
    case H_LOOK:
        m.rc = h->ops->look(h, &m.own, &e);
        k->looked = k->gone ? 0 : clock_of(k->n);
        break;
    case H_CLAIM:
        m.rc = claim(k, &m, &e);
        break;
    case H_LOAD:
        m.rc = h->ops->load(h, &text, &e);
        m.text = k->gone ? NULL : keep(k->w, text.data ? text.data : "", text.len); /* gone: the world may be, too */
        break;
    case H_APPEND:
        buf_addstr(&text, m.text);
        m.rc = h->ops->append(h, &(struct rdzv_write){.decision = &text, .epoch = m.own.epoch, .whole = m.whole}, &e);
        break;
    case H_RENEW:
    case H_RELEASE:
        m.own.released = m.call == H_RELEASE;
        m.rc = h->ops->renew(h, &m.own, &e);
        break;
    }
    buf_free(&text);
    if (k->gone)
        return;
    if (m.rc < 0 && e.code != -ETIMEDOUT && e.code != -EAGAIN)
        broken(k->w, "the home of %s fails: %s", k->n->id, e.text);
    struct message *a = post(k->w, M_ANSWER, k->w->now);
    const uint64_t order = a->order;
    const int64_t at = a->at;
    *a = m;
    a->kind = M_ANSWER;
    a->order = order;
    a->at = at;
}

static void live(unsigned i)
{
    struct keeper *k = &keepers[i];
    for (;;) {
        while (k->first == k->last)
            yield(k);
        k->busy = true;
        carry_out(k, k->calls[k->first++ % CALLS]);
        k->busy = false;
    }
}

/* --- outside */

static void run(struct keeper *k)
{
    here = k;
    api_clock = node_clock;
    swapcontext(&k->outside, &k->context);
}

static void end(struct keeper *k)
{
    if (!k->home)
        return;
    k->gone = true;
    k->first = k->last;
    if (k->busy)
        run(k); /* every request fails: the call ends */
    k->home->ops->close(k->home);
    k->home = NULL;
}

bool elect_is_api_(const struct world *w)
{
    return ((const struct shared *)w)->kind == ELECT_ETCD || ((const struct shared *)w)->kind == ELECT_KUBE;
}

/* With the token of a service account. */
static void be_a_pod(void)
{
    static char files[64];
    char token[80];
    if (files[0])
        return;
    snprintf(files, sizeof files, "/tmp/sim-pod-XXXXXX");
    FILE *f = mkdtemp(files) ? fopen((snprintf(token, sizeof token, "%s/token", files), token), "w") : NULL;
    if (!f || fputs("secret\n", f) < 0 || fclose(f) != 0)
        abort();
    setenv("CRUN_K8S_FILES", files, 1);
    setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1);
    setenv("KUBERNETES_SERVICE_PORT", "443", 1);
}

void elect_keep_(struct world *w, struct node *n)
{
    struct keeper *k = &keepers[n->index];
    const struct rdzv_home_options o = {.run_id = "sim", .io_timeout_ms = SILENCE_MS, .keep_ms = 3600000};
    struct err e;
    end(k);
    char *stack = k->stack ? k->stack : malloc(STACK);
    memset(k, 0, sizeof *k);
    *k = (struct keeper){.w = w, .n = n, .life = n->life, .stack = stack};
    const bool is_kube = shared(w)->kind == ELECT_KUBE;
    api_carrier = is_kube ? &kube : &etcd;
    if (is_kube)
        be_a_pod();
    if (rdzv_home_open(&k->home, is_kube ? "k8s://space/sim" : "etcd://one,two,three", &o, &e) < 0)
        broken(w, "%s", e.text);
    getcontext(&k->context);
    k->context.uc_stack.ss_sp = stack;
    k->context.uc_stack.ss_size = STACK;
    makecontext(&k->context, (void (*)(void))live, 1, (unsigned)n->index);
}

const struct rdzv_home_ops *elect_home_(const struct node *n)
{
    return keepers[n->index].home->ops;
}

void elect_keeper_(struct world *w, const struct message *m)
{
    struct keeper *k = &keepers[m->node];
    if (!w->n[m->node].alive || m->life != k->life)
        return;
    if (m->host)
        k->answer = *m;
    else
        k->calls[k->last++ % CALLS] = *m;
    run(k);
}

void elect_request_(struct world *w, const struct message *m)
{
    struct carried c;
    struct buf answer = {0};
    if (shared(w)->home_away_until > w->now || shared(w)->out_of_home[m->node] > w->now)
        return;
    memcpy(&c, m->text, sizeof c);
    const struct http_ask a = {.method = c.method, .url = c.url, .headers = {c.header}, .body = c.body, .body_n = c.n};
    const int status = (api_carrier->kube ? api_kube_serve : api_etcd_serve)(&a, &answer);
    if (faulty(w) && chance(w, 0.02)) {
        w->st->lost_replies++;
    } else if (w->n[m->node].alive && w->n[m->node].life == m->life) {
        struct message *r = post(w, M_KEEPER, delay(w));
        r->node = m->node;
        r->life = m->life;
        r->host = 1;
        r->number = m->number;
        r->rc = status;
        r->text = keep(w, answer.data, answer.len);
    }
    buf_free(&answer);
}

void elect_end_(struct world *w)
{
    for (struct keeper *k = keepers; k < keepers + NODES; k++)
        if (k->w == w)
            end(k);
}
