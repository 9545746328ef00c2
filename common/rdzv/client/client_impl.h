/* Shared by client.c (calls, time, the connection), client_talk.c (what is asked and answered) and client_check.c (what
 * always holds). */
#ifndef CRUN_COMMON_RDZV_CLIENT_IMPL_H
#define CRUN_COMMON_RDZV_CLIENT_IMPL_H

#include "common/rdzv/client/client.h"

/* client.c */
struct client_effect *client_add_(struct client *c, enum client_effect_kind kind); /* zeroed */
void client_text_(struct client *c, enum client_effect_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void client_set_mode_(struct client *c, enum client_mode mode);
void client_fence_(struct client *c, const char *why, int64_t now);
void client_fail_(struct client *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void client_lease_moved_(struct client *c);
void client_alive_(struct client *c, bool on);
/* the refusal is final: the peer is alive, and one side does not trust the other */
bool client_is_denied_(struct client *c, int64_t now);
void client_give_up_(struct client *c, const char *why, int64_t now);   /* drop the connection and dial again */
void client_turn_away_(struct client *c, const char *why, int64_t now); /* the same: the peer does not lead */
void client_again_(struct client *c, int64_t now);            /* after a pause, dial again or repeat the last claim */
int64_t client_left_ms_(const struct client *c, int64_t now); /* ms until this node gives up; 0: not known */
void client_progress_(struct client *c, const struct rdzv_progress *p, int64_t now); /* at most once a second */

/* client_talk.c */
void client_greet_(struct client *c, int64_t now); /* send the greeting of a new connection, or of a new join */
void client_say_(struct client *c, enum client_ask what, int64_t now);
void client_end_(struct client *c, const struct rdzv_news *news, const char *members, int64_t now);
void client_hear_(struct client *c, const struct client_reply *r, int64_t now);

/* client_check.c */
void client_check_(const struct client *c); /* aborts if a rule is broken */

#endif
