/* What is enqueued: collectives, and messages between two ranks. These are kept until the first of a channel is waited
 * for, and then enqueued as one group, whose sends and receives go on side by side: two ranks that both begin with a
 * send do not stand in each other's way. */
#include "worker/comm/nccl/nccl_comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"

static int type_of(enum dtype t, ncclDataType_t *ret, struct err *e)
{
    static const struct {
        enum dtype from;
        ncclDataType_t to;
    } types[] = {{DT_F32, ncclFloat32},
                 {DT_F64, ncclFloat64},
                 {DT_BF16, ncclBfloat16},
                 {DT_F16, ncclFloat16},
                 {DT_I64, ncclInt64}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i].from == t) {
            *ret = types[i].to;
            return 0;
        }
    }
    return err_set(e, -EINVAL, "NCCL: values of type %s are not reduced", dtype_name(t));
}

struct call {
    const char *what, *of;
    enum comm_channel ch;
    const void *in;
    void *out;
    size_t n;
    const size_t *parts; /* of each rank, where they differ */
    int world;
    ncclDataType_t type;
    size_t elem;
    ncclRedOp_t op;
    int root;
    cudaStream_t stream;
};
typedef ncclResult_t call_fn(const struct call *k, ncclComm_t c);

static ncclResult_t call_all_reduce(const struct call *k, ncclComm_t c)
{
    return ncclAllReduce(k->in, k->out, k->n, k->type, k->op, c, k->stream);
}

static ncclResult_t call_broadcast(const struct call *k, ncclComm_t c)
{
    return ncclBroadcast(k->in, k->out, k->n, ncclUint8, k->root, c, k->stream);
}

static ncclResult_t call_all_gather(const struct call *k, ncclComm_t c)
{
    return ncclAllGather(k->in, k->out, k->n, ncclUint8, c, k->stream);
}

static ncclResult_t call_reduce_scatter(const struct call *k, ncclComm_t c)
{
    return ncclReduceScatter(k->in, k->out, k->n, k->type, k->op, c, k->stream);
}

static ncclResult_t call_reduce(const struct call *k, ncclComm_t c)
{
    return ncclReduce(k->in, k->out, k->n, k->type, k->op, k->root, c, k->stream);
}

static bool is_good(ncclResult_t rc)
{
    return rc == ncclSuccess || rc == ncclInProgress;
}

/* The group is closed, too, after one of its calls has failed. */
static ncclResult_t group_end(ncclResult_t rc)
{
    const ncclResult_t end = ncclGroupEnd();
    return is_good(rc) ? end : rc;
}

/* A broadcast from every rank. */
static ncclResult_t call_all_gather_v(const struct call *k, ncclComm_t c)
{
    ncclResult_t rc = ncclGroupStart();
    char *to = k->out;
    for (int r = 0; is_good(rc) && r < k->world; to += k->parts[r++])
        if (k->parts[r] > 0)
            rc = ncclBroadcast(k->in, to, k->parts[r], ncclUint8, r, c, k->stream);
    return group_end(rc);
}

/* A reduction to every rank. */
static ncclResult_t call_reduce_scatter_v(const struct call *k, ncclComm_t c)
{
    ncclResult_t rc = ncclGroupStart();
    const char *from = k->in;
    for (int r = 0; is_good(rc) && r < k->world; from += k->parts[r++] * k->elem)
        if (k->parts[r] > 0)
            rc = ncclReduce(from, k->out, k->parts[r], k->type, k->op, r, c, k->stream);
    return group_end(rc);
}

static const char *name_of(enum comm_channel ch)
{
    return ch == COMM_GRADIENTS ? "gradients" : "statistics";
}

/* Lock held. What has failed leaves the ranks out of step, so it ends the communicator. */
static int enqueued(struct nccl *n, enum comm_channel ch, ncclResult_t result, cudaStream_t s, const char *what,
                    struct err *e)
{
    int rc = is_good(result) ? nccl_settle(n, &n->comm[ch], clock_deadline(n->timeout_ms), what, e)
                             : nccl_fail(e, result, what);
    if (rc == 0)
        rc = nccl_follow(n, s, what, e);
    if (rc < 0) {
        struct err why = {.code = rc};
        snprintf(why.text, sizeof why.text, "%s", e ? e->text : what);
        nccl_break(n, &why);
    }
    return rc;
}

static int check_channel(enum comm_channel ch, struct err *e)
{
    if (ch >= FIRST && ch < COMM_CHANNELS)
        return 0;
    return err_set(e, -EINVAL, "NCCL: channel %d carries host memory", ch);
}

static int enqueue(struct nccl *n, call_fn *fn, const struct call *k, struct err *e)
{
    char what[WHAT_LEN];
    TRY(check_channel(k->ch, e));
    if (k->n == 0)
        return 0;
    snprintf(what, sizeof what, "%s of %zu %s (%s, %s)", k->what, k->n, k->of, n->name, name_of(k->ch));
    pthread_mutex_lock(&n->lock);
    int rc = nccl_failure(n, e);
    if (rc == 0)
        rc = enqueued(n, k->ch, fn(k, n->comm[k->ch]), k->stream, what, e);
    pthread_mutex_unlock(&n->lock);
    return rc;
}

