/* Gloo's TCP mesh, with the three things it lacks: abort, deadlines of whole calls, and peers that vanish in mid-transfer.
 *
 * Gloo's algorithms see a transport context and its unbound buffers only. A Link stands between: it hands out buffers that know which
 * rank every outstanding operation is with, and that can be woken.
 *   - Deadline: each wait gets what is left of the call's time, not the whole of it.
 *   - Abort and failure: every waiting buffer is woken (abortWaitRecv/Send) and throws Stopped; the sockets are shut down, so that the
 *     other ranks learn of it now. Gloo's closeConnections() would leave a blocked wait waiting.
 *   - A peer that goes: Gloo fails operations that have not begun, but forgets the one whose bytes were under way: its wait would last
 *     the whole timeout. So a second descriptor of every socket is watched on Gloo's own event loop. When the peer has hung up and
 *     everything it sent has been read (the same thread reads), operations with it that are still open are lost: Lost is thrown.
 *     Operations with others go on: a rank that is done with the last collective may close before its neighbours.
 *
 * Descriptors are found without Gloo's private headers: a pair tells its local address, and the descriptor with that address is
 * duplicated first and looked at then, so no other thread's descriptor can be taken by mistake. Gloo since 2023-05 has one
 * listener per device instead of one per pair, and numbers the pairs (Address::getSeq()): both kinds are served.
 *
 * Threads: collectives of one Link come one at a time (the caller's lock); buffers with a deadline of their own are used
 * beside them, each by one thread at a time; wake, peer_gone come from any thread. */
#ifndef CRUN_WORKER_COMM_GLOO_MESH_HH
#define CRUN_WORKER_COMM_GLOO_MESH_HH

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

namespace mesh
{

using Clock = std::chrono::steady_clock;

/* Thrown through Gloo's algorithms, caught at the vtable. */
struct Stopped {
}; /* the mesh was aborted or has failed */
struct Late {
    int rank;
}; /* the deadline passed while waiting for rank */
struct Lost {
    int rank;
}; /* the connection to rank is gone */
struct Unconnected {
    int rank;
    std::string why;
}; /* there could be none */

class Buffer;

class Link final : public gloo::transport::Context
{
  public:
    Link(const std::shared_ptr<gloo::transport::Device> &device, int rank, int size, std::chrono::milliseconds timeout);

    std::unique_ptr<gloo::transport::Pair> &getPair(int rank) override;
    std::unique_ptr<gloo::transport::Pair> &createPair(int rank) override;
    std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void *ptr, size_t size) override;

    void begin(Clock::time_point deadline); /* of the call that follows */
    /* Of a buffer's waits, in place of the call's: what is begun in one call and waited for in another. */
    static void set_deadline(gloo::transport::UnboundBuffer &b, Clock::time_point deadline);
    void stop();                            /* waits in progress and to come throw Stopped */
    void peer_gone(int rank);

  private:
    friend class Buffer;
    const std::shared_ptr<gloo::transport::Context> inner_;
    std::mutex lock_;
    std::vector<Buffer *> buffers_;
    std::vector<bool> gone_;
    bool stopped_ = false;
    Clock::time_point deadline_;
};

/* One per channel. */
class Channel final : public gloo::Context
{
  public:
    Channel(const std::shared_ptr<gloo::transport::Device> &device, int rank, int size,
            std::chrono::milliseconds timeout);
    Link &link()
    {
        return *link_;
    }
    std::mutex call; /* held during a call */

  private:
    std::shared_ptr<Link> link_;
};

class Alarm;
class Watch;

class Mesh
{
  public:
    Mesh(int rank, int world, int channels);
    ~Mesh();

    /* Two steps, with an exchange of strings between: listen, and tell where; connect to all, by the deadline. Throw
     * gloo::Exception; Unconnected, Lost and Late name the rank with which there is no connection. */
    std::string listen(const std::string &address, std::chrono::milliseconds timeout);
    void connect(const std::vector<std::string> &records, Clock::time_point deadline, int cancel_fd);

    std::shared_ptr<Channel> &channel(int i)
    {
        return links_[static_cast<size_t>(i)];
    }

    /* Wakes everybody and shuts the sockets down. From any thread. */
    void stop();

    /* "rank 2 went away (so did: 1)": a rank that gives up because of another closes too, and may be noticed first. */
    std::string describe_loss(int rank);
    void peer_gone(int channel, int rank);

    /* Bytes that this rank has sent on a channel; -1: the kernel does not tell. Once connected, from any thread. */
    int64_t sent(int channel) const;

  private:
    struct Connection {
        int channel, rank;
        std::string own, remote; /* remote: empty if the peer dialled */
    };
    Connection connect_pair(int channel, int rank, const gloo::transport::tcp::Address &remote, const Alarm &alarm);
    void close_pairs();
    void learn_remotes(std::vector<Connection> &connections, Clock::time_point deadline);
    void watch(std::vector<Connection> wanted);
    void abandon();

    const int rank_, world_, channels_;
    bool one_listener_ = false; /* of the device; else each pair has its own (Gloo before 2023-05) */
    bool begun_ = false, connected_ = false;
    std::shared_ptr<gloo::transport::Device> device_;
    std::vector<std::shared_ptr<Channel>> links_;
    std::vector<std::unique_ptr<Watch>> watches_;
};

} // namespace mesh

#endif
