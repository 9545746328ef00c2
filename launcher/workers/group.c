#include "launcher/workers/group.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/crun/crun_page.h"
#include "common/job/exitcode.h"
#include "launcher/base/watch.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/tree.h"
#include "launcher/output/logmux.h"
#include "launcher/place/binding.h"
#include "launcher/workers/spawn_thread.h"

/* One worker process and the page shared with it. */
struct child {
    int local;
    int pidfd;              /* -1: none */
    bool guest;             /* in a process group that is not its own */
    struct crun_page *page; /* mapped until the next round begins */
    int out[2];             /* the worker's ends of its pipes, until it is started; -1: none */
};

struct group {
    uv_loop_t *loop;
    struct group_options o;
    int null_fd;
    int in_fd, out_fd; /* of the terminal, -1: not the worker's */
    int status_fd;     /* our end of the exec status pipe; -1: all execs are known */
    struct watch *status;
    int notify_fd; /* eventfd shared by all workers; -1: none, or it has told */
    struct watch *notify;
    int deaths_fd; /* epoll of all pidfds, in the order of deaths */
    struct watch *deaths_watch;
    uv_timer_t rescan;
    uv_timer_t open_late; /* its log files are not open yet */
    bool opening;         /* and its workers wait for that */
    int rank_base;
    int open_handles; /* the timers */
    struct spawn_thread *spawner;
    struct launch *launch; /* the processes are being made; NULL: they are not */
    int stop_reason;       /* once they are, -1: none */
    bool clearing;
    bool unshared; /* and that is said */
    int64_t clear_deadline;
    int64_t sweep_ms; /* no look at /proc before this */
    unsigned deaths;
    int n; /* workers started in this round */
    struct child *children;
    struct failure_worker *workers;
};

static void check_gone(struct group *g);
static void on_deaths(void *arg);
static void kill_children(struct group *g);
static void reap_orphans(struct group *g);

/* --- one worker */

/* To the kernel the page is a file, which a limit on file sizes may forbid (RLIMIT_FSIZE). This one is our own
 * alone. */
