/* The guardian: waits for the agent, then kills all that is left (guardian.h). */
#include "launcher/guard/guardian.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/job/exitcode.h"
#include "common/net/fds.h"
#include "launcher/base/ending.h"
#include "launcher/base/resident.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/inherited.h"
#include "launcher/guard/lease.h"
#include "launcher/guard/link_words.h"
#include "launcher/guard/neighbours.h"
#include "launcher/guard/patience.h"
#include "launcher/guard/roster.h"
#include "launcher/guard/stuck.h"
#include "launcher/guard/tree.h"
#include "launcher/stdio/console.h"
#include "launcher/stdio/console_file.h"

/* A process is gone milliseconds after SIGKILL, or a second if it has gigabytes to free; if it takes longer, it
 * cannot be killed. */
#define KILL_BOUND_MS 30000
#define KILL_AGAIN_MS 1000 /* the agent has waited for them already */
#define STUCK_MS 500       /* ms after which a process that waits in the kernel is left */

/* Memory that the agent and the guardian share; zero until one of them writes. */
struct shared {
    _Atomic int64_t lease_ms;
    _Atomic uint64_t signals; /* bit N - 1 for signal N */
    struct board board;
    char cgroup_dir[GUARDIAN_PATH_MAX];
    struct file_at at;
    struct roster roster;
    _Alignas(64) char output_page[GUARDIAN_OUTPUT_PAGE];
    _Alignas(64) char gauges_page[GUARDIAN_GAUGES_PAGE];
    _Alignas(64) struct console_file_page console[CONSOLE_FILES];
};

/* State of the guardian. */
struct guard {
    struct inherited_terminal terminal;
    pid_t agent;
    int link_fd;   /* words of the agent arrive here */
    int signal_fd; /* signals arrive here */
    bool is_mute;  /* output of workers would be lost */
    int held_fd;   /* duplicate of this node's connection to the rendezvous, -1: none */
    struct lease lease;
    struct stuck stuck;
    struct neighbours beside;
};

static int agent_process(struct guardian_link *l, int agent_end, struct guard *g,
                         int (*agent)(const struct guardian_link *, int, char **), int argc, char **argv)
{
    close(g->link_fd);
    close(g->signal_fd);
    neighbours_leave(&g->beside, NULL);
    l->guardian_fd = agent_end;
    prctl(PR_SET_PDEATHSIG, SIGCONT); /* a stopped agent could not act when the guardian dies */
    setpgid(0, 0);                    /* so Ctrl-C reaches only the guardian, which forwards it once */
    signal(SIGTTOU, SIG_IGN);         /* a background process group may still write to its terminal */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    file_at_share(l->at);
    inherited_raise_files(l);
    return agent(l, argc, argv);
}

/* --- the guardian */

static void hold(struct guard *g, int fd)
{
    if (g->held_fd >= 0)
        close(g->held_fd);
    g->held_fd = fd;
}

/* --- the processes beside the agent */

static void leave(void *arg)
{
    struct guard *g = arg;
    close(g->link_fd);
    close(g->signal_fd);
    hold(g, -1);
}

