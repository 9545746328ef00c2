#include "tests/worker/comm/nccl/fake_nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"

enum { WORLD_MAX = 16, WORLDS_MAX = 256, GROUP_MAX = 256, TIMEOUT_MS = 20000 };

struct ncclComm {
    struct comm *local;
    ncclUniqueId id;
    int splits; /* made from it so far */
};

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV, KINDS };
static const char *const names[KINDS] = {"ncclAllReduce",     "ncclReduce", "ncclBroadcast", "ncclAllGather",
                                         "ncclReduceScatter", "ncclSend",   "ncclRecv"};

struct call {
    enum kind kind;
    const void *in;
    void *out;
    size_t n;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; /* or root */
    struct comm *local;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the next four */
static struct {
    ncclUniqueId id;
    struct comm *ranks[WORLD_MAX];
} worlds[WORLDS_MAX];
static int nworlds, nids, counts[KINDS];

static _Thread_local int gpu, depth, grouped;
static _Thread_local struct call group[GROUP_MAX];

void fake_nccl_use_gpu(int number)
{
    gpu = number;
}

int fake_nccl_calls(const char *name)
{
    int n = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < KINDS; i++)
        n += strcmp(names[i], name) == 0 ? counts[i] : 0;
    pthread_mutex_unlock(&lock);
    return n;
}

/* --- what is done */

static enum dtype dtype_of(ncclDataType_t t)
{
    switch (t) {
    case ncclFloat32:
        return DT_F32;
    case ncclFloat64:
        return DT_F64;
    case ncclBfloat16:
        return DT_BF16;
    case ncclFloat16:
        return DT_F16;
    default:
        return DT_I64;
    }
}

static size_t bytes_of(const struct call *k)
{
    return k->n * (k->type == ncclUint8 ? 1 : dtype_size(dtype_of(k->type)));
}

static enum comm_op op_of(ncclRedOp_t op)
{
    return op == ncclSum ? COMM_SUM : op == ncclMax ? COMM_MAX : op == ncclMin ? COMM_MIN : COMM_PROD;
}

static int run(const struct call *k)
{
    const struct comm_ops *ops = k->local->ops;
    const enum dtype t = dtype_of(k->type);
    switch (k->kind) {
    case ALL_REDUCE:
        return ops->all_reduce(k->local, COMM_GRADIENTS, k->out, k->n, t, op_of(k->op), NULL, NULL);
    case REDUCE:
        return ops->reduce(k->local, COMM_GRADIENTS, k->in, k->out, k->n, t, op_of(k->op), k->peer, NULL, NULL);
    case BROADCAST:
        if (k->local->rank == k->peer)
            memmove(k->out, k->in, k->n);
        return ops->broadcast(k->local, COMM_GRADIENTS, k->out, k->n, k->peer, NULL, NULL);
    case ALL_GATHER:
        return ops->all_gather(k->local, COMM_GRADIENTS, k->in, k->out, k->n, NULL, NULL);
    default:
        return ops->reduce_scatter(k->local, COMM_GRADIENTS, k->in, k->out, k->n, t, op_of(k->op), NULL, NULL);
    }
}

/* Messages side by side, the rest one after the other. */
static ncclResult_t run_all(const struct call *calls, int n)
{
    struct comm_request *requests[GROUP_MAX];
    int messages = 0, rc = 0;
    for (int i = 0; rc == 0 && i < n; i++) {
        const struct call *k = &calls[i];
        if (k->kind == SEND)
            rc = k->local->ops->isend(k->local, COMM_GRADIENTS, k->in, bytes_of(k), k->peer, NULL, &requests[messages],
                                      NULL);
        else if (k->kind == RECV)
            rc = k->local->ops->irecv(k->local, COMM_GRADIENTS, k->out, bytes_of(k), k->peer, NULL, &requests[messages],
                                      NULL);
        else
            rc = run(k);
        messages += rc == 0 && (k->kind == SEND || k->kind == RECV);
    }
    rc = comm_wait_all(requests, messages, rc, NULL);
    return rc == 0 ? ncclSuccess : ncclRemoteError;
}

static ncclResult_t enqueue(struct call k)
{
    pthread_mutex_lock(&lock);
    counts[k.kind]++;
    pthread_mutex_unlock(&lock);
    if (depth == 0)
        return run_all(&k, 1);
    if (grouped == GROUP_MAX)
        return ncclInternalError;
    group[grouped++] = k;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void); /* nccl.h declares these two without a prototype */
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    const int n = grouped;
    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth > 0)
        return ncclSuccess;
    grouped = 0;
    return run_all(group, n);
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                           cudaStream_t s)
{
    (void)s;
    return in == out ? enqueue((struct call){ALL_REDUCE, in, out, n, t, op, 0, c->local}) : ncclInvalidArgument;
}

