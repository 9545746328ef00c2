/* The thread that waits for a shared home. See keeper.h. */
#include "common/rdzv/leader/keeper.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/rdzv/leader/rdzv_reign.h"

enum { STACK_BYTES = 256 << 10, AGAIN_MS = 100, TOGETHER_BYTES = 1 << 20, REST_MS = 2000 };

struct call {
    struct keeper_answer a;
    struct rdzv_claim seen; /* CLAIM */
    char epoch[RDZV_EPOCH_MAX + 1];
    bool whole, over;
    int64_t begun; /* APPEND: first tried then */
    unsigned term; /* of this node's terms so far, the one that asked */
    struct call *prev, *next;
};

struct keeper {
    struct rdzv_home *home;
    void (*answer)(void *arg, struct keeper_answer *a);
    void *arg;
    uv_loop_t *loop;
    uv_async_t async;
    uv_timer_t late;
    int open_handles;
    bool closing;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t asked;
    struct call *calls, *line, *done; /* line: decisions and what follows them */
    int64_t again_at;                 /* the first of the line is not tried before */
    int64_t patience_ms;
    unsigned term;
    bool stop, over;
    int64_t looked; /* the newest look, since the home was last told to rest; 0: none */
};

static void free_call(struct call *c)
{
    buf_free(&c->a.text);
    free(c);
}

/* --- the thread */

static int claim(struct keeper *k, struct call *c)
{
    struct rdzv_home *h = k->home;
    struct keeper_answer *a = &c->a;
    struct buf record = {0};
    TRY(h->ops->identity(h, a->identity, &a->e));
    a->lag_ms = h->ops->lag_ms ? h->ops->lag_ms(h) : 0;
    a->took_over = h->ops->took_over && h->ops->took_over(h);
    int rc = rdzv_reign_record(a->claim.epoch, a->claim.node, a->identity, &record);
    a->sent = clock_ms();
    rc = rc < 0 ? err_set(&a->e, rc, "no memory for a claim") : h->ops->claim(h, &c->seen, &a->claim, &record, &a->e);
    buf_free(&record);
    return rc;
}

static int append(struct keeper *k, struct call *c)
{
    c->begun = c->begun ? c->begun : c->a.sent;
    const struct rdzv_write w = {.decision = &c->a.text, .epoch = c->epoch, .whole = c->whole, .over = c->over};
    return k->home->ops->append(k->home, &w, &c->a.e);
}

static void carry_out(struct keeper *k, struct call *c)
{
    struct keeper_answer *a = &c->a;
    struct rdzv_home *h = k->home;
    a->sent = clock_ms();
    switch (a->call) {
    case KEEPER_LOOK:
        a->rc = h->ops->look(h, &a->claim, &a->e);
        k->looked = h->ops->rest ? clock_ms() : 0;
        break;
    case KEEPER_CLAIM:
        a->rc = claim(k, c);
        break;
    case KEEPER_LOAD:
        a->text.max = (size_t)1 << 30;
        a->rc = h->ops->load(h, &a->text, &a->e);
        break;
    case KEEPER_RENEW:
    case KEEPER_RELEASE:
        a->rc = h->ops->renew(h, &a->claim, &a->e);
        break;
    case KEEPER_APPEND:
        a->rc = append(k, c);
        break;
    case KEEPER_FORGET:
        h->ops->forget(h);
        break;
    }
}

/* The next call, which stays where it is; NULL: the keeper is closed. */
static struct call *await_call(struct keeper *k)
{
    for (;;) {
        const int64_t now = clock_ms();
        if (k->calls)
            return k->calls;
        if (k->line && now >= k->again_at)
            return k->line;
        if (k->stop && !k->line)
            return NULL;
        if (k->looked && now - k->looked >= REST_MS) {
            k->home->ops->rest(k->home);
            k->looked = 0;
        }
        if (k->line || k->looked) {
            const struct timespec t = clock_timespec(k->line ? k->again_at : k->looked + REST_MS);
            pthread_cond_timedwait(&k->asked, &k->mutex, &t);
        } else {
            pthread_cond_wait(&k->asked, &k->mutex);
        }
    }
}

