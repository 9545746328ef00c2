/* Opens the port of each round's bootstrap store and lets only the round's members in. See bootstrap.h. */
#include "launcher/rendezvous/bootstrap.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/seeded_hash.h"
#include "common/net/addr.h"
#include "rendezvousd/net/front.h"
#include "rendezvousd/net/server.h"

enum { BACKLOG = 4096 /* the kernel cuts it to somaxconn */, MAX_NODE_ID = 256 };

void bootstrap_init(struct bootstrap *b, uv_loop_t *loop, const struct bootstrap_options *o)
{
    *b = (struct bootstrap){.loop = loop, .o = *o, .prepared_fd = -1};
}

/* --- the listener */

static socklen_t any_address(int family, bool loopback, int port, struct sockaddr_storage *sa)
{
    *sa = (struct sockaddr_storage){.ss_family = (sa_family_t)family};
    if (family == AF_INET6) {
        ((struct sockaddr_in6 *)sa)->sin6_addr = loopback ? in6addr_loopback : in6addr_any;
        ((struct sockaddr_in6 *)sa)->sin6_port = htons((uint16_t)port);
        return sizeof(struct sockaddr_in6);
    }
    ((struct sockaddr_in *)sa)->sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    ((struct sockaddr_in *)sa)->sin_port = htons((uint16_t)port);
    return sizeof(struct sockaddr_in);
}

