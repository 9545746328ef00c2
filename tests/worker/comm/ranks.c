#include "tests/worker/comm/ranks.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/worker/comm/shm_store.h"

struct task {
    struct ranks *w;
    int rank;
    rank_fn *fn;
    void *arg;
    const struct comm_options *options;
    const char *backend;
    pthread_t thread;
};

static void *run_task(void *arg)
{
    struct task *t = arg;
    struct ranks *w = t->w;
    int64_t start = clock_ms();
    w->rc[t->rank] = t->fn(w->comm[t->rank], t->rank, t->arg, &w->err[t->rank]);
    w->took_ms[t->rank] = clock_ms() - start;
    return NULL;
}

static void *open_task(void *arg)
{
    struct task *t = arg;
    struct comm_options o = *t->options;
    o.rank = t->rank;
    t->w->rc[t->rank] = comm_open(&t->w->comm[t->rank], t->backend, &o, &t->w->err[t->rank]);
    return NULL;
}

static void run_all(struct ranks *w, void *(*fn)(void *), const struct task *model)
{
    struct task tasks[RANKS_MAX];
    for (int r = 0; r < w->world; r++) {
        tasks[r] = *model;
        tasks[r].w = w;
        tasks[r].rank = r;
        w->err[r] = (struct err){0};
        if (pthread_create(&tasks[r].thread, NULL, fn, &tasks[r]) != 0)
            abort();
    }
    for (int r = 0; r < w->world; r++)
        pthread_join(tasks[r].thread, NULL);
}

void ranks_open(struct ranks *w, const char *backend, int world, int64_t timeout_ms)
{
    *w = (struct ranks){.world = world};
    if (strcmp(backend, "local") == 0) {
        w->rc[0] = comm_local_open_threads(w->comm, world, timeout_ms, &w->err[0]);
    } else {
        struct store *s = shm_store_open();
        struct comm_options o = {.world = world, .store = s, .name = "test", .timeout_ms = timeout_ms};
        run_all(w, open_task, &(struct task){.options = &o, .backend = backend});
        shm_store_close(s);
    }
    for (int r = 0; r < world; r++) {
        if (w->rc[r] < 0) {
            fprintf(stderr, "opening %s, rank %d of %d: %s\n", backend, r, world, w->err[r].text);
            abort();
        }
    }
}

void ranks_close(struct ranks *w)
{
    for (int r = 0; r < w->world; r++) {
        if (w->comm[r])
            w->comm[r]->ops->close(w->comm[r]);
        w->comm[r] = NULL;
    }
}

void ranks_run(struct ranks *w, rank_fn *fn, void *arg)
{
    run_all(w, run_task, &(struct task){.fn = fn, .arg = arg});
}

int ranks_known(struct comm *c, int rank, void *arg, struct err *e)
{
    const struct ranks_call *job = arg;
    struct known k = job->k;
    k.rank = rank;
    k.world = c->world;
    char *in = calloc(k.n + 1, dtype_size(k.type)), *out = calloc(k.n + 1, dtype_size(k.type));
    known_fill(&k, in);
    int rc = known_run(&k, c, job->ch, in, out, job->stream, e);
    const size_t wrong = rc == 0 ? known_wrong(&k, known_in_place(k.call) ? in : out) : 0;
    if (wrong)
        rc = err_set(e, -EIO,
                     "%s of %zu x %s, operation %d, world %d, root %d, %s: %zu of %zu elements are wrong on rank %d",
                     known_call_name(k.call), k.n, dtype_name(k.type), k.op, k.world, k.root,
                     k.uneven ? "uneven" : "even", wrong, known_out(&k), rank);
    free(in);
    free(out);
    return rc;
}

bool ranks_have(const char *backend)
{
    struct comm *c = NULL;
    struct comm_options o = {.rank = 0, .world = 1, .timeout_ms = 20000, .name = "probe"};
    if (comm_open(&c, backend, &o, NULL) < 0)
        return false;
    c->ops->close(c);
    return true;
}
