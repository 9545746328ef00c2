/* The bootstrap store: where the workers of one round meet. A fresh server each round, so that no key of a dead round can be read by
 * a live one, and the new one listens before the old one closes, so that no port is used twice in a row. */
#ifndef CRUN_LAUNCHER_BOOTSTRAP_H
#define CRUN_LAUNCHER_BOOTSTRAP_H

#include <uv.h>

struct err;
struct server;

struct bootstrap {
    struct server *server;
    int port;
    char url[64]; /* resp://127.0.0.1:PORT */
};

int bootstrap_renew(struct bootstrap *b, uv_loop_t *loop, struct err *e);
void bootstrap_close(struct bootstrap *b);

#endif