static void say(const struct guardian_output *o, int byte)
{
    const unsigned char word = (unsigned char)byte;
    send(o->guardian_fd, &word, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void guardian_output_is_done(const struct guardian_output *o, bool stays)
{
    say(o, stays ? BESIDE_STAYS : BESIDE_DONE);
}

void guardian_input_is_done(const struct guardian_output *o, int why)
{
    say(o, why);
}

/* --- words */

static void wait_for(struct guard *g, struct guardian_link *l)
{
    const uint64_t bits = atomic_load(l->signals);
    sigset_t waited, mask = l->worker_mask;
    sigemptyset(&waited);
    for (int s = 1; s <= 64; s++)
        if (s == SIGCHLD || bits >> (s - 1) & 1) {
            sigaddset(&waited, s);
            sigaddset(&mask, s);
        }
    signalfd(g->signal_fd, &waited, SFD_CLOEXEC | SFD_NONBLOCK);
    sigprocmask(SIG_SETMASK, &mask, NULL);
}

/* Receive one word of the agent; false if there is none. */
static bool receive_word(struct guard *g, struct guardian_link *l)
{
    char word = 0;
    int fd = -1, n;
    const struct iovec part = {&word, 1};
    if (fds_receive(g->link_fd, &part, 1, 0, &fd, 1, &n) <= 0)
        return false;
    if (word == WORD_HOLD || word == WORD_DROP)
        hold(g, fd);
    else if (word == WORD_SIGNALS)
        wait_for(g, l);
    else if (word == WORD_CONSOLE) {
        g->beside.input_fd = fd;
        g->is_mute = console_files_exist(l->console) && !neighbours_start(&g->beside, NEIGHBOUR_OUTPUT);
    } else if (word == WORD_OUTPUT)
        neighbours_start(&g->beside, NEIGHBOUR_OUTPUT);
    else if (word == WORD_GAUGES)
        neighbours_start(&g->beside, NEIGHBOUR_GAUGES);
    return true;
}

/* Reap all children that have ended; true if the agent was among them. */
static bool reap(pid_t agent, struct ending *ret)
{
    for (;;) {
        siginfo_t child = {0};
        if (waitid(P_ALL, 0, &child, WEXITED | WNOHANG) < 0 || child.si_pid == 0)
            return false;
        if (child.si_pid == agent) {
            *ret = ending_of(&child);
            return true;
        }
    }
}

/* Read one signal. From before the read until it is forwarded, the board says that a signal is on its way. */
static bool take_signal(struct guard *g, const struct guardian_link *l, struct signalfd_siginfo *ret)
{
    atomic_store(&l->board->takes, true);
    const bool is_taken = read(g->signal_fd, ret, sizeof *ret) == sizeof *ret;
    if (!is_taken || ret->ssi_signo == SIGCHLD)
        atomic_store(&l->board->takes, false);
    return is_taken;
}

/* Forward a signal to the agent. Signals that the terminal sends come from the kernel (SI_KERNEL). */
static void forward(struct guard *g, struct guardian_link *l, const struct signalfd_siginfo *info)
{
    const bool typed = info->ssi_code == SI_KERNEL;
    const union sigval how = {.sival_int = typed ? GUARDIAN_TYPED : GUARDIAN_SENT};
    patience_forward(&g->stuck.patience, l->board, (int)info->ssi_signo, typed, clock_ms());
    if (sigqueue(g->agent, (int)info->ssi_signo, how) < 0) /* the user has too many signals pending */
        kill(g->agent, (int)info->ssi_signo);
    atomic_store(&l->board->takes, false);
}

/* Stop the workers, then this process; go on at SIGCONT. A shell that sees us stopped sends it. Without such a shell
 * the kernel does not stop us. */
static void pause_with_workers(struct guard *g, struct guardian_link *l, const struct signalfd_siginfo *info)
{
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    atomic_store(&l->board->is_paused, true);
    forward(g, l, info);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop, NULL); /* this process is stopped here */
    sigprocmask(SIG_BLOCK, &stop, NULL);
    atomic_store(&l->board->is_paused, false);
    forward(g, l, info);
}

static int sooner(int a_ms, int b_ms)
{
    return a_ms < 0 || (b_ms >= 0 && b_ms < a_ms) ? b_ms : a_ms;
}

/* Reap children, forward signals and keep what the agent hands over, until the agent has ended or is given up. */
static struct ending watch(struct guard *g, struct guardian_link *l)
{
    struct pollfd fds[2 + NEIGHBOURS] = {{.fd = g->signal_fd, .events = POLLIN}, {.fd = g->link_fd, .events = POLLIN}};
    struct ending ending;
    const int64_t started = clock_deadline(RESIDENT_AFTER_MS);
    for (bool is_resident = false;;) {
        struct signalfd_siginfo info;
        if (!is_resident && (is_resident = clock_left(started) == 0))
            resident_keep();
        const int patient_ms = stuck_wait_ms(&g->stuck, g->agent, l);
        if (g->stuck.given_up[0])
            return (struct ending){.value = 128 + g->stuck.patience.signo};
        if (g->is_mute) {
            kill(g->agent, SIGKILL);
            return (struct ending){.value = EXIT_UNAVAILABLE};
        }
        poll(fds, 2 + (nfds_t)neighbours_poll(&g->beside, fds + 2),
             sooner(lease_keep(&g->lease, l), sooner(patient_ms, is_resident ? -1 : clock_left(started))));
        neighbours_look(&g->beside, fds + 2, fds[1].revents & POLLHUP || fds[1].fd < 0);
        if (fds[1].revents && !receive_word(g, l) && (fds[1].revents & POLLHUP))
            fds[1].fd = -1; /* the agent is ending */
        if (!fds[0].revents || !take_signal(g, l, &info))
            continue;
        if (info.ssi_signo == SIGTSTP)
            pause_with_workers(g, l, &info);
        else if (info.ssi_signo != SIGCHLD)
            forward(g, l, &info);
        else if (reap(g->agent, &ending))
            break;
        else
            stuck_report_stops(g->agent, &g->beside);
    }
    while (receive_word(g, l)) /* its last ones */
        ;
    return ending;
}

static int longer(int a_ms, int b_ms)
{
    return a_ms > b_ms ? a_ms : b_ms;
}

/* Wait until the output process has written all bytes for console files. If a disk makes no progress, the rest is
 * lost, and that is printed. */
static void end_consoles(struct guard *g, const struct guardian_link *l)
{
    static const char *const names[CONSOLE_FILES] = {"stdout", "stderr"};
    struct neighbour *n = &g->beside.v[NEIGHBOUR_OUTPUT];
    const struct console_file *f = l->console;
    const int64_t notified_ms = clock_ms();
    unsigned long long waiting[CONSOLE_FILES];
    char text[128];
    if (!console_files_exist(f))
        return;
    /* something was printed before the job began */
    if (console_file_waiting(&f[0]) + console_file_waiting(&f[1]) > 0) {
        neighbours_start(&g->beside, NEIGHBOUR_OUTPUT);
        neighbours_drain(&g->beside);
    }
    beside_tell(&n->beside, GUARDIAN_SILENT);
    for (int ms; (ms = longer(console_file_patience_ms(&f[0], notified_ms),
                              console_file_patience_ms(&f[1], notified_ms))) > 0 &&
                 !beside_wait(&n->beside, ms);)
        ;
    for (int i = 0; i < CONSOLE_FILES; i++)
        waiting[i] = console_file_waiting(&f[i]);
    const bool was_killed = beside_end(&n->beside, 0, false, text, sizeof text) != BESIDE_ENDED;
    for (int i = 0; i < CONSOLE_FILES; i++) {
        if (was_killed && waiting[i] > 0)
            console_try("crun: its output process %s did not end and was killed: %llu bytes for %s are lost\n", text,
                        waiting[i], names[i]);
        if (atomic_load(&f[i].page->error))
            console_try("crun: %llu bytes for %s were lost: %s\n", (unsigned long long)atomic_load(&f[i].page->lost),
                        names[i], strerror(atomic_load(&f[i].page->error)));
    }
}

/* Kill the rest of the tree. True: nothing was left of it. known: the agent has reported that the kernel cannot end
 * it. */
static bool end_tree(struct guard *g, struct guardian_link *l, bool known)
{
    if (!tree_empty())
        tree_kill(); /* before cgroup.kill, which may wait for other changes of cgroups */
    cgroup_kill_at(l->cgroup_dir);
    const bool all =
        tree_kill_or_leave(known ? KILL_AGAIN_MS : KILL_BOUND_MS, g->stuck.given_up[0] ? STUCK_MS : KILL_BOUND_MS);
    if (all)
        guardian_prove(g->held_fd);
    hold(g, -1);
    return all;
}

/* End the helpers. If stdout or stderr is a file, the output process goes on, for what the guardian has still to
 * print. */
static enum beside_ending end_beside(struct guard *g, const struct guardian_link *l, char *out, int cap)
{
    const struct beside *deputy = &g->beside.v[NEIGHBOUR_DEPUTY].beside;
    char gauges[128]; /* a driver may block it; nothing is lost then */
    if (deputy->fd >= 0)
        kill(deputy->pid, SIGKILL);
    beside_end(&g->beside.v[NEIGHBOUR_GAUGES].beside, 0, false, gauges, sizeof gauges);
    return beside_end(&g->beside.v[NEIGHBOUR_OUTPUT].beside, GUARDIAN_OUTPUT_MS, console_files_exist(l->console), out,
                      cap);
}

static void tell_parting(enum beside_ending how, const char *who)
{
    if (how == BESIDE_KILLED)
        console_try(
            "crun: its output process %s did not end within %d s and was killed; what the workers wrote last may be lost\n",
            who, GUARDIAN_OUTPUT_MS / 1000);
    if (how == BESIDE_LINGERS)
        console_try("crun: its output process %s is held by a disk or a shared folder and ends when that answers; what "
                    "it had for files is lost\n",
                    who);
}

/* Kill first, print afterwards: a console that blocks must not keep workers alive. */
static int finish(struct ending e, struct guard *g, struct guardian_link *l)
{
    char text[256], who[128];
    const bool known = !e.signaled && e.value == EXIT_UNKILLABLE, given_up = g->stuck.given_up[0];
    const int64_t begun = clock_ms();
    atomic_store(&l->board->guardian_ends, true);
    const bool all = end_tree(g, l, known);
    const enum beside_ending output = end_beside(g, l, who, sizeof who);
    const int code = all ? ending_code(e) : EXIT_UNKILLABLE;
    if (ending_code(e) != EXIT_OK)
        inherited_give_back_terminal(&g->terminal);
    cgroup_remove_at(l->cgroup_dir);
    if (e.signaled)
        console_try("crun: its agent (pid %d) was %s; the workers were ended\n", (int)g->agent,
                    ending_text(e, text, sizeof text));
    if (given_up)
        console_try("crun: %s: it and the workers were ended (exit code %d)\n", g->stuck.given_up, code);
    tell_parting(output, who);
    if (!all && !known) {
        tree_describe(text, sizeof text);
        console_try(
            "crun: still there %.2g s after SIGKILL: %s; the kernel does not end them, and crun exits all the same (exit "
            "code %d)\n",
            (double)(clock_ms() - begun) / 1000, text, code);
    }
    end_consoles(g, l);
    beside_wait(&g->beside.v[NEIGHBOUR_DEPUTY].beside, BESIDE_KILL_MS); /* end_beside() killed it */
    return code;
}

/* Report that the guardian could not be set up, before there is an agent; errno says why. */
static int refuse(const char *what)
{
    struct err e;
    err_start(&e, errno, "%s", what);
    console_try("crun: %s\n", e.text);
    return EXIT_UNAVAILABLE;
}

int guardian_run(const struct guardian_programs *programs, int argc, char **argv)
{
    static struct guardian_link l;
    static struct guard g = {.held_fd = -1};
    sigset_t waited;
    int ends[2], output[2], home[2] = {-1, -1};

    inherited_block_signals(&l, &waited); /* first of all: from here on a signal waits until somebody reads it */
    if (inherited_fill_fds() < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, output) < 0)
        return refuse("cannot start");
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        return refuse("cannot start");
    l.cgroup_dir = s->cgroup_dir;
    l.at = &s->at;
    l.lease_ms = &s->lease_ms;
    l.signals = &s->signals;
    l.board = &s->board;
    l.roster = &s->roster;
    board_init(&s->board);
    l.output_fd = output[0];
    l.output_page = s->output_page;
    l.gauges_page = s->gauges_page;
    console_files_open(l.console, s->console);
    g.beside = (struct neighbours){.programs = programs,
                                   .link = &l,
                                   .guardian = getpid(),
                                   .agent_fd = -1,
                                   .output_fd = output[1],
                                   .home_fd = -1,
                                   .input_fd = -1,
                                   .leave = leave,
                                   .arg = &g};
    neighbours_name(&g.beside);
    inherited_look_at_terminal(&g.terminal);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    g.link_fd = ends[1];
    g.signal_fd = signalfd(-1, &waited, SFD_CLOEXEC | SFD_NONBLOCK);
    l.deputy_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); /* last: without these all else holds */
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, home) == 0)
        g.beside.home_fd = home[1];
    l.home_fd = home[0];
    g.agent = g.signal_fd < 0 ? -1 : fork();
    if (g.agent < 0) {
        return refuse("cannot start a process");
    }
    if (g.agent == 0)
        return agent_process(&l, ends[0], &g, programs->agent, argc, argv);
    g.lease = (struct lease){.agent = g.agent, .late_ms = GUARDIAN_LATE_MS};
    console_files_enter(l.console, false);
    close(ends[0]);
    close(output[0]);
    if (home[0] >= 0)
        close(home[0]);
    g.beside.agent = g.agent;
    g.beside.agent_fd = (int)syscall(SYS_pidfd_open, g.agent, 0);
    if (g.beside.agent_fd >= 0) /* else this kernel is too old, and the agent ends */
        neighbours_start(&g.beside, NEIGHBOUR_DEPUTY);
    return finish(watch(&g, &l), &g, &l);
}
