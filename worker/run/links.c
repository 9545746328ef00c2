/* Measures the time of a small message to another rank and back. */
#include "worker/run/links.h"

#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/include/crun.h"
#include "worker/comm/comm.h"

#define SHARE 0.2 /* of a step, that a rank waits */
#define MORE 2    /* times as much as usual */
#define PINGS 4   /* to one peer; the first tells when it has come */
#define FORGET (1.0 / LINKS_KNOWN)

bool links_wait(struct links *l, int64_t wait_ns, int64_t total_ns)
{
    const double wait = (double)wait_ns, usual = l->usual_ns;
    const bool known = l->steps++ >= LINKS_KNOWN;
    l->usual_ns += (wait - usual) * FORGET;
    return wait > SHARE * (double)total_ns && (!known || wait > MORE * usual);
}

/* The circle method of round-robin tournaments: the ranks of an odd world turn, and one rests; with an even one the
 * last stays where it is, and plays against who would rest. */
int links_peer(int rank, int world, int turn)
{
    const int n = world % 2 ? world : world - 1;
    if (rank == n) {
        for (int r = 0; r < n; r++)
            if (links_peer(r, world, turn) == n)
                return r;
        return rank;
    }
    const int peer = ((turn - rank) % n + n) % n;
    return peer != rank ? peer : world % 2 ? rank : n;
}

/* The shortest time there and back, ns. Who waits for the other's first message does not count. */
static int ping(struct comm *c, int peer, int64_t *ret_ns, struct err *e)
{
    const bool first = c->rank < peer;
    unsigned char byte = 0;
    int64_t sent = 0, least = INT64_MAX;
    for (int i = 0; i < PINGS; i++) {
        if (first) {
            sent = clock_ns();
            TRY(c->ops->send(c, COMM_CONTROL, &byte, 1, peer, NULL, e));
        }
        TRY(comm_recv(c, COMM_CONTROL, &byte, 1, peer, NULL, e));
        const int64_t took = clock_ns() - sent;
        if (i > 0 && took < least)
            least = took;
        if (!first) {
            sent = clock_ns();
            TRY(c->ops->send(c, COMM_CONTROL, &byte, 1, peer, NULL, e));
        }
    }
    *ret_ns = least;
    return 0;
}

int links_try(struct comm *c, struct err *e)
{
    int64_t best = INT64_MAX, worst = 0, took;
    for (int turn = 0; turn < c->world && turn < LINKS_PEERS; turn++) {
        const int peer = links_peer(c->rank, c->world, turn);
        if (peer == c->rank)
            continue;
        TRY(ping(c, peer, &took, e));
        best = took < best ? took : best;
        worst = took > worst ? took : worst;
    }
    if (worst > 0)
        crun_links((double)best / 1e9, (double)worst / 1e9);
    return 0;
}
