#include "common/rdzv/homes/rdzv_home.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/rdzv/homes/rdzv_log_home.h"

int rdzv_home_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e)
{
    int rc = strncmp(url, "file://", 7) == 0 ? rdzv_log_file_open(ret, url, o, e) : rdzv_log_redis_open(ret, url, o, e);
    if (rc < 0 && e)
        err_wrap(e, "rendezvous '%.*s...'", (int)(strstr(url, "://") ? strstr(url, "://") - url : 0), url);
    return rc;
}

void rdzv_home_mark(const char *identity, char ret[RDZV_MARK_LEN + 1])
{
    snprintf(ret, RDZV_MARK_LEN + 1, "%08" PRIx32, crc32c(0, identity, strcspn(identity, "-")));
}
