/* Messages between two ranks over the mesh's unbound buffers, which Gloo begins at once and in which neither side waits
 * for the other until it wants to: two ranks that both send first go on.
 *
 * Order and size: Gloo pairs a send with a receive by a 64-bit slot. It holds the message's number between these two
 * ranks on this channel and its size; where the two sides do not mean the same, none meets the other, and the deadline
 * ends it.
 * send(): Gloo keeps the bytes where they are until the receiver has asked for them, so a copy is sent. A thread, begun
 * with the first one, waits for the copies one after the other, and frees them.
 * To oneself: Gloo has no pair for that; whoever comes second copies. */
#include "worker/comm/gloo/gloo_comm.hh"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

using gloo::transport::UnboundBuffer;

namespace
{

constexpr uint64_t MESSAGE_PREFIX = 0x43; /* beside those of gloo.cc and gloo_mesh.cc */
constexpr int NUMBER_BITS = 16, SIZE_BITS = 40;

uint64_t slot_of(uint64_t number, size_t bytes)
{
    return MESSAGE_PREFIX << (NUMBER_BITS + SIZE_BITS) | (number & ((1u << NUMBER_BITS) - 1)) << SIZE_BITS |
           (bytes & ((uint64_t{1} << SIZE_BITS) - 1));
}

/* One side of a message to oneself. */
struct Own {
    const void *from = nullptr;
    void *to = nullptr;
    size_t bytes = 0, other = 0;
    bool done = false;
    std::unique_ptr<char[]> copy;
};

struct Request {
    comm_request base;
    const char *what;
    int peer;
    size_t bytes;
    std::unique_ptr<UnboundBuffer> buffer; /* NULL: own */
    std::shared_ptr<Own> own;
};

struct Parcel {
    std::unique_ptr<char[]> memory;
    std::unique_ptr<UnboundBuffer> buffer; /* freed first */
    int peer;
    size_t bytes;
};

std::string title(const char *what, size_t bytes, int peer, const char *preposition)
{
    return std::string(what) + " of " + std::to_string(bytes) + " bytes " + preposition + " rank " +
           std::to_string(peer);
}

std::string title(const Request &r)
{
    return title(r.what, r.bytes, r.peer, r.what[0] == 's' ? "to" : "from");
}

} // namespace

class Outbox
{
  public:
    explicit Outbox(GlooComm *g) : g_(g), thread_([this] { run(); })
    {
    }

    ~Outbox()
    {
        {
            std::lock_guard<std::mutex> guard(lock_);
            closing_ = true;
        }
        change_.notify_one();
        thread_.join();
    }

    void add(Parcel p)
    {
        {
            std::lock_guard<std::mutex> guard(lock_);
            parcels_.push_back(std::move(p));
        }
        change_.notify_one();
    }

  private:
    void run()
    {
        std::unique_lock<std::mutex> guard(lock_);
        while (true) {
            change_.wait(guard, [this] { return closing_ || !parcels_.empty(); });
            if (parcels_.empty())
                return;
            Parcel p = std::move(parcels_.front());
            parcels_.pop_front();
            guard.unlock();
            (void)gloo_guard(g_, title("send", p.bytes, p.peer, "to"), nullptr,
                             [&] { p.buffer->waitSend(nullptr, g_->timeout); });
            p.buffer.reset();
            p.memory.reset();
            guard.lock();
        }
    }

    GlooComm *const g_;
    std::mutex lock_;
    std::condition_variable change_;
    std::deque<Parcel> parcels_;
    bool closing_ = false;
    std::thread thread_; /* last: it uses the others */
};

class Post
{
  public:
    explicit Post(int world) : numbers_(COMM_CHANNELS * 2 * static_cast<size_t>(world), 0), world_(world)
    {
    }

    uint64_t next(comm_channel ch, bool is_send, int peer)
    {
        std::lock_guard<std::mutex> guard(lock_);
        return numbers_[(static_cast<size_t>(ch) * 2 + is_send) * static_cast<size_t>(world_) +
                        static_cast<size_t>(peer)]++;
    }

    /* m, or the one that was there before it, is done. */
    void to_self(comm_channel ch, const std::shared_ptr<Own> &m)
    {
        std::lock_guard<std::mutex> guard(lock_);
        auto &box = boxes_[ch];
        if (box.empty() || !box.front()->from == !m->from) {
            box.push_back(m);
            return;
        }
        auto other = box.front();
        box.pop_front();
        const Own &send = m->from ? *m : *other, &recv = m->from ? *other : *m;
        if (send.bytes == recv.bytes)
            memcpy(recv.to, send.from, send.bytes);
        m->other = other->bytes;
        other->other = m->bytes;
        m->done = other->done = true;
    }

