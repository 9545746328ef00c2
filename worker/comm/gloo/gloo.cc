/* The Gloo backend behind the C vtable. No exception leaves this file.
 *
 * A channel is a Gloo context of its own (own sockets), so that a few statistics do not queue behind 25 MiB of
 * gradients. The full mesh of all channels is opened at once: two records per rank in the store, "host" and "ports".
 *
 * Algorithms: large all-reduces are Gloo's ring; up to EXCHANGE_BYTES everybody sends its part straight to everybody
 * and sums in rank order, one trip instead of 2 (W - 1). Both depend on world and size only. Reduce-scatter (Gloo 0.5
 * has only the old class) is a direct exchange of slices, in blocks; reduce is that, and the slices go to root. The
 * rest is Gloo's own. */
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/types.h>

#include "worker/comm/gloo/gloo_comm.hh"

extern "C" {
#include "common/base/clock.h"
#include "worker/comm/kin.h"
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
constexpr uint8_t GATHER_PREFIX = 0x44;

/* Run f on the channel with the deadline. */
template <typename F> int call(comm *c, comm_channel ch, const char *what, err *e, F f)
{
    GlooComm *g = gloo_of(c);
    auto &channel = g->net.channel(ch);
    std::lock_guard<std::mutex> turn(channel->call);
    return gloo_guard(g, what, e, [&] {
        channel->link().begin(mesh::Clock::now() + g->timeout);
        f(std::static_pointer_cast<gloo::Context>(channel));
    });
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

/* Bytes of a buffer. */
struct Range {
    size_t offset, bytes;
};

/* Send rank r the bytes give(r) of `out`, receive take(r) of `in` from it; nothing from or to myself. */
template <typename Give, typename Take>
void exchange(const Context &ctx, uint8_t prefix, UnboundBuffer &out, UnboundBuffer &in, Give give, Take take)
{
    uint64_t slot = gloo::Slot::build(prefix, 0);
    int sends = 0, recvs = 0;
    for (int i = 1; i < ctx->size; i++) {
        int r = (ctx->rank + i) % ctx->size;
        Range t = take(r);
        if (t.bytes > 0) {
            in.recv(r, slot, t.offset, t.bytes);
            recvs++;
        }
    }
    for (int i = 1; i < ctx->size; i++) {
        int r = (ctx->rank + i) % ctx->size;
        Range g = give(r);
        if (g.bytes > 0) {
            out.send(r, slot, g.offset, g.bytes);
            sends++;
        }
    }
    while (recvs-- > 0)
        in.waitRecv(nullptr, ctx->getTimeout());
    while (sends-- > 0)
        out.waitSend(nullptr, ctx->getTimeout());
}

/* Unbound buffers are written to only where they receive. */
char *writable(const void *p)
{
    return static_cast<char *>(const_cast<void *>(p));
}

/* out = parts[0] op parts[1] ..., slots of `stride` bytes; mine stands in for my own. */
void reduce_slots(const Context &ctx, void *out, const void *mine, char *slots, size_t stride, size_t n, dtype t,
                  comm_op op)
{
    std::vector<const void *> order;
    for (int r = 0; r < ctx->size; r++)
        order.push_back(r == ctx->rank ? mine : slots + static_cast<size_t>(r) * stride);
    reduce_many(out, order.data(), ctx->size, n, t, op);
}

/* Everybody's part straight to those who reduce: all, or root. */
void small_reduce(const Context &ctx, const void *in, void *ret, size_t n, dtype t, comm_op op, int root)
{
    const size_t bytes = n * dtype_size(t);
    const bool all = root < 0, mine = all || root == ctx->rank;
    Scratch parts(mine ? static_cast<size_t>(ctx->size) * bytes : 1);
    {
        auto to = ctx->createUnboundBuffer(parts.at(0), mine ? static_cast<size_t>(ctx->size) * bytes : 1);
        auto from = ctx->createUnboundBuffer(writable(in), bytes);
        exchange(
            ctx, EXCHANGE_PREFIX, *from, *to,
            [&](int r) {
                return Range{0, all || r == root ? bytes : 0};
            },
            [&](int r) {
                return Range{static_cast<size_t>(r) * bytes, mine ? bytes : 0};
            });
    }
    if (mine)
        reduce_slots(ctx, ret, in, parts.at(0), bytes, n, t, op);
}

bool is_small(const Context &ctx, size_t bytes)
{
    return bytes * static_cast<size_t>(ctx->size - 1) <= EXCHANGE_BYTES;
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
        if (is_small(ctx, n * dtype_size(t)))
            small_reduce(ctx, buf, buf, n, t, op, -1);
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
    TRY(comm_root_check(c, root, e));
    return call(c, ch, "broadcast", e, [&](const Context &ctx) {
        if (bytes == 0)
            return;
        gloo::BroadcastOptions o(ctx);
        o.setRoot(root);
        o.setOutput(static_cast<char *>(buf), bytes);
        gloo::broadcast(o);
    });
}

std::vector<size_t> offsets_of(const size_t *parts, int world)
{
    std::vector<size_t> at(static_cast<size_t>(world) + 1, 0);
    for (size_t r = 0; r < static_cast<size_t>(world); r++)
        at[r + 1] = at[r] + parts[r];
    return at;
}

/* Straight from everybody to everybody: as many bytes as a ring moves, in one trip. */
void gather_parts(const Context &ctx, void *out, const size_t *bytes)
{
    const auto at = offsets_of(bytes, ctx->size);
    const auto me = static_cast<size_t>(ctx->rank);
    auto buffer = ctx->createUnboundBuffer(out, at.back());
    exchange(
        ctx, GATHER_PREFIX, *buffer, *buffer,
        [&](int) {
            return Range{at[me], bytes[me]};
        },
        [&](int r) {
            return Range{at[static_cast<size_t>(r)], bytes[r]};
        });
}

int gloo_all_gather_v(comm *c, comm_channel ch, const void *in, void *out, const size_t *bytes, void *, err *e)
{
    return call(c, ch, "all_gather", e, [&](const Context &ctx) {
        const auto at = offsets_of(bytes, ctx->size);
        const size_t mine = bytes[ctx->rank];
        if (at.back() == 0)
            return;
        char *place = static_cast<char *>(out) + at[static_cast<size_t>(ctx->rank)];
        if (mine > 0 && place != in)
            memcpy(place, in, mine);
        if (std::any_of(bytes, bytes + ctx->size, [&](size_t b) { return b != mine; }))
            return gather_parts(ctx, out, bytes);
        gloo::AllgatherOptions o(ctx);
        o.setOutput(static_cast<char *>(out), at.back());
        gloo::allgather(o);
    });
}

/* Slices straight to whom they belong, in blocks: as much memory as a block of everybody takes. */
void scatter_slices(const Context &ctx, const void *in, void *out, const size_t *counts, dtype t, comm_op op)
{
    const size_t size = dtype_size(t), world = static_cast<size_t>(ctx->size), me = static_cast<size_t>(ctx->rank);
    const size_t block = std::max<size_t>(SCATTER_BYTES / size / world, 1);
    const size_t most = *std::max_element(counts, counts + world), room = std::min(block, counts[me]) * size;
    const auto at = offsets_of(counts, ctx->size);
    Scratch parts(std::max<size_t>(world * room, 1));
    auto from = ctx->createUnboundBuffer(writable(in), at.back() * size);
    auto to = ctx->createUnboundBuffer(parts.at(0), std::max<size_t>(world * room, 1));
    for (size_t first = 0; first < most; first += block) {
        auto left = [&](size_t r) { return counts[r] > first ? std::min(block, counts[r] - first) : 0; };
        auto place = [&](size_t r) { return (at[r] + first) * size; };
        exchange(
            ctx, SCATTER_PREFIX, *from, *to,
            [&](int r) {
                return Range{place(static_cast<size_t>(r)), left(static_cast<size_t>(r)) * size};
            },
            [&](int r) {
                return Range{static_cast<size_t>(r) * room, left(me) * size};
            });
        if (left(me) > 0)
            reduce_slots(ctx, static_cast<char *>(out) + first * size, writable(in) + place(me), parts.at(0), room,
                         left(me), t, op);
    }
}

int gloo_reduce_scatter_v(comm *c, comm_channel ch, const void *in, void *out, const size_t *counts, dtype t,
                          comm_op op, void *, err *e)
{
    TRY(reduce_check(t, op, e));
    return call(c, ch, "reduce_scatter", e, [&](const Context &ctx) {
        if (offsets_of(counts, ctx->size).back() > 0)
            scatter_slices(ctx, in, out, counts, t, op);
    });
}

/* A slice is reduced by each rank, and root gathers them. */
void large_reduce(const Context &ctx, const void *in, void *out, size_t n, dtype t, comm_op op, int root)
{
    const size_t world = static_cast<size_t>(ctx->size), me = static_cast<size_t>(ctx->rank), size = dtype_size(t);
    std::vector<size_t> counts;
    for (size_t r = 0; r < world; r++)
        counts.push_back(n / world + (r < n % world));
    const auto at = offsets_of(counts.data(), ctx->size);
    Scratch slice(counts[me] * size);
    const bool mine = ctx->rank == root;
    scatter_slices(ctx, in, slice.at(0), counts.data(), t, op);
    auto from = ctx->createUnboundBuffer(slice.at(0), counts[me] * size);
    auto to = ctx->createUnboundBuffer(mine ? out : slice.at(0), mine ? n * size : counts[me] * size);
    exchange(
        ctx, GATHER_PREFIX, *from, *to,
        [&](int r) {
            return Range{0, r == root ? counts[me] * size : 0};
        },
        [&](int r) {
            const auto k = static_cast<size_t>(r);
            return Range{at[k] * size, mine ? counts[k] * size : 0};
        });
    if (mine)
        memcpy(static_cast<char *>(out) + at[me] * size, slice.at(0), counts[me] * size);
}

int gloo_reduce(comm *c, comm_channel ch, const void *in, void *out, size_t n, dtype t, comm_op op, int root, void *,
                err *e)
{
    TRY(reduce_check(t, op, e));
    TRY(comm_root_check(c, root, e));
    return call(c, ch, "reduce", e, [&](const Context &ctx) {
        if (n == 0)
            return;
        if (is_small(ctx, n * dtype_size(t)))
            small_reduce(ctx, in, out, n, t, op, root);
        else
            large_reduce(ctx, in, out, n, t, op, root);
    });
}

int gloo_barrier(comm *c, comm_channel ch, err *e)
{
    return call(c, ch, "barrier", e, [](const Context &ctx) {
        gloo::BarrierOptions o(ctx);
        gloo::barrier(o);
    });
}

int64_t gloo_sent(const comm *c, comm_channel ch)
{
    return gloo_of(const_cast<comm *>(c))->net.sent(ch);
}

void gloo_abort(comm *c)
{
    gloo_of(c)->fail(-ECANCELED, "the communicator was aborted", nullptr);
    comm_kin_abort(c);
}

void gloo_close(comm *c)
{
    if (!c)
        return;
    comm_kin_end(c);
    delete gloo_of(c);
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
        g->net.connect(records, until, o->cancel_fd);
        return 0;
    } catch (const mesh::Stopped &) {
        return err_set(e, -ECANCELED, "connections of %d ranks were given up", o->world);
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

GlooComm::GlooComm(int rank, int world, milliseconds t)
    : base{&comm_gloo_ops, rank, world, nullptr}, net(rank, world, COMM_CHANNELS), timeout(t)
{
    prepare_messages();
}

int GlooComm::fail(int code, const std::string &text, err *e)
{
    {
        std::lock_guard<std::mutex> guard(lock);
        if (failed.code == 0)
            err_set(&failed, code, "%s", text.c_str());
    }
    net.stop();
    return report(e);
}

int GlooComm::report(err *e)
{
    std::lock_guard<std::mutex> guard(lock);
    return err_set(e, failed.code, "%s", failed.text);
}

const comm_ops comm_gloo_ops = {
    "gloo",
    true,
    gloo_open,
    gloo_close,
    gloo_abort,
    gloo_all_reduce,
    gloo_reduce,
    gloo_broadcast,
    comm_all_gather_equal,
    gloo_all_gather_v,
    comm_reduce_scatter_equal,
    gloo_reduce_scatter_v,
    gloo_barrier,
    gloo_isend,
    gloo_irecv,
    gloo_wait,
    gloo_send,
    nullptr,
    nullptr,
    nullptr,
    gloo_sent,
};