/* Does `next` go with c, an append that nobody has begun? One that was tried is tried again as it was. */
static bool goes_along(const struct call *c, const struct call *next)
{
    return next && c->a.call == KEEPER_APPEND && next->a.call == KEEPER_APPEND && !c->begun && !next->begun &&
           strcmp(c->epoch, next->epoch) == 0 && c->a.text.len + next->a.text.len <= TOGETHER_BYTES;
}

/* Decisions that wait for the one before them are one append: a thousand nodes that join at once would wait for a
 * thousand answers, or syncs of a disk. */
static void gather(struct keeper *k, struct call *c)
{
    for (struct call *next = k->line; goes_along(c, next); next = k->line) {
        if (buf_reserve(&c->a.text, next->a.text.len) < 0)
            return;
        if (next->whole) /* it contains what those before it say */
            buf_clear(&c->a.text);
        buf_add(&c->a.text, next->a.text.data, next->a.text.len);
        c->a.number = next->a.number;
        c->whole = c->whole || next->whole;
        c->over = next->over;
        DL_DELETE(k->line, next);
        free_call(next);
    }
}

static bool is_tried_again(const struct keeper *k, const struct call *c)
{
    return c->a.call == KEEPER_APPEND && c->a.rc < 0 && c->term == k->term && !k->stop &&
           clock_ms() - c->begun < k->patience_ms;
}

static void *run(void *arg)
{
    struct keeper *k = arg;
    struct call *c;
    pthread_mutex_lock(&k->mutex);
    while ((c = await_call(k))) {
        const bool in_line = c == k->line;
        if (in_line) {
            DL_DELETE(k->line, c); /* whoever ends the term finds what nobody has begun */
            gather(k, c);
        } else {
            DL_DELETE(k->calls, c);
        }
        pthread_mutex_unlock(&k->mutex);
        carry_out(k, c);
        pthread_mutex_lock(&k->mutex);
        if (in_line && is_tried_again(k, c)) {
            DL_PREPEND(k->line, c);
            k->again_at = clock_ms() + AGAIN_MS;
            continue;
        }
        DL_APPEND(k->done, c);
        uv_async_send(&k->async);
    }
    k->over = true;
    pthread_mutex_unlock(&k->mutex);
    uv_async_send(&k->async);
    return NULL;
}

/* --- the loop */

static void free_calls(struct call *c)
{
    struct call *next;
    for (; c; c = next) {
        next = c->next;
        free_call(c);
    }
}

static void on_closed(uv_handle_t *h)
{
    struct keeper *k = h->data;
    if (--k->open_handles > 0)
        return;
    free_calls(k->done);
    k->home->ops->close(k->home);
    pthread_mutex_destroy(&k->mutex);
    pthread_cond_destroy(&k->asked);
    free(k);
}

static void on_async(uv_async_t *h)
{
    struct keeper *k = container_of(h, struct keeper, async);
    struct call *c, *next;
    pthread_mutex_lock(&k->mutex);
    struct call *done = k->done;
    const bool over = k->over;
    k->done = NULL;
    pthread_mutex_unlock(&k->mutex);
    for (c = done; c; c = next) {
        next = c->next;
        if (!k->closing)
            k->answer(k->arg, &c->a);
        free_call(c);
    }
    if (!over)
        return;
    pthread_join(k->thread, NULL);
    k->async.data = k->late.data = k;
    uv_close((uv_handle_t *)&k->async, on_closed);
    uv_close((uv_handle_t *)&k->late, on_closed);
}

static struct call *new_call(enum keeper_call what, const struct rdzv_claim *claim)
{
    struct call *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->a.call = what;
    if (claim)
        c->a.claim = *claim;
    return c;
}

