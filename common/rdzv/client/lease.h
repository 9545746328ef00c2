/* Until when the workers of this node may run: the silence rule and its one exception (decision 0004). Pure:
 * times are clock_ms() values that the caller brings, and each is the moment of asking, not that of the answer.
 *
 *   - the newest request that the rendezvous acknowledged, plus silence_ms: until then it cannot have given this node
 *     up. One hundredth of silence_ms and kill_ms is taken off: the rendezvous' clock may be that much faster;
 *   - after that only while its daemon is proved gone: its address refused or reset us less than silence_ms ago, and
 *     the round's bootstrap store, which a majority of the round can reach, answered less than silence_ms ago;
 *     daemon_grace_ms at most. */
#ifndef CRUN_COMMON_RDZV_LEASE_H
#define CRUN_COMMON_RDZV_LEASE_H

#include <stddef.h>
#include <stdint.h>

struct lease {
    int64_t silence_ms, kill_ms, grace_ms;
    int64_t acked;   /* newest acknowledged request, 0: none */
    int64_t lost;    /* since when the daemon is out of reach; 0: it is not */
    int64_t refused; /* time of the newest dial that was refused or reset; 0: none, or a later dial ended otherwise */
    /* time of the newest question that the bootstrap store answered with "a majority is here"; 0: none */
    int64_t majority;
};

void lease_acked(struct lease *l, int64_t asked);
void lease_lost(struct lease *l, int64_t now);
void lease_dialled(struct lease *l, int64_t begun, int refused); /* refused 0: timed out, unreachable */
void lease_majority(struct lease *l, int64_t asked);

/* How long workers may run after a request that was acknowledged. */
int64_t lease_ms(int64_t silence_ms, int64_t kill_ms);

/* The moment from which workers must not run. */
int64_t lease_until(const struct lease *l);

/* A phrase for messages, which says which side was silent. still_ms: the part of silent_ms during which this process
 * was stopped; not mentioned below SILENCE_STILL_MS. Returns out. */
#define SILENCE_STILL_MS 250
#define SILENCE_TEXT_MAX 256
char *silence_text(int64_t silent_ms, int64_t still_ms, char out[SILENCE_TEXT_MAX]);

#endif
