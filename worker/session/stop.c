/* Learns from crun, from signals and from peers that a worker should end. */
#include "worker/session/stop.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/include/crun.h"
#include "common/job/env_contract.h"
#include "common/job/exitcode.h"

#define AGAIN_MS 1000
#define MEET_MS 5000

static atomic_bool wanted, met;

static int wait_for_signal(const sigset_t *set, int64_t until)
{
    if (until < 0)
        return sigwaitinfo(set, NULL);
    const int64_t left = clock_left(until);
    const struct timespec ts = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000};
    return sigtimedwait(set, NULL, &ts);
}

static void *wait_for_signals(void *arg)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    int64_t first_int = 0, until = -1;
    for (;;) {
        const int sig = wait_for_signal(&set, until);
        if (sig < 0 && errno == EAGAIN && !atomic_load(&met)) {
            log_warn("stop", "ending: not all ranks have come, and there is nothing to save");
            _exit(EXIT_REQUEUE);
        }
        until = sig < 0 && errno == EAGAIN ? -1 : until; /* they met in time */
        if (sig < 0)
            continue;
        enum crun_stop_reason why = crun_stop_reason();
        if (why == CRUN_STOP_FAILURE || why == CRUN_STOP_ABORT) {
            log_info("stop", "ending at once: %s", crun_stop_reason_name(why));
            _exit(EXIT_REQUEUE);
        }
        /* Wrappers such as timeout(1) send one SIGINT twice: the second one counts when a person may have typed it. */
        if (sig == SIGINT && first_int && clock_ms() - first_int >= AGAIN_MS)
            _exit(128 + SIGINT);
        if (sig == SIGINT && !first_int)
            first_int = clock_ms();
        log_info("stop", "will stop after this step: %s", why ? crun_stop_reason_name(why) : "signal");
        if (!atomic_exchange(&wanted, true) && !atomic_load(&met))
            until = clock_ms() + MEET_MS;
    }
    return arg;
}

int stop_init(struct err *e)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_t thread;
    int rc = pthread_create(&thread, NULL, wait_for_signals, NULL);
    if (rc != 0)
        return err_errno(e, rc, "start the signal thread");
    pthread_detach(thread);
    return 0;
}

void stop_ranks_have_met(void)
{
    atomic_store(&met, true);
}

bool stop_wanted(void)
{
    return atomic_load_explicit(&wanted, memory_order_relaxed);
}

void stop_await_verdict(int64_t timeout_ms)
{
    if (getenv(ENV_PAGE_FD))
        poll(NULL, 0, (int)timeout_ms); /* the signal thread ends the process meanwhile */
}
