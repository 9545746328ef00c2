/* Asks NCCL's RAS for its STATUS in JSON, over its client protocol (lines of text over TCP). Each wait has a deadline;
 * it blocks, so do not call it on a loop's thread. */
#ifndef CRUN_LAUNCHER_RAS_CLIENT_H
#define CRUN_LAUNCHER_RAS_CLIENT_H

#include <stdatomic.h>
#include <stdint.h>

struct buf;
struct err;

#define RAS_LINE_MS 2000      /* ms for each line of the handshake: a stopped process answers nothing */
#define RAS_ANSWER_MS 15000   /* RAS itself gives up after 10 s */
#define RAS_QUESTION_MS 30000 /* for all addresses of a node together */

/* Ask one address ("127.71.12.1:28028"), until end_ms (clock_ms()) at most. out: the answer, RAS_ANSWER_MAX bytes at
 * most. *cancel true: end soon. -EPROTONOSUPPORT: its NCCL cannot answer in JSON; other errors: it gives no answer. */
int ras_ask(const char *address, int64_t end_ms, const atomic_bool *cancel, struct buf *out, struct err *e);

#endif
