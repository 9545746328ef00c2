/* Inside of dnn.h; dnn*.c only. */
#ifndef CRUN_WORKER_DEVICE_CUDA_DNN_IMPL_H
#define CRUN_WORKER_DEVICE_CUDA_DNN_IMPL_H

#include <cjson/cJSON.h>

#include "worker/device/cuda/dnn/dnn_graph.h"

/* What is known of an engine for a graph, or of a whole graph, and what a record of it calls that (NULL: there is
 * none). */
#define DNN_PLAN_STATES(X)                                                                                             \
    X(DNN_CANDIDATE, NULL)    /* another one of its graph is chosen, or none yet */                                    \
    X(DNN_GUESSED, "guessed") /* chosen by the heuristics' order; has yet to run on this device, in this process */    \
    X(DNN_GUESSED_RAN, "guessed") /* and ran */                                                                        \
    X(DNN_TIMED, "timed")         /* chosen by time, here or where its record was made; has yet to run */              \
    X(DNN_TIMED_RAN, "timed")                                                                                          \
    X(DNN_BARRED, "barred") /* this engine fails or is wrong; without an engine: none of the graph's runs */           \
    X(DNN_SLOWER, "slower") /* the graph: what lies below it takes less time */

enum cudnn_plan_state {
#define X(id, name) id,
    DNN_PLAN_STATES(X)
#undef X
};

struct cudnn_plan {
    struct cudnn *d;
    struct cudnn_plan *next; /* all of d */
    enum cudnn_pattern pattern;
    struct cudnn_shape shape;
    enum cudnn_plan_state state;
    double us;                             /* its time, 0: not measured */
    char *why;                             /* DNN_BARRED, DNN_SLOWER; NULL elsewhere */
    bool fleeting;                         /* it may be otherwise in the next run: not for the cache */
    bool kept;                             /* it was chosen before this process: it is not to be chosen anew */
    bool settled;                          /* its graph was found to be worth what lies below it */
    struct cudnn_parts parts;              /* engine configuration and plan; the graph may go */
    cudnnBackendDescriptor_t config, plan; /* none of what is known from records to be barred */
    struct dnn_algo algo;                  /* of a product, instead of these */
    float scalars[3];                      /* of attention: what its graph takes by value */
    int64_t workspace;
    char graph[128], name[128];
    char *choice; /* JSON of engine and knobs; NULL: of the graph as a whole */
};

struct cudnn {
    struct cudnn_options o;
    char *cache_dir;
    bool unwritable;  /* the cache; logged once */
    char device[160]; /* and the versions of CUDA that choices depend on: names the folder of the cache */
    int trial;        /* descriptor of the file that says what is tried, -1: none yet */
    char *trial_path;
    struct cudnn_parts parts; /* the properties */
    cudnnBackendDescriptor_t props;
    struct cudnn_plan *plans;
};

/* Name and choice of a plan, from its ENGINECFG. */
int cudnn_choice_read(struct cudnn_plan *p, struct err *e);
/* An ENGINECFG from a choice. */
int cudnn_choice_config(struct cudnn *d, struct cudnn_parts *b, cudnnBackendDescriptor_t graph, const cJSON *choice,
                        cudnnBackendDescriptor_t *ret);
/* The plan of a choice that was made elsewhere, from now on. What this device, this cuDNN or the options cannot have is
 * an error. */
int cudnn_adopt(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, const cJSON *choice, bool measured,
                double us, struct err *e);
/* An engine that was barred elsewhere. */
int cudnn_adopt_barred(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, const cJSON *choice,
                       const char *why, struct err *e);

/* The tensors of an attention's graph, by their ids, from its slots; their number. Scalars are host memory of p. */
enum { DNN_BOUND_MAX = 16 };
int cudnn_sdpa_bind(struct cudnn_plan *p, void *const *slots, int64_t ids[DNN_BOUND_MAX], void *at[DNN_BOUND_MAX]);

/* A product's plan from a choice: its algo, name and workspace. -ENOTSUP: of another cuBLASLt, or not deterministic. */
int cudnn_product_read(struct cudnn_plan *p, const cJSON *choice, struct err *e);

struct cudnn_plan *cudnn_plan_new(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s);
int cudnn_plan_finish(struct cudnn_plan *p, struct err *e); /* finalise a plan of p->config */
int cudnn_plan_check(struct cudnn_plan *p, struct err *e);  /* may it be used under these options? */
void cudnn_plan_free(struct cudnn_plan *p);
bool cudnn_same_graph(const struct cudnn_plan *p, enum cudnn_pattern pattern, const struct cudnn_shape *s);
/* Is this choice barred for the graph? */
bool cudnn_choice_barred(const struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s,
                         const char *choice);

/* Take up what the cache has for a graph; what cannot be read is logged. Nothing where there is no cache. */
void cudnn_cache_get(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s);
/* All that is known of this plan's graph. Nothing where there is no cache. One that cannot be written is reported once
 * and left alone. */
void cudnn_cache_put(struct cudnn *d, const struct cudnn_plan *p);
/* Part of a file's name that nobody else gives a file in the cache, in this process or another, on this host or
 * another. */
enum { CUDNN_MARK = 64 };
void cudnn_mark(char out[CUDNN_MARK]);
/* The folder of this device; false: there is no cache. */
bool cudnn_cache_folder(const struct cudnn *d, char *out, size_t cap);

/* What a record says, as JSON; and the engine that it names, as a trial that did not end. */
cJSON *cudnn_record_make(const struct cudnn_plan *p);
int cudnn_record_bar(struct cudnn *d, const cJSON *record, const char *why, struct err *e);

/* Bar what earlier processes were trying when they ended. */
void cudnn_trials_sweep(struct cudnn *d);
void cudnn_trials_close(struct cudnn *d);

#endif