/* IPv6 stands for both families, where the system has it. */
static int listening_socket(int family, bool loopback, int port, int *ret_fd)
{
    struct sockaddr_storage sa;
    const socklen_t n = any_address(family, loopback, port, &sa);
    const int off = 0, on = 1;
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if ((family == AF_INET6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) < 0) ||
        (port > 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0) ||
        bind(fd, (struct sockaddr *)&sa, n) < 0 || listen(fd, BACKLOG) < 0) {
        const int rc = -errno;
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

static int port_of(int fd)
{
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    return getsockname(fd, (struct sockaddr *)&sa, &n) < 0 ? -1 : addr_port_of((struct sockaddr *)&sa);
}

void bootstrap_share(struct bootstrap *b, struct server *server)
{
    b->o.shared = server;
}

static int listen_at(struct bootstrap *b, int port)
{
    const bool loopback = b->o.loopback_only;
    const int rc = loopback ? -EAFNOSUPPORT : listening_socket(AF_INET6, false, port, &b->prepared_fd);
    return rc == 0 || rc == -EADDRINUSE ? rc : listening_socket(AF_INET, loopback, port, &b->prepared_fd);
}

/* The server of the round before has the fixed port, and stays. */
static bool stays(const struct bootstrap *b)
{
    return b->server && b->o.fixed_port > 0 && b->port == b->o.fixed_port;
}

int bootstrap_prepare(struct bootstrap *b, int *ret_port, struct err *e)
{
    if (b->o.shared || stays(b)) {
        *ret_port = b->o.shared ? b->o.shared_port : b->port;
        return 0;
    }
    if (b->prepared_fd < 0) {
        int rc = listen_at(b, b->o.fixed_port);
        if (rc < 0 && b->o.fixed_port > 0)
            rc = listen_at(b, 0);
        if (rc < 0)
            return err_errno(e, -rc, "cannot listen for the workers");
        b->prepared_port = port_of(b->prepared_fd);
    }
    *ret_port = b->prepared_port;
    return 0;
}

static void drop_listener(struct bootstrap *b)
{
    if (b->prepared_fd >= 0)
        close(b->prepared_fd);
    b->prepared_fd = -1;
}

/* --- who is alive */

struct bootstrap_member {
    UT_hash_handle hh;
    int64_t seen_ms;
    char node[];
};

static void forget_members(struct bootstrap *b)
{
    struct bootstrap_member *m, *next;
    HASH_ITER (hh, b->alive, m, next) {
        HASH_DEL(b->alive, m);
        free(m);
    }
}

static int count_alive(const struct bootstrap *b)
{
    const int64_t now = clock_ms();
    int n = 0;
    for (const struct bootstrap_member *m = b->alive; m; m = m->hh.next)
        n += now - m->seen_ms <= b->silence_ms;
    return n;
}

int bootstrap_alive(struct bootstrap *b)
{
    b->alone_ms = clock_ms();
    return count_alive(b);
}

static int note_alive(struct bootstrap *b, const char *node)
{
    struct bootstrap_member *m;
    HASH_FIND_STR(b->alive, node, m);
    if (!m) {
        const size_t n = strlen(node);
        if (n > MAX_NODE_ID || (int)HASH_COUNT(b->alive) >= b->members || !(m = calloc(1, sizeof *m + n + 1)))
            return ERR_REFUSED;
        memcpy(m->node, node, n);
        HASH_ADD_KEYPTR(hh, b->alive, m->node, n, m);
        if (!m->hh.tbl) {
            free(m);
            return ERR_REFUSED;
        }
    }
    m->seen_ms = clock_ms();
    return 0;
}

/* RDZV.ALIVE: 1 if a majority of the members, we among them, reaches us, and we are without the rendezvous as well:
 * where we hear it, the one who asks may be given up by it, and another round begin. */
static int on_alive(void *arg, const char *run, const char *node, uint64_t round)
{
    struct bootstrap *b = arg;
    if (round != b->round || strcmp(run, b->o.run_id) != 0)
        return ERR_FENCED;
    TRY(note_alive(b, node));
    return clock_ms() - b->alone_ms <= b->silence_ms / 2 && 2 * (count_alive(b) + 1) > b->members;
}

static int on_tell(void *arg, const struct server_tell *t, char answer[SERVER_ANSWER_MAX])
{
    struct bootstrap *b = arg;
    if (t->round != b->round || strcmp(t->run, b->o.run_id) != 0)
        return ERR_FENCED;
    if (t->what == SERVER_TELL_QUIET)
        return b->o.quiet ? b->o.quiet(b->o.arg, t->text, t->n, answer, SERVER_ANSWER_MAX) : ERR_REFUSED;
    if (t->what == SERVER_TELL_STEPS)
        return b->o.steps ? b->o.steps(b->o.arg, t->text, t->n, answer, SERVER_ANSWER_MAX) : ERR_REFUSED;
    return b->o.failure ? b->o.failure(b->o.arg, t->node, t->text, t->n) : ERR_REFUSED;
}

static void on_met(void *arg, size_t readers)
{
    struct bootstrap *b = arg;
    if (b->round && b->o.met)
        b->o.met(b->o.arg, readers);
}

/* --- a round */

static int admit(struct server *s, const char *addrs, struct err *e)
{
    int rc = server_set_members(s, addrs);
    return rc < 0 ? err_set(e, rc, "no memory for the addresses of the members") : 0;
}

static int serve_own(struct bootstrap *b, const char *addrs, struct server **ret, struct err *e)
{
    const struct server_options o = {
        .same_uid_only = true,
        .binary = &front_tcpstore,
        .alive = on_alive,
        .alive_arg = b,
        .tell = on_tell,
        .tell_arg = b,
        .met = on_met,
        .met_arg = b,
    };
    TRY(server_create(ret, b->loop, &o, e));
    int rc = admit(*ret, b->o.loopback_only ? "" : addrs, e);
    if (rc == 0) {
        rc = server_listen_fd(*ret, b->prepared_fd, e);
        b->prepared_fd = -1; /* the server's now */
    }
    if (rc < 0)
        server_close(*ret, NULL, NULL);
    return rc;
}

/* The next round of a server that stays. */
static int serve_on(struct bootstrap *b, const char *addrs, struct err *e)
{
    forget_members(b);
    TRY(admit(b->server, addrs, e));
    return server_renew_space(b->server, e);
}

static int serve_shared(struct bootstrap *b, const char *addrs, struct err *e)
{
    server_set_alive(b->o.shared, on_alive, b);
    server_set_tell(b->o.shared, on_tell, b);
    server_set_met(b->o.shared, on_met, b);
    TRY(admit(b->o.shared, addrs, e));
    return server_renew_space(b->o.shared, e);
}

static void stop_serving(struct bootstrap *b)
{
    if (b->server)
        server_close(b->server, NULL, NULL);
    b->server = NULL;
    forget_members(b);
}

int bootstrap_use(struct bootstrap *b, uint64_t round, int members, const char *addrs, int64_t silence_ms,
                  struct err *e)
{
    struct server *fresh = NULL;
    int port = 0;
    TRY(bootstrap_prepare(b, &port, e));
    if (stays(b)) {
        TRY(serve_on(b, addrs, e));
    } else {
        TRY(b->o.shared ? serve_shared(b, addrs, e) : serve_own(b, addrs, &fresh, e));
        stop_serving(b);
        b->server = fresh;
        b->port = port;
    }
    b->round = round;
    b->members = members;
    b->silence_ms = silence_ms;
    return 0;
}

/* The server stays, without a round: its old workers have nothing to look for there. */
static void stop_sharing(struct bootstrap *b)
{
    struct err e;
    if (b->round && (admit(b->o.shared, "", &e) < 0 || server_renew_space(b->o.shared, &e) < 0))
        log_error("bootstrap", "%s", e.text);
}

void bootstrap_drop(struct bootstrap *b)
{
    drop_listener(b);
    stop_serving(b);
    if (b->o.shared)
        stop_sharing(b);
    b->round = 0;
}

uint64_t bootstrap_changes(const struct bootstrap *b)
{
    const struct server *s = b->round ? b->server ? b->server : b->o.shared : NULL;
    return s ? server_changes(s) : 0;
}

void bootstrap_close(struct bootstrap *b)
{
    if (!b->loop)
        return;
    bootstrap_drop(b);
    if (b->o.shared) {
        server_set_alive(b->o.shared, NULL, NULL);
        server_set_tell(b->o.shared, NULL, NULL);
        server_set_met(b->o.shared, NULL, NULL);
    }
}
