/* Handles signals to the agent, the end of its guardian, and orders of a crun on another host (signals.h). */
#include "launcher/agent/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <uv.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "launcher/agent/effects.h"
#include "launcher/agent/member.h"
#include "launcher/agent/notices.h"
#include "launcher/agent/run.h"
#include "launcher/agent/worker_setup.h"
#include "launcher/base/watch.h"
#include "launcher/config/config.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/patience.h"
#include "launcher/guard/tree.h"
#include "launcher/hang/hang_watch.h"
#include "launcher/observe/events.h"
#include "launcher/output/logmux.h"
#include "launcher/remote/remote_wire.h"
#include "launcher/workers/group.h"

/* ms at the end for a console that reads nothing (a pager). FLUSH_MS also ends with a stop signal; if the job was
 * stopped, FLUSH_STOPPED_MS counts. */
#define FLUSH_MS 600000
#define FLUSH_STOPPED_MS 4000
/* ms to kill the workers after the guardian's death, when nobody waits for us any more */
#define LOST_KILL_MS 30000
#define CONTROL_A_TURN 64 /* bytes of a control pipe read in one turn of the loop */

struct signals {
    struct watch *signals, *guardian, *control; /* control NULL: nobody else starts this crun */
    int signal_fd;
    bool hurry, paused;
    uint64_t came; /* signals since the round began: bit N - 1 for signal N */
    /* a stop signal came after the end, and not to the worker as well, which may have died of it */
    bool drops_console;
};

const bool *signals_hurry(const struct run *r)
{
    return &r->signals->hurry;
}

/* --- signals */

static bool is_stop(const struct run *r, int signo)
{
    const struct stops *s = &r->config->stops;
    return signo == s->preempt || sigismember(&s->handled.set, signo);
}

static bool is_typed(const struct signalfd_siginfo *info)
{
    return info->ssi_code == SI_QUEUE && info->ssi_int == GUARDIAN_TYPED;
}

/* Did the worker get the signal as well? */
static bool is_shared(const struct run *r, const struct signalfd_siginfo *info)
{
    return is_typed(info) && r->shares_terminal && (info->ssi_signo == SIGINT || info->ssi_signo == SIGQUIT);
}

/* Stop or continue the workers. typed: by a key, whose signal workers that share the terminal get, too. */
static void set_paused(struct run *r, bool paused, bool typed)
{
    if (r->signals->paused == paused)
        return;
    r->signals->paused = paused;
    events_signal(r->events, paused ? SIGTSTP : SIGCONT, "pause");
    if (r->agent.state != AGENT_RUNNING)
        return;
    group_pause(r->group, paused, typed);
    if (!paused)
        hang_watch_go_on(r->hang);
}

bool signals_paused(const struct run *r)
{
    return r->signals->paused;
}

void signals_keep_paused(struct run *r)
{
    if (r->signals->paused)
        group_pause(r->group, true, false);
}

bool signals_is_on_its_way(const struct run *r, int signo)
{
    return tree_has_pending(getppid(), signo) || tree_has_pending(getpid(), signo);
}

bool signals_came(const struct run *r, int signo)
{
    const struct board *b = r->link->board;
    return r->signals->came >> (signo - 1) & 1 || signals_is_on_its_way(r, signo) || atomic_load(&b->takes) ||
           atomic_load(&b->forwarded) != atomic_load(&b->heard);
}

void signals_begin_round(struct run *r)
{
    r->signals->came = 0;
}

/* A signal is a preemption notice, a request to stop, or for the workers. */
static void handle_signal(struct run *r, const struct signalfd_siginfo *info)
{
    struct signals *sig = r->signals;
    const int signo = (int)info->ssi_signo;
    const struct stops *s = &r->config->stops;
    sig->came |= UINT64_C(1) << (signo - 1);
    struct agent_event ev = {.kind = AGENT_SIGNAL,
                             .signo = signo,
                             .now_ms = clock_ms(),
                             .typed = is_typed(info),
                             .shared = is_shared(r, info)};
    if (!is_stop(r, signo)) {
        if (sigismember(&s->forwarded.set, signo)) {
            group_forward(r->group, signo);
            events_signal(r->events, signo, "forwarded");
        }
    } else if (run_is_done(r)) {
        effects_wish(r);
        sig->hurry = true;
        sig->drops_console = sig->drops_console || !ev.shared;
    } else {
        events_signal(r->events, signo, signo == s->preempt ? "preemption" : "stop");
        if (signo == s->preempt) {
            notices_came(r, NOTICE_SIGNAL);
            return;
        }
        if (!ev.shared || r->agent.state != AGENT_RUNNING)
            effects_wish(r);
        run_post(r, &ev);
    }
}

