/* A Gloo communicator inside, shared by gloo.cc (its life, collectives) and gloo_p2p.cc (messages). Of these two only. */
#ifndef CRUN_WORKER_COMM_GLOO_COMM_HH
#define CRUN_WORKER_COMM_GLOO_COMM_HH

#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>

#include "worker/comm/gloo/gloo_mesh.hh"

extern "C" {
#include "common/base/err.h"
#include "worker/comm/comm.h"
}

/* Sent, but perhaps not received yet: copies, which a thread of their own waits for. */
class Outbox;
/* Numbers of the messages so far, and those of a rank to itself. */
class Post;

struct GlooComm {
    comm base;
    mesh::Mesh net;
    std::chrono::milliseconds timeout;
    std::mutex lock;
    err failed{}; /* code 0: still good */
    std::shared_ptr<Post> post;
    std::shared_ptr<Outbox> outbox;

    GlooComm(int rank, int world, std::chrono::milliseconds t);
    void prepare_messages();
    ~GlooComm(); /* waits until what was sent is received, unless the communicator has failed */

    /* The first failure is what every later call reports. Stops all channels. Returns its code. */
    int fail(int code, const std::string &text, err *e);
    int report(err *e);
};

inline GlooComm *gloo_of(comm *c)
{
    return reinterpret_cast<GlooComm *>(c); /* base is the first member */
}

/* Thrown for a failure with a code of its own. */
struct GlooError : std::runtime_error {
    int code;
    GlooError(int c, const std::string &text) : std::runtime_error(text), code(c)
    {
    }
};

/* Run f; turn what it throws into an error that begins with `what` and fails the communicator. */
template <typename F> int gloo_guard(GlooComm *g, const std::string &what, err *e, F f)
{
    try {
        f();
        return 0;
    } catch (const mesh::Stopped &) {
        return g->report(e);
    } catch (const mesh::Lost &l) {
        return g->fail(-ECONNRESET, what + ": " + g->net.describe_loss(l.rank), e);
    } catch (const mesh::Late &l) {
        return g->fail(-ETIMEDOUT,
                       what + ": no answer from rank " + std::to_string(l.rank) + " within " +
                           std::to_string(g->timeout.count()) + " ms",
                       e);
    } catch (const GlooError &x) {
        return g->fail(x.code, what + ": " + x.what(), e);
    } catch (const std::bad_alloc &) {
        return g->fail(-ENOMEM, what + ": no memory", e);
    } catch (const std::exception &x) {
        return g->fail(-EIO, what + ": " + x.what(), e);
    }
}

/* gloo_p2p.cc: of comm_ops. */
int gloo_isend(comm *c, comm_channel ch, const void *buf, size_t bytes, int peer, void *stream, comm_request **ret,
               err *e);
int gloo_irecv(comm *c, comm_channel ch, void *buf, size_t bytes, int peer, void *stream, comm_request **ret, err *e);
int gloo_wait(comm_request *r, err *e);
int gloo_send(comm *c, comm_channel ch, const void *buf, size_t bytes, int peer, void *stream, err *e);

#endif
