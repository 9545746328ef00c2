/* rendezvousd: the server of server.h as a program.
 *
 * - start: options, gate (tokens, TLS), server, jobs, HTTP; then its readiness is announced (stdout, port file,
 *   descriptor, systemd);
 * - SIGHUP: token and TLS files are read again; connections of removed principals are closed. A file that cannot be
 *   read is logged, and its old content stays in use;
 * - SIGTERM, SIGINT: not ready any more, no new connections; replies under way are written; exit 0. A daemon that leads
 *   others (standby.h) hands over before its listeners close; one that has lost its lead begins anew, as a process of
 *   the same number. */
#include "common/args/args.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/http/http_auth.h"
#include "common/job/exitcode.h"
#include "common/net/addr.h"
#include "common/net/loop.h"
#include "common/net/own_address.h"
#include "common/net/port_mark.h"
#include "rendezvousd/daemon/config.h"
#include "rendezvousd/daemon/http.h"
#include "rendezvousd/daemon/sd_notify.h"
#include "rendezvousd/daemon/standby.h"
#include "rendezvousd/history/history.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/jobs/jobs_watch.h"
#include "rendezvousd/net/front.h"
#include "rendezvousd/net/gate.h"
#include "rendezvousd/net/server.h"
#include "rendezvousd/state/state_dir.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MODULE "main"
#define SPARE_FILES 48 /* descriptors that are not for clients: listeners, loop, log, state, some look-ups */
#define HTTP_FILES 160
#define PORT_RETRY_MS 200
#define TRIM_MS 5000 /* after a job was forgotten */

struct daemon {
    struct config config;
    uv_loop_t loop;
    uv_signal_t signals[3];
    size_t n_signals;
    uv_timer_t trim;
    struct gate *gate;
    struct server *server;
    struct state_dir *dir;   /* NULL: jobs live in memory only, or in a state that daemons share */
    struct standby *standby; /* NULL: this daemon shares no state */
    char **argv;
    char advertise[INET6_ADDRSTRLEN];
    bool leaving, closing; /* leaving: a signal came */
    struct history *history;
    struct jobs *jobs;
    struct http *http;
    int port, http_port;
    bool is_marked; /* the port */
    size_t clients; /* as many as there are descriptors for */
};

