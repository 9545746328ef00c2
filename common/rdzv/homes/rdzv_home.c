/* Opens the home that a URL names; what all homes share. See rdzv_home.h. */
#include "common/rdzv/homes/rdzv_home.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/rdzv/homes/rdzv_log_home.h"

int rdzv_home_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e)
{
    const bool folder = strncmp(url, "file://", 7) == 0,
               etcd = strncmp(url, "etcd://", 7) == 0 || strncmp(url, "etcds://", 8) == 0,
               kube = strncmp(url, "k8s://", 6) == 0;
    int rc = folder && url[7] != '/'
                 ? err_set(e, -EINVAL, "'%.200s': expected file:///FOLDER with an absolute path", url)
             : folder && o->process_fd ? rdzv_home_far_open(ret, url, o, e)
             : folder                  ? rdzv_log_file_open(ret, url, o, e)
             : etcd                    ? rdzv_log_etcd_open(ret, url, o, e)
             : kube                    ? rdzv_log_kube_open(ret, url, o, e)
                                       : rdzv_log_redis_open(ret, url, o, e);
    if (rc < 0 && e)
        err_wrap(e, "rendezvous '%.*s...'", (int)(strstr(url, "://") ? strstr(url, "://") - url : 0), url);
    return rc;
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

int rdzv_home_init_(struct rdzv_home *h, const struct rdzv_home_ops *ops, struct err *e)
{
    h->ops = ops;
    h->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return h->cancel_fd < 0 ? err_errno(e, errno, "a descriptor for a rendezvous") : 0;
}

void rdzv_home_finish_(struct rdzv_home *h)
{
    if (h->cancel_fd > 0)
        close(h->cancel_fd);
}

void rdzv_home_cancel(struct rdzv_home *h)
{
    eventfd_write(h->cancel_fd, 1); /* nobody reads it: it stays readable */
}
