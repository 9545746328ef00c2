/* Everything one rank of a run holds, opened in order and closed in reverse. train/ runs the loop over it.
 *
 * The host is what the process has and a round does not change: data, model, device, state, and, as long as its share
 * of a batch is the same, plans and loaders. It is opened once. The round is who this process is among the others:
 * rank, world, communicators. It is opened for each round: of a process that outlives rounds (hold.h) again and
 * again. */
#ifndef CRUN_WORKER_SESSION_H
#define CRUN_WORKER_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/device/device.h"
#include "worker/meet/meet.h"
#include "worker/optim/update.h"
#include "worker/parallel/layout.h"
#include "worker/parallel/ownership.h"
#include "worker/pipeline/pipeline.h"
#include "worker/precision/precision.h"
#include "worker/session/former.h"
#include "worker/session/memory.h"
#include "worker/snapshot/snapshot.h"
#include "worker/state/state.h"

struct comm;
struct dataset;
struct decoded_cache;
struct ddp;
struct env_contract;
struct err;
struct loader;
struct program;
struct stage;
struct residency;
struct train_config;

struct session {
    const struct train_config *cfg;
    int rounds; /* opened so far */
    struct layout layout;
    int rank;                  /* of layout.world: what this process is called; it takes part */
    struct layout_ranks batch; /* the ranks that a batch is spread over, this one among them */
    struct ownership own;
    bool leads;      /* speaks for the run: console, logs, metrics */
    bool looks_only; /* a forecast's: nothing is written, nor made beside the data */
    int local_world, nodes;
    int threads, loader_threads;
    bool writes;         /* checkpoints */
    bool saves_together; /* a checkpoint takes all ranks: each keeps what the others do not */
    bool aside;          /* the checkpoint folder holds another run's: to be renamed before anything is written */
    int lock_fd;         /* of a rank that writes: holds the checkpoint folder for this run; -1: none */
    struct dataset *train_set, *test_set; /* test_set NULL: nothing to evaluate */
    struct program *program;              /* of this rank's stage, where there are stages */
    struct program *whole;                /* of the model; the same where there are none */
    struct pipeline pipeline;
    int *cuts; /* ops of the whole that its parts from the second one on begin with */
    struct device *device;
    struct gpu_choice gpu; /* it was opened by */
    struct precision precision;
    enum dtype compute;
    bool emulate;
    enum memory_format format;
    struct state state;
    struct former_age age; /* of the state */
    bool filled;           /* the state is what training goes on from; else formers are, if there are any */
    struct former formers[FORMERS_MOST];
    int nformers;
    struct meet meet;
    struct comm *comm;                  /* of all ranks that take part */
    struct comm *groups[LAYOUT_GROUPS]; /* groups_open() */
    struct comm *edges[2];              /* groups_open_edges() */
    struct plan_group group;            /* what plans call over the tensor group, if there is one */
    struct ddp *ddp;
    struct plan *train_plan, *test_plan;
    struct stage *train_stage, *test_stage;     /* instead of plans, where there are stages */
    struct residency *train_needs, *test_needs; /* of their parameters, where these come and go; else NULL */
    int plan_batch[2];                          /* of test_plan, train_plan: what they were made for */
    bool plans_agreed;                          /* they compute as other ranks' do (choices_share()) */
    struct decoded_cache *pictures;             /* of the training set, with the other ranks of this node; or NULL */
    struct loader *train_loader, *test_loader;  /* of the first stage */
    struct layout_ranks loader_batch;           /* whose shares they make */
    struct optimizer optimizer;
    struct loss_rule loss;           /* of training: session_open_classes() */
    float *class_weights;            /* that it reads; NULL: none */
    uint32_t *by_class, *class_ends; /* of the training set, as a sampler has them; NULL: nothing is drawn by classes */
    int drawn_classes;
    float *weights;  /* --ignore-index: step.weights; NULL: no class is ignored */
    int parts, part; /* of a step; samples that go through the model at once in training */
    int stride;      /* rows of a batch from one part to the next */
    int64_t steps_per_epoch, test_steps;
    int64_t total_steps; /* of the run, in steps of this batch; train/begin.c sets it */
    bool resume;         /* take up the newest checkpoint: asked for, or this is a restart of the job */
    char device_text[160], precision_text[96];
    bool failed; /* set before session_close_round() after an error: peers are not waited for */
    struct snapshot_identity identity;
    struct mem_marks mem; /* --mem-report */
    int64_t kept;         /* bytes of copies of its state in memory of the node (memory_slot.h) */
};

/* On failure everything is closed again. */
int session_open_host(struct session *s, const struct train_config *cfg, const struct env_contract *env, struct err *e);

/* Of a process that has no rank yet: make what needs none but takes long, the plans where they are all ranks'. */
int session_warm_up(struct session *s, struct err *e);

/* All ranks of the round. has_state: what there is of the state is what training goes on from, and is kept, put aside
 * where its layout is another one (former.h). After a failure, too, it is closed by session_close_round(); `failed` is
 * set then. */
int session_open_round(struct session *s, const struct env_contract *env, bool has_state, struct err *e);
void session_close_round(struct session *s);
/* Nobody may wait for us any more, nor we for them: what is under way in the round ends. */
void session_abort_round(struct session *s);

/* Of a round that follows another one of the same job: after a failure, or because nodes came or went. */
bool session_goes_on(const struct env_contract *env);

void session_close(struct session *s); /* the round, too */

/* The state becomes what it was when the host was opened: initial values. */
int session_reset_state(struct session *s, struct err *e);

/* What a person wants to know before training starts; to stderr. The rank that leads calls it. */
void session_banner(const struct session *s);

#endif
