#include "common/rdzv/homes/rdzv_home.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/rdzv/homes/rdzv_log_home.h"

int rdzv_home_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e)
{
    const bool folder = strncmp(url, "file://", 7) == 0;
    int rc = folder && url[7] != '/'
                 ? err_set(e, -EINVAL, "'%.200s': expected file:///FOLDER with an absolute path", url)
             : folder && o->process_fd ? rdzv_home_far_open(ret, url, o, e)
             : folder                  ? rdzv_log_file_open(ret, url, o, e)
                                       : rdzv_log_redis_open(ret, url, o, e);
    if (rc < 0 && e)
        err_wrap(e, "rendezvous '%.*s...'", (int)(strstr(url, "://") ? strstr(url, "://") - url : 0), url);
    return rc;
}

void rdzv_home_mark(const char *identity, char ret[RDZV_MARK_LEN + 1])
{
    snprintf(ret, RDZV_MARK_LEN + 1, "%08" PRIx32, crc32c(0, identity, strcspn(identity, "-")));
}

int rdzv_home_append(struct rdzv_home *h, const struct rdzv_write *w, struct err *e)
{
    const uint64_t number = ++h->asked;
    const int rc = h->ops->append(h, w, e);
    if (rc == 1 && h->stands < number)
        h->stands = number;
    return rc;
}

/* --- what all homes share */

int rdzv_home_init_(struct rdzv_home *h, const struct rdzv_home_ops *ops, int wake_fd, struct err *e)
{
    h->ops = ops;
    h->wake_fd = wake_fd ? wake_fd : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return h->wake_fd < 0 || h->cancel_fd < 0 ? err_errno(e, errno, "a descriptor for a rendezvous") : 0;
}

void rdzv_home_finish_(struct rdzv_home *h)
{
    if (h->wake_fd > 0)
        close(h->wake_fd);
    if (h->cancel_fd > 0)
        close(h->cancel_fd);
}

int rdzv_home_wait_(struct rdzv_home *h, int fd, int lost_fd, int64_t deadline)
{
    eventfd_t n;
    struct pollfd p[4] = {{.fd = fd, .events = POLLIN},
                          {.fd = h->wake_fd, .events = POLLIN},
                          {.fd = h->cancel_fd, .events = POLLIN},
                          {.fd = lost_fd, .events = POLLRDHUP}}; /* -1 is ignored */
    const int ready = poll(p, 4, clock_left(deadline));
    if (ready > 0 && p[2].revents)
        return -ECANCELED;
    if (ready > 0 && p[1].revents)
        eventfd_read(h->wake_fd, &n);
    return ready <= 0 ? 0 : p[0].revents ? 1 : -EINTR;
}

void rdzv_home_interrupt(struct rdzv_home *h)
{
    eventfd_write(h->wake_fd, 1);
}

void rdzv_home_cancel(struct rdzv_home *h)
{
    eventfd_write(h->cancel_fd, 1); /* nobody reads it: it stays readable */
}
