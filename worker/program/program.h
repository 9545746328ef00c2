/* A model as a program: a static list of operations over tensor ids, forward and then backward. Pure data.
 *
 *   model_build() writes the forward list (worker/model/), program_differentiate() appends the backward list and lays
 *   out the arenas, device->plan() turns it (or a slice of it) into something that runs.
 *
 * Tensors are activations and their gradients, shape (N, c, h, w) with N the batch of the plan (of ranks * N where rows
 * of a group are gathered). Saved statistics,
 * pooling workspaces and layouts are the device's own matter: a backward op names its forward op (op.fwd).
 *
 * Arenas, all of the device's `real` type (f64 on ref, f32 elsewhere), element offsets in struct param:
 *   params   trained parameters, [0, n_train), in backward order: the gradient that is complete first comes first; then
 *            n_frozen elements of frozen ones, which have no gradient; each padded to 16 elements, or to what
 *            program_align() says
 *   stats    BN running means and variances, [0, n_stats); then n_fixed elements of those that never change
 *   reduce   [0, n_train) gradients at the offsets of params; [n_train, n_train + n_stats) this step's BN statistics at
 *            the offsets of stats; then METRIC_N metrics. Everything in it is a *sum over samples* (statistics times
 *            the samples they stand for), so one all-reduce(sum) and a division by METRIC_COUNT makes it exact for
 *            uneven shards.
 * A parameter that two ops read (the embedding, and a head that is tied to it) has one gradient, to which both add: it
 * lies where the op that adds last has it, and is ready after that one.
 * Sample weights are 0 or 1. A sample of weight 0 (corrupt, or padding of a short batch) counts nowhere. Of tokens each
 * position has a label and counts by itself; one with label -1 counts nowhere. */
#ifndef CRUN_WORKER_PROGRAM_H
#define CRUN_WORKER_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/program/act.h"
#include "worker/program/input.h"

struct err;

/* Channels of the small tensors of a loss over parts of the logits. */
enum {
    LABEL_CLASS,
    LABEL_WEIGHT,
    LABEL_SECOND,
    LABEL_SHARE,
    LABEL_N
};                                          /* a sample that does not count has class -1;
                                                                          * one that is mixed a share of a second */
enum { SAMPLE_HIGH, SAMPLE_LOW, SAMPLE_N }; /* of its number: 16 bits each, whole in a float */
/* target, other: logits of the label and of the second; of other ranks -infinity */
enum { TOP_MAX, TOP_TARGET, TOP_CLASS, TOP_WEIGHT, TOP_OTHER, TOP_SECOND, TOP_SHARE, TOP_N };
enum { SUMS_EXP, SUMS_LOGITS, SUMS_BETTER, SUMS_N }; /* of exp(z - max), of z; logits that beat the label's */
enum { LSE_LSE, LSE_CLASS, LSE_WEIGHT, LSE_SECOND, LSE_SHARE, LSE_N }; /* log of the sum of exp(z) over all classes */

enum op_kind {
#define X(kind, ...) kind,
#include "worker/program/ops.def"
#undef X
    OP_KINDS
};

enum { HEAD_ROWS = 1024 }; /* whose logits HEAD has at a time on a host device, and combines over a group at once */

enum op_call { CALL_NONE, CALL_GATHER, CALL_SCATTER, CALL_SUM, CALL_MAX };
/* What the time of an op goes to: nothing that counts; memory traffic; a product of matrices, which makes the result,
 * or a gradient of the data, or of the parameters. */
enum op_work { WORK_SMALL, WORK_MEMORY, WORK_FORWARD, WORK_DATA, WORK_PARAM };
enum op_trait {
    OP_ROWWISE = 1, /* does the same to rows of other ranks as to this one's, as all ops of a group do */
    OP_OF_GROUP = 2,
    OP_OF_LOSS = 4, /* the result is counted, or summed for the loss: it stays wide */
    OP_READS_INPUT = 8,
    OP_READS_LABELS = 16,
    OP_WRITES_METRICS = 32,
    OP_OF_POSITIONS = 64, /* works on the channels of a position: they should lie side by side */
    OP_DRAWS = 128,       /* reads the numbers of samples, in training */
};

/* A tensor of a forward op as its backward ops see it; none; the logits of the program. SECOND: its second input, or
 * none. */
enum op_operand { OF_NONE, OF_X, OF_SECOND, OF_Y, OF_DY, OF_LOGITS };

