/* Listeners: sockets on which clients connect.
 *
 * A client stays in the kernel's queue while a turn is over (turn.h), while too many clients have yet to
 * authenticate (gate.h), and while the process has no free descriptor. In the last case the listener rests, because
 * accepting would only fail again and again: its socket stays open through a second descriptor, and is used again
 * after REST_MS. */
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/net/addr.h"
#include "rendezvousd/net/server_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#define MODULE "server"
#define KEEPALIVE_SECONDS 60
#define REST_MS 100

struct listener {
    struct server *s;
    uv_tcp_t tcp;
    int fd;       /* the socket; stays open even while tcp does not have it */
    bool waiting; /* a client is there, but may not be accepted yet */
    bool open;    /* tcp is a handle of the loop */
    bool resting, dropped;
    struct listener *prev, *next;
};

static void end_listener(struct listener *l)
{
    if (l->fd >= 0)
        close(l->fd);
    free(l);
}

static void on_listener_closed(uv_handle_t *h)
{
    struct listener *l = h->data;
    struct server *s = l->s;
    l->open = false;
    if (l->dropped)
        end_listener(l);
    server_handle_closed(s);
}

static void drop_listener(struct listener *l)
{
    DL_DELETE(l->s->listeners, l);
    l->dropped = true;
    if (!l->open)
        end_listener(l);
    else if (!uv_is_closing((uv_handle_t *)&l->tcp))
        uv_close((uv_handle_t *)&l->tcp, on_listener_closed);
}

void listeners_close(struct server *s)
{
    struct listener *l, *next;
    DL_FOREACH_SAFE(s->listeners, l, next)
    drop_listener(l);
}

/* --- clients */

static void rest(struct listener *l, int why);

static void on_turned_away(uv_handle_t *h)
{
    struct server *s = h->data;
    s->turns_away = false;
    server_accept_waiting(s);
    server_handle_closed(s);
}

/* Accept one client. If there is no memory for it, a spare handle accepts and closes it; the next client waits until
 * that is done, one turn of the loop. */
static void accept_one(struct listener *l)
{
    struct server *s = l->s;
    if (conn_accept(s, (uv_stream_t *)&l->tcp) == 0)
        return;
    l->waiting = s->turns_away;
    if (l->waiting)
        return;
    log_warn(MODULE, "a client was closed: no memory for it (%zu are here)", s->clients);
    uv_tcp_init(s->loop, &s->away);
    s->away.data = s;
    s->turns_away = true;
    s->open_handles++;
    uv_accept((uv_stream_t *)&l->tcp, (uv_stream_t *)&s->away);
    uv_close((uv_handle_t *)&s->away, on_turned_away);
}

static void on_connection(uv_stream_t *stream, int status)
{
    struct listener *l = stream->data;
    struct server *s = l->s;
    if (s->closing)
        return;
    if (status < 0) {
        rest(l, status);
        return;
    }
    s->turns.accept |= ++s->turns.accepted > TURN_ACCEPTS || turn_read_over(s);
    /* libuv takes no further client from the kernel's queue until this one is accepted */
    l->waiting = s->turns.accept || !gate_make_room(s);
    if (!l->waiting)
        accept_one(l);
}

void server_accept_waiting(struct server *s)
{
    struct listener *l;
    if (s->closing || s->turns.accept) /* it is called again in the next turn */
        return;
    DL_FOREACH (s->listeners, l) {
        if (!l->waiting || !gate_make_room(s) || !l->waiting) /* making room may call this function */
            continue;
        l->waiting = false;
        accept_one(l);
    }
}

/* --- listening */

/* Set options that connections inherit from their listener, which saves five system calls for each. */
static int listen_now(struct listener *l)
{
    uv_tcp_nodelay(&l->tcp, 1);
    uv_tcp_keepalive(&l->tcp, 1, KEEPALIVE_SECONDS);
    return uv_listen((uv_stream_t *)&l->tcp, SERVER_BACKLOG, on_connection);
}

static int open_handle(struct listener *l)
{
    int rc = uv_tcp_init(l->s->loop, &l->tcp);
    if (rc < 0)
        return rc;
    l->tcp.data = l;
    l->open = true;
    l->s->open_handles++;
    return 0;
}

