/* comm_ops over NCCL.
 *
 * The life of a communicator
 *   - the ranks leave their NCCL's version, machine and GPU in the store, rank 0 the unique id, too; what cannot work
 *     ends here, in a sentence
 *   - ncclCommInitRankConfig with blocking = 0, polled until the deadline; one communicator a channel, split from the
 *     first: statistics of a batch need not queue behind 25 MiB of gradients. Kernels of several communicators may
 *     block each other if ranks launch them in different orders; all ranks enqueue in the program's order from one
 *     thread, and NCCL_LAUNCH_ORDER_IMPLICIT keeps that order in graphs, too
 *   - collectives are enqueued, also into a capture; those that were not captured have an event each, which the asker
 *     asks about (nccl_watch.c)
 * What goes wrong
 *   - an asynchronous error, which the watchdog sees, or a collective that has not ended in time, which the asker
 *     sees, or the watchdog where CUDA does not answer (nccl_watch.c): the reason is kept, and all is aborted; the GPU
 *     goes on past the kernels, and whoever calls next, check() above all, gets the reason
 *   - abort() by another thread: the same with -ECANCELED
 *   - kernels that are ended so leave anything in their buffers: the device is told before (device_async.tear), so that
 *     whoever judges by sums finds them torn
 * Every call into NCCL holds the lock, and none of them blocks; but for ncclCommAbort(), which frees the communicator
 * and first waits until no CUDA graph holds it: threads of its own do that, while whoever owns the graphs (plans) gets
 * the reason and closes them. So plans are closed before the communicator is, which waits for these threads. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "worker/comm/nccl/nccl_comm.h"
#include "worker/comm/nccl/nccl_peers.h"
#include "worker/comm/peers.h"
#include "worker/device/device.h"

static_assert(sizeof(ncclUniqueId) == NCCL_ID_BYTES, "the record holds NCCL's id");

static int code_of(ncclResult_t rc)
{
    switch (rc) {
    case ncclSuccess:
        return 0;
    case ncclRemoteError:
    case ncclSystemError:
        return -ECONNRESET;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return -EINVAL;
    default:
        return -EIO;
    }
}

/* NCCL's last words are of the thread's last failure, of whatever communicator. */
int nccl_fail(struct err *e, ncclResult_t rc, const char *what)
{
    const char *more = ncclGetLastError(NULL);
    return err_set(e, code_of(rc), "NCCL: %s: %s%s%.300s", what, ncclGetErrorString(rc), more && *more ? ": " : "",
                   more ? more : "");
}

int cuda_fail(struct err *e, cudaError_t rc, const char *what)
{
    return rc == cudaSuccess ? 0 : err_set(e, -EIO, "CUDA: %s: %s", what, cudaGetErrorString(rc));
}

static void *abort_one(void *arg)
{
    const struct aborter *a = arg;
    cudaSetDevice(a->device);
    ncclCommAbort(a->comm);
    return NULL;
}

static bool tears(const struct nccl *n)
{
    return n->owner && n->owner->ops->async;
}

/* Lock held. The first reason stays. All channels at once: freeing one may wait for kernels of another. */
void nccl_break(struct nccl *n, const struct err *why)
{
    if (tears(n))
        n->owner->ops->async->tear(n->owner, true);
    if (!n->failed.code)
        n->failed = *why;
    for (int i = FIRST; i < COMM_CHANNELS; i++) {
        struct aborter *a = &n->aborters[i];
        if (!n->comm[i])
            continue;
        *a = (struct aborter){.comm = n->comm[i], .device = n->device};
        n->comm[i] = NULL;
        a->started = pthread_create(&a->thread, NULL, abort_one, a) == 0;
        if (!a->started)
            abort_one(a);
    }
    pthread_cond_broadcast(&n->change);
}

int nccl_failure(const struct nccl *n, struct err *e)
{
    return n->failed.code ? err_set(e, n->failed.code, "%s", n->failed.text) : 0;
}

static bool is_canceled(const struct nccl *n)
{
    struct pollfd p = {.fd = n->cancel_fd, .events = POLLIN};
    return n->cancel_fd > 0 && poll(&p, 1, 0) == 1;
}