static ncclRedOp_t op_of(enum comm_op op)
{
    static const ncclRedOp_t ops[] = {
        [COMM_SUM] = ncclSum, [COMM_MAX] = ncclMax, [COMM_MIN] = ncclMin, [COMM_PROD] = ncclProd};
    return ops[op];
}

int nccl_all_reduce(struct comm *c, enum comm_channel ch, void *buf, size_t n, enum dtype t, enum comm_op op,
                    void *stream, struct err *e)
{
    struct call k = {.what = "all-reduce",
                     .of = "values",
                     .ch = ch,
                     .in = buf,
                     .out = buf,
                     .n = n,
                     .op = op_of(op),
                     .stream = stream};
    TRY(type_of(t, &k.type, e));
    return enqueue(nccl_of(c), call_all_reduce, &k, e);
}

int nccl_reduce(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n, enum dtype t,
                enum comm_op op, int root, void *stream, struct err *e)
{
    struct call k = {.what = "reduce",
                     .of = "values",
                     .ch = ch,
                     .in = in,
                     .out = out,
                     .n = n,
                     .op = op_of(op),
                     .root = root,
                     .stream = stream};
    TRY(comm_root_check(c, root, e));
    TRY(type_of(t, &k.type, e));
    return enqueue(nccl_of(c), call_reduce, &k, e);
}

int nccl_broadcast(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int root, void *stream, struct err *e)
{
    const struct call k = {.what = "broadcast",
                           .of = "bytes",
                           .ch = ch,
                           .in = buf,
                           .out = buf,
                           .n = bytes,
                           .root = root,
                           .stream = stream};
    TRY(comm_root_check(c, root, e));
    return enqueue(nccl_of(c), call_broadcast, &k, e);
}

/* True: all parts are as large as the first. Their sum. */
static bool are_equal(const size_t *parts, int world, size_t *ret_sum)
{
    bool equal = true;
    *ret_sum = 0;
    for (int r = 0; r < world; r++) {
        equal = equal && parts[r] == parts[0];
        *ret_sum += parts[r];
    }
    return equal;
}

int nccl_all_gather_v(struct comm *c, enum comm_channel ch, const void *in, void *out, const size_t *bytes,
                      void *stream, struct err *e)
{
    struct call k = {.what = "all-gather",
                     .of = "bytes",
                     .ch = ch,
                     .in = in,
                     .out = out,
                     .parts = bytes,
                     .world = c->world,
                     .stream = stream};
    const bool equal = are_equal(bytes, c->world, &k.n);
    if (equal)
        k.n = bytes[0];
    return enqueue(nccl_of(c), equal ? call_all_gather : call_all_gather_v, &k, e);
}

int nccl_reduce_scatter_v(struct comm *c, enum comm_channel ch, const void *in, void *out, const size_t *counts,
                          enum dtype t, enum comm_op op, void *stream, struct err *e)
{
    struct call k = {.what = "reduce-scatter",
                     .of = "values",
                     .ch = ch,
                     .in = in,
                     .out = out,
                     .parts = counts,
                     .world = c->world,
                     .elem = dtype_size(t),
                     .op = op_of(op),
                     .stream = stream};
    const bool equal = are_equal(counts, c->world, &k.n);
    TRY(type_of(t, &k.type, e));
    if (equal)
        k.n = counts[0];
    return enqueue(nccl_of(c), equal ? call_reduce_scatter : call_reduce_scatter_v, &k, e);
}

/* --- messages */

struct nccl_request {
    struct comm_request base;
    enum comm_channel ch;
};

/* Lock held. */
static int keep(struct nccl *n, enum comm_channel ch, const struct message *m, struct err *e)
{
    struct messages *of = &n->messages[ch];
    TRY(nccl_failure(n, e));
    if (of->n == of->room) {
        const int room = of->room ? 2 * of->room : 8;
        struct message *more = realloc(of->all, (size_t)room * sizeof *more);
        if (!more)
            return err_set(e, -ENOMEM, "no memory for a message");
        of->all = more;
        of->room = room;
    }
    of->all[of->n++] = *m;
    return 0;
}

static int begin(struct comm *c, enum comm_channel ch, const struct message *m, struct comm_request **ret,
                 struct err *e)
{
    struct nccl *n = nccl_of(c);
    *ret = NULL;
    TRY(check_channel(ch, e));
    if (m->peer < 0 || m->peer >= c->world)
        return err_set(e, -EINVAL, "a message with rank %d of a world of %d", m->peer, c->world);
    if (m->bytes == 0)
        return 0;
    struct nccl_request *r = malloc(sizeof *r);
    if (!r)
        return err_set(e, -ENOMEM, "no memory for a message");
    *r = (struct nccl_request){{c}, ch};
    pthread_mutex_lock(&n->lock);
    int rc = keep(n, ch, m, e);
    pthread_mutex_unlock(&n->lock);
    if (rc < 0)
        free(r);
    else
        *ret = &r->base;
    return rc;
}