/* Write the port file aside and rename it, so that a reader never sees a part of it. */
static int write_port_file(const char *path, int port, struct err *e)
{
    char aside[4096], text[16];
    if (snprintf(aside, sizeof aside, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof aside)
        return err_set(e, -ENAMETOOLONG, "port file '%.200s...': the name is too long", path);
    unlink(aside);
    int fd = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_errno(e, errno, "port file '%s' cannot be written", path);
    int n = snprintf(text, sizeof text, "%d\n", port);
    int rc = write(fd, text, (size_t)n) == n ? 0 : -errno;
    close(fd);
    if (rc == 0 && rename(aside, path) < 0)
        rc = -errno;
    if (rc < 0) {
        unlink(aside);
        return err_errno(e, -rc, "port file '%s' cannot be written", path);
    }
    return 0;
}

/* --- end */

static void on_server_closed(void *arg)
{
    struct daemon *d = arg;
    http_close(d->http);
    d->http = NULL;
    jobs_destroy(d->jobs);
    d->jobs = NULL;
    history_close(d->history);
    d->history = NULL;
    standby_close(d->standby);
    d->standby = NULL;
    state_dir_close(d->dir);
    d->dir = NULL;
    gate_destroy(d->gate);
    d->gate = NULL;
}

static void shut_down(struct daemon *d)
{
    if (d->closing)
        return;
    d->closing = true;
    for (size_t i = 0; i < d->n_signals; i++)
        uv_close((uv_handle_t *)&d->signals[i], NULL);
    uv_close((uv_handle_t *)&d->trim, NULL);
    if (d->http)
        http_not_ready(d->http);
    server_close(d->server, on_server_closed, d);
}

static void on_left(void *arg)
{
    shut_down(arg);
}

/* A second signal ends the wait for the other daemons. */
static void end(struct daemon *d, int signum)
{
    log_info(MODULE, "signal %d: closing", signum);
    sd_notify_say("STOPPING=1", NULL);
    if (d->http)
        http_not_ready(d->http);
    if (d->standby && !d->leaving) {
        d->leaving = true;
        standby_leave(d->standby);
    } else {
        shut_down(d);
    }
}

/* --- the lead */

static void on_leads(void *arg)
{
    struct daemon *d = arg;
    if (d->http)
        http_leads(d->http);
}

/* Everything goes with this process image: connections, jobs, keys. Its descriptors are all close-on-exec, but for
 * sockets that it was given (sd_notify.h); its readiness has been said. */
static void on_lost(void *arg, const struct err *why)
{
    struct daemon *d = arg;
    const int ready = (int)d->config.ready_fd, nowhere = ready >= 0 ? open("/dev/null", O_WRONLY) : -1;
    if (why) {
        fprintf(stderr, "rendezvousd: --state %s: %s\n", d->config.state, why->text);
        exit(EXIT_DATA);
    }
    log_warn(MODULE, "this daemon does not lead any more: it begins anew, and stands by");
    if (nowhere >= 0 && nowhere != ready)
        dup2(nowhere, ready);
    signal(SIGCHLD, SIG_IGN); /* the process that touches the state's folder ends by itself */
    execv("/proc/self/exe", d->argv);
    log_error(MODULE, "it cannot begin anew: %s", strerror(errno));
    exit(EXIT_UNAVAILABLE);
}

/* --- reload */

static void reload(struct daemon *d)
{
    struct err e;
    sd_notify_say("RELOADING=1", NULL);
    if (gate_reload(d->gate, &e) < 0)
        log_error(MODULE, "SIGHUP: %s; what was read before stays", e.text);
    else
        log_warn(MODULE, "SIGHUP: tokens and certificates were read again, %zu connections closed",
                 gate_dismiss_removed(d->gate, d->server));
    if (d->http && http_reload(d->http, &e) < 0)
        log_error(MODULE, "SIGHUP: %s; what was read before stays", e.text);
    sd_notify_say("READY=1", NULL);
}

static void on_signal(uv_signal_t *sig, int signum)
{
    if (signum == SIGHUP)
        reload(sig->data);
    else
        end(sig->data, signum);
}

/* A signal that was ignored at the start (SIGHUP under nohup) stays ignored. */
static int watch_signals(struct daemon *d, struct err *e)
{
    static const int signums[] = {SIGTERM, SIGINT, SIGHUP};
    static_assert(sizeof signums / sizeof *signums == sizeof d->signals / sizeof *d->signals, "a handle for each");
    for (size_t i = 0; i < sizeof signums / sizeof *signums; i++) {
        struct sigaction old;
        if (sigaction(signums[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN)
            continue;
        uv_signal_t *s = &d->signals[d->n_signals++];
        uv_signal_init(&d->loop, s);
        s->data = d;
        int rc = uv_signal_start(s, on_signal, signums[i]);
        if (rc < 0)
            return err_errno(e, -rc, "signal %d cannot be watched", signums[i]);
    }
    return 0;
}

/* --- start */

/* Raise the limit of open files as far as needed and allowed; returns it. */
static size_t may_open(size_t want)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0)
        return want;
    if (l.rlim_cur < want && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max == RLIM_INFINITY || l.rlim_max > want ? want : l.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &l) < 0)
            getrlimit(RLIMIT_NOFILE, &l);
    }
    return (size_t)l.rlim_cur;
}

/* Compute how many clients the descriptors allow: each takes one. (Logs of jobs belong to another process,
 * state_writer.h.) */
static void share_files(struct daemon *d)
{
    const struct config *c = &d->config;
    const size_t spare = SPARE_FILES + (c->http_port >= 0 ? HTTP_FILES : 0);
    d->clients = (size_t)c->max_clients;
    const size_t want = d->clients + spare, can = may_open(want);
    if (can >= want)
        return;
    d->clients = can > spare + 4 ? can - spare : 4;
    log_warn(MODULE, "only %zu files may be open (ulimit -n), %zu are needed: %zu clients instead of %lld", can, want,
             d->clients, (long long)c->max_clients);
}

/* Warn if the kernel's queue of new connections is short: further connections must wait for a retransmitted SYN,
 * one, three or seven seconds later. */
