/* Connects each rank with each other one by pairs of Gloo. */
#include "worker/comm/gloo/gloo_mesh.hh"
#include "worker/comm/gloo/gloo_address.hh"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <functional>
#include <sstream>
#include <thread>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <gloo/common/error.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/types.h>

extern "C" {
#include "worker/comm/socket_sent.h"
}

namespace mesh
{

using gloo::transport::Pair;
using gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;

constexpr uint8_t ENDS_PREFIX = 0x42; /* message tag beside those of gloo.cc */

/* --- watching */

static gloo::transport::tcp::Device &tcp(const std::shared_ptr<gloo::transport::Device> &d)
{
    return static_cast<gloo::transport::tcp::Device &>(*d);
}

/* A descriptor of ours on Gloo's event loop. Owns it.
 *
 * Gloo promises that the loop has no more to do with a handler once its descriptor is unregistered, but it tells by a
 * condition alone, which orders no memory accesses: the lock does. */
class Guest : public gloo::transport::tcp::Handler
{
  public:
    void handleEvents(int events) final
    {
        std::lock_guard<std::mutex> guard(busy_);
        on_events(events);
    }

  protected:
    Guest(std::shared_ptr<gloo::transport::Device> device, int fd) : fd_(fd), device_(std::move(device))
    {
    }

    virtual void on_events(int events) = 0; /* on the loop's thread */

    void enter(uint32_t events)
    {
        tcp(device_).registerDescriptor(fd_, static_cast<int>(events), this);
    }

    /* In the destructor of what has on_events(). */
    void leave()
    {
        try {
            tcp(device_).unregisterDescriptor(fd_, this); /* returns when the loop is not in handleEvents() */
        } catch (const std::exception &) {
            /* not registered: nothing to undo */
        }
        std::lock_guard<std::mutex> guard(busy_);
        close(fd_);
    }

    const int fd_;

  private:
    const std::shared_ptr<gloo::transport::Device> device_;
    std::mutex busy_; /* held in on_events() */
};

/* A second descriptor of one connection. */
class Watch final : public Guest
{
  public:
    Watch(Mesh &mesh, std::shared_ptr<gloo::transport::Device> device, int channel, int rank, int fd)
        : Guest(std::move(device), fd), mesh_(mesh), channel_(channel), rank_(rank)
    {
        arm();
    }

    ~Watch() override
    {
        leave();
    }

    int rank() const
    {
        return rank_;
    }

    int channel() const
    {
        return channel_;
    }

    int64_t sent() const
    {
        return socket_sent(fd_);
    }

    void shut()
    {
        shutdown(fd_, SHUT_RDWR);
    }

    /* Has the peer closed its end? */
    bool hung_up() const
    {
        pollfd p{fd_, POLLRDHUP, 0};
        return poll(&p, 1, 0) > 0;
    }

  private:
    void on_events(int events) override
    {
        int unread = 0;
        bool reset = events & (EPOLLERR | EPOLLHUP);
        if (!reset && ioctl(fd_, FIONREAD, &unread) == 0 && unread > 0)
            arm(); /* the pair's own handler reads it, on this thread: look again after that */
        else
            mesh_.peer_gone(channel_, rank_);
    }

    void arm()
    {
        enter(EPOLLRDHUP | EPOLLONESHOT);
    }

    Mesh &mesh_;
    const int channel_, rank_;
};

/* Gloo waits for a turn of its event loop whenever it takes a descriptor off, and an idle loop turns every 10 ms: a
 * full mesh would open and close in seconds. While a Ticker lives, the loop turns every 200 us.
 *
 * On its first tick it makes the loop's thread a batch thread, which does not preempt others when it wakes. Gloo's loop
 * spins while a pair's lock is taken; if it preempts the very thread that holds the lock, in the middle of its send,
 * both lose a whole time slice (4 ms for an all-reduce of one double, seen on two cores). Of a process that is to run
 * when nobody else does (SCHED_IDLE) it stays one of those: above them it would spin and the thread with the lock never
 * run. */
class Ticker final : public Guest
{
  public:
    explicit Ticker(std::shared_ptr<gloo::transport::Device> device)
        : Guest(std::move(device), timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK))
    {
        itimerspec every{};
        every.it_value.tv_nsec = every.it_interval.tv_nsec = 200000;
        if (fd_ < 0)
            GLOO_THROW("timerfd_create: ", strerror(errno));
        timerfd_settime(fd_, 0, &every, nullptr); /* cannot fail on a timer of ours */
        enter(EPOLLIN);
    }

    ~Ticker() override
    {
        leave();
    }

