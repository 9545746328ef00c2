#include "worker/run/stop.h"

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

static atomic_bool wanted;

static void *wait_for_signals(void *arg)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    int64_t first_int = 0;
    for (int sig;;) {
        if (sigwait(&set, &sig) != 0)
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
        atomic_store(&wanted, true);
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

bool stop_wanted(void)
{
    return atomic_load_explicit(&wanted, memory_order_relaxed);
}

void stop_await_verdict(int64_t timeout_ms)
{
    if (getenv(ENV_PAGE_FD))
        poll(NULL, 0, (int)timeout_ms); /* the signal thread ends the process meanwhile */
}
