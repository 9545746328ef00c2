/* --timeline: what the parts of a run tell of themselves. A trace that is not open costs a comparison. */
#ifndef CRUN_WORKER_TRACE_H
#define CRUN_WORKER_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/device/device.h"
#include "worker/parallel/ddp.h"
#include "worker/pipeline/stage.h"
#include "worker/report/timeline.h"

struct env_contract;
struct session;
struct train_config;

struct trace { /* all-zero: not open */
    struct timeline *timeline;
    const struct program *program;
    struct run_trace ops;
    struct ddp_watch reductions;
    struct stage_watch passes;
    bool last;            /* of this node: closes the array */
    bool tells;           /* rank 0 */
    int64_t first, steps; /* of the window; begun so far */
};

/* Call twice, with something between in which ranks wait for each other: first == true lets one rank of a node make the
 * file, else the others open it. Node 0 writes --timeline's file, node K writes FILE.nodeK, restart N FILE.restartN. t
 * must stay where it is. */
int trace_open(struct trace *t, const struct session *s, const struct env_contract *env, bool first, struct err *e);
/* Does it lie in a folder of checkpoints that may be put aside before the run begins? Then both calls come after
 * that. */
bool trace_in_checkpoints(const struct train_config *c);
/* complete: training ended in good order and ranks waited for each other after trace_flush(). */
void trace_close(struct trace *t, bool complete);
void trace_flush(struct trace *t);

void trace_step(struct trace *t, int64_t step);           /* before a step; counted from 1 in this process */
const struct run_trace *trace_ops(const struct trace *t); /* for run_args.trace */
/* On the training thread's track, from start to now; what lasts long is recorded outside of the window, too. */
void trace_span(const struct trace *t, const char *category, const char *name, int64_t start_ns);
void trace_long_span(const struct trace *t, const char *category, const char *name, int64_t start_ns);
/* A checkpoint that was written beside training, on the writer's track. */
void trace_writer_span(const struct trace *t, int64_t step, int64_t start_ns, int64_t end_ns);

#endif
