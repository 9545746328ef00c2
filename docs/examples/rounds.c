/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that outlives its rounds: when another one dies it is held, keeps what it has, and goes on with whoever
 * takes the other's place. The state is a sum, which all ranks have; a newcomer is given it by the one that is
 * furthest.
 *
 *     cc -o rounds rounds.c $(pkg-config --cflags --libs crun)
 *     crun --nproc_per_node 4 --max-restarts 3 ./rounds 100
 */
#include <crun.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct state {
    long step, sum; /* after `step` steps */
};

/* Everybody says where it is; the furthest is right: a step that one has finished was made by all. */
static int settle(const struct crun_info *me, struct state *s)
{
    char key[32];
    size_t n;
    struct state other;
    int rc;
    snprintf(key, sizeof key, "state/%d", me->rank);
    if ((rc = crun_set(key, s, sizeof *s)) < 0)
        return rc;
    for (int r = 0; r < me->world_size; r++) {
        snprintf(key, sizeof key, "state/%d", r);
        if ((rc = crun_get(key, &other, sizeof other, &n, 60)) < 0)
            return rc;
        if (other.step > s->step)
            *s = other;
    }
    return 0;
}

/* Each step adds up what all ranks bring along. */
static int step(const struct crun_info *me, struct state *s)
{
    char key[32];
    int64_t sum;
    int rc;
    snprintf(key, sizeof key, "sum/%ld", s->step + 1);
    usleep(10000); /* the work */
    if ((rc = crun_add(key, me->rank + 1, &sum)) < 0 || (rc = crun_barrier("step", 60)) < 0 ||
        (rc = crun_add(key, 0, &sum)) < 0)
        return rc;
    s->sum += (long)sum;
    s->step++;
    crun_progress((uint64_t)s->step);
    return 0;
}

static int run_round(const struct crun_info *me, struct state *s, long steps)
{
    int rc = settle(me, s);
    printf("rank %d (pid %d): round %d begins after step %ld\n", me->rank, (int)getpid(), me->round, s->step);
    fflush(stdout);
    while (rc == 0 && s->step < steps)
        rc = step(me, s);
    return rc == 0 ? crun_barrier("end", 60) : rc;
}

int main(int argc, char **argv)
{
    const long steps = argc > 1 ? atol(argv[1]) : 100;
    struct state s = {0, 0};
    struct crun_info me;
    int rc = crun_init(&me);
    if (rc == 0) {
        crun_stay();     /* where it is not supported all is as without */
        if (me.rank < 0) /* a warm spare: the first round is the one in which it is needed */
            rc = crun_next_round(&me, 1e6);
        crun_phase(CRUN_PHASE_STARTING);
        rc = rc == 0 ? run_round(&me, &s, steps) : rc;
    }
    /* A call failed: because a peer died? Then crun says so, and this process lets go: it has nothing else open. */
    while (rc < 0 && crun_wait_hold(5) == 0 && (rc = crun_next_round(&me, 600)) == 0)
        rc = run_round(&me, &s, steps);
    if (rc < 0) {
        fprintf(stderr, "rounds: %s (%s)\n", strerror(-rc), crun_stop_reason_name(crun_stop_reason()));
        return rc == -ECANCELED ? 75 : 1;
    }
    printf("rank %d of %d: %ld steps, sum %ld\n", me.rank, me.world_size, s.step, s.sum);
    crun_finish();
    return 0;
}
