/* The Gloo backend behind the C vtable. No exception leaves this file.
 *
 * A channel is a Gloo context of its own (own sockets), so that a few statistics do not queue behind 25 MiB of
 * gradients. The full mesh of all channels is opened at once: two records per rank in the store, "host" and "ports".
 *
 * Algorithms: large all-reduces are Gloo's ring; up to EXCHANGE_BYTES everybody sends its part straight to everybody
 * and sums in rank order, one trip instead of 2 (W - 1). Both depend on world and size only. Reduce-scatter (Gloo 0.5
 * has only the old class) is a direct exchange of slices, in blocks. The rest is Gloo's own. */
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/types.h>

#include "worker/comm/gloo/gloo_mesh.hh"

extern "C" {
#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/comm/peers.h"
#include "worker/comm/reduce.h"
}

using gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;

namespace
{

constexpr size_t EXCHANGE_BYTES = 256 * 1024; /* received by a rank in a direct exchange */
constexpr size_t SCATTER_BYTES = 1024 * 1024; /* received by a rank in one block of a reduce-scatter */
constexpr size_t PLACE_LEN = 16;              /* " 65535/123456789": where one pair listens */
constexpr uint8_t EXCHANGE_PREFIX = 0x40;     /* message tags beside Gloo's own, types.h */
constexpr uint8_t SCATTER_PREFIX = 0x41;

struct GlooComm {
    comm base;
    mesh::Mesh net;
    milliseconds timeout;
    std::mutex lock;
    err failed{}; /* code 0: still good */

    GlooComm(int rank, int world, milliseconds t)
        : base{&comm_gloo_ops, rank, world}, net(rank, world, COMM_CHANNELS), timeout(t)
    {
    }

    /* The first failure is what every later call reports. Stops all channels. Returns its code. */
    int fail(int code, const std::string &text, err *e)
    {
        {
            std::lock_guard<std::mutex> guard(lock);
            if (failed.code == 0)
                err_set(&failed, code, "%s", text.c_str());
        }
        net.stop();
        return report(e);
    }

