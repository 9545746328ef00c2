/* Shares what one rank has read, or why it could not, with all ranks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"

#define SHARE_MAX (64 << 20) /* bytes that another rank may announce */

int comm_share(struct comm *c, int root, int rc, const char *what, char **text, struct err *e)
{
    const bool mine = c->rank == root;
    int64_t head[2] = {rc, mine && rc >= 0 && text ? (int64_t)strlen(*text) : 0};
    TRY(c->ops->broadcast(c, COMM_CONTROL, head, sizeof head, root, NULL, e));
    if (head[0] < 0)
        return mine ? rc : err_set(e, -ECANCELED, "rank %d could not load %s", root, what);
    if (head[1] < 0 || head[1] > SHARE_MAX)
        return err_set(e, -EPROTO, "rank %d announces %lld bytes of %s", root, (long long)head[1], what);
    if (!text)
        return 0;
    if (!mine && !(*text = calloc(1, (size_t)head[1] + 1)))
        return err_errno(e, ENOMEM, "%s", what);
    return head[1] > 0 ? c->ops->broadcast(c, COMM_CONTROL, *text, (size_t)head[1], root, NULL, e) : 0;
}
