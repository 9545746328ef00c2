/* Daemons that share a state (ELECT_STANDBY): the shipped election, jobs and log of all jobs, as
 * rendezvousd/daemon/standby.c puts them together. A daemon whose term is over begins anew, as another process. */
#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "rendezvousd/state/state_shared.h"
#include "tests/sim/elect_impl.h"

enum { PROBE_MS = 200, LIKE_NODES = 4000 };

static int on_write(void *arg, const struct buf *text, bool whole, uint64_t number)
{
    struct node *n = arg;
    if (n->writes)
        elect_queue_(W, n, number, keep(W, text->data, text->len), n->x.own.epoch, whole);
    return 0;
}

static void on_unable(void *arg)
{
    broken(W, "%s has no memory", ((struct node *)arg)->id);
}

void elect_daemon_born_(struct world *w, struct node *n)
{
    struct rdzv_claim own = {.port = n->index + 1, .addrs = "10.0.0.1"};
    struct err e = {0};
    n->writes = n->had_term = n->leaving = false;
    n->probe_at = 0;
    if (state_shared_create(&n->log_of_jobs,
                            &(struct state_shared_options){.write = on_write, .unable = on_unable, .arg = n}, &e) < 0 ||
        jobs_create(&n->jobs, &(struct jobs_options){.now = clock_now, .shared = n->log_of_jobs}, &e) < 0)
        broken(w, "%s", e.text);
    memcpy(own.node, n->id, sizeof own.node);
    election_init(&n->x, &(struct election_options){.nodes = LIKE_NODES, .seed = draw(w), .own = &own});
    elect_push_(w, n, (struct election_event){.kind = ELECTION_RANK, .rank = 0});
    elect_push_(w, n, (struct election_event){.kind = ELECTION_BEGIN});
}

void elect_daemon_loaded_(struct world *w, struct node *n, const char *log)
{
    struct err e = {0};
    n->writes = n->had_term = true;
    const int rc = jobs_take_over(n->jobs,
                                  &(struct jobs_taken){.epoch = rdzv_epoch_number(n->x.own.epoch),
                                                       .identity = n->identity,
                                                       .text = log,
                                                       .n = strlen(log),
                                                       .grace_ms = n->x.grace_ms,
                                                       .valid_ms = n->x.o.valid_ms},
                                  &e);
    if (rc < 0)
        broken(w, "%s cannot take over: %s", n->id, e.text);
    w->st->terms++;
    note(w, n, "leads under %s, grace %lld", n->x.own.epoch, (long long)n->x.grace_ms);
    elect_push_(w, n, (struct election_event){.kind = ELECTION_LOADED, .rc = 1});
}

void elect_daemon_resigns_(struct world *w, struct node *n)
{
    (void)w;
    jobs_stand_down(n->jobs);
    n->writes = false;
    if (n->x.state != ELECTION_RELEASING) {
        n->queue_first = n->queue_last;
        n->append_out = false;
    }
}

/* As standby.c's: who takes the call may be any process there. */
static void probe(struct world *w, struct node *n)
{
    const struct node *to = &w->n[n->x.view.port - 1];
    const bool refused = w->refuse_until[n->index][to->index] > w->now || !to->alive;
    const bool known = strcmp(n->x.acked, n->x.dialled) == 0;
    if (is_cut(w, n->index, to->index))
        return;
    if (!refused && !known)
        elect_push_(w, n, (struct election_event){.kind = ELECTION_ACKED});
    if (refused != n->x.refused || (!refused && !known))
        elect_push_(w, n, (struct election_event){.kind = ELECTION_AWAY, .refused = refused});
}

static bool is_over(const struct node *n)
{
    return (n->leaving || n->had_term) && (n->x.state == ELECTION_IDLE || n->x.state == ELECTION_LOOKING);
}

void elect_daemon_tick_(struct world *w, struct node *n)
{
    if (is_over(n)) {
        die(w, n, true);
        n->born_at = w->now + between(w, 5, n->leaving ? 3000 : 50);
        return;
    }
    if (clock_of(n) < n->probe_at)
        return;
    n->probe_at = clock_of(n) + PROBE_MS;
    if (n->x.state == ELECTION_LOOKING && n->x.view.epoch[0] && strcmp(n->x.view.epoch, n->x.dialled) == 0)
        probe(w, n);
}

int64_t elect_daemon_deadline_(const struct node *n)
{
    return is_over(n) ? clock_of(n) : n->probe_at;
}
