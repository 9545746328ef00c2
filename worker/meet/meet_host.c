/* rank 0's server: RESP and TCPStore, until meet_host_close(). */
#include "common/base/err.h"
#include "rendezvousd/net/front.h"
#include "rendezvousd/net/server.h"
#include "worker/meet/meet_impl.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include <uv.h>

struct meet_host {
    uv_loop_t loop;
    uv_async_t stop;
    uv_poll_t asked;
    uv_thread_t thread;
    struct server *server;
    int tell_fd; /* -1: nobody asks */
    int port;
};

static void on_asked(uv_poll_t *p, int status, int events)
{
    const struct meet_host *h = p->data;
    (void)events;
    if (status == 0)
        meet_port_answer(h->tell_fd, h->port);
}

static void on_stop(uv_async_t *a)
{
    struct meet_host *h = a->data;
    server_close(h->server, NULL, NULL);
    if (h->tell_fd >= 0)
        uv_close((uv_handle_t *)&h->asked, NULL);
    uv_close((uv_handle_t *)a, NULL);
}

static void run_loop(void *arg)
{
    struct meet_host *h = arg;
    uv_run(&h->loop, UV_RUN_DEFAULT);
}

/* Signals are the training thread's. */
static int start_thread(struct meet_host *h)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = uv_thread_create(&h->thread, run_loop, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static int listen_everywhere(struct meet_host *h, const struct meet_host_options *o, struct err *e)
{
    if (o->loopback)
        return server_listen(h->server, "127.0.0.1", o->port, &h->port, e);
    if (server_listen(h->server, "::", o->port, &h->port, NULL) == 0) /* both families */
        return 0;
    return server_listen(h->server, "0.0.0.0", o->port, &h->port, e);
}

static int open_server(struct meet_host *h, const struct meet_host_options *o, struct err *e)
{
    const struct server_options so = {.same_uid_only = true, .binary = &front_tcpstore};
    TRY(server_create(&h->server, &h->loop, &so, e));
    TRY(listen_everywhere(h, o, e));
    if (o->tell) {
        TRY(meet_port_listen(&h->tell_fd, e));
        uv_poll_init(&h->loop, &h->asked, h->tell_fd);
        h->asked.data = h;
        uv_poll_start(&h->asked, UV_READABLE, on_asked);
    }
    return 0;
}

static void free_host(struct meet_host *h)
{
    uv_loop_close(&h->loop);
    if (h->tell_fd >= 0)
        close(h->tell_fd);
    free(h);
}

int meet_host_open(struct meet_host **ret, const struct meet_host_options *o, int *ret_port, struct err *e)
{
    struct meet_host *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "out of memory");
    h->tell_fd = -1;
    uv_loop_init(&h->loop);
    uv_async_init(&h->loop, &h->stop, on_stop);
    h->stop.data = h;
    int rc = open_server(h, o, e);
    if (rc == 0 && (rc = start_thread(h)) < 0)
        err_errno(e, -rc, "a thread");
    if (rc < 0) {
        on_stop(&h->stop);
        uv_run(&h->loop, UV_RUN_DEFAULT);
        free_host(h);
        return e ? err_wrap(e, "rank 0 cannot host the store of the job") : rc;
    }
    *ret_port = h->port;
    *ret = h;
    return 0;
}

void meet_host_close(struct meet_host *h)
{
    if (!h)
        return;
    uv_async_send(&h->stop);
    uv_thread_join(&h->thread);
    free_host(h);
}
