/* The room rendezvousd/store: what the server remembers, and who wants to hear of it. Pure: it knows no connection and
 * no loop. Commands (rendezvousd/commands, rendezvousd/tcpstore) change a key-space; its observer (rendezvousd/net)
 * passes each change on to waiters.h (clients blocked on a key) and to watch.h (WATCH); transaction.h keeps requests
 * between MULTI and EXEC; pubsub.h carries messages of clients to one another. Values are text or a list (list.h);
 * expiry.h has the keys that end, soonest first.
 *
 * Keys of one name-space: strings and lists that may expire, with a limit on the memory they take. Pure: no I/O, no
 * clock; the owner tells the time. An observer hears of every change, whoever makes it. */
#ifndef CRUN_RENDEZVOUSD_KEYSPACE_H
#define CRUN_RENDEZVOUSD_KEYSPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct item;
struct key; /* one entry; borrowed until the next call that names a key */
struct keyspace;
struct list;

enum key_type { KEY_NONE, KEY_STRING, KEY_LIST };
enum key_change { KEY_CREATED, KEY_DELETED, KEY_CHANGED };

int keyspace_create(struct keyspace **ret, size_t max_bytes); /* -ENOMEM */
void keyspace_destroy(struct keyspace *k);

/* Called after each change (a key that expires is deleted). It must not call the key-space. */
void keyspace_observe(struct keyspace *k,
                      void (*changed)(void *arg, enum key_change what, enum key_type type, const char *key,
                                      size_t key_len),
                      void *arg);

/* --- time: any monotonic ms > 0; a key whose time is before now is gone */

#define KEYSPACE_NEVER 0
#define KEYSPACE_KEEP (-1) /* the expiry it has */

void keyspace_tick(struct keyspace *k, int64_t now_ms);
int64_t keyspace_now(const struct keyspace *k);
int64_t keyspace_expiry(struct keyspace *k, const char *key, size_t key_len); /* KEYSPACE_NEVER; -1: no such key */
int keyspace_expire(struct keyspace *k, const char *key, size_t key_len, int64_t at_ms); /* -ENOENT, -ENOMEM */
int64_t keyspace_next_expiry(const struct keyspace *k);         /* the soonest; INT64_MAX: none */
size_t keyspace_expire_due(struct keyspace *k, size_t at_most); /* deletes; returns how many */

/* --- strings: -EPROTOTYPE where the key holds something else; nothing changes on failure */

/* The value, borrowed until the next change; NULL if there is no such string (an empty value is not NULL). */
const char *keyspace_get(struct keyspace *k, const char *key, size_t key_len, size_t *ret_len);

/* Each returns 0; -ENOSPC beyond the limit; -ENOMEM. *created (may be NULL): the key is new. */
int keyspace_set(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, bool *created);
int keyspace_set_expiring(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, int64_t at_ms);
int keyspace_append(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, size_t *ret_len,
                    bool *created);
int keyspace_set_range(struct keyspace *k, const char *key, size_t key_len, size_t offset, const void *v, size_t n,
                       size_t *ret_len); /* zeroes fill a gap */
/* -EINVAL: the value is no integer. -ERANGE: the sum is none. */
int keyspace_add(struct keyspace *k, const char *key, size_t key_len, int64_t delta, int64_t *ret, bool *created);

/* --- lists */

/* 0: *ret is the key's list, made if `create` (then empty). -ENOENT, -EPROTOTYPE, -ENOMEM. After a change of the list,
 * and always after `create`, keyspace_settle() accounts for it and deletes an empty one. */
int keyspace_list(struct keyspace *k, const char *key, size_t key_len, bool create, struct key **ret);
/* All in one: push, telling the length (-EPROTOTYPE: another type); take one item, freed by the caller (NULL: no such
 * list). */
int keyspace_push(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, bool front,
                  size_t *ret_len, bool *created);
struct item *keyspace_pop(struct keyspace *k, const char *key, size_t key_len, bool front);
struct list *key_list(struct key *en);
void keyspace_settle(struct keyspace *k, struct key *en);

/* --- any key */

enum key_type keyspace_type(struct keyspace *k, const char *key, size_t key_len);
bool keyspace_delete(struct keyspace *k, const char *key, size_t key_len); /* whether it was there */
int keyspace_rename(struct keyspace *k, const char *from, size_t from_len, const char *to, size_t to_len); /* -ENOENT */
void keyspace_clear(struct keyspace *k);
size_t keyspace_key_bytes(struct keyspace *k, const char *key, size_t key_len); /* memory it takes; 0: no such key */

typedef void keyspace_visit(void *arg, enum key_type type, const char *key, size_t key_len);

void keyspace_walk(const struct keyspace *k, keyspace_visit *visit, void *arg);
const char *keyspace_random(struct keyspace *k, uint64_t draw, size_t *ret_len); /* NULL: there is none */

/* One step of a walk under change: what is there from the first step (cursor 0) to the last (0 returned) is visited,
 * perhaps more than once. */
uint64_t keyspace_scan(const struct keyspace *k, uint64_t cursor, keyspace_visit *visit, void *arg);

size_t keyspace_count(const struct keyspace *k);
size_t keyspace_expiring(const struct keyspace *k); /* those with an expiry */

/* Memory others take on behalf of clients (waiters) counts against the same limit. Release with a negative delta. */
bool keyspace_fits(const struct keyspace *k, size_t more);
void keyspace_charge(struct keyspace *k, ptrdiff_t delta);
size_t keyspace_bytes(const struct keyspace *k);
/* Count this one's bytes in *t too, whose limit then holds besides its own. Before anything is stored; *t must outlive
 * k. */
struct keyspace_total {
    size_t bytes, max_bytes;
};
void keyspace_share(struct keyspace *k, struct keyspace_total *t);
size_t keyspace_entry_bytes(size_t key_len, size_t value_len); /* what a new key takes */

#endif
