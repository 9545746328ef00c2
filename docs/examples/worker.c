/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that uses libcrun: every rank adds to a sum, step after step, and meets the others after each.
 *
 *     cc -o worker worker.c $(pkg-config --cflags --libs crun)
 *     crun --nproc_per_node 4 --max-restarts 3 ./worker 100
 */
#include <crun.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REQUEUE = 75 };

static int fail(const char *what, int error)
{
    char message[200];
    snprintf(message, sizeof message, "%s: %s", what, strerror(-error));
    crun_record_error(1, message); /* the launcher's report shows it */
    fprintf(stderr, "worker: %s\n", message);
    return 1;
}

/* SIGTERM says that there is a reason to stop. For a drain the loop looks at it after its step; else nothing is left to
 * be done. */
static void on_term(int signo)
{
    enum crun_stop_reason why = crun_stop_reason();
    (void)signo;
    if (why != CRUN_STOP_DRAIN && why != CRUN_STOP_RESIZE)
        _exit(1);
}

int main(int argc, char **argv)
{
    const long steps = argc > 1 ? atol(argv[1]) : 100;
    struct crun_info me;
    int64_t sum = 0;
    int rc = crun_init(&me);
    if (rc < 0)
        return fail("crun_init", rc);
    crun_catch_crashes();
    signal(SIGTERM, on_term);
    crun_phase(CRUN_PHASE_STARTING); /* from here on this worker is watched for hangs */

    if (me.rank == 0 && me.world_size > 1)
        crun_set("greeting", "hello", 5);

    for (long step = 1; step <= steps; step++) {
        usleep(10000); /* the work */
        if (me.world_size > 1 && (rc = crun_add("sum", me.rank, &sum)) < 0)
            return fail("crun_add", rc);
        if ((rc = crun_barrier("step", 60)) < 0)
            return fail("crun_barrier", rc);
        crun_progress((uint64_t)step);

        enum crun_stop_reason why = crun_stop_reason();
        if (why == CRUN_STOP_DRAIN || why == CRUN_STOP_RESIZE) {
            crun_phase(CRUN_PHASE_CHECKPOINT);
            printf("rank %d stops after step %ld (%s)\n", me.rank, step, crun_stop_reason_name(why));
            return REQUEUE; /* a real worker agrees with the others on the step, and saves */
        }
    }
    crun_phase(CRUN_PHASE_CLOSING);

    if (me.world_size > 1) {
        char greeting[32] = "";
        size_t n;
        if ((rc = crun_get("greeting", greeting, sizeof greeting - 1, &n, 10)) < 0)
            return fail("crun_get", rc);
        if ((rc = crun_add("sum", 0, &sum)) < 0)
            return fail("crun_add", rc);
        printf("rank %d of %d: %s, round %d, sum %lld\n", me.rank, me.world_size, greeting, me.round, (long long)sum);
    }
    crun_finish();
    return 0;
}
