#include "worker/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include "common/clock.h"
#include "common/env_contract.h"
#include "common/err.h"
#include "worker/config.h"
#include "worker/program/program.h"
#include "worker/session.h"

/* "conv layer1.0.conv1"; gradients of parameters by the parameter. */
static void on_op(void *ctx, const char *label, int op, int64_t start_ns, int64_t end_ns)
{
    const struct trace *t = ctx;
    const struct op *o = &t->program->ops[op];
    char name[160];
    snprintf(name, sizeof name, "%s %s", label,
             o->out >= 0        ? t->program->tensors[o->out].name
             : o->param[0] >= 0 ? t->program->params[o->param[0]].name
                                : "");
    timeline_span(t->timeline, TIMELINE_TRAINING, "compute", name, start_ns, end_ns, false);
}

static void on_reduction(void *ctx, int bucket, bool own_thread, int64_t start_ns, int64_t end_ns)
{
    const struct trace *t = ctx;
    char name[48] = "all-reduce statistics";
    if (bucket >= 0)
        snprintf(name, sizeof name, "all-reduce bucket %d", bucket);
    timeline_span(t->timeline, own_thread ? TIMELINE_COLLECTIVES : TIMELINE_TRAINING, "collective", name, start_ns,
                  end_ns, false);
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

int trace_open(struct trace *t, const struct session *s, const struct env_contract *env, bool first, struct err *e)
{
    char path[PATH_MAX];
    const struct window w = s->cfg->prof ? (struct window){s->cfg->prof, 10} : s->cfg->timeline_steps;
    if ((!s->cfg->timeline && !s->cfg->prof) || first != (env->local_rank == 0))
        return 0;
    TRY(file_of(s, env, path, sizeof path, e));
    const struct timeline_options o = {
        .path = path, .rank = s->rank, .create = first, .first = w.first, .count = w.count};
    TRY(timeline_open(&t->timeline, &o, e));
    t->program = s->program;
    t->ops = (struct run_trace){.ctx = t, .op = on_op};
    t->reductions = (struct ddp_watch){.ctx = t, .reduced = on_reduction};
    t->last = first;
    ddp_set_watch(s->ddp, &t->reductions);
    return 0;
}

void trace_flush(struct trace *t)
{
    timeline_flush(t->timeline);
}

void trace_close(struct trace *t, bool complete)
{
    timeline_close(t->timeline, complete && t->last);
    *t = (struct trace){0};
}

void trace_step(struct trace *t, int64_t step)
{
    timeline_step(t->timeline, step);
}

const struct run_trace *trace_ops(const struct trace *t)
{
    return t && timeline_recording(t->timeline) ? &t->ops : NULL;
}

void trace_span(const struct trace *t, const char *category, const char *name, int64_t start_ns)
{
    if (t && timeline_recording(t->timeline))
        timeline_span(t->timeline, TIMELINE_TRAINING, category, name, start_ns, clock_ns(), false);
}

void trace_long_span(const struct trace *t, const char *category, const char *name, int64_t start_ns)
{
    if (t->timeline)
        timeline_span(t->timeline, TIMELINE_TRAINING, category, name, start_ns, clock_ns(), true);
}

void trace_writer_span(const struct trace *t, int64_t step, int64_t start_ns, int64_t end_ns)
{
    char name[48];
    snprintf(name, sizeof name, "write step %" PRId64, step);
    timeline_span(t->timeline, TIMELINE_WRITER, "checkpoint", name, start_ns, end_ns, true);
}
