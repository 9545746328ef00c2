/* Options of trainer comm-bench and comm-test. */
#ifndef CRUN_WORKER_CLI_COMM_OPTIONS_H
#define CRUN_WORKER_CLI_COMM_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/args/args.h"
#include "worker/comm/known.h"

enum { COMM_DEVICE_HOST };
enum { COMM_GROUP_BLOCK, COMM_GROUP_STRIDE };

struct comm_bench_options {
    const char *comm;
    int device;                   /* COMM_DEVICE_HOST or cuda */
    const char *gpus;             /* one for each local rank; NULL: in turn */
    bool oversubscribe;           /* ranks may share a GPU */
    int call, type, redop, parts; /* 0: all, else one more than its number */
    int64_t root;                 /* of a group; -1: the last one */
    int64_t group_size;           /* 0: all ranks */
    int group_by;
    int64_t least, most, factor, iters, warmup;
    double timeout;
};

#define COMM_TYPES(X) /* as nccl-tests names them */                                                                   \
    X(DT_F32, "float")                                                                                                 \
    X(DT_F64, "double")                                                                                                \
    X(DT_F16, "half")                                                                                                  \
    X(DT_BF16, "bfloat16")                                                                                             \
    X(DT_I64, "int64")
#define COMM_REDOPS(X)                                                                                                 \
    X(COMM_SUM, "sum")                                                                                                 \
    X(COMM_MAX, "max")                                                                                                 \
    X(COMM_MIN, "min")                                                                                                 \
    X(COMM_PROD, "prod")
#define COMM_PARTS(X)                                                                                                  \
    X(false, "equal")                                                                                                  \
    X(true, "uneven")

#define X(id, name) +1
enum { COMM_TYPE_COUNT = 0 COMM_TYPES(X), COMM_REDOP_COUNT = 0 COMM_REDOPS(X), COMM_PARTS_COUNT = 0 COMM_PARTS(X) };
#undef X

enum dtype comm_type_of(int number);
const char *comm_type_name(enum dtype t);
const char *comm_redop_name(enum comm_op op);

extern const struct arg_program comm_bench_program;
/* comm-test: the same options with other defaults. *ret lives as long as the process. */
void comm_test_program(struct arg_program *ret);

/* What the table of options cannot say. */
int comm_bench_check(const struct comm_bench_options *o, int world, struct err *e);

#endif