static void look_at_backlog(const struct config *c)
{
    const int n = file_read_int(0, "/proc/sys/net/core/somaxconn");
    if (n > 0 && n < SERVER_BACKLOG && n < c->max_clients)
        log_warn(MODULE,
                 "the kernel lets %d connections wait (net.core.somaxconn): more agents at once come in seconds "
                 "later; %d is better",
                 n, SERVER_BACKLOG);
}

static int open_gate(struct daemon *d, struct err *e)
{
    const struct config *c = &d->config;
    return gate_create(&d->gate,
                       &(struct gate_options){.token_file = c->token_file,
                                              .operators = !c->token_file ? NULL
                                                           : c->operators ? c->operators
                                                                          : "",
                                              .insecure = c->insecure,
                                              .own_spaces = true,
                                              .plain_auth = c->plain_auth,
                                              .max_unauthenticated = (size_t)c->max_unauthenticated,
                                              .max_per_address = (size_t)c->max_per_address,
                                              .max_per_principal = (size_t)c->max_per_principal,
                                              .auth_timeout_ms = (int64_t)(c->auth_timeout_s * 1000),
                                              .tls_cert = c->tls_cert,
                                              .tls_key = c->tls_key,
                                              .tls_client_ca = c->tls_client_ca,
                                              .tls_only = c->tls_only},
                       e);
}

static int open_server(struct daemon *d, struct err *e)
{
    const struct config *c = &d->config;
    share_files(d);
    struct server_options o = {.max_clients = d->clients,
                               .max_request_bytes = (size_t)c->max_request,
                               .max_output_bytes = (size_t)c->max_output,
                               .max_memory_bytes = (size_t)c->max_memory,
                               .max_principal_bytes = (size_t)c->max_principal_memory,
                               .binary = &front_tcpstore,
                               .max_job_bytes = (size_t)c->max_job_memory,
                               .request_timeout_ms = (int64_t)(c->request_timeout_s * 1000),
                               .gate = d->gate};
    return server_create(&d->server, &d->loop, &o, e);
}

/* Return free memory to the system, so that the daemon does not keep the memory of a busy day for ever. */
static void on_trim(uv_timer_t *t)
{
    (void)t;
    malloc_trim(0);
}

static void on_forgotten(void *arg, const char *principal, const char *run)
{
    struct daemon *d = arg;
    if (!uv_is_active((uv_handle_t *)&d->trim))
        uv_timer_start(&d->trim, on_trim, TRIM_MS, 0);
    server_forget_run(d->server, principal, run);
    history_forget_run(d->history, principal, run);
}

static int on_ended_asked(void *arg, const char *principal, const char *run, struct buf *out)
{
    const struct daemon *d = arg;
    return history_ended(d->history, &(struct history_reader){.principal = principal}, run, out);
}

/* The address and the port of a socket that we were given. Beyond loopback the rule of --bind holds. */
static int given_address(int fd, char ret[static 256], int *ret_port, struct err *e)
{
    struct sockaddr_storage sa = {0};
    socklen_t n = sizeof sa;
    uint8_t ip[ADDR_BYTES];
    if (getsockname(fd, (struct sockaddr *)&sa, &n) < 0 || !addr_of((struct sockaddr *)&sa, ip))
        return err_set(e, ERR_USAGE, "LISTEN_FDS: descriptor %d: expected a TCP socket that listens", fd);
    addr_text(ip, ret);
    if (ret_port)
        *ret_port = addr_port_of((struct sockaddr *)&sa);
    return 0;
}

/* Where the others reach this daemon, unless that was typed: the first of --bind, if it is one address. */
static int choose_address(struct daemon *d, struct err *e)
{
    const struct config *c = &d->config;
    const char *list = c->bind;
    char one[256] = "";
    if (sd_listen_fds() == 0)
        config_next_address(&list, one, sizeof one);
    else
        TRY(given_address(SD_LISTEN_FIRST, one, NULL, e));
    const bool all = strcmp(one, "0.0.0.0") == 0 || strcmp(one, "::") == 0;
    if (all && !c->advertise && !own_address(d->advertise))
        return err_set(e, ERR_USAGE, "this host has no address beyond loopback: name one with --advertise");
    if (c->advertise || !all)
        snprintf(d->advertise, sizeof d->advertise, "%.*s", INET6_ADDRSTRLEN - 1, c->advertise ? c->advertise : one);
    return 0;
}

