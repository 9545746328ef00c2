/* Notes when the parts of a run begin and end, for the timeline. */
#include "worker/run/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/env_contract.h"
#include "worker/config/config.h"
#include "worker/program/program.h"
#include "worker/session/session.h"

/* "64x56x56 -> 64x56x56": of one sample, of the operation or of the one whose gradients it makes. */
static void shape_of(const struct program *p, const struct op *fwd, char *out, size_t cap)
{
    const struct tensor *from = fwd->in[0] >= 0 ? &p->tensors[fwd->in[0]] : NULL;
    const struct tensor *to = fwd->out >= 0 ? &p->tensors[fwd->out] : NULL;
    int n = from ? snprintf(out, cap, "%dx%dx%d", from->c, from->h, from->w) : 0;
    if (to)
        snprintf(out + n, cap - (size_t)n, "%s%dx%dx%d", from ? " -> " : "", to->c, to->h, to->w);
    else if (!from)
        *out = 0;
}

/* "layer1.0.conv1 conv_bwd_data": layers are named by what their forward operations make, which is the name of their
 * parameters. */
static void on_op(void *ctx, const struct run_span *s)
{
    const struct trace *t = ctx;
    const struct op *o = &t->program->ops[s->op], *fwd = o->fwd >= 0 ? &t->program->ops[o->fwd] : o;
    const char *layer = fwd->out >= 0 ? t->program->tensors[fwd->out].name : "";
    char name[160], shape[96];
    snprintf(name, sizeof name, "%s%s%s", layer, *layer ? " " : "", s->label);
    shape_of(t->program, fwd, shape, sizeof shape);
    timeline_put(t->timeline, &(struct timeline_event){.track = TIMELINE_TRAINING,
                                                       .category = "compute",
                                                       .name = name,
                                                       .kernel = s->kernel,
                                                       .shape = *shape ? shape : NULL,
                                                       .start_ns = s->start_ns,
                                                       .end_ns = s->end_ns});
}

static void on_reduction(void *ctx, int bucket, bool own_thread, int64_t start_ns, int64_t end_ns)
{
    const struct trace *t = ctx;
    char name[48];
    snprintf(name, sizeof name, bucket == DDP_WATCH_GATHER ? "gather parameters" : "all-reduce statistics");
    if (bucket >= 0)
        snprintf(name, sizeof name, "all-reduce bucket %d", bucket);
    timeline_put(t->timeline, &(struct timeline_event){.track = own_thread ? TIMELINE_COLLECTIVES : TIMELINE_TRAINING,
                                                       .category = "collective",
                                                       .name = name,
                                                       .start_ns = start_ns,
                                                       .end_ns = end_ns});
}

static void put_pass(const struct trace *t, const char *name, int64_t start_ns, int64_t end_ns)
{
    timeline_put(
        t->timeline,
        &(struct timeline_event){
            .track = TIMELINE_TRAINING, .category = "pipeline", .name = name, .start_ns = start_ns, .end_ns = end_ns});
}

static void on_pass(void *ctx, const struct pipeline_action *a, int64_t waited_ns, int64_t start_ns, int64_t end_ns)
{
    const struct trace *t = ctx;
    char name[64], chunk[24] = "";
    if (!timeline_recording(t->timeline))
        return;
    if (a->chunk > 0)
        snprintf(chunk, sizeof chunk, " of chunk %d", a->chunk);
    snprintf(name, sizeof name, "%s %d%s", a->backward ? "backward" : "forward", a->micro_batch, chunk);
    put_pass(t, "wait for a stage", start_ns - waited_ns, start_ns);
    put_pass(t, name, start_ns, end_ns);
}

static int file_of(const struct session *s, const struct env_contract *env, char *out, size_t cap, struct err *e)
{
    const struct train_config *c = s->cfg;
    const char *dir = c->log_dir ? c->log_dir : c->checkpoint_dir ? c->checkpoint_dir : ".";
    char node[32] = "", restart[32] = "";
    if (env->group_rank > 0)
        snprintf(node, sizeof node, ".node%d", (int)env->group_rank);
    if (env->restart_count > 0)
        snprintf(restart, sizeof restart, ".restart%d", (int)env->restart_count);
    int n = snprintf(out, cap, "%s%s%s%s", c->timeline ? c->timeline : dir, c->timeline ? "" : "/timeline.json", node,
                     restart);
    return n < (int)cap ? 0 : err_set(e, -ENAMETOOLONG, "the path of the timeline is too long");
}

