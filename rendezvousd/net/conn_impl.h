/* The inside of a connection, shared by conn.c (life, reading, blocking) and conn_write.c. */
#ifndef CRUN_RENDEZVOUSD_CONN_IMPL_H
#define CRUN_RENDEZVOUSD_CONN_IMPL_H

#include "rendezvousd/net/server_impl.h"
#include <stddef.h>

#define conn_of(handle, member) ((struct conn *)((char *)(handle)-offsetof(struct conn, member)))

/* conn.c */
void conn_set_timer(struct conn *c, enum conn_timer kind, int64_t ms); /* TIMER_NONE: stop it */
void conn_choose_reading(struct conn *c);
bool conn_may_step(struct conn *c); /* its next request may be executed: it does not block, or gives way to that one */
void conn_charge(struct conn *c);   /* count its buffers; it is closed if they are too many */
void conn_finished(struct conn *c); /* c has closed and had changes to finish: they are */

/* turn.c */
void conn_process(struct conn *c);        /* execute what is there, for a turn, as long as nothing blocks */
void conn_finish_changes(struct conn *c); /* c has closed; what its last request has left to do goes on */

/* conn_write.c */
void conn_flush(struct conn *c);          /* write what there is; may close */
void conn_flush_soon(struct conn *c);     /* before the loop sleeps, or at once what is much; then conn_charge() */
void conn_write_over(struct conn *c);     /* nothing of it waits for its client any more; idempotent */
void conn_say_last_words(struct conn *c); /* write what there is, take nothing more, then close */

#endif