static int open_standby(struct daemon *d, struct err *e)
{
    TRY(choose_address(d, e));
    TRY(standby_open(&d->standby, &d->loop,
                     &(struct standby_options){.state = d->config.state,
                                               .advertise = d->advertise,
                                               .leads = on_leads,
                                               .lost = on_lost,
                                               .left = on_left,
                                               .arg = d},
                     e));
    server_set_standby(d->server, standby_notice(d->standby));
    return 0;
}

static int open_jobs(struct daemon *d, struct err *e)
{
    const struct config *c = &d->config;
    struct jobs_watcher watcher;
    struct jobs_options o = {.loop = &d->loop,
                             .epoch = 1,
                             .max_jobs = (size_t)c->max_jobs,
                             .max_jobs_per_principal = (size_t)c->max_jobs_per_principal,
                             .max_nodes = (size_t)c->max_nodes,
                             .max_job_bytes = (size_t)c->max_job_memory};
    if (c->state_dir)
        TRY(state_dir_open(&d->dir, &d->loop, c->state_dir, &o.epoch, e));
    if (c->state)
        TRY(open_standby(d, e));
    o.dir = d->dir;
    o.shared = d->standby ? standby_log(d->standby) : NULL;
    TRY(history_open(&d->history,
                     &(struct history_options){.loop = &d->loop, .max_jobs = (size_t)c->history, .dir = d->dir}, e));
    TRY(jobs_create(&d->jobs, &o, e));
    uv_timer_init(&d->loop, &d->trim);
    jobs_on_forgotten(d->jobs, on_forgotten, d);
    history_watcher(d->history, &watcher);
    jobs_watch(d->jobs, &watcher);
    TRY(jobs_load(d->jobs, e));
    history_settle(d->history);
    server_set_ended(d->server, on_ended_asked, d);
    return server_set_jobs(d->server, d->jobs, e);
}

/* Mark the port, so that no crun of this host hosts a job there while this daemon is restarted. */
static void keep_port(struct daemon *d)
{
    if (d->port && !d->is_marked) /* a port chosen by the kernel is different the next time */
        d->is_marked = port_mark(d->port) == 0;
}

/* Listen. Another process may still have the port for a while: a hosting crun, or the daemon before this one. */
static int listen_on(struct daemon *d, const char *address, int64_t deadline, struct err *e)
{
    int rc = server_listen(d->server, address, d->port, &d->port, e);
    if (rc == -EADDRINUSE && clock_left(deadline) > 0)
        log_warn(MODULE, "%s; trying again for %g s", e->text, d->config.port_timeout_s);
    while (rc == -EADDRINUSE && clock_left(deadline) > 0) {
        poll(NULL, 0, PORT_RETRY_MS);
        keep_port(d);
        rc = server_listen(d->server, address, d->port, &d->port, e);
    }
    return rc;
}

static int listen_given(struct daemon *d, int n, struct err *e)
{
    const struct config *c = &d->config;
    char address[256];
    uint8_t ip[ADDR_BYTES];
    for (int fd = SD_LISTEN_FIRST; fd < SD_LISTEN_FIRST + n; fd++) {
        TRY(given_address(fd, address, fd == SD_LISTEN_FIRST ? &d->port : NULL, e));
        if (addr_read(address, ip) && !addr_is_loopback(ip) && !c->insecure && !c->token_file)
            return err_set(e, ERR_USAGE,
                           "LISTEN_FDS: %s: beyond loopback clients must authenticate: give --token-file FILE, or "
                           "--insecure to serve whoever reaches the port",
                           address);
        const int own = fcntl(fd, F_DUPFD_CLOEXEC, SD_LISTEN_FIRST + n);
        if (own < 0)
            return err_errno(e, errno, "LISTEN_FDS: descriptor %d", fd);
        TRY(server_listen_fd(d->server, own, e));
    }
    return 0;
}

static int listen_all(struct daemon *d, struct err *e)
{
    if (sd_listen_fds() > 0)
        return listen_given(d, sd_listen_fds(), e);
    char one[256];
    const char *list = d->config.bind;
    const int64_t deadline = clock_deadline((int64_t)(d->config.port_timeout_s * 1000));
    d->port = (int)d->config.port; /* if the kernel chooses the port, the first address decides */
    keep_port(d);
    while (config_next_address(&list, one, sizeof one) > 0)
        TRY(listen_on(d, one, deadline, e));
    look_at_backlog(&d->config);
    return 0;
}