/* Lock held on entry and exit, free while it waits: NCCL tells of progress to those alone who ask. */
int nccl_settle(struct nccl *n, ncclComm_t *c, int64_t deadline, const char *what, struct err *e)
{
    struct timespec pause = {.tv_nsec = 10000};
    while (true) {
        ncclResult_t state = ncclInProgress;
        TRY(nccl_failure(n, e));
        ncclResult_t rc = *c ? ncclCommGetAsyncError(*c, &state) : ncclInvalidUsage;
        if (rc != ncclSuccess || (state != ncclSuccess && state != ncclInProgress))
            return nccl_fail(e, rc != ncclSuccess ? rc : state, what);
        if (state == ncclSuccess)
            return 0;
        if (is_canceled(n))
            return err_set(e, -ECANCELED, "NCCL: %s: given up", what);
        if (clock_ms() >= deadline)
            return err_set(e, -ETIMEDOUT,
                           "NCCL: %s: no end within %lld ms; NCCL_DEBUG=INFO tells what it waits for, "
                           "NCCL_SOCKET_IFNAME chooses the interface",
                           what, (long long)n->timeout_ms);
        pthread_mutex_unlock(&n->lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&n->lock);
        pause.tv_nsec = pause.tv_nsec * 2 < POLL_MOST_NS ? pause.tv_nsec * 2 : POLL_MOST_NS;
    }
}

/* --- open and close */

static int join_options(const struct comm_options *o, struct nccl *n, struct nccl_peer *mine, ncclUniqueId *id,
                        struct err *e)
{
    struct cudaDeviceProp p;
    const char *hostid = getenv("NCCL_HOSTID");
    *mine = (struct nccl_peer){.id = "-", .hostid = "-"};
    TRY(nccl_interfaces_check(getenv("NCCL_SOCKET_IFNAME"), e));
    TRY(cuda_fail(e, cudaGetDevice(&n->device), "which device"));
    TRY(cuda_fail(e, cudaGetDeviceProperties(&p, n->device), "device properties"));
    ncclResult_t rc = ncclGetVersion(&mine->version);
    if (rc == ncclSuccess && o->rank == 0)
        rc = ncclGetUniqueId(id);
    if (rc != ncclSuccess)
        return nccl_fail(e, rc, "begin (is NCCL_SOCKET_IFNAME right?)");
    if (o->rank == 0)
        nccl_id_write(id, mine->id);
    peers_host_identity(mine->host, sizeof mine->host);
    if (hostid && *hostid && strcspn(hostid, " \t\n") == strlen(hostid))
        snprintf(mine->hostid, sizeof mine->hostid, "%.63s", hostid);
    for (size_t i = 0; i < sizeof p.uuid.bytes; i++)
        snprintf(mine->gpu + 2 * i, 3, "%02x", (unsigned char)p.uuid.bytes[i]);
    return 0;
}

/* Everybody's record, checked; the id of rank 0. */
static int meet(const struct comm_options *o, const struct nccl_peer *mine, int64_t deadline, ncclUniqueId *ret,
                struct err *e)
{
    char text[NCCL_RECORD_BYTES], **all = NULL;
    struct nccl_peer *peers = calloc((size_t)o->world, sizeof *peers);
    if (!peers)
        return err_set(e, -ENOMEM, "no memory for %d peers", o->world);
    nccl_peer_write(mine, text);
    int rc = peers_exchange(o, "nccl", text, sizeof text, deadline, &all, e);
    for (int r = 0; rc == 0 && r < o->world; r++)
        rc = nccl_peer_read(&peers[r], all[r], r, e);
    if (rc == 0)
        rc = nccl_peers_check(peers, o->world, e);
    if (rc == 0)
        rc = nccl_id_read(ret, peers[0].id, e);
    peers_free(all, o->world);
    free(peers);
    return rc;
}

/* Lock held. */
static int connect_all(struct nccl *n, const ncclUniqueId *id, int64_t deadline, struct err *e)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t *first = &n->comm[FIRST];
    char connect[WHAT_LEN], split[WHAT_LEN];
    snprintf(connect, sizeof connect, "connect the %d ranks of '%s'", n->base.world, n->name);
    snprintf(split, sizeof split, "split a channel of '%s'", n->name);
    config.blocking = 0;
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    ncclResult_t rc = ncclCommInitRankConfig(first, n->base.world, *id, n->base.rank, &config);
    if (rc != ncclSuccess && rc != ncclInProgress)
        return nccl_fail(e, rc, connect);
    TRY(nccl_settle(n, first, deadline, connect, e));
    for (int i = FIRST + 1; i < COMM_CHANNELS; i++) {
        rc = ncclCommSplit(*first, 0, n->base.rank, &n->comm[i], NULL);
        if (rc != ncclSuccess && rc != ncclInProgress)
            return nccl_fail(e, rc, split);
        TRY(nccl_settle(n, first, deadline, split, e));
        TRY(nccl_settle(n, &n->comm[i], deadline, split, e));
    }
    return 0;
}