/* What is known of a kind of operation: a row of ops.def. */
struct op_facts {
    const char *name;
    int inputs;        /* tensors that it reads */
    char params[5];    /* of param[i]: 'r' its value is read, 'g' its gradient is written, 'b' both, 's' statistics */
    enum op_call call; /* of the group that it is over */
    enum op_work work;
    unsigned traits;       /* of op_trait */
    int passes;            /* the gradient of its result is that of its first so many inputs */
    struct op_backward {   /* its backward ops, in their order; a row of zeros ends them */
        enum op_kind kind; /* reads a and b, makes a contribution to the gradient of `to` */
        enum op_operand a, b, to;
    } back[3];
};
const struct op_facts *op_facts(enum op_kind k);
const char *op_name(enum op_kind k);
bool op_is(enum op_kind k, unsigned traits); /* has it one of these traits? */
bool op_is_product(enum op_kind k);          /* of matrices, see op_work */
bool op_writes_gradients(enum op_kind k);    /* of parameters */

struct op {
    enum op_kind kind;
    int in[2];                  /* tensor ids, -1 where unused, in the order of ops.def */
    int out;                    /* tensor id, -1 if none */
    int param[4];               /* indices into program.params, -1 where unused */
    int fwd;                    /* backward ops: index of the forward op; else -1 */
    int kh, kw, sh, sw, ph, pw; /* CONV, MAXPOOL and their backward ops: kernel, stride, padding */
    float eps;                  /* BN, NORM */
    int groups;                 /* CONV: output channel k reads the inputs of group k / (K / groups) alone */
    bool each;                  /* LINEAR: of each position */
    bool adds;                  /* backward: the gradient of param[0] was begun by an op before it */
    bool more;                  /* backward: that gradient is not complete, an op behind it adds to it */
    bool rms;                   /* NORM */
    bool fixed;                 /* BN, BN_BWD: in training, too, it uses its running statistics, and keeps them */
    int heads, kv_heads;        /* ATTENTION, ROPE: of queries; of keys and of values, a divisor of heads */
    bool causal;                /* ATTENTION */
    double base;                /* ROPE */
    enum op_act act;            /* ACT */
    float rate;                 /* DROP: the share that becomes 0 */
    bool samples;               /* DROP: of samples, each as a whole */
    uint64_t layer;             /* DROP: a number of its own, from its name: the same in every part of a model */
    int first;                  /* SLICE, PAD: channel of x; PICK: position; XENT_TOP, SUMS, PARTS_BWD: class of the
                                 * first logit; DROP: of the whole, the channel that x begins with */
    int whole;                  /* DROP: channels of the whole that x has a part of; 0: x is the whole */
};

struct tensor {
    char name[80]; /* "layer1.0.conv1", gradients "d layer1.0.conv1" */
    int c, h, w;   /* all >= 1 */
    int whole;     /* channels of what it is this rank's part of; c: all of them are here */
    int ranks;     /* whose rows it has: 1, this one's; else those of so many, the whole group */
    bool gradient;
};

enum param_role { PARAM_TRAIN, PARAM_STAT };
enum param_init {
    INIT_ZEROS,
    INIT_ONES,
    INIT_NORMAL,    /* init_scale = standard deviation */
    INIT_TRUNCATED, /* the same distribution without its tails beyond 2 * init_scale */
    INIT_UNIFORM,   /* in [-init_scale, init_scale) */
    INIT_CONSTANT,  /* init_scale */
    INIT_SINCOS2D,  /* of a table of positions (param.grid), sines and cosines of their columns and rows */
};

/* Where positions are: `extra` of their own, then those of a picture, row after row. */
struct program_grid {
    int extra, h, w;
};

struct param {
    char name[96]; /* torchvision's state_dict name */
    enum param_role role;
    int ndim;
    int64_t shape[4]; /* OIHW for convolutions, (K, C) for linear, (C) else; (C,1,1), (1,T,C): see below */
    size_t count;     /* elements */
    size_t offset;    /* elements into `params`/`reduce` (TRAIN) or `stats` (STAT) */
    bool frozen;      /* training does not change it: it lies behind n_train, or behind n_stats */
    enum param_init init;
    double init_scale;
    struct program_grid grid; /* of OP_POSITION's; else all 0 */
    bool decay;               /* weight decay applies (torch: to every trainable parameter) */
    /* This is one rank's part of a parameter that the ranks of a tensor group hold in parts (parallel/ownership.h):
     * indices [shard_first, shard_first + shape[shard_dim]) of shard_whole along dimension shard_dim. */
    bool sharded;
    int shard_dim;
    int64_t shard_first, shard_whole;
    /* Of queries, keys and values in one parameter (shard_dim 0) it is a part of each: the last indices are shard_more
     * of the keys from shard_at[0] on, and as many of the values from shard_at[1] on. 0: of one thing. */
    int64_t shard_more, shard_at[2];
    bool tied; /* of a stage's program: the first and the last stage hold a copy each (stages.h) */
};

/* Elements of a part that lie side by side in the whole parameter, too (row-major): n from its element `whole` on. */
struct param_run {
    size_t whole, n;
};
struct param_run param_run_at(const struct param *p, size_t i); /* from element i < count of the part on */
int64_t param_whole_size(const struct param *p, int dim);       /* of the whole parameter */

