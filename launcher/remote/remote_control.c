/* What this crun sends to the agent of one host through the standard input of its ssh: the order, then signals and
 * questions whether it is alive. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "launcher/config/config.h"
#include "launcher/remote/remote_internal.h"
#include "launcher/remote/remote_wire.h"

static void forget_unsent(struct far *f)
{
    if (f->unsent.data)
        explicit_bzero(f->unsent.data, f->unsent.cap); /* the job's secret is in the order */
    buf_free(&f->unsent);
    f->unsent_at = 0;
}

void remote_control_close(struct far *f)
{
    forget_unsent(f);
    watch_close(f->writable);
    f->writable = NULL;
    if (f->control >= 0)
        close(f->control);
    f->control = -1;
}

static void push(void *arg)
{
    struct far *f = arg;
    while (f->unsent_at < f->unsent.len) {
        const ssize_t n = write(f->control, f->unsent.data + f->unsent_at, f->unsent.len - f->unsent_at);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0 && errno != EINTR) {
            remote_control_close(f);
            return;
        }
        f->unsent_at += n > 0 ? (size_t)n : 0;
    }
    if (f->unsent_at == f->unsent.len)
        forget_unsent(f);
    watch_set(f->writable, f->unsent.len > 0);
}

void remote_control_send(struct far *f, unsigned char byte)
{
    const char text = (char)byte;
    if (f->control < 0 || (byte == REMOTE_ASK && f->unsent.len > 0)) /* what waits there is question enough */
        return;
    if (buf_add(&f->unsent, &text, 1) == 0)
        push(f);
}

/* Open the pipe and write as much of the order as fits, before anybody reads it. */
int remote_control_open(struct far *f, int i, int *ret_fd, struct err *e)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_errno(e, errno, "cannot make a pipe for host %s", f->host->name);
    *ret_fd = ends[0];
    f->control = ends[1];
    TRY(watch_open(&f->writable, &f->m->loop, f->control, UV_WRITABLE, push, f, e));
    buf_init(&f->unsent, 0);
    TRY(remote_plan_order(&f->m->plan, i, &f->unsent, e));
    push(f);
    return f->control >= 0 ? 0 : err_set(e, ERR_CORRUPT, "the order for host %s cannot be written", f->host->name);
}

void remote_on_alive(uv_timer_t *t)
{
    struct remote *m = t->data;
    const double patience = REMOTE_PATIENCE * (double)uv_timer_get_repeat(t) / 1000;
    for (int i = 0; i < m->n && !m->paused; i++) { /* a paused reader would make every host look lost */
        struct far *f = &m->far[i];
        if (!f->ready || f->ended || f->lost)
            continue;
        if (f->unanswered++ < REMOTE_PATIENCE) {
            remote_control_send(f, REMOTE_ASK);
            continue;
        }
        f->lost = true;
        remote_print_line(m,
                          "host %s is lost: nothing was heard of it for %g s (--rdzv-conf keep_alive_interval, "
                          "keep_alive_max_attempt)",
                          f->host->name, patience);
        remote_end_far(f);
    }
}
