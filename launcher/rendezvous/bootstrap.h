/* The bootstrap store: where the workers of one round meet, in RESP or in PyTorch's TCPStore protocol, on group rank
 * 0's agent.
 *
 * - Before each JOIN an agent opens a listener, for it may become group rank 0: bootstrap_prepare(). The kernel picks
 *   the port. Nothing is accepted yet: workers of other nodes that hear of the round before we do wait in the backlog.
 * - On group rank 0 the round's members are known then: bootstrap_use() serves them, with keys of its own. The store of
 *   the round before closes after, so no port is used twice in a row, and no key of a dead round can be read by a live
 *   one.
 * - Elsewhere: bootstrap_drop().
 * - With a fixed port one server stays, which may also host the rendezvous; each round gets a new key-space, and those
 *   who used the old one are disconnected. A fixed port that is taken when a listener is opened is done without.
 *
 * Who may come in: processes of our own user on this host, and the addresses of the round's members. Loop thread only;
 * nothing blocks. */
#ifndef CRUN_LAUNCHER_BOOTSTRAP_H
#define CRUN_LAUNCHER_BOOTSTRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct err;
struct server;

struct bootstrap_options {
    bool loopback_only; /* the job has one node */
    /* fixed port: the server that hosts the rendezvous, which outlives us; NULL: a server for each round */
    struct server *shared;
    int shared_port;
    int fixed_port;     /* likewise, of a server of ours: tried before each JOIN; 0: any port will do */
    const char *run_id; /* borrowed */
    /* A member of the round reports its workers' failures (RDZV.FAILURE), or steps (RDZV.STEPS; what is put into
     * answer[cap] is the reply); NULL: nobody listens. 0; ERR_REFUSED. */
    int (*failure)(void *arg, const char *node, const char *text, size_t n);
    int (*steps)(void *arg, const char *text, size_t n, char *answer, size_t cap);
    int (*quiet)(void *arg, const char *text, size_t n, char *answer, size_t cap); /* likewise, RDZV.QUIET */
    void (*met)(void *arg, size_t readers); /* so many clients of TCPStore were given a key; NULL: nobody listens */
    void *arg;
};

struct bootstrap_member;

/* All-zero is a valid one that was never opened. */
struct bootstrap {
    uv_loop_t *loop;
    struct bootstrap_options o;
    int prepared_fd, prepared_port; /* fd -1: none */
    struct server *server;          /* serves `round`; NULL: none */
    int port;
    uint64_t round;
    struct bootstrap_member *alive; /* nodes that called RDZV.ALIVE in this round */
    int members;
    int64_t silence_ms;
    int64_t alone_ms; /* of the last bootstrap_alive() */
};

void bootstrap_init(struct bootstrap *b, uv_loop_t *loop, const struct bootstrap_options *o);

/* This server, which hosts the rendezvous at the fixed port from now on, serves the rounds to come. */
void bootstrap_share(struct bootstrap *b, struct server *server);

/* A port where this node would serve the next round; the same one as long as it is not used. */
int bootstrap_prepare(struct bootstrap *b, int *ret_port, struct err *e);

/* We are group rank 0 of `round`, which has `members` nodes: serve them on the port of bootstrap_prepare(). addrs:
 * every address of every member, comma-separated; not looked at with loopback_only. silence_ms: see bootstrap_alive().
 */
int bootstrap_use(struct bootstrap *b, uint64_t round, int members, const char *addrs, int64_t silence_ms,
                  struct err *e);

/* Somebody else is group rank 0, or the round is over: nothing of ours is served. */
void bootstrap_drop(struct bootstrap *b);

/* Members, we not among them, whose RDZV.ALIVE came within the last silence_ms. To be called repeatedly while we do not
 * hear the rendezvous: only then, and silence_ms / 2 after, do others learn of a majority. */
int bootstrap_alive(struct bootstrap *b);

uint64_t bootstrap_changes(const struct bootstrap *b); /* requests of this round that changed keys; 0: none is served */

void bootstrap_close(struct bootstrap *b); /* the loop must turn once more */

#endif