    int report(err *e)
    {
        std::lock_guard<std::mutex> guard(lock);
        return err_set(e, failed.code, "%s", failed.text);
    }
};

GlooComm *of(comm *c)
{
    return reinterpret_cast<GlooComm *>(c); /* base is the first member */
}

/* Run f on the channel with the deadline; turn what it throws into an error that names the call. */
template <typename F> int call(comm *c, comm_channel ch, const char *what, err *e, F f)
{
    GlooComm *g = of(c);
    auto &channel = g->net.channel(ch);
    std::lock_guard<std::mutex> turn(channel->call);
    std::string name(what);
    try {
        channel->link().begin(mesh::Clock::now() + g->timeout);
        f(std::static_pointer_cast<gloo::Context>(channel));
        return 0;
    } catch (const mesh::Stopped &) {
        return g->report(e);
    } catch (const mesh::Lost &l) {
        return g->fail(-ECONNRESET, name + ": " + g->net.describe_loss(l.rank), e);
    } catch (const mesh::Late &l) {
        return g->fail(-ETIMEDOUT,
                       name + ": no answer from rank " + std::to_string(l.rank) + " within " +
                           std::to_string(g->timeout.count()) + " ms",
                       e);
    } catch (const std::bad_alloc &) {
        return g->fail(-ENOMEM, name + ": no memory", e);
    } catch (const std::exception &x) {
        return g->fail(-EIO, name + ": " + x.what(), e);
    }
}

using Context = std::shared_ptr<gloo::Context>;

struct Scratch {
    std::unique_ptr<char[]> memory;
    explicit Scratch(size_t bytes) : memory(new char[bytes])
    {
    }
    char *at(size_t offset)
    {
        return memory.get() + offset;
    }
};

/* Send rank r the bytes at to(r) of `out`, receive from rank r into slot r of `in`; my own slot stays as it is. */
template <typename To>
void exchange(const Context &ctx, uint8_t prefix, UnboundBuffer &out, UnboundBuffer &in, size_t bytes, To to)
{
    uint64_t slot = gloo::Slot::build(prefix, 0);
    for (int i = 1; i < ctx->size; i++) {
        int r = (ctx->rank + i) % ctx->size;
        in.recv(r, slot, static_cast<size_t>(r) * bytes, bytes);
    }
    for (int i = 1; i < ctx->size; i++) {
        int r = (ctx->rank + i) % ctx->size;
        out.send(r, slot, to(r), bytes);
    }
    for (int i = 1; i < ctx->size; i++)
        in.waitRecv(nullptr, ctx->getTimeout());
    for (int i = 1; i < ctx->size; i++)
        out.waitSend(nullptr, ctx->getTimeout());
}

void small_all_reduce(const Context &ctx, void *buf, size_t n, dtype t, comm_op op)
{
    size_t bytes = n * dtype_size(t), world = static_cast<size_t>(ctx->size);
    Scratch parts(world * bytes);
    {
        auto in = ctx->createUnboundBuffer(parts.at(0), world * bytes);
        auto out = ctx->createUnboundBuffer(buf, bytes);
        exchange(ctx, EXCHANGE_PREFIX, *out, *in, bytes, [](int) { return size_t{0}; });
    }
    std::vector<const void *> order;
    for (int r = 0; r < ctx->size; r++)
        order.push_back(r == ctx->rank ? buf : parts.at(static_cast<size_t>(r) * bytes));
    reduce_many(buf, order.data(), ctx->size, n, t, op);
}

/* Gloo wants the element's size as a type. */
template <typename T> void ring_all_reduce(const Context &ctx, void *buf, size_t n, reduce_fn *fn)
{
    gloo::AllreduceOptions o(ctx);
    o.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    o.setOutput(static_cast<T *>(buf), n);
    o.setReduceFunction([fn](void *out, const void *a, const void *b, size_t k) {
        if (out != a)
            memcpy(out, a, k * sizeof(T));
        fn(out, b, k);
    });
    gloo::allreduce(o);
}

int gloo_all_reduce(comm *c, comm_channel ch, void *buf, size_t n, dtype t, comm_op op, void *, err *e)
{
    TRY(reduce_check(t, op, e));
    return call(c, ch, "all_reduce", e, [&](const Context &ctx) {
        if (n == 0)
            return;
        reduce_fn *fn = reduce_find(t, op);
        if (n * dtype_size(t) * static_cast<size_t>(ctx->size - 1) <= EXCHANGE_BYTES)
            small_all_reduce(ctx, buf, n, t, op);
        else if (dtype_size(t) == 2)
            ring_all_reduce<uint16_t>(ctx, buf, n, fn);
        else if (dtype_size(t) == 4)
            ring_all_reduce<uint32_t>(ctx, buf, n, fn);
        else
            ring_all_reduce<uint64_t>(ctx, buf, n, fn);
    });
}

int gloo_broadcast(comm *c, comm_channel ch, void *buf, size_t bytes, int root, void *, err *e)
{
    return call(c, ch, "broadcast", e, [&](const Context &ctx) {
        if (bytes == 0)
            return;
        gloo::BroadcastOptions o(ctx);
        o.setRoot(root);
        o.setOutput(static_cast<char *>(buf), bytes);
        gloo::broadcast(o);
    });
}

int gloo_all_gather(comm *c, comm_channel ch, const void *in, void *out, size_t bytes, void *, err *e)
{
    return call(c, ch, "all_gather", e, [&](const Context &ctx) {
        if (bytes == 0)
            return;
        memmove(static_cast<char *>(out) + static_cast<size_t>(ctx->rank) * bytes, in, bytes);
        gloo::AllgatherOptions o(ctx);
        o.setOutput(static_cast<char *>(out), bytes * static_cast<size_t>(ctx->size));
        gloo::allgather(o);
    });
}

int gloo_reduce_scatter(comm *c, comm_channel ch, const void *in, void *out, size_t n, dtype t, void *, err *e)
{
    TRY(reduce_check(t, COMM_SUM, e));
    return call(c, ch, "reduce_scatter", e, [&](const Context &ctx) {
        size_t size = dtype_size(t), world = static_cast<size_t>(ctx->size), rank = static_cast<size_t>(ctx->rank);
        size_t block = std::max<size_t>(SCATTER_BYTES / size / world, 1);
        Scratch parts(world * std::min(block, n) * size);
        char *mine = static_cast<char *>(const_cast<void *>(in)); /* only read */
        auto from = ctx->createUnboundBuffer(mine, world * n * size);
        for (size_t first = 0; first < n; first += block) {
            size_t k = std::min(block, n - first);
            auto to = ctx->createUnboundBuffer(parts.at(0), world * k * size);
            exchange(ctx, SCATTER_PREFIX, *from, *to, k * size,
                     [&](int r) { return (static_cast<size_t>(r) * n + first) * size; });
            std::vector<const void *> order;
            for (size_t r = 0; r < world; r++)
                order.push_back(r == rank ? mine + (r * n + first) * size : parts.at(r * k * size));
            reduce_many(static_cast<char *>(out) + first * size, order.data(), ctx->size, k, t, COMM_SUM);
        }
    });
}

int gloo_barrier(comm *c, comm_channel ch, err *e)
{
    return call(c, ch, "barrier", e, [](const Context &ctx) {
        gloo::BarrierOptions o(ctx);
        gloo::barrier(o);
    });
}

void gloo_abort(comm *c)
{
    of(c)->fail(-ECANCELED, "the communicator was aborted", nullptr);
}

void gloo_close(comm *c)
{
    delete (c ? of(c) : nullptr);
}

/* Gloo writes to sockets without MSG_NOSIGNAL: a peer's death must not kill us. A handler of the program's own is left
 * alone. */
void survive_broken_pipes()
{
    struct sigaction now;
    if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
        now.sa_handler = SIG_IGN;
        sigaction(SIGPIPE, &now, nullptr);
    }
}