enum metric {
    METRIC_LOSS,
    METRIC_TOP1,
    METRIC_TOP5,
    METRIC_COUNT,
    METRIC_STOP,
    METRIC_BAD,
    METRIC_NORM,
    METRIC_SAVE,
    METRIC_ONE,
    METRIC_WAITED,
    METRIC_WEIGHT,
    METRIC_MEASURE,
    METRIC_N = 16
};
/* LOSS: sum of -log p(label); TOP1, TOP5: samples whose label is among the 1 (5, or all classes if fewer) largest
 * logits, ties going to the lower class; COUNT: sum of weights. The rest is set by the step, a device leaves it at 0.
 * STOP, SAVE: ranks that want to stop, to save; BAD: samples that could not be decoded; NORM: of the reduced gradients,
 * ONE: 1, no sums; WEIGHT: sum of the weights of the classes of samples that count, where classes have some; MEASURE:
 * of this rank, struct update's. */

/* One of the parts of a model that a program is, where it is not the whole (stages.h): ops of its own, forward
 * [first, end) and backward [first_back, end_back), and what goes in and out. */
struct program_chunk {
    int first, end, first_back, end_back;
    int in, out;        /* tensors that it is given, and makes; -1: it reads images; it has the loss */
    int d_in, d_out;    /* gradients of them: it makes the one and is given the other; -1: none */
    bool learns_before; /* are parameters of parts before it trained? Else it makes no gradient of `in` */
};
enum { PROGRAM_CHUNKS_MAX = 8 };

struct program {
    struct op *ops;
    int nops, nfwd; /* ops[0..nfwd) forward, the rest backward */
    struct program_chunk chunks[PROGRAM_CHUNKS_MAX];
    int nchunks; /* 0: the program is a whole model */
    struct tensor *tensors;
    int ntensors;
    struct param *params;
    int nparams;
    size_t n_train, n_stats, n_reduce; /* elements, padding included; n_reduce = n_train + n_stats + METRIC_N */
    size_t n_frozen, n_fixed;          /* elements behind n_train in `params`, behind n_stats in `stats` */
    int logits;  /* tensor id of the input of XENT; of this rank's part of them, where ranks have parts; -1: there are
                  * none as a tensor (HEAD) */
    int classes; /* of the whole model */
    int group;   /* ranks of the group that ops are over; 1: there is none */
    struct input input;
    char arch[32];
    size_t align; /* elements, a multiple of 16: each parameter takes a multiple of it */
};

/* --- building (worker/model/, tests). Functions return the id of the new tensor; errors are remembered and reported by
 * program_differentiate(). */
struct program *program_create(const char *arch, struct input input);
void program_destroy(struct program *p);

int program_tensor(struct program *p, const char *name, int c, int h,
                   int w); /* a free tensor: input of a single-op program */
int program_input(struct program *p);
int program_conv(struct program *p, const char *name, int x, int k, int kernel, int stride, int pad, bool bias);
/* In `groups` of channels that see nothing of one another; as many as channels: a depthwise convolution. */
int program_conv_groups(struct program *p, const char *name, int x, int k, int kernel, int stride, int pad, int groups,
                        bool bias);
int program_bn(struct program *p, const char *name, int x, float eps, bool zero_gamma);
/* The tokens of the batch, for program_embed() alone: (1,T,1). */
int program_tokens(struct program *p);
/* A row of the table "name.weight" (vocabulary,c) for each token: (1,T,1) -> (c,T,1). */
int program_embed(struct program *p, const char *name, int tokens, int c);
int program_relu(struct program *p, const char *name, int x);
int program_add(struct program *p, const char *name, int a, int b);
int program_mul(struct program *p, const char *name, int a, int b);
int program_maxpool(struct program *p, const char *name, int x, int kernel, int stride, int pad);
int program_avgpool(struct program *p, const char *name, int x);
int program_linear(struct program *p, const char *name, int x, int k); /* of all that a sample has, with a bias */
/* The same, or of each position: x (C,h,w) -> (k,h,w); "name.weight" (k,C), "name.bias" (k). */
int program_linear_as(struct program *p, const char *name, int x, int k, bool each, bool bias);
int program_linear_each(struct program *p, const char *name, int x, int k, bool bias);
/* Of the channels of each position; "name.weight" (C), "name.bias" (C). */
int program_norm(struct program *p, const char *name, int x, float eps, bool rms, bool bias);
int program_act(struct program *p, const char *name, int x, enum op_act act);
/* By one number a channel, which begins as `value`; the parameter is called `name`, (C,1,1) if of_map, else (C). */
int program_scale(struct program *p, const char *name, int x, double value, bool of_map);
/* In training a share `rate` of the elements, 0 <= rate < 1, becomes 0 (dropout), or of the samples (stochastic depth);
 * what is kept is divided by 1 - rate. Of rate 0: x itself. */
