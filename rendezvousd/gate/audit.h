/* Logs refused peers, but only as many as somebody can read: further ones of a burst are counted. */
#ifndef CRUN_RENDEZVOUSD_AUDIT_H
#define CRUN_RENDEZVOUSD_AUDIT_H

#include <stdint.h>

struct audit {
    int64_t refilled_ms;
    int lines_left;
    uint64_t unsaid; /* refusals since the last line */
};

/* Write "refused peer=PEER reason=..." (warn, module "audit"), or count it. now_ms: monotonic. */
void audit_refusal(struct audit *a, int64_t now_ms, const char *peer, const char *reason);

/* Log how many refusals were only counted. */
void audit_finish(struct audit *a);

#endif
