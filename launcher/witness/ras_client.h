/* Asks NCCL's RAS for its STATUS in JSON, over its client protocol (lines of text over TCP). Each wait has a
 * deadline. Loop thread only. */
#ifndef CRUN_LAUNCHER_RAS_CLIENT_H
#define CRUN_LAUNCHER_RAS_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

struct buf;
struct ras_client;

#define RAS_LINE_MS 2000      /* ms for each line of the handshake: a stopped process answers nothing */
#define RAS_ANSWER_MS 15000   /* RAS itself gives up after 10 s */
#define RAS_QUESTION_MS 30000 /* for all addresses together */

struct ras_client_options {
    uv_loop_t *loop;
    /* An answer came from address number `which`. Return false if it is unusable, with the reason in why: the next
     * address is asked. */
    bool (*answer)(void *arg, int which, const struct buf *text, char *why, size_t cap);
    /* No address answered; why: the last one's reason. too_old: its NCCL cannot answer in JSON. */
    void (*failed)(void *arg, const char *why, bool too_old);
    void *arg;
};

int ras_client_open(struct ras_client **ret, const struct ras_client_options *o); /* -ENOMEM */

/* Ask these addresses ("127.71.12.1:28028" each; copied) in this order until one answers. Then comes exactly one
 * answer() that returns true, or one failed(), unless ras_client_abandon() is called. No other question may be under
 * way. -ENOMEM. */
int ras_client_ask(struct ras_client *c, const char *const *addresses, int n);
void ras_client_abandon(struct ras_client *c);
void ras_client_close(struct ras_client *c); /* NULL allowed; before the loop's last turns */

#endif
