/* A transport context that knows whom it waits for: the deadline, the wake-up and the peers that go (gloo_mesh.hh). */
#include "worker/comm/gloo/gloo_mesh.hh"

#include <algorithm>

#include <gloo/common/error.h>

namespace mesh
{

using gloo::transport::Pair;
using gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;

/* One inner buffer for every peer, so that a wait is always for one known rank. Completions are taken in the order of
 * posting. */
class Buffer final : public UnboundBuffer
{
  public:
    Buffer(Link &link, void *p, size_t n) : UnboundBuffer(p, n), link_(link)
    {
    }

    ~Buffer() override
    {
        std::lock_guard<std::mutex> guard(link_.lock_);
        auto &all = link_.buffers_;
        all.erase(std::find(all.begin(), all.end(), this));
    }

    void send(int rank, uint64_t slot, size_t offset, size_t nbytes) override
    {
        UnboundBuffer &b = with(rank);
        guarded(rank, [&] { b.send(rank, slot, offset, nbytes); });
        sends_.push_back({rank, false});
    }

    void recv(int rank, uint64_t slot, size_t offset, size_t nbytes) override
    {
        UnboundBuffer &b = with(rank);
        guarded(rank, [&] { b.recv(rank, slot, offset, nbytes); });
        recvs_.push_back({rank, false});
    }

    void recv(std::vector<int>, uint64_t, size_t, size_t) override
    {
        GLOO_THROW_INVALID_OPERATION_EXCEPTION("receiving from any rank is not used");
    }

    bool waitSend(int *rank, milliseconds) override
    {
        return wait(sends_, rank, [](UnboundBuffer &b, milliseconds t) { return b.waitSend(nullptr, t); });
    }

    bool waitRecv(int *rank, milliseconds) override
    {
        return wait(recvs_, rank, [](UnboundBuffer &b, milliseconds t) { return b.waitRecv(nullptr, t); });
    }

    void abortWaitRecv() override
    {
        wake(-1);
    }
    void abortWaitSend() override
    {
        wake(-1);
    }

    void set_deadline(Clock::time_point t)
    {
        own_ = true;
        deadline_ = t;
    }

    /* Link's lock held. rank -1: whoever the operations are with. */
    void wake(int rank)
    {
        bool concerned = rank < 0;
        for (auto &p : peers_)
            concerned = concerned || p.first == rank;
        for (auto &p : peers_) {
            if (concerned) {
                p.second->abortWaitRecv();
                p.second->abortWaitSend();
            }
        }
    }

  private:
    struct Posted {
        int rank;
        bool done; /* its completion was taken before its turn */
    };

    UnboundBuffer &with(int rank)
    {
        std::lock_guard<std::mutex> guard(link_.lock_);
        check(rank);
        for (auto &p : peers_)
            if (p.first == rank)
                return *p.second;
        peers_.emplace_back(rank, link_.inner_->createUnboundBuffer(ptr, size));
        return *peers_.back().second;
    }

    /* Link's lock held. */
    void check(int rank) const
    {
        if (link_.stopped_)
            throw Stopped{};
        if (link_.gone_[static_cast<size_t>(rank)])
            throw Lost{rank};
    }

    /* Whatever Gloo has to say about a connection becomes "lost", unless the time is up or somebody stopped us. */
    template <typename F> auto guarded(int rank, F f) -> decltype(f())
    {
        try {
            return f();
        } catch (const gloo::Exception &) {
            std::lock_guard<std::mutex> guard(link_.lock_);
            check(rank);
            if (Clock::now() >= deadline())
                throw Late{rank};
            throw Lost{rank};
        }
    }

    Clock::time_point deadline() const
    {
        return own_ ? deadline_ : link_.deadline_;
    }

    milliseconds left() const
    {
        auto ms = std::chrono::duration_cast<milliseconds>(deadline() - Clock::now()).count();
        return milliseconds(std::max<decltype(ms)>(ms + 1, 0));
    }

    UnboundBuffer &inner(int rank)
    {
        for (auto &p : peers_)
            if (p.first == rank)
                return *p.second;
        GLOO_THROW_INVALID_OPERATION_EXCEPTION("waiting without an operation");
    }

    bool is_gone(int rank)
    {
        std::lock_guard<std::mutex> guard(link_.lock_);
        if (link_.stopped_)
            throw Stopped{};
        return link_.gone_[static_cast<size_t>(rank)];
    }

    /* Operations with peers that went are either complete by now or lost, whichever we happen to wait for. */
    template <typename F> void settle(std::deque<Posted> &posted, F f)
    {
        for (auto &p : posted) {
            if (p.done || !is_gone(p.rank))
                continue;
            UnboundBuffer &b = inner(p.rank);
            p.done = guarded(p.rank, [&] { return f(b, milliseconds(0)); }) || /* false: it reported the wake-up only */
                     guarded(p.rank, [&] { return f(b, milliseconds(0)); });
        }
    }

    template <typename F> bool wait(std::deque<Posted> &posted, int *ret, F f)
    {
        int rank = posted.front().rank;
        UnboundBuffer &b = inner(rank);
        while (!posted.front().done && !guarded(rank, [&] { return f(b, left()); })) {
            (void)is_gone(rank); /* woken: stopped? */
            settle(posted, f);
        }
        posted.pop_front();
        if (ret)
            *ret = rank;
        return true;
    }

    Link &link_;
    bool own_ = false; /* deadline_, not the call's */
    Clock::time_point deadline_;
    std::vector<std::pair<int, std::unique_ptr<UnboundBuffer>>> peers_;
    std::deque<Posted> sends_, recvs_;
};

Link::Link(const std::shared_ptr<gloo::transport::Device> &device, int rank_, int size_, milliseconds timeout)
    : gloo::transport::Context(rank_, size_), inner_(device->createContext(rank_, size_)),
      gone_(static_cast<size_t>(size_), false)
{
    setTimeout(timeout);
    inner_->setTimeout(timeout);
}

std::unique_ptr<Pair> &Link::getPair(int i)
{
    return inner_->getPair(i);
}

std::unique_ptr<Pair> &Link::createPair(int i)
{
    return inner_->createPair(i);
}

std::unique_ptr<UnboundBuffer> Link::createUnboundBuffer(void *ptr, size_t n)
{
    auto b = std::make_unique<Buffer>(*this, ptr, n);
    std::lock_guard<std::mutex> guard(lock_);
    buffers_.push_back(b.get());
    return b;
}

void Link::set_deadline(UnboundBuffer &b, Clock::time_point deadline)
{
    static_cast<Buffer &>(b).set_deadline(deadline);
}

void Link::begin(Clock::time_point deadline)
{
    std::lock_guard<std::mutex> guard(lock_);
    if (stopped_)
        throw Stopped{};
    deadline_ = deadline;
}

void Link::stop()
{
    std::lock_guard<std::mutex> guard(lock_);
    stopped_ = true;
    for (Buffer *b : buffers_)
        b->wake(-1);
}

void Link::peer_gone(int r)
{
    std::lock_guard<std::mutex> guard(lock_);
    gone_[static_cast<size_t>(r)] = true;
    for (Buffer *b : buffers_)
        b->wake(r);
}

Channel::Channel(const std::shared_ptr<gloo::transport::Device> &device, int rank_, int size_, milliseconds timeout)
    : gloo::Context(rank_, size_), link_(std::make_shared<Link>(device, rank_, size_, timeout))
{
    device_ = device;
    transportContext_ = link_;
    setTimeout(timeout);
}

} // namespace mesh