int nccl_isend(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
               struct comm_request **ret, struct err *e)
{
    return begin(c, ch, &(struct message){.from = buf, .bytes = bytes, .peer = peer, .stream = stream}, ret, e);
}

int nccl_irecv(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int peer, void *stream,
               struct comm_request **ret, struct err *e)
{
    return begin(c, ch, &(struct message){.to = buf, .bytes = bytes, .peer = peer, .stream = stream}, ret, e);
}

/* Lock held. */
static ncclResult_t call_messages(const struct messages *of, ncclComm_t c)
{
    ncclResult_t rc = ncclGroupStart();
    for (int i = 0; is_good(rc) && i < of->n; i++) {
        const struct message *m = &of->all[i];
        rc = m->from ? ncclSend(m->from, m->bytes, ncclUint8, m->peer, c, m->stream)
                     : ncclRecv(m->to, m->bytes, ncclUint8, m->peer, c, m->stream);
    }
    return group_end(rc);
}

static void tell(const struct nccl *n, const struct messages *of, enum comm_channel ch, char what[WHAT_LEN])
{
    const struct message *m = &of->all[0];
    char more[32] = "";
    if (of->n > 1)
        snprintf(more, sizeof more, ", and %d more", of->n - 1);
    snprintf(what, WHAT_LEN, "%s of %zu bytes %s rank %d%s (%s, %s)", m->from ? "send" : "receive", m->bytes,
             m->from ? "to" : "from", m->peer, more, n->name, name_of(ch));
}

/* All that are kept go, whichever is waited for. A group of several streams ends on each of them. */
int nccl_wait(struct comm_request *base, struct err *e)
{
    const struct nccl_request *r = (const struct nccl_request *)base;
    struct nccl *n = nccl_of(base->comm);
    pthread_mutex_lock(&n->lock);
    const struct messages now = n->messages[r->ch];
    n->messages[r->ch] = (struct messages){0};
    int rc = nccl_failure(n, e);
    if (rc == 0 && now.n > 0) {
        char what[WHAT_LEN];
        tell(n, &now, r->ch, what);
        rc = enqueued(n, r->ch, call_messages(&now, n->comm[r->ch]), now.all[now.n - 1].stream, what, e);
    }
    pthread_mutex_unlock(&n->lock);
    free(now.all);
    free(base);
    return rc;
}

int nccl_send(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
              struct err *e)
{
    struct comm_request *r = NULL;
    TRY(nccl_isend(c, ch, buf, bytes, peer, stream, &r, e));
    return comm_wait(r, e);
}

/* On a stream of its own, and the host waits: until the watchdog's deadline at most. */
int nccl_barrier(struct comm *c, enum comm_channel ch, struct err *e)
{
    cudaStream_t s;
    void *word = NULL;
    TRY(cuda_fail(e, cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "stream of a barrier"));
    int rc = cuda_fail(e, cudaMallocAsync(&word, sizeof(float), s), "memory of a barrier");
    if (rc == 0)
        rc = nccl_all_reduce(c, ch, word, 1, DT_F32, COMM_MAX, s, e);
    if (rc == 0)
        rc = cuda_fail(e, cudaStreamSynchronize(s), "barrier");
    if (rc == 0)
        rc = nccl_check(c, e);
    if (word)
        cudaFreeAsync(word, s);
    cudaStreamDestroy(s);
    return rc;
}

/* Zero-copy where the links can do it; where registration is refused, NCCL copies as ever. */
void nccl_lend(struct comm *c, enum comm_channel ch, void *buf, size_t bytes)
{
    struct nccl *n = nccl_of(c);
    void *handle = NULL;
    pthread_mutex_lock(&n->lock);
    if (n->nlent < LENT_MAX && n->comm[ch] && bytes > 0 &&
        ncclCommRegister(n->comm[ch], buf, bytes, &handle) == ncclSuccess && handle)
        n->lent[n->nlent++] = (struct lent){ch, buf, handle};
    pthread_mutex_unlock(&n->lock);
}

void nccl_reclaim(struct comm *c, enum comm_channel ch, void *buf)
{
    struct nccl *n = nccl_of(c);
    pthread_mutex_lock(&n->lock);
    for (int i = 0; i < n->nlent; i++) {
        const struct lent l = n->lent[i];
        if (l.ch != ch || l.buf != buf)
            continue;
        if (n->comm[ch])
            ncclCommDeregister(n->comm[ch], l.handle);
        n->lent[i] = n->lent[--n->nlent];
        break;
    }
    pthread_mutex_unlock(&n->lock);
}