static int ask(struct keeper *k, struct call *c, bool in_line)
{
    if (!c)
        return -ENOMEM;
    pthread_mutex_lock(&k->mutex);
    c->term = k->term;
    if (in_line)
        DL_APPEND(k->line, c);
    else
        DL_APPEND(k->calls, c);
    pthread_cond_signal(&k->asked);
    pthread_mutex_unlock(&k->mutex);
    return 0;
}

int keeper_look(struct keeper *k)
{
    return ask(k, new_call(KEEPER_LOOK, NULL), false);
}

int keeper_claim(struct keeper *k, const struct rdzv_claim *seen, const struct rdzv_claim *own)
{
    struct call *c = new_call(KEEPER_CLAIM, own);
    if (c)
        c->seen = *seen;
    return ask(k, c, false);
}

int keeper_load(struct keeper *k)
{
    return ask(k, new_call(KEEPER_LOAD, NULL), false);
}

int keeper_renew(struct keeper *k, const struct rdzv_claim *own)
{
    return ask(k, new_call(KEEPER_RENEW, own), false);
}

int keeper_append(struct keeper *k, const struct rdzv_write *w, uint64_t number)
{
    struct call *c = new_call(KEEPER_APPEND, NULL);
    if (c && buf_add(&c->a.text, w->decision->data, w->decision->len) < 0) {
        free_call(c);
        c = NULL;
    }
    if (c) {
        c->a.number = number;
        c->whole = w->whole;
        c->over = w->over;
        strcpy(c->epoch, w->epoch);
        strcpy(c->a.claim.epoch, w->epoch);
    }
    return ask(k, c, true);
}

int keeper_release(struct keeper *k, const struct rdzv_claim *own)
{
    return ask(k, new_call(KEEPER_RELEASE, own), true);
}

int keeper_forget(struct keeper *k)
{
    return ask(k, new_call(KEEPER_FORGET, NULL), true);
}

void keeper_end_term(struct keeper *k)
{
    pthread_mutex_lock(&k->mutex);
    struct call *dropped = k->line;
    k->line = NULL;
    k->again_at = 0;
    k->term++;
    pthread_mutex_unlock(&k->mutex);
    free_calls(dropped);
}

static void on_late(uv_timer_t *t)
{
    struct keeper *k = container_of(t, struct keeper, late);
    rdzv_home_cancel(k->home);
}

void keeper_close(struct keeper *k)
{
    if (!k)
        return;
    k->closing = true;
    uv_update_time(k->loop);
    uv_timer_start(&k->late, on_late, KEEPER_FAREWELL_MS, 0);
    pthread_mutex_lock(&k->mutex);
    k->stop = true;
    pthread_cond_signal(&k->asked);
    pthread_mutex_unlock(&k->mutex);
}

static int start(struct keeper *k)
{
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, STACK_BYTES);
    const int rc = pthread_create(&k->thread, &a, run, k);
    pthread_attr_destroy(&a);
    return -rc;
}

int keeper_open(struct keeper **ret, uv_loop_t *loop, struct rdzv_home *home, int64_t patience_ms,
                void (*answer)(void *arg, struct keeper_answer *a), void *arg, struct err *e)
{
    struct keeper *k = calloc(1, sizeof *k);
    pthread_condattr_t monotonic;
    if (!k) {
        home->ops->close(home);
        return err_errno(e, ENOMEM, "rendezvous");
    }
    *k = (struct keeper){.home = home, .answer = answer, .arg = arg, .loop = loop, .patience_ms = patience_ms};
    pthread_mutex_init(&k->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&k->asked, &monotonic);
    pthread_condattr_destroy(&monotonic);
    uv_async_init(loop, &k->async, on_async);
    uv_timer_init(loop, &k->late);
    k->async.data = k->late.data = k;
    k->open_handles = 2;
    const int rc = start(k);
    if (rc < 0) {
        uv_close((uv_handle_t *)&k->async, on_closed);
        uv_close((uv_handle_t *)&k->late, on_closed);
        return err_errno(e, -rc, "a thread for the rendezvous");
    }
    *ret = k;
    return 0;
}
