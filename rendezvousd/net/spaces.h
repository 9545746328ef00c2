/* Key-spaces by name: one per principal, where its connections begin, and one per job, which STORE.USE selects. They
 * live until they are dropped, whether somebody uses them or not. All of one principal, and all together, have limits
 * of memory besides each one's own. */
#ifndef CRUN_RENDEZVOUSD_SPACES_H
#define CRUN_RENDEZVOUSD_SPACES_H

#include <stddef.h>

struct conn;
struct server;

/* Let c use that of this principal, or of its job `run` (NULL: none); made if it is not there. -ENOMEM: c stays where
 * it was. */
int spaces_use(struct conn *c, const char *principal, const char *run);

/* Its keys go once the last connection has left it. */
void spaces_drop(struct server *s, const char *principal, const char *run);
void spaces_drop_all(struct server *s);
void spaces_free_shares(struct server *s); /* once nothing is left of their keys and waiters */

#endif
