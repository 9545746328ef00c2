/* Runs a job on other hosts: starts one agent on each by ssh, and waits for their ends (remote.h). */
#include "launcher/remote/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/net/loop.h"
#include "launcher/base/ending.h"
#include "launcher/base/program.h"
#include "launcher/base/shell_word.h"
#include "launcher/config/config.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/patience.h"
#include "launcher/guard/tree.h"
#include "launcher/remote/remote_internal.h"
#include "launcher/remote/remote_wire.h"

#define FLUSH_MS 600000
#define LOST_KILL_MS 30000

void remote_print_line(struct remote *m, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_console_vprint(m->console, fmt, ap);
    va_end(ap);
}

static void reap(struct remote *m)
{
    for (;;) {
        siginfo_t child = {0};
        if (waitid(P_ALL, 0, &child, WEXITED | WNOHANG) < 0 || child.si_pid == 0)
            return;
        for (int i = 0; i < m->n; i++) {
            struct far *f = &m->far[i];
            if (f->pid != child.si_pid || f->ended)
                continue;
            f->ended = true;
            f->ending = ending_of(&child);
            remote_stream_finish(&f->out);
            remote_stream_finish(&f->err);
            remote_judge(f);
        }
    }
}

static void on_signal(void *arg)
{
    struct remote *m = arg;
    const struct stops *s = &m->c->stops;
    struct signalfd_siginfo info;
    const uint32_t forwarded = board_forwarded(m->link->board);
    while (read(m->signal_fd, &info, sizeof info) == sizeof info) {
        const int signo = (int)info.ssi_signo;
        const bool typed = info.ssi_code == SI_QUEUE && info.ssi_int == GUARDIAN_TYPED;
        if (signo == SIGCHLD)
            continue;
        if (signo == s->preempt || sigismember(&s->handled.set, signo)) {
            guardian_stopping(m->link, 0); /* the agents on the other hosts report how long their end takes */
            m->stop_code = signo == s->preempt ? EXIT_REQUEUE : 128 + signo;
            remote_stop_all(m, signo, typed);
        } else if (signo == SIGTSTP)
            remote_send_to_all(m, atomic_load(&m->link->board->is_paused) ? SIGTSTP : SIGCONT);
        else
            remote_send_to_all(m, (unsigned char)signo);
    }
    board_heard(m->link->board, forwarded);
    reap(m);
}

/* The guardian is gone, and nobody waits for us any more. Ending the connections stops the agents. */
static void on_guardian_gone(void *arg)
{
    struct remote *m = arg;
    atomic_store(&m->link->board->agent_ends, true);
    tree_kill_all(LOST_KILL_MS);
    _exit(128 + SIGKILL);
}

/* --- beginnings */

static void run_child(const struct remote *m, int i, const int fds[3])
{
    const struct remote_plan *p = &m->plan;
    char *local[] = {(char *)p->shell.crun, (char *)REMOTE_COMMAND, NULL}, *far[REMOTE_RSH_WORDS + 3];
    setsid(); /* so that what is typed reaches only us, and we pass it on */
    for (int k = 0; k < 3; k++)
        dup2(fds[k], k);
    sigaction(SIGPIPE, &m->link->worker_pipe, NULL);
    sigaction(SIGTTOU, &m->link->worker_ttou, NULL);
    setrlimit(RLIMIT_NOFILE, &m->link->worker_nofile);
    sigprocmask(SIG_SETMASK, &m->link->worker_mask, NULL);
    remote_shell_words(&p->shell, &p->hosts.v[i], far);
    if (p->local[i])
        execv("/proc/self/exe", local);
    else
        execv(m->rsh.path, far);
    _exit(EXIT_CANNOT_EXEC);
}

