/* What goes wrong in a simulated job. */
#include <stdio.h>

#include "tests/sim/sim_impl.h"

static bool alive(const struct agent *a)
{
    return a->mode != AGENT_DEAD && a->mode != AGENT_ENDED;
}

static struct agent *any(struct world *w)
{
    return &w->agents[sim_between(w, 0, w->agent_count - 1)];
}

static void note(const struct world *w, const char *what, const struct agent *a)
{
    if (w->trace)
        fprintf(stderr, "%6lld %s %s\n", (long long)w->now, what, a ? a->id : "");
}

static void die(struct world *w, struct agent *a)
{
    bool proved = sim_chance(w, 0.6); /* else its host is gone with it */
    if (!alive(a))
        return;
    note(w, proved ? "crash of" : "loss of", a);
    w->stats->crashes++;
    a->mode = AGENT_DEAD;
    a->workers = false;
    sim_send(w, (struct message){.agent = (int)(a - w->agents), .ask = proved ? TELL_GONE : TELL_LOST});
}

static void fail(struct world *w, struct agent *a)
{
    if (a->mode != AGENT_WORKING || !sim_progresses(w, a) || a->killed_at != NEVER)
        return;
    note(w, "worker failure on", a);
    a->failed = true;
    a->finish_at = NEVER;
    a->next_ask = w->now + a->skew;
}

/* Out of reach, in one direction or both; half the time the host sees the connection break at once, else only that
 * nothing comes any more. */
static void cut(struct world *w, struct agent *a)
{
    int64_t until = w->now + sim_between(w, 50, 9000), way = sim_between(w, 0, 3);
    if (!alive(a))
        return;
    note(w, "cut of", a);
    w->stats->cuts++;
    if (way != 0)
        a->deaf_until = until;
    if (way != 1)
        a->mute_until = until;
    if (sim_chance(w, 0.5))
        sim_host_lost(w, a);
}

static void partition(struct world *w)
{
    w->stats->partitions++;
    double share = (double)sim_between(w, 1, 10) / 10;
    for (int i = 0; i < w->agent_count; i++)
        if (sim_chance(w, share))
            cut(w, &w->agents[i]);
}

static void pause(struct world *w, struct agent *a)
{
    int64_t ms = sim_between(w, 10, 9000);
    if (!alive(a) || a->paused_until > w->now)
        return;
    note(w, "pause of", a);
    w->stats->pauses++;
    a->paused_until = w->now + ms;
    a->woke = true;
    if (a->finish_at != NEVER)
        a->finish_at += ms;
}

/* A monotonic clock may run ahead (its owner slept); it never goes back, and nobody compares it with another's. */
static void jump(struct world *w, struct agent *a)
{
    if (!alive(a))
        return;
    w->stats->jumps++;
    a->skew += sim_between(w, 1, 5000);
}

static void leave(struct world *w, struct agent *a)
{
    if (!alive(a) || a->leaving)
        return;
    w->stats->leaves++;
    a->leaving = true;
    a->leaving_code = sim_chance(w, 0.3) ? 126 : 0; /* it cannot start its workers */
    a->next_ask = w->now + a->skew;
}

/* The agent of the crun that hosts. */
static void die_with_host(struct world *w, struct agent *a)
{
    if (!alive(a))
        return;
    note(w, "with the host dies", a);
    w->stats->crashes++;
    a->mode = AGENT_DEAD;
    a->workers = false;
}

static void host_fault(struct world *w)
{
    if (!w->up)
        return;
    if ((w->durable && sim_chance(w, 0.6)) || (w->blank && sim_chance(w, 0.2))) {
        if (w->blank && sim_chance(w, 0.7))
            die_with_host(w, any(w));
        sim_host_kill(w, sim_chance(w, 0.7) ? sim_between(w, 1, 500) : sim_between(w, 500, 8000));
    } else if (w->durable && sim_chance(w, 0.5)) {
        sim_host_compact(w);
    } else {
        note(w, "pause of the daemon", NULL);
        w->stats->daemon_pauses++;
        w->host_paused_until = w->now + sim_between(w, 10, 4000);
    }
}

void sim_fault(struct world *w)
{
    int64_t what = sim_between(w, 0, 99);
    if (what < 20 && !(sim_is_over(w) && sim_chance(w, 0.9)))
        sim_add_agent(w);
    else if (what < 30)
        die(w, any(w));
    else if (what < 52)
        fail(w, any(w));
    else if (what < 68)
        cut(w, any(w));
    else if (what < 71)
        partition(w);
    else if (what < 80)
        pause(w, any(w));
    else if (what < 84)
        jump(w, any(w));
    else if (what < 88)
        leave(w, any(w));
    else if (what < 99)
        host_fault(w);
    else if (sim_is_over(w) || sim_chance(w, 0.2))
        sim_host_drain(w);
}

static void no_later(int64_t *t, int64_t end)
{
    if (*t > end)
        *t = end;
}

void sim_cease(struct world *w)
{
    for (int i = 0; i < w->agent_count; i++) {
        no_later(&w->agents[i].deaf_until, w->faults_end);
        no_later(&w->agents[i].mute_until, w->faults_end);
        no_later(&w->agents[i].paused_until, w->now);
    }
    no_later(&w->host_paused_until, w->now);
    no_later(&w->host_up_at, w->now);
}
