#include "launcher/bootstrap.h"

#include <stdio.h>

#include "common/err.h"
#include "rendezvousd/server.h"

static void on_closed(void *arg)
{
}

int bootstrap_renew(struct bootstrap *b, uv_loop_t *loop, struct err *e)
{
    struct server *fresh;
    const struct server_options o = {.same_uid_only = true};
    int port;

    TRY(server_create(&fresh, loop, &o, e));
    int rc = server_listen(fresh, "127.0.0.1", 0, &port, e);
    if (rc < 0) {
        server_close(fresh, on_closed, NULL);
        return rc;
    }
    bootstrap_close(b);
    b->server = fresh;
    b->port = port;
    snprintf(b->url, sizeof b->url, "resp://127.0.0.1:%d", port);
    return 0;
}

void bootstrap_close(struct bootstrap *b)
{
    if (b->server)
        server_close(b->server, on_closed, NULL);
    b->server = NULL;
}
