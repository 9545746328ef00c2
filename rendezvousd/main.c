/* rendezvousd: the server of server.h as a program. Exits 0 on SIGTERM, SIGINT or SIGHUP. */
#include "common/args.h"
#include "common/err.h"
#include "common/exitcode.h"
#include "common/log.h"
#include "rendezvousd/server.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct config {
    const char *bind, *port_file;
    int64_t port, max_clients;
    int log_level;
    bool insecure;
};

static const struct arg_spec specs[] = {
    ARG_GROUP("Listening"),
    {.name = "bind",
     .type = ARG_STRING,
     .at = offsetof(struct config, bind),
     .def = "127.0.0.1",
     .metavar = "ADDR",
     .env = "RENDEZVOUSD_BIND",
     .help = "address to listen on"},
    {.name = "port",
     .type = ARG_INT,
     .at = offsetof(struct config, port),
     .def = "29400",
     .min = 0,
     .max = 65535,
     .env = "RENDEZVOUSD_PORT",
     .help = "port to listen on; 0: the kernel picks one"},
    {.name = "port-file",
     .type = ARG_STRING,
     .at = offsetof(struct config, port_file),
     .metavar = "FILE",
     .help = "write the port to FILE once the server listens"},
    {.name = "insecure",
     .type = ARG_FLAG,
     .at = offsetof(struct config, insecure),
     .help = "serve addresses beyond loopback, and every local user, although nobody is authenticated"},
    ARG_GROUP("Limits"),
    {.name = "max-clients",
     .type = ARG_INT,
     .at = offsetof(struct config, max_clients),
     .def = "10000",
     .min = 1,
     .max = 1000000,
     .env = "RENDEZVOUSD_MAX_CLIENTS",
     .help = "connections served at once; more are refused"},
    ARG_GROUP("Output"),
    {.name = "log-level",
     .type = ARG_CHOICE,
     .at = offsetof(struct config, log_level),
     .def = "warn",
     .choices = "error|warn|info|debug",
     .env = "RENDEZVOUSD_LOG_LEVEL",
     .help = "what to log on stderr"},
    ARG_END,
};

static const struct arg_program program = {
    .name = "rendezvousd",
    .usage = "[options]",
    .summary = "Rendezvous daemon and key-value store. Speaks Redis' RESP2, so redis-cli can talk to it.",
    .specs = specs,
    .operands = ARG_NO_OPERANDS,
};

struct daemon {
    struct config config;
    uv_loop_t loop;
    uv_signal_t signals[3];
    size_t n_signals;
    struct server *server;
};

/* A loopback address, or no address at all: server_listen() says what is expected then. */
static bool may_bind(const char *host)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (uv_ip4_addr(host, 0, &v4) == 0)
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    return uv_ip6_addr(host, 0, &v6) != 0 || IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

/* Whoever sees the file sees all of it: written aside, then renamed. */
static int write_port_file(const char *path, int port, struct err *e)
{
    char aside[4096], text[16];
    if (snprintf(aside, sizeof aside, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof aside)
        return err_set(e, -ENAMETOOLONG, "port file '%.200s...': the name is too long", path);
    int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
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

static void on_signal(uv_signal_t *sig, int signum)
{
    struct daemon *d = sig->data;
    log_info("main", "signal %d: closing", signum);
    for (size_t i = 0; i < d->n_signals; i++)
        uv_close((uv_handle_t *)&d->signals[i], NULL);
    server_close(d->server, NULL, NULL);
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

/* On failure *ret_exit is the exit code that fits. */
static int start(struct daemon *d, int *ret_port, int *ret_exit, struct err *e)
{
    struct server_options o = {.max_clients = (size_t)d->config.max_clients, .same_uid_only = !d->config.insecure};
    *ret_exit = EXIT_INTERNAL;
    TRY(server_create(&d->server, &d->loop, &o, e));
    int rc = server_listen(d->server, d->config.bind, (int)d->config.port, ret_port, e);
    if (rc < 0) {
        *ret_exit = rc == -EINVAL ? EXIT_USAGE_ERROR : EXIT_UNAVAILABLE;
        return rc;
    }
    TRY(watch_signals(d, e));
    *ret_exit = EXIT_CANT_CREATE;
    if (d->config.port_file)
        TRY(write_port_file(d->config.port_file, *ret_port, e));
    return 0;
}

static int complain(const struct err *e, int code)
{
    fprintf(stderr, "rendezvousd: %s\n", e->text);
    return code;
}

static int serve(struct daemon *d)
{
    struct err e;
    int port, code, rc;
    if (!d->config.insecure && !may_bind(d->config.bind)) {
        err_set(&e, ERR_USAGE,
                "--bind %s: there is no authentication yet, so only a loopback address such as 127.0.0.1 is served "
                "without --insecure",
                d->config.bind);
        return complain(&e, EXIT_USAGE_ERROR);
    }
    signal(SIGPIPE, SIG_IGN);
    rc = uv_loop_init(&d->loop);
    if (rc < 0) {
        err_errno(&e, -rc, "no event loop");
        return complain(&e, EXIT_INTERNAL);
    }
    rc = start(d, &port, &code, &e);
    if (rc < 0)
        return complain(&e, code); /* the process ends: nothing is served yet */
    printf("rendezvousd ready on %s:%d\n", d->config.bind, port);
    fflush(stdout);
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
    if (args_parse(&program, argc, argv, &d.config, &r, &e) < 0)
        return complain(&e, EXIT_USAGE_ERROR);
    if (args_answer(&program, "rendezvousd " CRUN_VERSION, &d.config, &r, stdout))
        return EXIT_OK;
    log_init((enum log_level)d.config.log_level, "");
    return serve(&d);
}
