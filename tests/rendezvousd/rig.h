/* A server and its clients on one thread: after each thing a client does the loop turns until nothing is left to do, so
 * that what a client has received by then is all there is, and a test that draws at random repeats by its seed. */
#ifndef CRUN_TESTS_RENDEZVOUSD_RIG_H
#define CRUN_TESTS_RENDEZVOUSD_RIG_H

#include "common/base/buf.h"
#include "rendezvousd/net/server.h"
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

struct rig {
    uv_loop_t loop;
    struct server *server;
    int port;
};

void rig_start(struct rig *r, const struct server_options *o); /* on 127.0.0.1 */
void rig_stop(struct rig *r);                                  /* fails the test if a handle stays open */
void rig_turn(struct rig *r);                                  /* until nothing is left to do */

int rig_open(struct rig *r); /* a client's socket */
void rig_close(struct rig *r, int fd);
void rig_send(struct rig *r, int fd, const void *p, size_t n); /* and let the server read it */
bool rig_receive(struct rig *r, int fd, struct buf *in);       /* append what has come; false: the server has closed */

/* Append one request: the command, then the names k0000000 + first and so on, each followed by a value unless NULL,
 * then last, unless NULL. */
void rig_names(struct buf *b, const char *command, int first, int n, const char *value, const char *last);

/* All replies to the bytes, sent in pieces that end at cuts[0] < cuts[1] < ..., over a connection of their own to a
 * server of their own; then "closed" if the server closed it by itself. */
void rig_dialogue(const struct server_options *o, const void *p, size_t n, const size_t *cuts, size_t ncuts,
                  struct buf *replies);

#endif