static void release(struct nccl *n)
{
    for (int i = 0; i < PENDING_MAX; i++)
        if (n->pending[i].end)
            cudaEventDestroy(n->pending[i].end);
    for (int i = 0; i < COMM_CHANNELS; i++)
        free(n->messages[i].all);
    pthread_cond_destroy(&n->change);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

/* Lock held. The streams have been waited for by those who close in order; else this ends what still runs. */
static void disconnect(struct nccl *n)
{
    const int64_t deadline = clock_deadline(n->timeout_ms);
    struct err ignored;
    for (int i = 0; i < n->nlent; i++)
        if (n->comm[n->lent[i].ch])
            ncclCommDeregister(n->comm[n->lent[i].ch], n->lent[i].handle);
    for (int i = COMM_CHANNELS - 1; i >= FIRST; i--) { /* a child before its parent */
        if (!n->comm[i])
            continue;
        const ncclResult_t rc = ncclCommFinalize(n->comm[i]);
        if ((rc == ncclSuccess || rc == ncclInProgress) &&
            nccl_settle(n, &n->comm[i], deadline, "close", &ignored) == 0)
            ncclCommDestroy(n->comm[i]);
        else if (n->comm[i])
            ncclCommAbort(n->comm[i]);
        n->comm[i] = NULL;
    }
}

static void nccl_close(struct comm *c)
{
    struct nccl *n = nccl_of(c);
    nccl_watch_stop(n);
    for (int i = FIRST; i < COMM_CHANNELS; i++)
        if (n->aborters[i].started)
            pthread_join(n->aborters[i].thread, NULL);
    pthread_mutex_lock(&n->lock);
    disconnect(n);
    pthread_mutex_unlock(&n->lock);
    release(n);
}

static struct nccl *create(const struct comm_options *o)
{
    struct nccl *n = calloc(1, sizeof *n);
    pthread_condattr_t attr;
    if (!n)
        return NULL;
    n->base = (struct comm){.ops = &comm_nccl_ops, .rank = o->rank, .world = o->world};
    snprintf(n->name, sizeof n->name, "%s", o->name ? o->name : "?");
    n->timeout_ms = o->timeout_ms;
    n->owner = o->device;
    n->cancel_fd = o->cancel_fd;
    pthread_mutex_init(&n->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&n->change, &attr);
    pthread_condattr_destroy(&attr);
    return n;
}

static int nccl_open(struct comm **ret, const struct comm_options *o, struct err *e)
{
    const int64_t deadline = clock_deadline(o->timeout_ms);
    ncclUniqueId id;
    struct nccl_peer mine;
    struct nccl *n = create(o);
    if (!n)
        return err_set(e, -ENOMEM, "no memory for a communicator");
    int rc = join_options(o, n, &mine, &id, e);
    if (rc == 0 && (o->store || o->through)) /* a world of one need not have one */
        rc = meet(o, &mine, deadline, &id, e);
    pthread_mutex_lock(&n->lock);
    if (rc == 0)
        rc = connect_all(n, &id, deadline, e);
    if (rc < 0)
        nccl_break(n, &(struct err){.code = rc, .text = "never opened"});
    n->cancel_fd = 0;
    pthread_mutex_unlock(&n->lock);
    if (rc == 0)
        rc = nccl_watch_start(n, e);
    if (rc < 0)
        nccl_close(&n->base);
    else
        *ret = &n->base;
    return rc;
}

static void nccl_abort(struct comm *c)
{
    struct nccl *n = nccl_of(c);
    const struct err why = {.code = -ECANCELED, .text = "the communicator was aborted"};
    pthread_mutex_lock(&n->lock);
    nccl_break(n, &why);
    pthread_mutex_unlock(&n->lock);
}

int nccl_check(struct comm *c, struct err *e)
{
    struct nccl *n = nccl_of(c);
    pthread_mutex_lock(&n->lock);
    int rc = nccl_failure(n, e);
    pthread_mutex_unlock(&n->lock);
    return rc;
}

const struct comm_ops comm_nccl_ops = {.name = "nccl",
                                       .host_buffers = false,
                                       .open = nccl_open,
                                       .close = nccl_close,
                                       .abort = nccl_abort,
                                       .all_reduce = nccl_all_reduce,
                                       .reduce = nccl_reduce,
                                       .broadcast = nccl_broadcast,
                                       .all_gather = comm_all_gather_equal,
                                       .all_gather_v = nccl_all_gather_v,
                                       .reduce_scatter = comm_reduce_scatter_equal,
                                       .reduce_scatter_v = nccl_reduce_scatter_v,
                                       .barrier = nccl_barrier,
                                       .isend = nccl_isend,
                                       .irecv = nccl_irecv,
                                       .wait = nccl_wait,
                                       .send = nccl_send,
                                       .check = nccl_check,
                                       .lend = nccl_lend,
                                       .reclaim = nccl_reclaim};
