/* What the RDZV.* verbs need to treat a connection as a party of a job (command_rdzv_party.c). */
#ifndef CRUN_RENDEZVOUSD_COMMAND_RDZV_H
#define CRUN_RENDEZVOUSD_COMMAND_RDZV_H

#include "rendezvousd/net/server_impl.h"

struct buf;
struct err;
struct jobs_ask;
struct jobs_party;

/* opened if the connection has none yet; NULL: no memory */
struct jobs_party *rdzv_party_of_(struct conn *c, struct err *e);

/* Reply with a record, and free the buffer. */
void rdzv_say_record_(struct conn *c, int rc, struct buf *b);

void rdzv_say_error_(struct conn *c, int rc, const struct err *e);

/* Ask a job's nodes, and block the client until the answers are there, or q->ms are over. Fill in q except
 * `answered` and `arg`. */
void rdzv_ask_(struct conn *c, const char *run, struct jobs_ask *q);

extern const struct blocked_ops rdzv_next_ops_; /* a NEXT that waits */

#endif
