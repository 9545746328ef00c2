/* Who listens to which channel, by name and by pattern. Pure: no I/O. */
#ifndef CRUN_RENDEZVOUSD_PUBSUB_H
#define CRUN_RENDEZVOUSD_PUBSUB_H

#include "rendezvousd/resp/request.h"

struct pubsub;
struct subscriber; /* one listener with all its subscriptions */

enum topic_kind { TOPIC_CHANNEL, TOPIC_PATTERN };

int pubsub_create(struct pubsub **ret); /* -ENOMEM */
void pubsub_destroy(struct pubsub *p);  /* all subscribers are gone */

int pubsub_join(struct pubsub *p, void *arg, struct subscriber **ret); /* no subscription yet; -ENOMEM */
void pubsub_leave(struct pubsub *p, struct subscriber *s);             /* NULL allowed */

/* 0: new; 1: was subscribed already; -ENOMEM. */
int pubsub_subscribe(struct pubsub *p, struct subscriber *s, enum topic_kind kind, const struct request_arg *name);
bool pubsub_unsubscribe(struct pubsub *p, struct subscriber *s, enum topic_kind kind, const struct request_arg *name);
/* The oldest subscription of that kind, borrowed until it ends; false: there is none. */
bool pubsub_any(const struct subscriber *s, enum topic_kind kind, struct request_arg *ret);
size_t pubsub_subscriptions(const struct subscriber *s, enum topic_kind kind); /* s may be NULL: 0 */
size_t pubsub_bytes(const struct subscriber *s);                               /* memory; 0 for NULL */

/* deliver(arg of the subscriber, ...): pattern is NULL for those who know the channel by name. Returns how many heard
 * it. */
size_t pubsub_publish(struct pubsub *p, const struct request_arg *channel, const struct request_arg *message,
                      void (*deliver)(void *arg, const struct request_arg *pattern, const struct request_arg *channel,
                                      const struct request_arg *message));

void pubsub_each(const struct pubsub *p, enum topic_kind kind,
                 void (*visit)(void *arg, const struct request_arg *name, size_t subscribers), void *arg);
size_t pubsub_count(const struct pubsub *p, enum topic_kind kind); /* topics */
size_t pubsub_listeners(const struct pubsub *p, const struct request_arg *channel);

#endif