static int create_own_page(struct child *c)
{
    void *at = mmap(NULL, CRUN_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return -errno;
    c->page = at;
    return 1;
}

/* A fresh page, shared with the worker; *ret_fd is close-on-exec and the caller's. 1: one that cannot be shared, as
 * file sizes are limited; *ret_fd is untouched. */
static int create_page(struct child *c, int notify_fd, int *ret_fd, struct err *e)
{
    int fd = memfd_create("crun-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_errno(e, errno, "shared page of a worker");
    void *at = MAP_FAILED;
    /* A worker that cut it short would end us with SIGBUS. */
    if (ftruncate(fd, CRUN_PAGE_BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        at = mmap(NULL, CRUN_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        int error = errno;
        close(fd);
        if (error == EFBIG && create_own_page(c) == 1)
            return 1;
        return err_errno(e, error, "shared page of a worker");
    }
    c->page = at;
    c->page->version = CRUN_PAGE_VERSION;
    c->page->notify_fd = notify_fd;
    c->page->magic = CRUN_PAGE_MAGIC;
    *ret_fd = fd;
    return 0;
}

static void drop_page(struct child *c)
{
    if (c->page)
        munmap(c->page, CRUN_PAGE_BYTES);
    c->page = NULL;
}

/* The reason first, then the signals. */
static void stop_child(struct child *c, pid_t pid, int reason)
{
    atomic_store(&c->page->stop_reason, (uint32_t)reason);
    const pid_t who = c->guest ? pid : -pid;
    kill(who, SIGTERM);
    kill(who, SIGCONT);
}

static void kill_child(struct child *c)
{
    if (c->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, c->pidfd, SIGKILL, NULL, 0);
}

/* --- watching */

static int watch_child(struct group *g, struct child *c)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    return epoll_ctl(g->deaths_fd, EPOLL_CTL_ADD, c->pidfd, &ev) < 0 && errno != EEXIST ? -errno : 0;
}

/* Taken out by hand: a process between fork and exec has copies of our descriptors, and close(2) alone would not do it
 * then. */
static void unwatch_child(struct group *g, struct child *c)
{
    epoll_ctl(g->deaths_fd, EPOLL_CTL_DEL, c->pidfd, NULL);
}

static void drop_pidfd(struct group *g, struct child *c)
{
    if (c->pidfd < 0)
        return;
    unwatch_child(g, c);
    close(c->pidfd);
    c->pidfd = -1;
}

/* --- starting */

int group_create(struct group **ret, uv_loop_t *loop, const struct group_options *o, struct err *e)
{
    struct group *g = calloc(1, sizeof *g);
    if (!g)
        return err_errno(e, ENOMEM, "workers");
    g->loop = loop;
    g->o = *o;
    g->status_fd = g->notify_fd = -1;
    g->in_fd = o->terminal_group ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : -1;
    g->out_fd = o->terminal_group && o->terminal_out ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3) : -1;
    g->deaths_fd = epoll_create1(EPOLL_CLOEXEC);
    uv_timer_init(loop, &g->rescan);
    uv_timer_init(loop, &g->open_late);
    g->open_handles = 2;
    g->children = calloc((size_t)o->workers, sizeof *g->children);
    g->workers = calloc((size_t)o->workers, sizeof *g->workers);
    g->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    *ret = g;
    if (!g->children || !g->workers)
        return err_errno(e, ENOMEM, "%d workers", o->workers);
    if (g->null_fd < 0)
        return err_errno(e, errno, "/dev/null");
    if (g->deaths_fd < 0)
        return err_errno(e, errno, "epoll");
    TRY(watch_open(&g->deaths_watch, loop, g->deaths_fd, UV_READABLE, on_deaths, g, e));
    watch_set(g->deaths_watch, true);
    return 0;
}

static void status_close(struct group *g)
{
    watch_close(g->status);
    g->status = NULL;
    if (g->status_fd >= 0)
        close(g->status_fd);
    g->status_fd = -1;
}

/* Execs that failed, then end-of-file when no process is left between clone and exec. */
static void on_status(void *arg)
{
    struct group *g = arg;
    struct spawn_failure f;
    while (g->status_fd >= 0) {
        ssize_t n = read(g->status_fd, &f, sizeof f);
        if (n == sizeof f) {
            g->o.events.unstarted(g->o.arg, f.tag, f.error);
        } else if (n == 0) {
            status_close(g);
            g->o.events.started(g->o.arg);
        } else {
            return;
        }
    }
}

static void notify_close(struct group *g)
{
    watch_close(g->notify);
    g->notify = NULL;
    if (g->notify_fd >= 0)
        close(g->notify_fd);
    g->notify_fd = -1;
}

static void on_notify(void *arg)
{
    struct group *g = arg;
    int64_t first = 0;
    for (int i = 0; i < g->n; i++) {
        int64_t t = atomic_load(&g->children[i].page->first_step_ns);
        if (t > 0 && (first == 0 || t < first))
            first = t;
    }
    const bool told = g->notify_fd < 0;
    notify_close(g);
    if (first > 0 && !told)
        g->o.events.progressed(g->o.arg, first);
}

/* Hangs and steps are not seen then, reasons of stops and records not told. */
static void warn_unshared(struct group *g)
{
    if (!g->unshared)
        logmux_print(
            g->o.mux,
            "the limit on file sizes (ulimit -f) leaves no page to share with a worker: libcrun's words do not "
            "reach crun, nor crun's reasons the workers");
    g->unshared = true;
}

static void close_pipe_ends(struct child *c)
{
    for (int i = 0; i < 2; i++)
        if (c->out[i] >= 0)
            close(c->out[i]);
    c->out[0] = c->out[1] = -1;
}

static int make_pipes(struct group *g, int rank_base, struct err *e)
{
    for (int i = 0; i < g->o.workers; i++) {
        g->children[i] = (struct child){.local = i, .pidfd = -1, .guest = g->o.terminal_group > 0, .out = {-1, -1}};
        g->workers[i] = (struct failure_worker){.rank = rank_base + i, .local_rank = i};
    }
    for (int i = 0; i < g->o.workers; i++)
        TRY(logmux_add(g->o.mux, i, g->children[i].out, e));
    return 0;
}

static void close_all_pipe_ends(struct group *g)
{
    for (int i = 0; i < g->o.workers; i++)
        close_pipe_ends(&g->children[i]);
}

/* --- the processes, made by the thread */

struct launch {
    struct spawn_batch batch;
    struct group *g;
    int n; /* prepared */
    int status_fd;
    struct prepared {
        char **env, **argv; /* argv NULL: that of all */
        int page_fd;
    } * prepared;
    struct spawn_request *requests;
    struct spawned *spawned;
};

static void free_launch(struct launch *l)
{
    for (int i = 0; l->prepared && i < l->n; i++) {
        free(l->prepared[i].env);
        free(l->prepared[i].argv);
        if (l->prepared[i].page_fd >= 0)
            close(l->prepared[i].page_fd);
    }
    close_all_pipe_ends(l->g);
    if (l->status_fd >= 0)
        close(l->status_fd);
    free(l->prepared);
    free(l->requests);
    free(l->spawned);
    free(l);
}

static int prepare_one(struct launch *l, int local, struct err *e)
{
    struct group *g = l->g;
    struct child *c = &g->children[local];
    struct prepared *p = &l->prepared[local];
    p->page_fd = -1;
    l->n = local + 1;
    const int rc = create_page(c, g->notify_fd, &p->page_fd, e);
    if (rc == 1)
        warn_unshared(g);
    TRY(rc);
    TRY(g->o.events.make_env(g->o.arg, local, p->page_fd, &p->env, e));
    TRY(g->o.events.make_argv(g->o.arg, local, &p->argv, e));
    l->requests[local] = (struct spawn_request){
        .path = g->o.path,
        .argv = p->argv ? p->argv : g->o.argv,
        .envp = p->env,
        .stdio = {g->in_fd >= 0 ? g->in_fd : g->null_fd, g->out_fd >= 0 ? g->out_fd : c->out[0], c->out[1]},
        .group = g->o.terminal_group,
        .keep = {p->page_fd, g->notify_fd},
        .n_keep = 2,
        .status_fd = l->status_fd,
        .tag = local,
        .mask = &g->o.mask,
        .on_pipe = &g->o.on_pipe,
        .on_ttou = &g->o.on_ttou,
        .nofile = &g->o.nofile,
        .binding = g->o.bindings ? &g->o.bindings[local] : NULL,
        .cgroup_fd = cgroup_fd(g->o.cgroup),
        .cgroup_must = g->o.cgroup_must};
    return 0;
}

static void on_spawned(struct spawn_batch *b);

static int create_launch(struct launch **ret, struct group *g, int status_fd, struct err *e)
{
    const size_t n = (size_t)g->o.workers;
    struct launch *l = calloc(1, sizeof *l);
    if (!l) {
        close(status_fd);
        return err_errno(e, ENOMEM, "workers");
    }
    *ret = l;
    l->g = g;
    l->status_fd = status_fd;
    l->prepared = calloc(n, sizeof *l->prepared);
    l->requests = calloc(n, sizeof *l->requests);
    l->spawned = calloc(n, sizeof *l->spawned);
    if (!l->prepared || !l->requests || !l->spawned)
        return err_errno(e, ENOMEM, "workers");
    l->batch =
        (struct spawn_batch){.requests = l->requests, .spawned = l->spawned, .n = g->o.workers, .done = on_spawned};
    for (int i = 0; i < g->o.workers; i++)
        TRY(prepare_one(l, i, e));
    return 0;
}

/* Its pipes are made. */
static int launch(struct group *g, struct err *e)
{
    int status[2];
    struct launch *l = NULL;
    g->opening = false;
    uv_timer_stop(&g->open_late);
    logmux_note_launch(g->o.mux);
    if (!g->spawner)
        TRY(spawn_thread_create(&g->spawner, g->loop, e));
    if (pipe2(status, O_CLOEXEC) < 0)
        return err_errno(e, errno, "pipe");
    g->status_fd = status[0];
    fcntl(status[0], F_SETFL, O_NONBLOCK);
    g->notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = g->notify_fd < 0 ? err_errno(e, errno, "eventfd") : 0;
    if (rc < 0)
        close(status[1]);
    else
        rc = create_launch(&l, g, status[1], e);
    if (rc < 0) {
        if (l)
            free_launch(l);
        close_all_pipe_ends(g);
        return rc;
    }
    g->launch = l;
    spawn_thread_start(g->spawner, &l->batch);
    return 0;
}

static int take_spawned(struct group *g, const struct spawn_batch *b, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < b->n_spawned; i++) {
        g->children[i].pidfd = b->spawned[i].pidfd;
        g->workers[i].pid = b->spawned[i].pid;
        g->n = i + 1;
        const int watched = watch_child(g, &g->children[i]);
        if (watched < 0)
            rc = err_errno(e, -watched, "cannot watch process %d", (int)b->spawned[i].pid);
    }
    TRY(rc);
    TRY(watch_open(&g->status, g->loop, g->status_fd, UV_READABLE, on_status, g, e));
    TRY(watch_open(&g->notify, g->loop, g->notify_fd, UV_READABLE, on_notify, g, e));
    watch_set(g->status, true);
    watch_set(g->notify, true);
    return 0;
}

static void on_spawned(struct spawn_batch *b)
{
    struct launch *l = container_of(b, struct launch, batch);
    struct group *g = l->g;
    struct err e = b->e;
    const bool was_wanted = g->launch == l;
    int rc = b->rc;
    g->launch = NULL;
    if (was_wanted && take_spawned(g, b, rc < 0 ? NULL : &e) < 0 && rc == 0)
        rc = e.code;
    free_launch(l);
    if (g->clearing) { /* those that were born meanwhile */
        kill_children(g);
        check_gone(g);
        return;
    }
    if (rc < 0)
        g->o.events.failed(g->o.arg, rc, e.text);
    else if (g->stop_reason >= 0)
        group_stop(g, g->stop_reason);
    reap_orphans(g);
}

/* --- log files first */

static void launch_later(struct group *g)
{
    struct err e = {0};
    if (!g->opening)
        return;
    const int rc = launch(g, &e);
    if (rc < 0)
        g->o.events.failed(g->o.arg, rc, e.text);
}

/* The output process says that the disk hangs. */
static void on_open_late(uv_timer_t *t)
{
    launch_later(container_of(t, struct group, open_late));
}

static void give_up_opening(struct group *g)
{
    g->opening = false;
    uv_timer_stop(&g->open_late);
    close_all_pipe_ends(g);
}

static void on_opened(void *arg, int rc, const char *text)
{
    struct group *g = arg;
    if (rc == 0) {
        launch_later(g);
        return;
    }
    if (g->opening)
        give_up_opening(g);
    g->o.events.failed(g->o.arg, rc, text);
}

int group_start(struct group *g, int rank_base, struct err *e)
{
    for (int i = 0; i < g->o.workers; i++)
        drop_page(&g->children[i]);
    g->n = 0;
    g->deaths = 0;
    g->clearing = false;
    g->stop_reason = -1;
    const int rc = make_pipes(g, rank_base, e);
    if (rc < 0) {
        close_all_pipe_ends(g);
        return rc;
    }
    if (!logmux_open_files(g->o.mux, on_opened, g))
        return launch(g, e);
    g->opening = true;
    uv_timer_start(&g->open_late, on_open_late, LOGMUX_OPEN_MS, 0);
    return 0;
}

/* --- deaths */

/* Orphans of our workers became our children: reap them. A worker met here is left to its own watch, which comes here
 * again. */
static void reap_orphans(struct group *g)
{
    while (!g->launch) { /* of a process just made nobody knows yet whose it is */
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
            return;
        for (int i = 0; i < g->n; i++)
            if (g->workers[i].pid == info.si_pid && !g->workers[i].ended) {
                watch_child(g, &g->children[i]);
                return;
            }
        waitid(P_PID, (id_t)info.si_pid, &info, WEXITED | WNOHANG);
    }
}

/* A worker that has not ended for us is not reaped: its pid is its own. Taken by that, as P_PIDFD is Linux 5.4 and some
 * seccomp filters refuse it. */
static int wait_worker(const struct failure_worker *w, siginfo_t *ret, int options)
{
    *ret = (siginfo_t){0};
    return waitid(P_PID, (id_t)w->pid, ret, WEXITED | WNOHANG | options);
}

static void on_death(struct group *g, struct child *c)
{
    struct failure_worker *w = &g->workers[c->local];
    int64_t woken = clock_ns();
    siginfo_t info;

    on_status(g); /* an exec that failed is known before its process ends, and says more than its exit code */
    const int rc = wait_worker(w, &info, 0);
    if (rc == 0 && info.si_pid == 0) {
        unwatch_child(g, c); /* dead, but its debugger comes first; SIGCHLD will tell when it is our turn */
        return;
    }
    if (rc < 0) { /* whatever it was, no success */
        logmux_print(g->o.mux, "how rank %d ended is not known (waitid: %s): taken for a failure", w->rank,
                     strerror(errno));
        info.si_status = EXIT_INTERNAL;
    }
    w->ended = true;
    if (!w->hung[0]) {
        w->order = ++g->deaths;
        w->ended_ns = woken;
    }
    w->ending = ending_of(&info);
    drop_pidfd(g, c);
    g->o.events.ended(g->o.arg, c->local, woken);
    reap_orphans(g);
    check_gone(g);
}

/* One at a time: handling a death may end the round, and what the kernel told us of others would then be about the
 * dead. */
static void on_deaths(void *arg)
{
    struct group *g = arg;
    struct epoll_event ev;
    while (epoll_wait(g->deaths_fd, &ev, 1, 0) == 1)
        on_death(g, ev.data.ptr);
}

void group_on_sigchld(struct group *g)
{
    reap_orphans(g);
    check_gone(g);
}

/* --- stopping */

/* It died before we sent it anything: news of it is on its way, and it is a failure of its own. */
static bool already_dead(const struct failure_worker *w)
{
    siginfo_t info;
    return wait_worker(w, &info, WNOWAIT) == 0 && info.si_pid != 0;
}

void group_stop(struct group *g, int reason)
{
    launch_later(g); /* whoever waits for their end is to see it */
    if (g->launch)
        g->stop_reason = reason;
    for (int i = 0; i < g->n; i++) {
        if (g->workers[i].ended || already_dead(&g->workers[i]))
            continue;
        g->workers[i].told_to_stop = true;
        stop_child(&g->children[i], g->workers[i].pid, reason);
    }
}

void group_hung(struct group *g, int local, const char *hung)
{
    struct failure_worker *w = &g->workers[local];
    if (local >= g->n || w->ended)
        return;
    snprintf(w->hung, sizeof w->hung, "%s", hung);
    w->order = ++g->deaths;
    w->ended_ns = clock_ns();
}

void group_forward(struct group *g, int signo)
{
    for (int i = 0; i < g->n; i++)
        if (!g->workers[i].ended)
            tree_signal(g->workers[i].pid, !g->children[i].guest, signo);
}

static void on_rescan(uv_timer_t *t)
{
    check_gone(container_of(t, struct group, rescan));
}

static void finish_round(struct group *g, const char *left)
{
    g->clearing = false;
    uv_timer_stop(&g->rescan);
    on_status(g); /* workers may be gone before the loop came to these */
    on_notify(g);
    status_close(g);
    notify_close(g);
    logmux_end_round(g->o.mux);
    if (left)
        g->o.events.unkillable(g->o.arg, left);
    else
        g->o.events.gone(g->o.arg);
}

/* As long as it took, nothing of the kind again: what else the loop has to do comes first. */
static void sweep(struct group *g)
{
    const int64_t begun = clock_ms();
    if (begun < g->sweep_ms)
        return;
    tree_kill();
    g->sweep_ms = 2 * clock_ms() - begun;
}

/* Somebody is left: killed as often as it takes, because a process may be born while we read /proc. */
static void check_gone(struct group *g)
{
    if (!g->clearing)
        return;
    if (tree_empty() && !g->launch) {
        finish_round(g, NULL);
        return;
    }
    if (clock_ms() < g->clear_deadline) {
        sweep(g);
        uv_timer_start(&g->rescan, on_rescan, TREE_RESCAN_MS, 0);
        return;
    }
    char text[512];
    tree_describe(text, sizeof text);
    for (int i = 0; i < g->n; i++)
        drop_pidfd(g, &g->children[i]);
    g->launch = NULL; /* its memory is the thread's */
    finish_round(g, text);
}

static void kill_children(struct group *g)
{
    for (int i = 0; i < g->n; i++) {
        if (g->workers[i].ended || already_dead(&g->workers[i]))
            continue;
        g->workers[i].told_to_stop = true;
        kill_child(&g->children[i]);
    }
}

void group_clear(struct group *g)
{
    if (g->opening)
        give_up_opening(g);
    if (g->launch)
        atomic_store(&g->launch->batch.cancelled, true);
    kill_children(g);
    g->clearing = true;
    g->clear_deadline = clock_ms() + g->o.kill_ms;
    g->sweep_ms = g->clear_deadline - g->o.kill_ms;
    if (!tree_empty() && cgroup_kill(g->o.cgroup))
        g->sweep_ms += TREE_RESCAN_MS; /* only who left the cgroup is left then */
    check_gone(g);
}

/* --- for the report */

const struct failure_worker *group_workers(const struct group *g)
{
    return g->workers;
}

bool group_attached(const struct group *g)
{
    for (int i = 0; i < g->n; i++)
        if (atomic_load(&g->children[i].page->attached))
            return true;
    return false;
}

bool group_progress(const struct group *g, struct group_progress *ret)
{
    *ret = (struct group_progress){.step = 0};
    bool any = false;
    for (int i = 0; i < g->n; i++) {
        struct crun_page *p = g->children[i].page;
        if (!p || atomic_load(&p->first_step_ns) == 0)
            continue;
        const uint64_t step = atomic_load(&p->step);
        if (!any || step > ret->step)
            ret->step = step;
        any = true;
        if (!ret->has_metrics && (ret->has_metrics = atomic_load(&p->has_metrics))) {
            ret->images_per_s = crun_page_real(&p->images_per_s);
            ret->loss = crun_page_real(&p->loss);
        }
    }
    return any;
}

struct crun_page *group_page(const struct group *g, int local)
{
    return local < g->n ? g->children[local].page : NULL;
}

const char *group_error_text(const struct group *g, int local)
{
    struct crun_page *p = g->children[local].page;
    if (!p || atomic_load(&p->error_code) == 0)
        return NULL;
    p->error_text[sizeof p->error_text - 1] = '\0';
    return p->error_text;
}

static void on_closed(uv_handle_t *h)
{
    struct group *g = h->data;
    if (--g->open_handles > 0)
        return;
    free(g->children);
    free(g->workers);
    free(g);
}

void group_destroy(struct group *g)
{
    if (!g)
        return;
    status_close(g);
    notify_close(g);
    watch_close(g->deaths_watch);
    if (g->deaths_fd >= 0)
        close(g->deaths_fd);
    for (int i = 0; i < g->o.workers && g->children; i++)
        drop_page(&g->children[i]);
    spawn_thread_close(g->spawner);
    for (int i = 0; i < 3; i++) {
        const int fd = i == 0 ? g->null_fd : i == 1 ? g->in_fd : g->out_fd;
        if (fd >= 0)
            close(fd);
    }
    g->rescan.data = g->open_late.data = g;
    uv_close((uv_handle_t *)&g->rescan, on_closed);
    uv_close((uv_handle_t *)&g->open_late, on_closed);
}
