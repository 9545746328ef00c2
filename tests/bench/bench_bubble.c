/* How long the stages of a pipeline are idle, ranks as threads: stage_train() with stages that sleep (a device whose
 * passes take as long as they are told to), and two stages that compute on the CPU, a thread each.
 *
 * The work is that of a ResNet-18 on images of 64 pixels, batch 128 in 8 micro-batches of 16. Its 16 convolutions of 3
 * x 3 in blocks take the same work each, but for three strided ones (a group has twice the channels of the one before
 * it, and a quarter of the pixels): all are written here as those of its second group, 128 channels of 8 x 8. That is
 * where the network is cut in two halves, so a message holds what it sends: 16 x 128 x 8 x 8 floats. 4 micro-batches
 * are half of that batch.
 *
 *   measured   idle share, and the most micro-batches that are live; the median of some steps behind the first one
 *   played     that of the same step if each of its passes, with the time that it took, had begun as soon as its stage
 *              and what it needs were there: what measured has above it is the engine's; the rest of what measured and
 *              formula differ by is that passes do not take equal times
 *   pass       ms, the mean of the step's
 *   engine     us that the measured step has above the played one, for each message of the stage that sends the most
 *   formula    (s - 1) / (m + s - 1), of which interleaved chunks leave 1 / chunks of the idle time
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
#include "worker/pipeline/stage.h"
#include "worker/program/program.h"
#include "worker/program/stages.h"

enum { PASS_MS = 60, STAGES_MAX = 4, WIDTH = 16, CONVS = 16, CHANNELS = 128, SIDE = 8, BATCH = 16, STEPS_MAX = 8 };
enum { MICRO_MAX = 8, CHUNKS = 2, ACTIONS_MAX = 2 * MICRO_MAX * CHUNKS };

#define MUST(expr)                                                                                                     \
    do {                                                                                                               \
        struct err must_e = {0}, *const e = &must_e;                                                                   \
        if ((expr) < 0) {                                                                                              \
            fprintf(stderr, "%s: %s\n", #expr, must_e.text);                                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static _Thread_local struct usage {
    int64_t passes[ACTIONS_MAX]; /* ns, in the order of actions */
    int n, live, most;
} usage;

static void note_pass(int64_t start, enum run_pass pass)
{
    usage.passes[usage.n++] = clock_ns() - start;
    usage.live += pass == RUN_FORWARD ? 1 : -1;
    usage.most = usage.live > usage.most ? usage.live : usage.most;
}

/* --- a device that sleeps */

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
    note_pass(start, a->pass);
    return 0;
}

static void sleepy_close(struct device *d)
{
    free(d);
}

static const struct device_ops sleepy_ops = {.name = "sleepy",
                                             .real = DT_F32,
                                             .alloc = sleepy_alloc,
                                             .release = sleepy_release,
                                             .plan = sleepy_plan,
                                             .plan_close = sleepy_plan_close,
                                             .run = sleepy_run,
                                             .close = sleepy_close};

static struct device *open_sleepy(void)
{
    struct device *d = calloc(1, sizeof *d);
    d->ops = &sleepy_ops;
    return d;
}

