/* How a rank outlives a round (common/include/crun.h): crun wants it to let go while its main thread waits for the
 * others in a collective. A thread hears of it and aborts what the main thread may wait in, which fails there, lets
 * go of the round, and takes the next one. */
#ifndef CRUN_WORKER_HOLD_H
#define CRUN_WORKER_HOLD_H

#include <stdbool.h>
#include <stdint.h>

struct comm;
struct crun_info;
struct err;
struct store;

/* Let crun hold this process from now on, grows: also when nodes come, and start the thread; where crun does not hold
 * anybody: nothing. After stop_init(), once. */
int hold_begin(bool grows, struct err *e);
bool hold_is_on(void);

/* What is to be aborted (borrowed), both NULL: nothing any more; at once if crun wants it already. */
void hold_watch(struct store *s, struct comm *c);

/* crun wants this process to let go of its round. */
bool hold_wanted(void);

/* After a collective failed: will crun say so within timeout_ms? */
bool hold_await(int64_t timeout_ms);

/* It has let go; crun_next_round(), whose results these are. */
int hold_next_round(struct crun_info *ret, double timeout_s);

#endif