static int start_one(struct remote *m, int i, struct err *e)
{
    struct far *f = &m->far[i];
    int fds[3] = {-1, -1, -1};
    int rc = remote_control_open(f, i, &fds[0], e);
    if (rc == 0)
        rc = remote_stream_open(&f->out, f, false, &fds[1], e);
    if (rc == 0)
        rc = remote_stream_open(&f->err, f, true, &fds[2], e);
    if (rc == 0) {
        f->pid = fork();
        if (f->pid == 0)
            run_child(m, i, fds);
        m->left += f->pid > 0;
        if (f->pid < 0)
            rc = err_start(e, errno, "cannot start a process for host %s", f->host->name);
    }
    for (int k = 0; k < 3; k++)
        if (fds[k] >= 0)
            close(fds[k]);
    return rc;
}

static struct log_voice *voice_of(void *arg, int local, bool is_err)
{
    struct remote *m = arg;
    return local >= m->n ? NULL : is_err ? &m->far[local].err.voice : &m->far[local].out.voice;
}

static int watch_world(struct remote *m, struct err *e)
{
    sigset_t set = m->c->stops.handled.set, stops, mask;
    if (m->c->stops.preempt)
        sigaddset(&set, m->c->stops.preempt);
    stops = set;
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGTSTP);
    for (int s = 1; s < 32; s++)
        if (sigismember(&m->link->ignored, s))
            sigdelset(&set, s);
    guardian_signals(m->link, &set, &stops);
    sigaddset(&set, SIGCHLD);
    sigorset(&mask, &m->link->worker_mask, &set);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    m->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    m->stop_fd = signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK);
    if (m->signal_fd < 0 || m->stop_fd < 0)
        return err_errno(e, errno, "signalfd");
    TRY(watch_open(&m->signals, &m->loop, m->signal_fd, UV_READABLE, on_signal, m, e));
    TRY(watch_open(&m->guardian, &m->loop, m->link->guardian_fd, UV_READABLE, on_guardian_gone, m, e));
    watch_set(m->signals, true);
    watch_set(m->guardian, true);
    return 0;
}

static int open_all(struct remote *m, struct err *e)
{
    m->n = m->plan.hosts.n;
    m->far = calloc((size_t)m->n, sizeof *m->far);
    if (!m->far)
        return err_errno(e, ENOMEM, "hosts");
    for (int i = 0; i < m->n; i++) {
        m->far[i] = (struct far){.m = m, .host = &m->plan.hosts.v[i], .control = -1};
        m->far[i].out.fd = m->far[i].err.fd = -1;
    }
    m->conf = m->c->log;
    m->conf.prefix = false;
    m->conf.rate = 0;
    m->conf.template = "";
    const struct log_console_options console = {
        .conf = &m->conf, .max_workers = m->n, .voice = voice_of, .drained = remote_drained, .arg = m};
    TRY(log_console_create(&m->console, &m->loop, &console, e));
    for (int i = 0; i < m->n; i++) {
        const struct program_how how = {.no_python = true, .use_env = true};
        if (!m->plan.local[i] && !m->rsh.path && program_find(&m->rsh, &how, m->plan.shell.rsh, e) < 0)
            return err_wrap(e, "--rsh");
    }
    return 0;
}

static void close_all(struct remote *m)
{
    const int stop[2] = {m->signal_fd, m->link->guardian_fd};
    for (int i = 0; i < m->n; i++) {
        remote_stream_finish(&m->far[i].out);
        remote_stream_finish(&m->far[i].err);
        remote_control_close(&m->far[i]);
    }
    watch_close(m->signals);
    watch_close(m->guardian);
    uv_close((uv_handle_t *)&m->begin, NULL);
    uv_close((uv_handle_t *)&m->late, NULL);
    uv_close((uv_handle_t *)&m->alive, NULL);
    for (int i = 0; m->console && i < 2; i++)
        if (log_console_sink(m->console, i))
            sink_flush(log_console_sink(m->console, i), clock_deadline(FLUSH_MS), stop);
    if (m->console)
        log_console_destroy(m->console);
    uv_run(&m->loop, UV_RUN_DEFAULT);
    uv_loop_close(&m->loop);
    if (m->signal_fd >= 0)
        close(m->signal_fd);
    if (m->stop_fd >= 0)
        close(m->stop_fd);
    program_free(&m->rsh);
    free(m->far);
    remote_plan_free(&m->plan);
    free(m);
}