/* Layers enough for any cut. */
static struct program *write_layers(void)
{
    struct program *p = program_create("layers", input_pictures(1, 1, 1, NULL, NULL));
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

/* --- the CPU, looked at */

static struct device_ops timed_ops;

static int timed_run(struct plan *pl, const struct run_args *a, struct err *e)
{
    const int64_t start = clock_ns();
    int rc = device_cpu_ops.run(pl, a, e);
    note_pass(start, a->pass);
    return rc;
}

static struct device *open_timed(void)
{
    struct device *d;
    MUST(device_open(&d, "cpu", &(struct device_options){.threads = 1}, e));
    d->ops = &timed_ops;
    return d;
}

/* The first one is cheap: nobody asks for the gradient of images. */
static struct program *write_convolutions(void)
{
    struct program *p = program_create("convolutions", input_pictures(1, SIDE, SIDE, NULL, NULL));
    int x = program_conv(p, "first", program_input(p), CHANNELS, 1, 1, 0, false);
    for (int i = 0; i < CONVS; i++) {
        char conv[16], relu[16];
        snprintf(conv, sizeof conv, "c%d", i);
        snprintf(relu, sizeof relu, "r%d", i);
        x = program_conv(p, conv, program_relu(p, relu, x), CHANNELS, 3, 1, 1, false);
    }
    program_xent(p, program_linear(p, "last", program_avgpool(p, "pool", x), WIDTH));
    MUST(program_differentiate(p, e));
    return p;
}

/* --- a step */

struct work {
    const char *name;
    struct program *(*write)(void);
    struct device *(*open)(void);
    int batch, steps, stages_max;
};

static const struct work works[] = {
    {"sleeps", write_layers, open_sleepy, 1, 2, STAGES_MAX},
    {"computes", write_convolutions, open_timed, BATCH, STEPS_MAX, 2},
};

struct rank {
    const struct work *work;
    struct pipeline line;
    struct comm *comm;
    const struct program *whole;
    struct device *device;
    struct step {
        struct usage used;
        int64_t began, ended;
    } steps[STEPS_MAX];
};

static float *take(struct device *d, size_t n)
{
    void *ret;
    MUST(d->ops->alloc(d, (n + 1) * sizeof(float), &ret, e));
    return ret;
}

static void step(struct rank *r, struct stage *g, struct ddp *ddp, const struct run_args *all, struct step *ret)
{
    MUST(r->comm->ops->barrier(r->comm, COMM_CONTROL, e));
    usage = (struct usage){0};
    ret->began = clock_ns();
    MUST(stage_train(g, all, e));
    MUST(ddp_wait(ddp, e));
    ret->ended = clock_ns();
    ret->used = usage;
}

static void train_with(struct rank *r, const struct program *p, const struct ownership *own)
{
    static const int32_t labels[STAGES_MAX * BATCH * 2];
    static const float weights[STAGES_MAX * BATCH * 2];
    static const uint8_t images[STAGES_MAX * BATCH * 2 * SIDE * SIDE];
    struct device *d = r->device;
    struct comm *groups[LAYOUT_GROUPS] = {0};
    float *const params = take(d, p->n_train), *const stats = take(d, p->n_stats);
    float *const reduce = take(d, p->n_train + METRIC_N);
    struct stage *g;
    struct ddp *ddp;
    MUST(ddp_create(&ddp, groups, own, reduce, METRIC_N, DT_F32, &(struct ddp_options){.wire = DT_F32}, e));
    const struct stage_options so = {.order = r->line,
                                     .index = r->comm->rank,
                                     .comm = r->comm,
                                     .device = d,
                                     .program = p,
                                     .own = own,
                                     .ddp = ddp,
                                     .plan = {.batch = r->work->batch,
                                              .training = true,
                                              .compute = DT_F32,
                                              .params = params,
                                              .stats = stats,
                                              .reduce = reduce}};
    MUST(stage_open(&g, &so, e));
    const struct run_args all = {
        .batch = {.rows = images, .labels = labels, .weights = weights}, .grad_scale = 1, .params_version = 1};
    for (int i = 0; i < r->work->steps; i++)
        step(r, g, ddp, &all, &r->steps[i]);
    stage_close(g);
    ddp_destroy(ddp);
    d->ops->release(d, params);
    d->ops->release(d, stats);
    d->ops->release(d, reduce);
}

static void *train(void *arg)
{
    struct rank *r = arg;
    const int parts = r->line.stages * r->line.chunks;
    int cuts[2 * STAGES_MAX];
    struct program *p;
    struct ownership own;
    MUST(stages_cut(r->whole, parts, cuts, e));
    MUST(stages_program(&p, r->whole, cuts, parts, r->line.stages, r->comm->rank, e));
    MUST(ownership_init_alone(&own, p, e));
    r->device = r->work->open();
    train_with(r, p, &own);
    r->device->ops->close(r->device);
    ownership_finish(&own);
    program_destroy(p);
    return NULL;
}

static int64_t busy(const struct rank *ranks, int stages, int step)
{
    int64_t ns = 0;
    for (int i = 0; i < stages; i++)
        for (int k = 0; k < ranks[i].steps[step].used.n; k++)
            ns += ranks[i].steps[step].used.passes[k];
    return ns;
}

static int64_t measured(const struct rank *ranks, int stages, int step)
{
    int64_t began = INT64_MAX, ended = 0;
    for (int i = 0; i < stages; i++) {
        const struct step *s = &ranks[i].steps[step];
        began = s->began < began ? s->began : began;
        ended = s->ended > ended ? s->ended : ended;
    }
    return ended - began;
}

/* When passes of a step would end if each began as soon as its stage and what it needs are there. */
struct play {
    struct pipeline line;
    int next[STAGES_MAX];
    int64_t free[STAGES_MAX], done[2][STAGES_MAX * CHUNKS][MICRO_MAX]; /* done: -1: not yet */
};

/* A stage's next action, if it can be done. */
static bool advance(struct play *p, const struct rank *ranks, int stage, int step)
{
    if (p->next[stage] == pipeline_actions(&p->line))
        return false;
    const struct pipeline_action a = pipeline_action(&p->line, stage, p->next[stage]);
    const int part = pipeline_part(&p->line, stage, a.chunk);
    const int64_t input = a.from < 0 ? 0 : p->done[a.backward][a.backward ? part + 1 : part - 1][a.micro_batch];
    if (input < 0)
        return false;
    const int64_t start = input > p->free[stage] ? input : p->free[stage];
    p->free[stage] = start + ranks[stage].steps[step].used.passes[p->next[stage]++];
    p->done[a.backward][part][a.micro_batch] = p->free[stage];
    return true;
}

static int64_t played(const struct rank *ranks, struct pipeline line, int step)
{
    struct play p = {.line = line};
    int64_t span = 0;
    memset(p.done, -1, sizeof p.done);
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < line.stages; i++)
            moved |= advance(&p, ranks, i, step);
    }
    for (int i = 0; i < line.stages; i++)
        span = p.free[i] > span ? p.free[i] : span;
    return span;
}