bool trace_in_checkpoints(const struct train_config *c)
{
    return c->prof && !c->timeline && !c->log_dir && c->checkpoint_dir && c->if_checkpoint == IF_CHECKPOINT_ASIDE;
}

/* What is asked for and of no use. */
static void tell_useless(const struct train_config *c)
{
    const struct window w = c->timeline_steps, usual = {3, 10};
    if (w.first == usual.first && w.count == usual.count)
        return;
    if (c->prof)
        log_warn("trainer", "--timeline-steps %lld,%lld is of no use: --prof %lld takes ten steps from that one on",
                 (long long)w.first, (long long)w.count, (long long)c->prof);
    else if (!c->timeline)
        log_warn("trainer", "--timeline-steps is of use with --timeline only");
}

int trace_open(struct trace *t, const struct session *s, const struct env_contract *env, bool first, struct err *e)
{
    if (first && s->leads)
        tell_useless(s->cfg);
    char path[PATH_MAX];
    const struct window w = s->cfg->prof ? (struct window){s->cfg->prof, 10} : s->cfg->timeline_steps;
    if ((!s->cfg->timeline && !s->cfg->prof) || first != (env_contract_place(env) == 0))
        return 0;
    TRY(file_of(s, env, path, sizeof path, e));
    const struct timeline_options o = {
        .path = path, .rank = s->rank, .create = first, .first = w.first, .count = w.count};
    TRY(timeline_open(&t->timeline, &o, e));
    t->program = s->program;
    t->ops = (struct run_trace){.ctx = t, .op = on_op};
    t->reductions = (struct ddp_watch){.ctx = t, .reduced = on_reduction};
    t->last = first;
    t->tells = s->leads;
    t->first = w.first;
    t->passes = (struct stage_watch){.ctx = t, .did = on_pass};
    ddp_set_watch(s->ddp, &t->reductions);
    if (s->train_stage)
        stage_set_watch(s->train_stage, &t->passes);
    return 0;
}

void trace_flush(struct trace *t)
{
    timeline_flush(t->timeline);
}

void trace_close(struct trace *t, bool complete)
{
    if (complete && t->tells && t->steps < t->first)
        log_warn("trainer", "the timeline has no steps: it was to begin with step %lld, this run made %lld",
                 (long long)t->first, (long long)t->steps);
    timeline_close(t->timeline, complete && t->last);
    *t = (struct trace){0};
}

void trace_step(struct trace *t, int64_t step)
{
    t->steps = step;
    timeline_step(t->timeline, step);
}

const struct run_trace *trace_ops(const struct trace *t)
{
    return t && timeline_recording(t->timeline) ? &t->ops : NULL;
}

static void span(const struct trace *t, const char *category, const char *name, int64_t start_ns, bool always)
{
    timeline_put(t->timeline, &(struct timeline_event){.track = TIMELINE_TRAINING,
                                                       .category = category,
                                                       .name = name,
                                                       .start_ns = start_ns,
                                                       .end_ns = clock_ns(),
                                                       .always = always});
}

void trace_span(const struct trace *t, const char *category, const char *name, int64_t start_ns)
{
    if (t && timeline_recording(t->timeline))
        span(t, category, name, start_ns, false);
}

void trace_long_span(const struct trace *t, const char *category, const char *name, int64_t start_ns)
{
    if (t->timeline)
        span(t, category, name, start_ns, true);
}

void trace_writer_span(const struct trace *t, int64_t step, int64_t start_ns, int64_t end_ns)
{
    char name[48];
    snprintf(name, sizeof name, "write step %" PRId64, step);
    timeline_put(t->timeline, &(struct timeline_event){.track = TIMELINE_WRITER,
                                                       .category = "checkpoint",
                                                       .name = name,
                                                       .start_ns = start_ns,
                                                       .end_ns = end_ns,
                                                       .always = true});
}
