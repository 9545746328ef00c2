/* Logs refused peers, a limited number of them (audit.h). */
#include "rendezvousd/gate/audit.h"
#include "common/base/log.h"

#define MODULE "audit"
#define BURST 20
#define REFILL_MS 1000 /* one line more for each of these */

static void refill(struct audit *a, int64_t now_ms)
{
    if (a->refilled_ms == 0) {
        a->refilled_ms = now_ms;
        a->lines_left = BURST;
    }
    int64_t more = (now_ms - a->refilled_ms) / REFILL_MS;
    if (more <= 0)
        return;
    a->refilled_ms += more * REFILL_MS;
    a->lines_left = more > BURST - a->lines_left ? BURST : a->lines_left + (int)more;
}

void audit_refusal(struct audit *a, int64_t now_ms, const char *peer, const char *reason)
{
    refill(a, now_ms);
    if (a->lines_left == 0) {
        a->unsaid++;
        return;
    }
    a->lines_left--;
    audit_finish(a);
    log_warn(MODULE, "refused peer=%s reason=%s", peer, reason);
}

void audit_finish(struct audit *a)
{
    if (a->unsaid > 0)
        log_warn(MODULE, "%llu more peers were refused without a line of their own", (unsigned long long)a->unsaid);
    a->unsaid = 0;
}