static int most_messages(const struct pipeline *line)
{
    int most = 0;
    for (int s = 0; s < line->stages; s++) {
        int n = 0;
        for (int i = 0; i < pipeline_actions(line); i++)
            n += pipeline_action(line, s, i).to >= 0;
        most = n > most ? n : most;
    }
    return most;
}

struct shares {
    double measured, played, pass_ms, engine_us;
    int live;
};

static struct shares shares_of(const struct rank *ranks, const struct pipeline *line, int step)
{
    const int n = line->stages;
    const double ran = (double)busy(ranks, n, step), took = (double)measured(ranks, n, step),
                 best = (double)played(ranks, *line, step);
    return (struct shares){.measured = 1 - ran / took / n,
                           .played = 1 - ran / best / n,
                           .pass_ms = ran / 1e6 / (n * pipeline_actions(line)),
                           .engine_us = (took - best) / 1e3 / most_messages(line),
                           .live = ranks[0].steps[step].used.most};
}

static int by_measured(const void *a, const void *b)
{
    const struct shares *x = a, *y = b;
    return (x->measured > y->measured) - (x->measured < y->measured);
}

static struct shares idle_shares(const struct work *w, const struct program *whole, struct pipeline line)
{
    struct comm *comms[STAGES_MAX];
    pthread_t threads[STAGES_MAX];
    static struct rank ranks[STAGES_MAX];
    struct shares shares[STEPS_MAX];
    MUST(comm_local_open_threads(comms, line.stages, 60000, e));
    for (int i = 0; i < line.stages; i++) {
        ranks[i] = (struct rank){.work = w, .line = line, .comm = comms[i], .whole = whole};
        pthread_create(&threads[i], NULL, train, &ranks[i]);
    }
    for (int i = 0; i < line.stages; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < line.stages; i++)
        comms[i]->ops->close(comms[i]);
    const int n = w->steps - 1; /* the first one finds its memory */
    for (int i = 0; i < n; i++)
        shares[i] = shares_of(ranks, &line, i + 1);
    qsort(shares, (size_t)n, sizeof shares[0], by_measured);
    return shares[n / 2];
}

static int bench(const struct work *w)
{
    static const char *const kinds[] = {PIPELINE_KINDS(CHOICE_NAME)};
    struct program *whole = w->write();
    int missed = 0;
    for (int kind = PIPELINE_GPIPE; kind <= PIPELINE_INTERLEAVED; kind++)
        for (int s = 2; s <= w->stages_max; s += 2)
            for (int m = 4; m <= 8; m += 4) {
                const int v = kind == PIPELINE_INTERLEAVED ? CHUNKS : 1;
                const struct pipeline line = {(enum pipeline_kind)kind, s, m, v};
                const struct shares got = idle_shares(w, whole, line);
                const double want = (double)(s - 1) / (m * v + s - 1);
                const bool near = got.measured <= want * 1.1 && got.measured >= want * 0.9;
                printf("%-8s %-12s %6d %13d %6d %14.1f%% %6.1f%% %7.1f%% %6.1f %7.0f %5d%s\n", w->name, kinds[kind], s,
                       m, v, 100 * got.measured, 100 * got.played, 100 * want, got.pass_ms, got.engine_us, got.live,
                       near ? "" : "  not within a tenth");
                fflush(stdout);
                missed += !near;
            }
    program_destroy(whole);
    return missed;
}

int main(int argc, char **argv)
{
    const bool check = argc > 1 && strcmp(argv[1], "check") == 0;
    int missed = 0;
    timed_ops = device_cpu_ops;
    timed_ops.run = timed_run;
    printf("%-8s %-12s %6s %13s %6s %15s %7s %8s %6s %7s %5s\n", "stage", "schedule", "stages", "micro-batches",
           "chunks", "idle, measured", "played", "formula", "pass", "engine", "live");
    for (size_t i = 0; i < sizeof works / sizeof works[0]; i++)
        missed += bench(&works[i]);
    return check && missed ? 1 : 0;
}