ncclResult_t ncclReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, int root, ncclComm_t c,
                        cudaStream_t s)
{
    (void)s;
    return enqueue((struct call){REDUCE, in, out, n, t, op, root, c->local});
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                           cudaStream_t s)
{
    (void)s;
    return enqueue((struct call){BROADCAST, in, out, n, t, ncclSum, root, c->local});
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s)
{
    (void)s;
    return enqueue((struct call){ALL_GATHER, in, out, n, t, ncclSum, 0, c->local});
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                               cudaStream_t s)
{
    (void)s;
    return enqueue((struct call){REDUCE_SCATTER, in, out, n, t, op, 0, c->local});
}

ncclResult_t ncclSend(const void *in, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
    (void)s;
    return enqueue((struct call){SEND, in, NULL, n, t, ncclSum, peer, c->local});
}

ncclResult_t ncclRecv(void *out, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
    (void)s;
    return enqueue((struct call){RECV, NULL, out, n, t, ncclSum, peer, c->local});
}

/* --- communicators */

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&lock);
    const int number = ++nids;
    pthread_mutex_unlock(&lock);
    memcpy(id, &number, sizeof number);
    return ncclSuccess;
}

/* The first rank to come makes the world of an id for all. */
static struct comm *take(const ncclUniqueId *id, int rank, int world)
{
    struct comm *c = NULL;
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < nworlds && memcmp(&worlds[i].id, id, sizeof *id) != 0)
        i++;
    if (i == nworlds && i < WORLDS_MAX && comm_local_open_threads(worlds[i].ranks, world, TIMEOUT_MS, NULL) == 0) {
        worlds[i].id = *id;
        nworlds++;
    }
    if (i < nworlds) {
        c = worlds[i].ranks[rank];
        worlds[i].ranks[rank] = NULL;
    }
    pthread_mutex_unlock(&lock);
    return c;
}

static ncclResult_t join(ncclComm_t *ret, int world, ncclUniqueId id, int rank)
{
    struct ncclComm *c = calloc(1, sizeof *c);
    c->local = take(&id, rank, world);
    c->id = id;
    if (!c->local) {
        free(c);
        return ncclInternalError;
    }
    *ret = c;
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *ret, int world, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    return config->blocking == 0 ? join(ret, world, id, rank) : ncclInvalidUsage;
}

ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *ret, ncclConfig_t *config)
{
    ncclUniqueId id = c->id;
    (void)config;
    c->splits++;
    memcpy(id.internal + sizeof id - sizeof c->splits, &c->splits, sizeof c->splits);
    return color == 0 && key == c->local->rank ? join(ret, c->local->world, id, key) : ncclInvalidArgument;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *ret)
{
    (void)c;
    *ret = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    (void)c;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    c->local->ops->close(c->local);
    free(c);
    return ncclSuccess;
}

static void (*_Atomic when_aborted)(void), (*_Atomic when_recorded)(void), (*_Atomic when_asked)(void);
static atomic_bool goes_on;

void fake_nccl_at_abort(void (*call)(void))
{
    when_aborted = call;
}

void fake_nccl_at_record(void (*call)(void))
{
    when_recorded = call;
}

void fake_nccl_at_query(void (*call)(void))
{
    when_asked = call;
}

void fake_nccl_end(bool ended)
{
    goes_on = !ended;
}

static void tell(void (*call)(void))
{
    if (call)
        call();
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    tell(when_aborted);
    return ncclCommDestroy(c);
}

ncclResult_t ncclCommRegister(const ncclComm_t c, void *buf, size_t size, void **handle)
{
    (void)c, (void)size;
    *handle = buf;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle)
{
    (void)c, (void)handle;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t rc)
{
    return rc == ncclRemoteError ? "remote process exited" : "error";
}

const char *ncclGetLastError(ncclComm_t c)
{
    (void)c;
    return "";
}

/* --- CUDA */

cudaError_t cudaGetDevice(int *device)
{
    *device = gpu;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    gpu = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof *p);
    p->uuid.bytes[0] = (char)device;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    (void)flags;
    *e = (cudaEvent_t)e;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    (void)e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    (void)e, (void)s;
    tell(when_recorded);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    (void)e;
    tell(when_asked);
    return goes_on ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *ret)
{
    (void)s;
    *ret = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    (void)flags;
    *s = NULL;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    (void)s;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    (void)s;
    return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **ret, size_t bytes, cudaStream_t s)
{
    (void)s;
    *ret = calloc(1, bytes);
    return *ret ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
    (void)s;
    free(p);
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t rc)
{
    (void)rc;
    return "error";
}