    void finish(const std::shared_ptr<Own> &m)
    {
        std::lock_guard<std::mutex> guard(lock_);
        if (!m->done)
            throw GlooError(-EDEADLK, "its other side has not been begun, and nobody else will");
        if (m->bytes != m->other)
            throw GlooError(-EMSGSIZE, "the other side has one of " + std::to_string(m->other) + " bytes");
    }

    Outbox &outbox(GlooComm *g)
    {
        std::lock_guard<std::mutex> guard(lock_);
        if (!g->outbox)
            g->outbox = std::make_shared<Outbox>(g);
        return *g->outbox;
    }

  private:
    std::mutex lock_;
    std::vector<uint64_t> numbers_; /* [channel][received, sent][peer] */
    std::deque<std::shared_ptr<Own>> boxes_[COMM_CHANNELS];
    const int world_;
};

void GlooComm::prepare_messages()
{
    post = std::make_shared<Post>(base.world);
}

GlooComm::~GlooComm()
{
    outbox.reset();
}

namespace
{

int check_peer(const comm *c, int peer, err *e)
{
    if (peer >= 0 && peer < c->world)
        return 0;
    return err_set(e, -EINVAL, "a message with rank %d of a world of %d", peer, c->world);
}

/* Begun: its bytes move as soon as the peer wants to. */
std::unique_ptr<UnboundBuffer> begin(GlooComm *g, comm_channel ch, void *p, size_t bytes, int peer, bool is_send)
{
    auto buffer = g->net.channel(ch)->createUnboundBuffer(p, bytes);
    const uint64_t slot = slot_of(g->post->next(ch, is_send, peer), bytes);
    mesh::Link::set_deadline(*buffer, mesh::Clock::now() + g->timeout);
    if (is_send)
        buffer->send(peer, slot, 0, bytes);
    else
        buffer->recv(peer, slot, 0, bytes);
    return buffer;
}

int post(comm *c, comm_channel ch, void *p, size_t bytes, int peer, bool is_send, comm_request **ret, err *e)
{
    GlooComm *g = gloo_of(c);
    TRY(check_peer(c, peer, e));
    *ret = nullptr;
    if (bytes == 0)
        return 0;
    std::unique_ptr<Request> r(new (std::nothrow)
                                   Request{{c}, is_send ? "send" : "recv", peer, bytes, nullptr, nullptr});
    if (!r)
        return err_set(e, -ENOMEM, "no memory for a message");
    TRY(gloo_guard(g, title(*r), e, [&] {
        if (peer != c->rank) {
            r->buffer = begin(g, ch, p, bytes, peer, is_send);
            return;
        }
        r->own = std::make_shared<Own>();
        r->own->bytes = bytes;
        r->own->from = is_send ? p : nullptr;
        r->own->to = is_send ? nullptr : p;
        g->post->to_self(ch, r->own);
    }));
    *ret = &r.release()->base;
    return 0;
}

} // namespace

int gloo_isend(comm *c, comm_channel ch, const void *buf, size_t bytes, int peer, void *, comm_request **ret, err *e)
{
    return post(c, ch, const_cast<void *>(buf), bytes, peer, true, ret, e); /* only read */
}

int gloo_irecv(comm *c, comm_channel ch, void *buf, size_t bytes, int peer, void *, comm_request **ret, err *e)
{
    return post(c, ch, buf, bytes, peer, false, ret, e);
}

int gloo_wait(comm_request *base, err *e)
{
    std::unique_ptr<Request> r(reinterpret_cast<Request *>(base)); /* base is the first member */
    GlooComm *g = gloo_of(base->comm);
    return gloo_guard(g, title(*r), e, [&] {
        if (r->own) {
            g->post->finish(r->own);
            return;
        }
        mesh::Link::set_deadline(*r->buffer, mesh::Clock::now() + g->timeout);
        if (r->what[0] == 's')
            r->buffer->waitSend(nullptr, g->timeout);
        else
            r->buffer->waitRecv(nullptr, g->timeout);
    });
}

int gloo_send(comm *c, comm_channel ch, const void *buf, size_t bytes, int peer, void *, err *e)
{
    GlooComm *g = gloo_of(c);
    TRY(check_peer(c, peer, e));
    if (bytes == 0)
        return 0;
    return gloo_guard(g, title("send", bytes, peer, "to"), e, [&] {
        std::unique_ptr<char[]> copy(new char[bytes]);
        memcpy(copy.get(), buf, bytes);
        if (peer != c->rank) {
            auto buffer = begin(g, ch, copy.get(), bytes, peer, true);
            g->post->outbox(g).add({std::move(copy), std::move(buffer), peer, bytes});
            return;
        }
        auto own = std::make_shared<Own>();
        own->bytes = bytes;
        own->from = copy.get();
        own->copy = std::move(copy);
        g->post->to_self(ch, own);
    });
}