static int open_http(struct daemon *d, struct err *e)
{
    const struct config *c = &d->config;
    if (c->http_port < 0)
        return 0;
    struct http_options o = {.bind = c->http_bind,
                             .port = (int)c->http_port,
                             .token_file = c->http_token_file,
                             .any_host = c->http_insecure,
                             .server = d->server,
                             .gate = d->gate,
                             .jobs = d->jobs,
                             .history = d->history,
                             .standing_by = d->standby != NULL};
    return http_open(&d->http, &d->loop, &o, &d->http_port, e);
}

static int exit_code_of(int rc)
{
    return rc == -EINVAL || rc == ERR_USAGE || rc == -ENOENT || rc == -EBADF ? EXIT_USAGE_ERROR
           : rc == ERR_CORRUPT || rc == ERR_MISMATCH                         ? EXIT_DATA
           : rc == -ENOMEM || rc == -EIO                                     ? EXIT_INTERNAL
                                                                             : EXIT_UNAVAILABLE;
}

/* On failure *ret_exit is the exit code. */
static int start(struct daemon *d, int *ret_exit, struct err *e)
{
    int rc = open_gate(d, e);
    if (rc == 0)
        rc = open_server(d, e);
    if (rc == 0)
        rc = open_jobs(d, e);
    if (rc == 0)
        rc = listen_all(d, e);
    if (rc == 0)
        rc = open_http(d, e);
    if (rc == 0)
        rc = watch_signals(d, e);
    if (rc == 0 && d->standby)
        standby_begin(d->standby, d->jobs, d->port);
    *ret_exit = exit_code_of(rc);
    if (rc < 0)
        return rc;
    *ret_exit = EXIT_CANT_CREATE;
    return d->config.port_file ? write_port_file(d->config.port_file, d->port, e) : 0;
}

static int complain(const struct err *e, int code)
{
    fprintf(stderr, "rendezvousd: %s\n", e->text);
    return code;
}

static void tell_ready(const struct daemon *d)
{
    struct err e;
    char url[96];
    fputs("rendezvousd ready on ", stdout);
    for (const char *a = d->config.bind; a; a = strchr(a, ',') ? strchr(a, ',') + 1 : NULL) {
        const int n = (int)strcspn(a, ",");
        printf(memchr(a, ':', (size_t)n) ? "[%.*s]:%d%s" : "%.*s:%d%s", n, a, d->port, a[n] ? "," : "\n");
    }
    if (d->http)
        printf("rendezvousd http on %s\n", http_auth_url(d->config.http_bind, d->http_port, url, sizeof url));
    fflush(stdout);
    if (d->config.ready_fd >= 0 && ready_fd_say((int)d->config.ready_fd, &e) < 0)
        log_warn(MODULE, "%s", e.text);
    if (sd_notify_say("READY=1", &e) < 0)
        log_warn(MODULE, "%s", e.text);
}

static int serve(struct daemon *d)
{
    struct err e;
    int code, rc = config_check(&d->config, &e);
    if (rc < 0)
        return complain(&e, EXIT_USAGE_ERROR);
    signal(SIGPIPE, SIG_IGN);
    if (loop_open(&d->loop, &e) < 0)
        return complain(&e, EXIT_INTERNAL);
    rc = start(d, &code, &e);
    if (rc < 0)
        return complain(&e, code); /* the process ends: nothing is served yet */
    tell_ready(d);
    uv_run(&d->loop, UV_RUN_DEFAULT);
    if (d->config.port_file)
        unlink(d->config.port_file);
    uv_loop_close(&d->loop);
    return EXIT_OK;
}

int main(int argc, char **argv)
{
    static struct daemon d;
    struct arg_result r;
    struct err e;
    d.argv = argv;
    if (args_parse(&config_program, argc, argv, &d.config, &r, &e) < 0)
        return complain(&e, EXIT_USAGE_ERROR);
    if (args_answer(&config_program, "rendezvousd " CRUN_VERSION, &d.config, &r, stdout))
        return EXIT_OK;
    log_init((enum log_level)d.config.log_level, "");
    return serve(&d);
}
