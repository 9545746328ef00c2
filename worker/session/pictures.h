/* --cache-decoded: the cache of decoded pictures that the ranks of a node share
 * (worker/data/loader/decoded_cache.h). */
#ifndef CRUN_WORKER_PICTURES_H
#define CRUN_WORKER_PICTURES_H

struct env_contract;
struct err;
struct session;

/* All ranks of s->comm call it, once it is open and before loaders are: s->pictures, that of the node's first rank that
 * had one before this round, else of its first. A rank that cannot reach it keeps its own, of its part of the size, and
 * says so. Without the option: nothing. */
int pictures_open(struct session *s, const struct env_contract *env, struct err *e);
void pictures_close(struct session *s); /* after the loaders */

#endif