static void on_signal(void *arg)
{
    struct run *r = arg;
    struct signalfd_siginfo info;
    bool child = false;
    const uint32_t forwarded = board_forwarded(r->link->board);
    while (read(r->signals->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            child = true;
        else if (info.ssi_signo == SIGTSTP)
            set_paused(r, atomic_load(&r->link->board->is_paused), is_typed(&info));
        else
            handle_signal(r, &info);
        run_pump(r); /* at once, so that a sender without end cannot fill the queue */
    }
    board_heard(r->link->board, forwarded);
    if (child && !run_is_done(r))
        group_on_sigchld(r->group);
}

/* --- the crun that started this one */

static void handle_remote_signal(struct run *r, int signo, bool typed)
{
    const struct signalfd_siginfo info = {
        .ssi_signo = (uint32_t)signo, .ssi_code = SI_QUEUE, .ssi_int = typed ? GUARDIAN_TYPED : GUARDIAN_SENT};
    handle_signal(r, &info);
}

/* Read signals from the pipe of the crun that started this one. Its end is the end of the job here. A pipe keeps
 * every byte, unlike a process, which keeps one signal of each kind: so read some, and return to the loop for the
 * rest. */
static void on_control(void *arg)
{
    struct run *r = arg;
    unsigned char byte;
    ssize_t n = -1;
    for (int i = 0; i < CONTROL_A_TURN && (n = read((int)r->config->control_fd, &byte, 1)) == 1; i++) {
        if (byte == REMOTE_ASK)
            logmux_print_text(r->mux, REMOTE_ALIVE "\n");
        else if (byte == SIGTSTP || byte == SIGCONT)
            set_paused(r, byte == SIGTSTP, false);
        else
            handle_remote_signal(r, byte & ~REMOTE_TYPED, byte & REMOTE_TYPED);
        run_pump(r);
    }
    if (n == 0) {
        watch_close(r->signals->control);
        r->signals->control = NULL;
        if (run_is_done(r))
            r->signals->hurry = true;
        else
            run_post(r, &(struct agent_event){.kind = AGENT_SIGNAL, .signo = SIGTERM, .now_ms = clock_ms()});
    }
    run_pump(r);
}

/* --- the guardian */

/* The pipe to the guardian ended: it was killed, and nobody waits for us any more. Kill all workers before anything
 * is logged. */
static void on_guardian_gone(void *arg)
{
    struct run *r = arg;
    atomic_store(&r->link->board->agent_ends, true);
    tree_kill(); /* first, because cgroup.kill may wait for other changes of cgroups */
    cgroup_kill(worker_setup_cgroup(r));
    if (group_end_now(r->group, LOST_KILL_MS) && member_socket(r) >= 0)
        guardian_prove(member_socket(r));
    cgroup_remove_at(r->link->cgroup_dir);
    log_error(
        "agent",
        "crun was killed (its guardian is gone; if by SIGKILL, perhaps for want of memory); all workers were ended");
    _exit(128 + SIGKILL);
}

/* --- life */

int signals_open(struct run *r, struct err *e)
{
    r->signals = calloc(1, sizeof *r->signals);
    if (!r->signals)
        return err_errno(e, ENOMEM, "agent");
    r->signals->signal_fd = -1;
    return 0;
}

static sigset_t stop_signals(const struct run *r)
{
    sigset_t set = r->config->stops.handled.set;
    if (r->config->stops.preempt)
        sigaddset(&set, r->config->stops.preempt);
    return set;
}

/* The signals that crun handles: those that the options name, SIGUSR1 and SIGUSR2, which never end crun, and
 * SIGTSTP; except those that were ignored at the start. */
static sigset_t handled_signals(const struct run *r)
{
    sigset_t set = stop_signals(r);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGTSTP);
    sigorset(&set, &set, &r->config->stops.forwarded.set);
    for (int s = 1; s < 32; s++)
        if (sigismember(&r->link->ignored, s))
            sigdelset(&set, s);
    return set;
}

static int open_watch(struct run *r, struct watch **ret, int fd, void (*ready)(void *arg), struct err *e)
{
    TRY(watch_open(ret, &r->loop, fd, UV_READABLE, ready, r, e));
    watch_set(*ret, true);
    return 0;
}

int signals_watch(struct run *r, struct err *e)
{
    struct signals *s = r->signals;
    sigset_t set = handled_signals(r), stops = stop_signals(r), mask;
    guardian_signals(r->link, &set, &stops);
    sigaddset(&set, SIGCHLD);
    sigorset(&mask, &r->link->worker_mask, &set);
    sigaddset(&mask, SIGXFSZ); /* a limit on a log file's size is treated like a full disk, and must not end crun */
    sigprocmask(SIG_SETMASK, &mask, NULL);
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signal_fd < 0)
        return err_errno(e, errno, "signalfd");
    TRY(open_watch(r, &s->signals, s->signal_fd, on_signal, e));
    TRY(open_watch(r, &s->guardian, r->link->guardian_fd, on_guardian_gone, e));
    return r->config->control_fd < 0 ? 0 : open_watch(r, &s->control, (int)r->config->control_fd, on_control, e);
}

void signals_unwatch(struct run *r)
{
    struct signals *s = r->signals;
    if (!s)
        return;
    watch_close(s->signals);
    watch_close(s->guardian);
    watch_close(s->control);
}

void signals_flush_output(struct run *r)
{
    struct signals *s = r->signals;
    struct signalfd_siginfo info;
    const uint32_t forwarded = board_forwarded(r->link->board);
    while (read(s->signal_fd, &info, sizeof info) == sizeof info) /* of children that ended: old news */
        s->drops_console = s->drops_console || (is_stop(r, (int)info.ssi_signo) && !is_shared(r, &info));
    board_heard(r->link->board, forwarded);
    const int64_t patient_ms = effects_has_wish(r) ? FLUSH_STOPPED_MS : FLUSH_MS;
    logmux_flush(r->mux, s->drops_console ? 0 : patient_ms, (const int[2]){s->signal_fd, r->link->guardian_fd});
}

void signals_close(struct run *r)
{
    struct signals *s = r->signals;
    if (s && s->signal_fd >= 0)
        close(s->signal_fd);
    free(s);
    r->signals = NULL;
}