/* Make a handle for l's socket from its second descriptor. */
static int take_up(struct listener *l)
{
    int fd = fcntl(l->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int rc = open_handle(l);
    if (rc == 0)
        rc = uv_tcp_open(&l->tcp, fd);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    return listen_now(l);
}

static void on_accept_timer(uv_timer_t *t)
{
    struct server *s = t->data;
    struct listener *l;
    bool all = true;
    DL_FOREACH (s->listeners, l) {
        if (!l->resting)
            continue;
        l->resting = l->open || take_up(l) < 0;
        if (l->resting && l->open && !uv_is_closing((uv_handle_t *)&l->tcp))
            uv_close((uv_handle_t *)&l->tcp, on_listener_closed);
        all &= !l->resting;
    }
    if (all)
        uv_timer_stop(t);
}

static void rest(struct listener *l, int why)
{
    struct server *s = l->s;
    log_warn(MODULE, "no client can be accepted: %s; the next ones wait (%zu are here)", uv_strerror(why), s->clients);
    l->resting = true;
    l->waiting = false;
    uv_close((uv_handle_t *)&l->tcp, on_listener_closed);
    uv_timer_start(&s->accept_timer, on_accept_timer, REST_MS, REST_MS);
}

static int add_listener(struct server *s, struct listener **ret, struct err *e)
{
    struct listener *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, -ENOMEM, "no memory for a listener");
    l->s = s;
    l->fd = -1;
    int rc = open_handle(l);
    if (rc < 0) {
        free(l);
        return err_errno(e, -rc, "a listener");
    }
    DL_APPEND(s->listeners, l);
    *ret = l;
    return 0;
}

/* Begin to listen, and keep a second descriptor of the socket. */
static int begin(struct listener *l)
{
    int fd, rc = listen_now(l);
    if (rc == 0)
        rc = uv_fileno((uv_handle_t *)&l->tcp, &fd);
    if (rc < 0)
        return rc;
    l->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return l->fd < 0 ? -errno : 0;
}

int server_listen_fd(struct server *s, int fd, struct err *e)
{
    struct listener *l;
    int rc = s->closing ? err_set(e, -ESHUTDOWN, "the server is closing") : add_listener(s, &l, e);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    rc = uv_tcp_open(&l->tcp, fd);
    if (rc < 0)
        close(fd);
    else
        rc = begin(l);
    if (rc < 0) {
        drop_listener(l);
        return err_errno(e, -rc, "cannot accept connections");
    }
    return 0;
}

static int parse_address(const char *host, int port, struct sockaddr_storage *ret, struct err *e)
{
    if (port < 0 || port > 65535)
        return err_set(e, -EINVAL, "port %d: expected 0 to 65535", port);
    memset(ret, 0, sizeof *ret);
    if (uv_ip4_addr(host, port, (struct sockaddr_in *)ret) == 0 ||
        uv_ip6_addr(host, port, (struct sockaddr_in6 *)ret) == 0)
        return 0;
    return err_set(e, -EINVAL, "address '%s': expected an IPv4 or IPv6 address such as 127.0.0.1", host);
}

static int bound_port(const uv_tcp_t *tcp)
{
    struct sockaddr_storage sa;
    int n = sizeof sa;
    return uv_tcp_getsockname(tcp, (struct sockaddr *)&sa, &n) < 0 ? 0 : addr_port_of((struct sockaddr *)&sa);
}

int server_listen(struct server *s, const char *host, int port, int *ret_port, struct err *e)
{
    struct sockaddr_storage sa;
    if (s->closing)
        return err_set(e, -ESHUTDOWN, "the server is closing");
    TRY(parse_address(host, port, &sa, e));
    struct listener *l;
    TRY(add_listener(s, &l, e));
    int rc = uv_tcp_bind(&l->tcp, (const struct sockaddr *)&sa, 0);
    if (rc == 0)
        rc = begin(l);
    if (rc < 0) {
        drop_listener(l);
        return err_errno(e, -rc, "cannot listen on %s port %d", host, port);
    }
    if (ret_port)
        *ret_port = bound_port(&l->tcp);
    return 0;
}
