/* The room rendezvousd/store: the keys that the server stores, and the clients that wait for them. Pure: it knows no
 * connections and no loop. Commands (rendezvousd/commands, rendezvousd/tcpstore) change a key-space; its observer
 * (rendezvousd/net) passes each change on to waiters.h (clients blocked until keys exist). Values are text or a queue;
 * expiry.h orders the keys that expire; glob.h matches names with patterns.
 *
 * Keys of one name-space: strings and queues that may expire, with a limit on the memory they take. Pure: no I/O, no
 * clock; the owner sets the time. An observer is called for every key that is created or deleted. No call takes time
 * proportional to the number of keys: memory of many keys is freed piece by piece (keyspace_sweep()). */
#ifndef CRUN_RENDEZVOUSD_KEYSPACE_H
#define CRUN_RENDEZVOUSD_KEYSPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct key;
struct keyspace;

enum key_type { KEY_NONE, KEY_STRING, KEY_QUEUE };
enum key_change { KEY_CREATED, KEY_DELETED, KEYS_CLEARED /* all are gone; there is no key then */ };

int keyspace_create(struct keyspace **ret, size_t max_bytes); /* -ENOMEM */
void keyspace_destroy(struct keyspace *k);

/* Set a function that is called after each change (an expiring key is deleted). It must not call the key-space. */
void keyspace_observe(struct keyspace *k,
                      void (*changed)(void *arg, enum key_change what, const char *key, size_t key_len), void *arg);

/* --- time: any monotonic ms > 0; a key expires when its time is before now */

#define KEYSPACE_NEVER 0
#define KEYSPACE_KEEP (-1) /* the expiry that the string has */

void keyspace_tick(struct keyspace *k, int64_t now_ms);
int64_t keyspace_now(const struct keyspace *k);
int64_t keyspace_expiry(struct keyspace *k, const char *key, size_t key_len); /* KEYSPACE_NEVER; -1: no such key */
int keyspace_expire(struct keyspace *k, const char *key, size_t key_len, int64_t at_ms); /* -ENOENT, -ENOMEM */
int64_t keyspace_next_expiry(const struct keyspace *k); /* the soonest; INT64_MAX: none */
/* Delete at most at_most expired keys, fewer if they are large. Returns their number. */
size_t keyspace_expire_due(struct keyspace *k, size_t at_most);

/* --- strings: -EPROTOTYPE if the key holds something else; nothing changes on failure */

/* The value, borrowed until the next change; NULL if there is no such string (an empty value is not NULL). */
const char *keyspace_get(struct keyspace *k, const char *key, size_t key_len, size_t *ret_len);

/* Each returns 0; -ENOSPC beyond the limit; -ENOMEM. */
int keyspace_set(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, int64_t at_ms);
int keyspace_append(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, size_t *ret_len);
/* Parses an integer by the rules of the protocol; false: not an integer. */
typedef bool keyspace_read_i64(const char *p, size_t n, int64_t *ret);
/* -EINVAL: the value is not an integer. -ERANGE: the sum overflows. */
int keyspace_add(struct keyspace *k, const char *key, size_t key_len, int64_t delta, keyspace_read_i64 *read,
                 int64_t *ret);

/* --- queues; an emptied queue does not exist */

struct item {
    struct item *next;
    size_t n;
    char p[];
};

int keyspace_push(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n);
struct item *keyspace_pop(struct keyspace *k, const char *key, size_t key_len); /* freed by the caller; NULL: none */
/* Returns 0 and the length, 0 if there is no queue; -EPROTOTYPE. */
int keyspace_queue_length(struct keyspace *k, const char *key, size_t key_len, size_t *ret);

/* --- any key */

enum key_type keyspace_type(struct keyspace *k, const char *key, size_t key_len);
bool keyspace_delete(struct keyspace *k, const char *key, size_t key_len); /* whether it was there */
void keyspace_clear(struct keyspace *k);

/* One step of a walk while keys may change: keys that exist from the first step (cursor 0) to the last (returns 0)
 * are visited, exactly once unless the key-space was cleared meanwhile. */
typedef void keyspace_visit(void *arg, enum key_type type, const char *key, size_t key_len);
uint64_t keyspace_scan(const struct keyspace *k, uint64_t cursor, keyspace_visit *visit, void *arg);

size_t keyspace_count(const struct keyspace *k);
size_t keyspace_queues(const struct keyspace *k);   /* of these, queues */
size_t keyspace_expiring(const struct keyspace *k); /* those with an expiry */

/* --- memory */

/* Memory that others use for clients (waiters) counts against the same limit. Release it with a negative delta. */
bool keyspace_fits(const struct keyspace *k, size_t more);
void keyspace_charge(struct keyspace *k, ptrdiff_t delta);
size_t keyspace_bytes(const struct keyspace *k);
size_t keyspace_entry_bytes(size_t key_len, size_t value_len); /* what a new key takes */

/* Count this key-space's bytes also in *t and all totals above it, whose limits then hold as well. Call before
 * anything is stored; *t must outlive k, and is zeroed at first, except max_bytes and above. */
struct keyspace_total {
    size_t bytes, max_bytes;
    struct keyspace_total *above; /* NULL: none */
    /* only in the topmost total: keys that were cleared, or were large, and are not freed yet; counted in `bytes`
     * until then */
    struct key *remains;
};
void keyspace_share(struct keyspace *k, struct keyspace_total *t);
struct keyspace_total *keyspace_shared(const struct keyspace *k);      /* NULL: with nobody */
void keyspace_charge_total(struct keyspace_total *t, ptrdiff_t delta); /* and all above it; NULL: nothing */
/* Free at most at_most keys and queue items of what remains, fewer if they are large. True: nothing is left. */
bool keyspace_sweep(struct keyspace_total *t, size_t at_most);

#endif