int open_mesh(GlooComm *g, const comm_options *o, err *e)
{
    int64_t deadline = clock_ms() + o->timeout_ms;
    auto until = mesh::Clock::now() + milliseconds(o->timeout_ms);
    char address[PEERS_ADDRESS_LEN];
    TRY(peers_address(o, deadline, address, e));
    try {
        std::string mine = g->net.listen(address, milliseconds(std::max<int64_t>(deadline - clock_ms(), 1)));
        char **all = nullptr;
        TRY(peers_exchange(o, "ports", mine.c_str(),
                           PEERS_ADDRESS_LEN + static_cast<size_t>(o->world) * COMM_CHANNELS * PLACE_LEN, deadline,
                           &all, e));
        std::vector<std::string> records(all, all + o->world);
        peers_free(all, o->world);
        g->net.connect(records, until);
        return 0;
    } catch (const mesh::Late &l) {
        return err_set(e, -ETIMEDOUT, "rank %d has come, but no connection with it was made from %s within %lld ms",
                       l.rank, address, static_cast<long long>(o->timeout_ms));
    } catch (const mesh::Unconnected &u) {
        return err_set(e, -ECONNRESET, "rank %d has come, but the connection with it from %s failed: %s", u.rank,
                       address, u.why.c_str());
    } catch (const mesh::Lost &l) {
        return err_set(e, -ECONNRESET, "rank %d went away while connections were made", l.rank);
    } catch (const std::bad_alloc &) {
        return err_set(e, -ENOMEM, "no memory for a mesh of %d", o->world);
    } catch (const std::exception &x) {
        return err_set(e, -EIO, "no mesh on %s: %s", address, x.what());
    }
}

int gloo_open(comm **ret, const comm_options *o, err *e)
{
    if (o->world == 1)
        return comm_local_ops.open(ret, o, e); /* nobody to talk to */
    survive_broken_pipes();
    auto *g = new (std::nothrow) GlooComm(o->rank, o->world, milliseconds(o->timeout_ms));
    if (!g)
        return err_set(e, -ENOMEM, "no memory for a communicator");
    int rc = open_mesh(g, o, e);
    if (rc < 0) {
        delete g;
        return rc;
    }
    *ret = &g->base;
    return 0;
}

} // namespace

const comm_ops comm_gloo_ops = {
    "gloo",          true,           gloo_open,       gloo_close,          gloo_abort,
    gloo_all_reduce, gloo_broadcast, gloo_all_gather, gloo_reduce_scatter, gloo_barrier,
    nullptr,         nullptr,        nullptr,
};
