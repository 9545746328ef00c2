/* Shared by conn.c (life, reading, blocking) and conn_write.c. */
#ifndef CRUN_RENDEZVOUSD_CONN_IMPL_H
#define CRUN_RENDEZVOUSD_CONN_IMPL_H

#include "rendezvousd/net/server_impl.h"
#include <stddef.h>

#define conn_of(handle, member) ((struct conn *)((char *)(handle)-offsetof(struct conn, member)))

/* conn.c */
void conn_set_timer(struct conn *c, enum conn_timer kind, int64_t ms); /* TIMER_NONE: stop it */
void conn_choose_reading(struct conn *c);
/* its next request may be executed: it is not blocked, or that request may end the wait */
bool conn_may_step(struct conn *c);
void conn_charge(struct conn *c);   /* count its buffers; connections are closed if they are too large */
void conn_finished(struct conn *c); /* c was closed while it changed keys; now these changes are finished */

/* turn.c */
void conn_process(struct conn *c);        /* execute requests for a turn, unless one blocks */
void conn_finish_changes(struct conn *c); /* c was closed: finish the changes of its last request */

/* conn_write.c */
void conn_flush(struct conn *c); /* write what there is; may close */
/* write the replies that wait, before the loop sleeps, or at once if they are long; then call conn_charge() */
void conn_flush_soon(struct conn *c);
void conn_write_over(struct conn *c);     /* nothing waits any more for its client to read; idempotent */
void conn_say_last_words(struct conn *c); /* write what there is, execute nothing more, then close */

#endif