int program_drop(struct program *p, const char *name, int x, double rate, bool samples);
/* The same of a part of something: its channels from `first` on, of `whole` ones. What becomes 0 is what would of the
 * whole. */
int program_drop_part(struct program *p, const char *name, int x, double rate, bool samples, int first, int whole);
/* x ((heads + 2 kv_heads) D,h,w): queries, keys, values, of each head after head. Head i of the queries reads head
 * i / (heads / kv_heads) of the others. -> (heads D,h,w) */
int program_attention(struct program *p, const char *name, int x, int heads, int kv_heads, bool causal);
/* Rotary embedding of what such an attention reads: queries and keys of position p are turned by angles that are
 * multiples of p (rotate-half). An even number of channels a head. */
int program_rope(struct program *p, const char *name, int x, int heads, int kv_heads, double base);
/* One position more, the first: (C,h,w) -> (C,1 + h w,1); the parameter is called `name`, (1,1,C), zeros at first. */
int program_prepend(struct program *p, const char *name, int x);
/* Plus a value for each position; the parameter is called `name`, (1,rows,C) or, flat, (rows,C), normal with deviation
 * 0.02 at first. rows: of the table, at least h w; 0: h w. */
int program_position(struct program *p, const char *name, int x);
int program_position_as(struct program *p, const char *name, int x, int rows, bool flat);
/* Of the positions of tensor x: those that were prepended, and the picture behind them. */
struct program_grid program_grid(const struct program *p, int x);
int program_pick(struct program *p, const char *name, int x, int position); /* (C,h,w) -> (C,1,1) */
/* The end of a program: the loss of rows of logits, (classes,h,w), as many as a sample has labels. */
void program_xent(struct program *p, int logits);
/* The same, of logits that the head makes: x (C,h,w) times a table (vocabulary,C), which is that of the op that made
 * tensor `tied`, an embedding, or (tied < 0) "name.weight". whole: the logits are a tensor, for those who read them;
 * else no tensor of that size exists. False: an error, which is remembered. */
bool program_head(struct program *p, const char *name, int x, int tied, bool whole);

/* Pad each trainable parameter to a multiple of `elements`, itself one of 16: so that many ranks can own equal parts of
 * it. Before program_differentiate(). */
void program_align(struct program *p, size_t elements);

/* Freeze the parameters whose rate has the factor 0 (patterns.h); NULL: none. A batch norm of which both are frozen is
 * fixed. Before program_differentiate(). */
void program_freeze(struct program *p, const char *factors);

/* Append the backward list, drop gradients nobody reads (of the images), lay out the arenas. Without a XENT op
 * gradients start at a tensor "d <last output>" that the caller fills (tests of single ops; there the gradient of every
 * free tensor is kept). Returns 0 or -EINVAL with the first building error. */
int program_differentiate(struct program *p, struct err *e);

int program_find_tensor(const struct program *p, const char *name); /* -1 if none */
int program_find_param(const struct program *p, const char *name);  /* -1 if none */
/* The parameter, trained or frozen, that lies first in the arena from element `at` on; NULL: none does (one without
 * elements lies nowhere). The list has them in no particular order. */
const struct param *program_param_from(const struct program *p, size_t at);
size_t program_param_end(const struct program *p, const struct param *q); /* of its place in an arena, with padding */

/* Elements of the arenas `params` and `stats`. */
static inline size_t program_params(const struct program *p)
{
    return p->n_train + p->n_frozen;
}

static inline size_t program_statistics(const struct program *p)
{
    return p->n_stats + p->n_fixed;
}

/* Elements [first, end) of an arena. */
struct plan_range {
    size_t first, end;
};
/* The parameters that op reads: how many ranges. Trained ones lie side by side, and so do frozen ones. */
enum { PROGRAM_READS_MOST = 2 };
int program_reads(const struct program *p, const struct op *op, struct plan_range ret[PROGRAM_READS_MOST]);
/* Those whose gradients it writes, with their padding. False: there are none. */
bool program_gradients(const struct program *p, const struct op *op, struct plan_range *ret);
bool program_gives(const struct program *p, const struct op *op, int k); /* does op write a gradient of param[k]? */
/* Elements of parameters that are trained, or frozen, without padding. */
size_t program_trainable(const struct program *p);
size_t program_frozen(const struct program *p);

/* Initial value of element i of a parameter: a function of (seed, name, element of the whole parameter), equal on every
 * machine and for every part (decision 0005). */
uint64_t program_hash(const char *name); /* FNV-1a, of 64 bits */
double param_initial(const struct param *p, uint64_t seed, size_t i);
void param_initial_fill(const struct param *p, uint64_t seed, size_t first, size_t n, double *out);

#endif