int remote_run(const struct config *c, const struct guardian_link *link, int argc, char **argv, int first_operand,
               int *ret_code, struct err *e)
{
    struct remote *m = calloc(1, sizeof *m);
    if (!m)
        return err_errno(e, ENOMEM, "hosts");
    m->c = c;
    m->link = link;
    m->signal_fd = m->stop_fd = m->code = -1;
    if (loop_open(&m->loop, e) < 0) {
        free(m);
        return -ENOMEM;
    }
    m->stop_code = EXIT_UNAVAILABLE;
    uv_timer_init(&m->loop, &m->begin);
    uv_timer_init(&m->loop, &m->late);
    uv_timer_init(&m->loop, &m->alive);
    m->begin.data = m->late.data = m->alive.data = m;
    int rc = watch_world(m, e);
    if (rc == 0)
        rc = remote_plan_make(&m->plan, c, argc, argv, first_operand, m->stop_fd, e);
    if (rc == 0)
        uv_run(&m->loop, UV_RUN_NOWAIT); /* a signal may have come meanwhile */
    if (rc == 0 && !m->stopping) {
        remote_plan_say_unused(&m->plan, stderr);
        rc = open_all(m, e);
    }
    for (int i = 0; i < m->n && rc == 0; i++)
        rc = start_one(m, i, e);
    uv_timer_start(&m->begin, remote_on_begin_late, (uint64_t)config_join_timeout_ms(c), 0);
    const uint64_t silence = (uint64_t)(c->conf.keep_alive_interval_ms * c->conf.keep_alive_max_attempt);
    uv_timer_start(&m->alive, remote_on_alive, silence, silence);
    if (rc < 0) /* agents that were started see the end of their input */
        remote_stop_all(m, SIGTERM, false);
    while (m->left > 0)
        uv_run(&m->loop, UV_RUN_ONCE);
    *ret_code = m->failed ? m->fail_code : m->code < 0 ? m->stop_code : m->code;
    close_all(m);
    return rc;
}

static void print_word(const char *word, FILE *out)
{
    fputc(' ', out);
    shell_print(word, out);
}

static int print_host(const struct remote_plan *p, int i, FILE *out, struct err *e)
{
    const char *name = p->hosts.v[i].name;
    struct buf own = {.max = REMOTE_ORDER_MAX};
    const int rc = remote_plan_options(p, i, &own);
    fprintf(out, "host %s, node rank %d\n  started by:", name, i);
    for (int k = 0; p->shell.rsh[k] && !p->local[i]; k++)
        print_word(p->shell.rsh[k], out);
    if (p->local[i]) {
        fprintf(out, " this crun\n");
    } else {
        fprintf(out, " %s", name);
        print_word(p->shell.command, out);
        fprintf(out, "\n");
    }
    fprintf(out, "  options on top of those typed:");
    for (size_t at = 0; rc == 0 && at < own.len; at += strlen(own.data + at) + 1)
        print_word(own.data + at, out);
    fprintf(out, "\n");
    buf_free(&own);
    return rc < 0 ? err_errno(e, -rc, "options for the hosts") : 0;
}

int remote_print_plan(const struct config *c, int argc, char **argv, int first_operand, FILE *out, struct err *e)
{
    struct remote_plan p;
    int rc = remote_plan_make(&p, c, argc, argv, first_operand, -1, e);
    if (rc == 0)
        remote_plan_say_unused(&p, stderr);
    for (int i = 0; i < p.hosts.n && rc == 0; i++)
        rc = print_host(&p, i, out, e);
    remote_plan_free(&p);
    return rc;
}
