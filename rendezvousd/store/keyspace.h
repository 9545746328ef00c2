/* The room rendezvousd/store: what the server remembers, and who wants to hear of it. Pure: it knows no connection and
 * no loop. Commands (rendezvousd/commands, rendezvousd/tcpstore) change a key-space; its observer (rendezvousd/net)
 * passes each change on to waiters.h (clients blocked until keys exist). Values are text or a queue; expiry.h has the
 * keys that end, soonest first; glob.h compares names with patterns.
 *
 * Keys of one name-space: strings and queues that may expire, with a limit on the memory they take. Pure: no I/O, no
 * clock; the owner tells the time. An observer hears of every key that comes or goes, whoever makes it. No call takes
 * time by the number of keys: what many keys leave behind is freed piece by piece (keyspace_sweep()). */
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

/* Called after each change (a key that expires is deleted). It must not call the key-space. */
void keyspace_observe(struct keyspace *k,
                      void (*changed)(void *arg, enum key_change what, const char *key, size_t key_len), void *arg);

/* --- time: any monotonic ms > 0; a key whose time is before now is gone */

#define KEYSPACE_NEVER 0
#define KEYSPACE_KEEP (-1) /* the expiry that the string has */

void keyspace_tick(struct keyspace *k, int64_t now_ms);
int64_t keyspace_now(const struct keyspace *k);
int64_t keyspace_expiry(struct keyspace *k, const char *key, size_t key_len); /* KEYSPACE_NEVER; -1: no such key */
int keyspace_expire(struct keyspace *k, const char *key, size_t key_len, int64_t at_ms); /* -ENOENT, -ENOMEM */
int64_t keyspace_next_expiry(const struct keyspace *k); /* the soonest; INT64_MAX: none */
/* Delete at_most that are due, fewer if they are large. Returns how many. */
size_t keyspace_expire_due(struct keyspace *k, size_t at_most);

/* --- strings: -EPROTOTYPE where the key holds something else; nothing changes on failure */

/* The value, borrowed until the next change; NULL if there is no such string (an empty value is not NULL). */
const char *keyspace_get(struct keyspace *k, const char *key, size_t key_len, size_t *ret_len);

/* Each returns 0; -ENOSPC beyond the limit; -ENOMEM. */
int keyspace_set(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, int64_t at_ms);
int keyspace_append(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, size_t *ret_len);
/* What counts as an integer is the protocol's affair: false: it is none. */
typedef bool keyspace_read_i64(const char *p, size_t n, int64_t *ret);
/* -EINVAL: the value is no integer. -ERANGE: the sum is none. */
int keyspace_add(struct keyspace *k, const char *key, size_t key_len, int64_t delta, keyspace_read_i64 *read,
                 int64_t *ret);

/* --- queues; one that was emptied does not exist */

struct item {
    struct item *next;
    size_t n;
    char p[];
};

int keyspace_push(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n);
struct item *keyspace_pop(struct keyspace *k, const char *key, size_t key_len); /* freed by the caller; NULL: none */
/* 0 and its length, 0 if there is none; -EPROTOTYPE. */
int keyspace_queue_length(struct keyspace *k, const char *key, size_t key_len, size_t *ret);

/* --- any key */

enum key_type keyspace_type(struct keyspace *k, const char *key, size_t key_len);
bool keyspace_delete(struct keyspace *k, const char *key, size_t key_len); /* whether it was there */
void keyspace_clear(struct keyspace *k);

/* One step of a walk under change: what is there from the first step (cursor 0) to the last (0 returned) is visited,
 * and once unless the key-space was cleared meanwhile. */
typedef void keyspace_visit(void *arg, enum key_type type, const char *key, size_t key_len);
uint64_t keyspace_scan(const struct keyspace *k, uint64_t cursor, keyspace_visit *visit, void *arg);

size_t keyspace_count(const struct keyspace *k);
size_t keyspace_queues(const struct keyspace *k);   /* of these, queues */
size_t keyspace_expiring(const struct keyspace *k); /* those with an expiry */

/* --- memory */

/* Memory others take on behalf of clients (waiters) counts against the same limit. Release with a negative delta. */
bool keyspace_fits(const struct keyspace *k, size_t more);
void keyspace_charge(struct keyspace *k, ptrdiff_t delta);
size_t keyspace_bytes(const struct keyspace *k);
size_t keyspace_entry_bytes(size_t key_len, size_t value_len); /* what a new key takes */

/* Count this one's bytes in *t and all above it, too, whose limits then hold besides its own. Before anything is
 * stored; *t must outlive k. All-zero but for max_bytes and above at first. */
struct keyspace_total {
    size_t bytes, max_bytes;
    struct keyspace_total *above; /* NULL: none */
    struct key *remains; /* of the topmost: what was cleared, or held much, and is yet to be freed; counted in its
                            `bytes` until then */
};
void keyspace_share(struct keyspace *k, struct keyspace_total *t);
struct keyspace_total *keyspace_shared(const struct keyspace *k);      /* NULL: with nobody */
void keyspace_charge_total(struct keyspace_total *t, ptrdiff_t delta); /* and all above it; NULL: nothing */
/* Free what remains of at_most keys and items of queues, fewer if they are large. True: nothing is left. */
bool keyspace_sweep(struct keyspace_total *t, size_t at_most);

#endif
