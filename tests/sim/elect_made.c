/* Schedules that are made for one fault each; dates of messages, clocks and workers are drawn, as ever. They go round
 * as long as faults last: all work; the network is cut; what the schedule is for; all is healed.
 *
 * ELECT_RELEASE. The looker is cut from the leader, the member from everybody but the leader. The leader lets go
 * just after a renewal: the looker claims at once. A leader that still acknowledged, which its claim would allow for a
 * second more, would keep the member's workers while the looker's round begins.
 *
 * ELECT_EMPTIED. The looker is cut from the leader, two nodes are dead. The home is emptied while the leader cannot ask
 * it, and the two come back: they know of no epoch, so one of them leads. The looker names its epoch there, and is cut
 * off. Without the hold of a claim above, the two would begin while the leader before still acknowledges the member. */
#include "tests/sim/elect_impl.h"

enum { QUIET_MS = 100, FRESH_MS = 40 };

static void then(struct world *w, int step, int64_t ms)
{
    shared(w)->made.step = step;
    w->next_fault = w->now + ms;
}

static struct node *leader(struct world *w)
{
    for (struct node *n = w->n; n < w->n + w->nodes; n++)
        if (n->alive && n->x.state == ELECTION_LEADING)
            return n;
    return NULL;
}

static bool all_work(const struct world *w)
{
    for (const struct node *n = w->n; n < w->n + w->nodes; n++)
        if (!n->works || n->dead_at != NEVER || n->work_round != w->n[0].work_round)
            return false;
    return true;
}

/* The k-th node after the leader. */
static struct node *other(struct world *w, int k)
{
    return &w->n[(shared(w)->made.leader->index + k) % w->nodes];
}

static void part(struct world *w)
{
    struct made *m = &shared(w)->made;
    const bool emptied = shared(w)->kind == ELECT_EMPTIED;
    m->leader = leader(w);
    if (!m->leader || !all_work(w)) {
        then(w, 0, QUIET_MS);
        return;
    }
    m->member = other(w, 1);
    m->looker = other(w, 2);
    cut(w, m->looker->index, m->leader->index, NEVER, false);
    for (int i = 0; i < w->nodes; i++)
        if (i != m->leader->index && !emptied)
            cut(w, m->member->index, i, NEVER, false);
    for (int k = 3; k < w->nodes && emptied; k++) {
        die(w, other(w, k), true);
        other(w, k)->born_at = NEVER;
    }
    m->until = w->now + 15000;
    then(w, 1, between(w, 5500, 7000));
}

static void heal(struct world *w)
{
    for (int a = 0; a < w->nodes; a++) {
        for (int b = 0; b < w->nodes; b++)
            w->cut_until[a][b] = 0;
        if (!w->n[a].alive && w->n[a].born_at == NEVER)
            w->n[a].born_at = w->now + 1;
    }
    then(w, 0, between(w, 1000, 3000));
}

/* The leader has just renewed its claim, the member works, the looker looks. */
static bool is_ready(const struct world *w, const struct made *m)
{
    (void)w;
    return m->leader->x.state == ELECTION_LEADING &&
           m->leader->x.until - clock_of(m->leader) > ELECTION_D_MS - FRESH_MS && m->member->works &&
           m->member->dead_at == NEVER && m->looker->alive && m->looker->x.state == ELECTION_LOOKING;
}

static void strike(struct world *w)
{
    struct made *m = &shared(w)->made;
    if (!is_ready(w, m)) {
        then(w, w->now < m->until ? 1 : 3, 5);
        return;
    }
    m->until = w->now + 3000;
    if (shared(w)->kind == ELECT_RELEASE) {
        elect_push_(w, m->leader, (struct election_event){.kind = ELECTION_UNABLE});
        then(w, 3, between(w, 8000, 9000));
        return;
    }
    m->higher = w->st->higher;
    shared(w)->out_of_home[m->leader->index] = w->now + 8000;
    elect_empty_(w);
    pause_node(w, m->looker, w->now, w->now + 60);
    for (int k = 3; k < w->nodes; k++)
        other(w, k)->born_at = w->now + 1;
    then(w, 2, 1);
}

static void silence_the_looker(struct world *w)
{
    const struct made *m = &shared(w)->made;
    if (w->st->higher == m->higher && w->now < m->until) {
        then(w, 2, 1);
        return;
    }
    cut_from_all(w, m->looker, NEVER);
    then(w, 3, between(w, 8000, 9000));
}

void elect_made_(struct world *w)
{
    static void (*const steps[])(struct world *) = {part, strike, silence_the_looker, heal};
    steps[shared(w)->made.step](w);
}
