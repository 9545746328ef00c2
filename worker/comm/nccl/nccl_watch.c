/* Whether what is enqueued ends. Two threads, for a call into CUDA may itself wait for the very kernels that hang:
 * while the host loads a kernel, makes a graph or enqueues more than there is room for, whoever asks about an event may
 * stand behind it.
 *   - the asker asks CUDA, without the lock, about the oldest of what is under way
 *   - the watchdog asks NCCL for asynchronous errors, and sees that the asker comes back. It never calls CUDA, and
 *     whoever holds the lock does so within NCCL alone: an abort, which alone frees such a host, gets through. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/comm/nccl/nccl_comm.h"

enum { TOLD_MAX = 8 };

/* Lock held on entry and exit, as for all of these. */
static struct pending *oldest(struct nccl *n)
{
    return n->npending > 0 ? &n->pending[n->first] : NULL;
}

/* What a person needs to see which rank waits for which, from a copy: whoever reads the lines may be stopped. */
static void tell(const struct pending *all, int n, int of)
{
    const int64_t now = clock_ms();
    for (int i = 0; i < n; i++)
        log_warn("nccl", "NCCL: under way for %lld ms, %d of %d: %s%s", (long long)(now - all[i].since), i + 1, of,
                 all[i].what, all[i].recorded ? "" : " (the host has not come back from enqueueing it)");
}

/* The lock is free while it tells, which is after the abort. */
static void give_up(struct nccl *n, const char *more)
{
    struct err e;
    struct pending told[TOLD_MAX];
    const int all = n->npending, shown = all < TOLD_MAX ? all : TOLD_MAX;
    for (int i = 0; i < shown; i++)
        told[i] = n->pending[(n->first + i) % PENDING_MAX];
    err_set(&e, -ETIMEDOUT, "NCCL: %s has not ended within %lld ms%s: another rank hangs or is gone", told[0].what,
            (long long)n->timeout_ms, more);
    nccl_break(n, &e);
    pthread_mutex_unlock(&n->lock);
    tell(told, shown, all);
    pthread_mutex_lock(&n->lock);
}

/* False: woken before. */
static bool sleep_a_while(struct nccl *n)
{
    const struct timespec until = clock_timespec(clock_ms() + WATCH_MS);
    return pthread_cond_timedwait(&n->change, &n->lock, &until) == ETIMEDOUT;
}

/* Woken by whoever enqueues, aborts or closes. True: there is something to see to. */
static bool wait_for_work(struct nccl *n)
{
    while (!n->leaving && (n->npending == 0 || n->failed.code))
        pthread_cond_wait(&n->change, &n->lock);
    return !n->leaving;
}

/* Has it ended? The lock is free meanwhile; nobody else takes it away. */
static bool ask(struct nccl *n, const struct pending *p)
{
    if (!p->recorded)
        return false;
    const cudaEvent_t end = p->end;
    n->asks = true;
    n->asked++;
    pthread_mutex_unlock(&n->lock);
    const bool ended = cudaEventQuery(end) != cudaErrorNotReady; /* what has failed has ended, too */
    pthread_mutex_lock(&n->lock);
    n->asks = false;
    return ended;
}

/* Counted in looks, not by the clock: a process that was stopped for a while is no GPU that hangs. */
static void *ask_on(void *arg)
{
    struct nccl *n = arg;
    int64_t looks = 0; /* at the oldest */
    cudaSetDevice(n->device);
    pthread_mutex_lock(&n->lock);
    while (wait_for_work(n)) {
        if (ask(n, oldest(n))) {
            n->first = (n->first + 1) % PENDING_MAX;
            n->npending--;
            looks = 0;
            continue;
        }
        if (!n->failed.code && looks * WATCH_MS > n->timeout_ms)
            give_up(n, "");
        if (!n->leaving)
            looks += sleep_a_while(n);
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

static void look_for_failure(struct nccl *n)
{
    struct err e;
    for (int i = FIRST; i < COMM_CHANNELS && !n->failed.code; i++) {
        ncclResult_t state = ncclSuccess;
        if (n->comm[i] && ncclCommGetAsyncError(n->comm[i], &state) == ncclSuccess && state != ncclSuccess &&
            state != ncclInProgress) {
            nccl_fail(&e, state, "a collective failed");
            nccl_break(n, &e);
        }
    }
}

/* Counted in looks as well. */
static void *watch(void *arg)
{
    struct nccl *n = arg;
    uint64_t asked = 0;
    int64_t looks = 0;
    pthread_mutex_lock(&n->lock);
    while (wait_for_work(n)) {
        looks = n->asks && n->asked == asked ? looks : 0;
        asked = n->asked;
        looks += sleep_a_while(n);
        if (n->leaving || n->failed.code)
            continue;
        look_for_failure(n);
        if (!n->failed.code && n->asks && n->asked == asked && looks * WATCH_MS > n->timeout_ms)
            give_up(n, ", nor has CUDA answered");
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

/* What a capture enqueues happens later and again: the end of each step, which is never captured, stands for it; nor
 * may an event be recorded now. */
int nccl_follow(struct nccl *n, cudaStream_t s, const char *what, struct err *e)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    pthread_mutex_unlock(&n->lock);
    int rc = cuda_fail(e, cudaStreamIsCapturing(s, &capture), what);
    pthread_mutex_lock(&n->lock);
    if (rc < 0 || capture != cudaStreamCaptureStatusNone || n->npending == PENDING_MAX)
        return rc;
    struct pending *p = &n->pending[(n->first + n->npending) % PENDING_MAX];
    p->recorded = false;
    p->since = clock_ms();
    snprintf(p->what, sizeof p->what, "%s", what);
    if (n->npending++ == 0)
        pthread_cond_broadcast(&n->change);
    pthread_mutex_unlock(&n->lock);
    rc = p->end ? 0 : cuda_fail(e, cudaEventCreateWithFlags(&p->end, cudaEventDisableTiming), what);
    if (rc == 0)
        rc = cuda_fail(e, cudaEventRecord(p->end, s), what);
    pthread_mutex_lock(&n->lock);
    p->recorded = rc == 0;
    return rc;
}

int nccl_watch_start(struct nccl *n, struct err *e)
{
    int rc = pthread_create(&n->watchdog, NULL, watch, n);
    n->watched = rc == 0;
    if (rc == 0 && (rc = pthread_create(&n->asker, NULL, ask_on, n)) == 0)
        n->asking = true;
    return rc ? err_errno(e, rc, "watchdog of NCCL") : 0;
}

void nccl_watch_stop(struct nccl *n)
{
    pthread_mutex_lock(&n->lock);
    n->leaving = true;
    pthread_cond_broadcast(&n->change);
    pthread_mutex_unlock(&n->lock);
    if (n->watched)
        pthread_join(n->watchdog, NULL);
    if (n->asking)
        pthread_join(n->asker, NULL);
}
