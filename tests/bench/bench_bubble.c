/* How long the stages of a pipeline are idle, with stages that sleep: stage_train() over a device whose passes take as
 * long as they are told to, ranks as threads. Idle share measured beside (s - 1) / (m + s - 1), of which interleaved
 * chunks leave 1 / chunks of the idle time, and the most micro-batches that are live.
 *
 *   bench_bubble [check]   check: fail where a share is not within a tenth of the formula's */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/stage.h"
#include "worker/program/program.h"
#include "worker/program/stages.h"

enum { PASS_MS = 60, STAGES_MAX = 4, WIDTH = 16 };

#define MUST(expr)                                                                                                     \
    do {                                                                                                               \
        struct err must_e = {0}, *const e = &must_e;                                                                   \
        if ((expr) < 0) {                                                                                              \
            fprintf(stderr, "%s: %s\n", #expr, must_e.text);                                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* --- a device that sleeps */

static _Thread_local struct usage {
    int64_t busy_ns;
    int live, most;
} usage;

struct sleepy_plan {
    struct plan base;
    int chunks;
};

static int sleepy_alloc(struct device *d, size_t bytes, void **ret, struct err *e)
{
    (void)d;
    *ret = calloc(1, bytes);
    return *ret ? 0 : err_set(e, -12, "no memory");
}

static void sleepy_release(struct device *d, void *p)
{
    (void)d;
    free(p);
}

static int sleepy_plan(struct device *d, const struct program *p, const struct plan_options *o, struct plan **ret,
                       struct err *e)
{
    struct sleepy_plan *pl = calloc(1, sizeof *pl);
    (void)o;
    (void)e;
    pl->base.ops = d->ops;
    pl->chunks = p->nchunks;
    *ret = &pl->base;
    return 0;
}

static void sleepy_plan_close(struct plan *pl)
{
    free(pl);
}

/* A pass of all of a stage takes PASS_MS, that of a chunk its share. */
static int sleepy_run(struct plan *base, const struct run_args *a, struct err *e)
{
    const struct sleepy_plan *pl = (const struct sleepy_plan *)base;
    const struct timespec t = {.tv_nsec = PASS_MS * 1000000L / pl->chunks};
    const int64_t start = clock_ns();
    (void)e;
    nanosleep(&t, NULL);
    usage.busy_ns += clock_ns() - start;
    usage.live += a->pass == RUN_FORWARD ? 1 : -1;
    usage.most = usage.live > usage.most ? usage.live : usage.most;
    return 0;
}

static const struct device_ops sleepy_ops = {.name = "sleepy",
                                             .real = DT_F32,
                                             .alloc = sleepy_alloc,
                                             .release = sleepy_release,
                                             .plan = sleepy_plan,
                                             .plan_close = sleepy_plan_close,
                                             .run = sleepy_run};

/* --- a step */

/* Layers enough for any cut. */
static struct program *write_model(void)
{
    struct program *p = program_create("layers", 1, 1, 1, NULL, NULL);
    int x = program_input(p);
    for (int i = 0; i < 2 * STAGES_MAX; i++) {
        char name[16];
        snprintf(name, sizeof name, "l%d", i);
        x = program_linear(p, name, x, WIDTH);
    }
    program_xent(p, x);
    MUST(program_differentiate(p, e));
    return p;
}

struct rank {
    struct pipeline line;
    struct comm *comm;
    const struct program *whole;
    struct usage used;
    int64_t began, ended;
};

static void *train(void *arg)
{
    struct rank *r = arg;
    struct device d = {.ops = &sleepy_ops};
    struct comm *groups[LAYOUT_GROUPS] = {0};
    const int parts = r->line.stages * r->line.chunks;
    int cuts[2 * STAGES_MAX];
    struct program *p;
    struct ownership own;
    struct stage *g;
    struct ddp *ddp;
    static const int32_t labels[256];
    static const float weights[256];
    static const uint8_t images[256];
    float reduce[1] = {0};
    const struct run_args all = {.batch = {.images = images, .labels = labels, .weights = weights}, .grad_scale = 1};
    MUST(stages_cut(r->whole, parts, cuts, e));
    MUST(stages_program(&p, r->whole, cuts, parts, r->line.stages, r->comm->rank, e));
    MUST(ownership_init_alone(&own, p, e));
    MUST(ddp_create(&ddp, groups, &own, reduce, METRIC_N, DT_F32, &(struct ddp_options){.wire = DT_F32}, e));
    const struct stage_options so = {.order = r->line,
                                     .index = r->comm->rank,
                                     .comm = r->comm,
                                     .device = &d,
                                     .program = p,
                                     .own = &own,
                                     .ddp = ddp,
                                     .plan = {.batch = 1, .training = true, .compute = DT_F32}};
    MUST(stage_open(&g, &so, e));
    MUST(r->comm->ops->barrier(r->comm, COMM_CONTROL, e));
    usage = (struct usage){0};
    r->began = clock_ns();
    MUST(stage_train(g, &all, e));
    MUST(ddp_wait(ddp, e));
    r->ended = clock_ns();
    r->used = usage;
    stage_close(g);
    ddp_destroy(ddp);
    ownership_finish(&own);
    program_destroy(p);
    return NULL;
}

static double idle_share(const struct program *whole, struct pipeline line, int *live)
{
    struct comm *comms[STAGES_MAX];
    pthread_t threads[STAGES_MAX];
    struct rank ranks[STAGES_MAX];
    int64_t began = INT64_MAX, ended = 0, busy = 0;
    MUST(comm_local_open_threads(comms, line.stages, 60000, e));
    for (int i = 0; i < line.stages; i++) {
        ranks[i] = (struct rank){.line = line, .comm = comms[i], .whole = whole};
        pthread_create(&threads[i], NULL, train, &ranks[i]);
    }
    for (int i = 0; i < line.stages; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < line.stages; i++) {
        comms[i]->ops->close(comms[i]);
        began = ranks[i].began < began ? ranks[i].began : began;
        ended = ranks[i].ended > ended ? ranks[i].ended : ended;
        busy += ranks[i].used.busy_ns;
    }
    *live = ranks[0].used.most;
    return 1 - (double)busy / (double)((ended - began) * line.stages);
}

int main(int argc, char **argv)
{
    static const char *const kinds[] = {PIPELINE_KINDS(CHOICE_NAME)};
    const bool check = argc > 1 && strcmp(argv[1], "check") == 0;
    struct program *whole = write_model();
    int missed = 0;
    printf("%-12s %6s %13s %6s %15s %9s %6s\n", "schedule", "stages", "micro-batches", "chunks", "idle, measured",
           "formula", "live");
    for (int kind = PIPELINE_GPIPE; kind <= PIPELINE_INTERLEAVED; kind++)
        for (int s = 2; s <= STAGES_MAX; s += 2)
            for (int m = 4; m <= 8; m += 4) {
                const int v = kind == PIPELINE_INTERLEAVED ? 2 : 1;
                const struct pipeline line = {(enum pipeline_kind)kind, s, m, v};
                int live;
                const double got = idle_share(whole, line, &live), want = (double)(s - 1) / (m * v + s - 1);
                const bool near = got <= want * 1.1 && got >= want * 0.9;
                printf("%-12s %6d %13d %6d %14.1f%% %8.1f%% %6d%s\n", kinds[kind], s, m, v, 100 * got, 100 * want, live,
                       near ? "" : "  not within a tenth");
                missed += !near;
            }
    program_destroy(whole);
    return check && missed ? 1 : 0;
}
