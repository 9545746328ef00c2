/* Key-spaces by name: one per principal, where its connections begin, and one per job, which STORE.USE selects. They
 * live until they are dropped, used or not. Memory is limited for each key-space, for all of one principal, and for
 * all together. */
#ifndef CRUN_RENDEZVOUSD_SPACES_H
#define CRUN_RENDEZVOUSD_SPACES_H

#include <stddef.h>

struct conn;
struct server;

/* Let c use the key-space of this principal, or of its job `run` (NULL: none); it is made if necessary. -ENOMEM: c
 * keeps its old one. */
int spaces_use(struct conn *c, const char *principal, const char *run);

/* Drop it: its keys are deleted once the last connection has left it. */
void spaces_drop(struct server *s, const char *principal, const char *run);
void spaces_drop_all(struct server *s);
void spaces_free_shares(struct server *s); /* once no keys and waiters are left */

#endif