  private:
    void on_events(int) override
    {
        uint64_t ticks;
        (void)!read(fd_, &ticks, sizeof ticks);
        if (!batch_) {
            sched_param none{};
            if (sched_getscheduler(0) == SCHED_OTHER)
                (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
            batch_ = true;
        }
    }

    bool batch_ = false;
};

/* --- mesh */

Mesh::Mesh(int rank, int world, int channels) : rank_(rank), world_(world), channels_(channels)
{
}

std::string Mesh::listen(const std::string &address, milliseconds timeout)
{
    device_ = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address.c_str()));
    std::string host, ports;
    for (int c = 0; c < channels_; c++) {
        links_.push_back(std::make_shared<Channel>(device_, rank_, world_, timeout));
        for (int r = 0; r < world_; r++) {
            if (r == rank_) {
                ports += " 0";
                continue;
            }
            Pair &pair = *links_.back()->link().createPair(r);
            std::string place = place_of(pair);
            host = numeric(address_of(pair)).first;
            one_listener_ = place.find('/') != std::string::npos;
            ports += " " + place;
        }
    }
    return host + ports;
}

/* "host place...", a place for each channel and rank. */
static std::pair<std::string, std::vector<std::string>> parse_record(const std::string &record)
{
    std::istringstream in(record);
    std::pair<std::string, std::vector<std::string>> ret;
    in >> ret.first;
    for (std::string place; in >> place;)
        ret.second.push_back(place);
    return ret;
}

/* Gloo's connect() takes no deadline: it waits five times the pair's timeout, and only closing the pair wakes it.
 * This thread does so when the time is up, or the descriptor is readable (0: there is none). */
class Alarm final
{
  public:
    Alarm(Clock::time_point at, int cancel_fd, std::function<void()> ring)
        : ring_(std::move(ring)), cancel_fd_(cancel_fd), stop_fd_(eventfd(0, EFD_CLOEXEC))
    {
        if (stop_fd_ < 0)
            GLOO_THROW("eventfd: ", strerror(errno));
        thread_ = std::thread([this, at] { wait(at); });
    }

    ~Alarm()
    {
        stop();
        close(stop_fd_);
    }

    /* Has it rung? It will not any more. */
    bool stop()
    {
        (void)eventfd_write(stop_fd_, 1);
        if (thread_.joinable())
            thread_.join();
        return rung_;
    }

    bool rung() const
    {
        return rung_;
    }

    /* What it rang for is no deadline. */
    bool cancelled() const
    {
        return cancelled_;
    }

  private:
    void wait(Clock::time_point at)
    {
        pollfd fds[] = {{stop_fd_, POLLIN, 0}, {cancel_fd_ > 0 ? cancel_fd_ : -1, POLLIN, 0}};
        for (auto left = at - Clock::now(); left.count() > 0 && !fds[1].revents; left = at - Clock::now()) {
            const auto ms = std::chrono::ceil<milliseconds>(left).count();
            (void)poll(fds, 2, static_cast<int>(std::min<int64_t>(ms, INT_MAX)));
            if (fds[0].revents)
                return;
        }
        cancelled_ = fds[1].revents != 0;
        rung_ = true;
        ring_();
    }

    const std::function<void()> ring_;
    const int cancel_fd_, stop_fd_;
    std::atomic<bool> rung_{false}, cancelled_{false};
    std::thread thread_;
};

void Mesh::close_pairs()
{
    for (auto &l : links_)
        for (int r = 0; r < world_; r++)
            if (r != rank_)
                l->link().getPair(r)->close();
}

/* Gloo's own words without the source line in front. Since 2023-05 it loses them: an Error is copied as its base. */
static std::string reason_of(const std::exception &x, const sockaddr_storage &remote)
{
    std::string s = x.what();
    size_t end = s[0] == '[' ? s.find("] ") : std::string::npos;
    if (end != std::string::npos)
        s = s.substr(end + 2);
    return s == "no error" ? "connect " + text(remote) + ": " + try_to_reach(remote) : s;
}

Mesh::Connection Mesh::connect_pair(int c, int r, const gloo::transport::tcp::Address &remote, const Alarm &alarm)
{
    auto &pair = links_[static_cast<size_t>(c)]->getPair(r);
    auto listening = text(address_of(*pair));
    try {
        if (!alarm.rung())
            pair->connect(remote.bytes());
    } catch (const std::exception &x) {
        if (!alarm.rung())
            throw Unconnected{r, reason_of(x, remote.getSockaddr())};
    }
    if (alarm.cancelled())
        throw Stopped{};
    if (alarm.rung())
        throw Late{r};
    auto own = text(address_of(*pair));
    return {c, r, own, own == listening ? "" : text(remote.getSockaddr())};
}

void Mesh::connect(const std::vector<std::string> &records, Clock::time_point deadline, int cancel_fd)
{
    Ticker fast(device_);
    std::vector<Connection> connections;
    begun_ = true;
    Alarm alarm(deadline, cancel_fd, [this] { close_pairs(); });
    for (int r = 0; r < world_; r++) {
        if (r == rank_)
            continue;
        auto [host, places] = parse_record(records[static_cast<size_t>(r)]);
        if (places.size() != static_cast<size_t>(channels_) * static_cast<size_t>(world_))
            GLOO_THROW("rank ", r, " tells of ", places.size(), " ports, not ", channels_ * world_);
        for (int c = 0; c < channels_; c++) {
            const std::string &place = places[static_cast<size_t>(c * world_ + rank_)];
            if ((place.find('/') != std::string::npos) != one_listener_)
                GLOO_THROW("rank ", r, " has another version of Gloo, which this one cannot talk to");
            connections.push_back(connect_pair(c, r, parse_place(host, place), alarm));
        }
    }
    if (alarm.stop() && alarm.cancelled())
        throw Stopped{};
    if (alarm.rung())
        throw Late{connections.back().rank};
    if (one_listener_)
        learn_remotes(connections, deadline);
    watch(std::move(connections));
    connected_ = true;
}

