/* Sends and receives messages between agent and output process (output_wire.h). */
#include "launcher/output/output_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/net/fds.h"
#include "launcher/base/watch.h"

bool output_claim(struct output_page *page, uint64_t number)
{
    uint64_t before = number - 1;
    return atomic_compare_exchange_strong(&page->claimed, &before, number);
}

/* --- sending */

struct output_waiting {
    struct output_waiting *next;
    struct output_head head;
    size_t n;
    int n_fds, fds[OUTPUT_FDS_MAX];
    char body[];
};

/* Send a message now: 0; -EAGAIN. Other errors mean that the other end is dead, which is detected elsewhere. */
static int send_now(int fd, const struct output_head *head, const void *body, size_t n, const int *fds, int n_fds)
{
    const struct iovec parts[2] = {{(void *)head, sizeof *head}, {(void *)body, n}};
    const ssize_t sent = fds_send(fd, parts, n > 0 ? 2 : 1, fds, n_fds);
    return sent == -EAGAIN || sent == -ENOBUFS || sent == -ETOOMANYREFS ? -EAGAIN : 0;
}

static int keep(struct output_out *o, const struct output_head *head, const void *body, size_t n, const int *fds,
                int n_fds)
{
    struct output_waiting *w = malloc(sizeof *w + n);
    if (!w)
        return -ENOMEM;
    *w = (struct output_waiting){.head = *head, .n = n, .n_fds = n_fds};
    if (n > 0)
        memcpy(w->body, body, n);
    if (n_fds > 0)
        memcpy(w->fds, fds, (size_t)n_fds * sizeof *fds);
    if (o->last)
        o->last->next = w;
    else
        o->first = w;
    o->last = w;
    watch_set(o->watch, true);
    return 0;
}

int output_send(struct output_out *o, const struct output_head *head, const void *body, size_t n, const int *fds,
                int n_fds)
{
    if (!o->first && send_now(o->fd, head, body, n, fds, n_fds) == 0)
        return 0;
    return keep(o, head, body, n, fds, n_fds);
}

static void drop_first(struct output_out *o)
{
    struct output_waiting *w = o->first;
    o->first = w->next;
    if (!o->first)
        o->last = NULL;
    free(w);
}

void output_out_pump(struct output_out *o)
{
    for (struct output_waiting *w; (w = o->first); drop_first(o))
        if (send_now(o->fd, &w->head, w->body, w->n, w->fds, w->n_fds) == -EAGAIN)
            return;
    watch_set(o->watch, false);
}

static void on_writable(void *arg)
{
    output_out_pump(arg);
}

int output_out_open(struct output_out *o, uv_loop_t *loop, int fd, struct err *e)
{
    *o = (struct output_out){.fd = fd, .again_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)};
    if (o->again_fd < 0)
        return err_errno(e, errno, "the output process");
    const int rc = watch_open(&o->watch, loop, o->again_fd, UV_WRITABLE, on_writable, o, e);
    if (rc < 0) {
        close(o->again_fd);
        o->again_fd = -1;
    }
    return rc;
}

void output_out_forget(struct output_out *o)
{
    while (o->first)
        drop_first(o);
}

void output_out_close(struct output_out *o)
{
    output_out_forget(o);
    watch_close(o->watch);
    o->watch = NULL;
    if (o->again_fd > 0)
        close(o->again_fd);
    o->again_fd = -1;
}

/* --- receiving */

int output_receive(int fd, struct output_message *m)
{
    const struct iovec parts[2] = {{&m->head, sizeof m->head}, {m->body, OUTPUT_BODY_MAX}};
    const ssize_t n = fds_receive(fd, parts, 2, 0, m->fds, OUTPUT_FDS_MAX, &m->n_fds);
    if (n == -EAGAIN)
        return 0;
    if (n < (ssize_t)sizeof m->head)
        return -EPIPE;
    m->n = (size_t)n - sizeof m->head;
    m->body[m->n] = '\0';
    return 1;
}

void output_drop_fds(struct output_message *m)
{
    for (int i = 0; i < m->n_fds; i++)
        close(m->fds[i]);
    m->n_fds = 0;
}

/* --- the setup */

#define STRINGS 10

static void setup_strings(struct output_setup *s, const char **ret[STRINGS])
{
    const char **const strings[STRINGS] = {&s->conf.dir,  &s->conf.template, &s->conf.out_filters, &s->conf.err_filters,
                                           &s->role,      &s->host,          &s->run_id,           &s->scratch,
                                           &s->event_log, &s->notice_file};
    memcpy(ret, strings, sizeof strings);
}

/* Pack the strings: for each a byte that tells whether it exists, its bytes, and a NUL. */
int output_setup_pack(const struct output_setup *s, struct buf *out)
{
    struct output_setup copy = *s;
    const char **strings[STRINGS];
    setup_strings(&copy, strings);
    TRY(buf_add(out, s, sizeof *s));
    for (int i = 0; i < STRINGS; i++) {
        TRY(buf_add(out, *strings[i] ? "1" : "0", 1));
        if (*strings[i])
            TRY(buf_add(out, *strings[i], strlen(*strings[i]) + 1));
    }
    return 0;
}

bool output_setup_unpack(struct output_message *m, struct output_setup *ret)
{
    const char **strings[STRINGS], *at = m->body + sizeof *ret, *end = m->body + m->n;
    if (m->n < sizeof *ret)
        return false;
    memcpy(ret, m->body, sizeof *ret);
    setup_strings(ret, strings);
    for (int i = 0; i < STRINGS; i++) {
        if (at >= end)
            return false;
        const bool is_there = *at++ == '1';
        *strings[i] = is_there ? at : NULL;
        at += is_there ? strlen(at) + 1 : 0;
    }
    return true;
}