/* Connections that peers dialled all have the listener's address on this side: who dialled tells its own address, over
 * the connection. */
void Mesh::learn_remotes(std::vector<Connection> &connections, Clock::time_point deadline)
{
    struct Message {
        char own[64];
    };
    const uint64_t slot = gloo::Slot::build(ENDS_PREFIX, 0);
    std::vector<Message> messages(connections.size());
    std::vector<std::unique_ptr<UnboundBuffer>> buffers;
    for (auto &l : links_)
        l->link().begin(deadline);
    for (size_t i = 0; i < connections.size(); i++) {
        const Connection &c = connections[i];
        auto &m = messages[i];
        buffers.push_back(links_[static_cast<size_t>(c.channel)]->createUnboundBuffer(m.own, sizeof m.own));
        if (c.remote.empty()) {
            buffers.back()->recv(c.rank, slot, 0, sizeof m.own);
        } else {
            snprintf(m.own, sizeof m.own, "%s", c.own.c_str());
            buffers.back()->send(c.rank, slot, 0, sizeof m.own);
        }
    }
    for (size_t i = 0; i < connections.size(); i++) {
        Connection &c = connections[i];
        if (c.remote.empty()) {
            buffers[i]->waitRecv(nullptr, milliseconds(0));
            messages[i].own[sizeof messages[i].own - 1] = '\0';
            c.remote = messages[i].own;
        } else {
            buffers[i]->waitSend(nullptr, milliseconds(0));
        }
    }
}

static std::vector<int> open_descriptors()
{
    std::vector<int> fds;
    std::unique_ptr<DIR, int (*)(DIR *)> dir(opendir("/proc/self/fd"), closedir);
    if (!dir)
        GLOO_THROW("/proc/self/fd: ", strerror(errno));
    while (const dirent *entry = readdir(dir.get()))
        if (entry->d_name[0] != '.')
            fds.push_back(atoi(entry->d_name));
    return fds;
}

void Mesh::watch(std::vector<Connection> wanted)
{
    for (int fd : open_descriptors()) {
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (copy < 0)
            continue; /* closed meanwhile: not ours */
        auto e = ends(copy);
        auto at = std::find_if(wanted.begin(), wanted.end(), [&](const Connection &c) {
            return c.own == e.first && (c.remote.empty() || c.remote == e.second);
        });
        if (at == wanted.end()) {
            close(copy);
            continue;
        }
        watches_.push_back(std::make_unique<Watch>(*this, device_, at->channel, at->rank, copy));
        wanted.erase(at); /* another mesh of this process may hold a copy for a moment */
    }
    if (!wanted.empty())
        GLOO_THROW("the socket of the connection with rank ", wanted[0].rank, ", from ", wanted[0].own,
                   ", was not found (", wanted.size(), " of them)");
}

/* Where a device has one listener, it also dials, and its event loop keeps pointers to pairs for as long as the kernel
 * tries (minutes). They must outlive that, and nothing tells when it is over: they are kept until the process ends. */
void Mesh::abandon()
{
    static std::mutex lock;
    static auto *kept = new std::vector<std::shared_ptr<Channel>>; /* not destroyed at exit: the loop still runs */
    std::lock_guard<std::mutex> guard(lock);
    kept->insert(kept->end(), links_.begin(), links_.end());
}

Mesh::~Mesh()
{
    if (!device_)
        return;
    const bool half_made = one_listener_ && begun_ && !connected_;
    try {
        if (half_made)
            abandon();
        Ticker fast(device_);
        if (half_made)
            close_pairs(); /* for peers it is as if the mesh were gone */
        watches_.clear();
        links_.clear();
    } catch (const std::exception &) {
        /* No ticker: the members' own destructors do the same, slower. */
    }
}

void Mesh::stop()
{
    for (auto &l : links_)
        l->link().stop();
    for (auto &w : watches_)
        w->shut();
}

void Mesh::peer_gone(int channel, int rank)
{
    links_[static_cast<size_t>(channel)]->link().peer_gone(rank);
}

int64_t Mesh::sent(int channel) const
{
    int64_t sum = 0;
    for (auto &w : watches_) {
        const int64_t n = w->channel() == channel ? w->sent() : 0;
        if (n < 0)
            return -1;
        sum += n;
    }
    return sum;
}

std::string Mesh::describe_loss(int rank)
{
    std::string others;
    std::vector<bool> named(static_cast<size_t>(world_), false);
    for (auto &w : watches_) {
        if (w->rank() == rank || named[static_cast<size_t>(w->rank())] || !w->hung_up())
            continue;
        named[static_cast<size_t>(w->rank())] = true;
        others += " " + std::to_string(w->rank());
    }
    return "rank " + std::to_string(rank) + " went away" + (others.empty() ? "" : " (so did:" + others + ")");
}

} // namespace mesh
