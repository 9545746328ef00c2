/* Keys and values of one name-space, with a limit on the memory they take. Pure: no I/O, no clock. */
#ifndef CRUN_RENDEZVOUSD_KEYSPACE_H
#define CRUN_RENDEZVOUSD_KEYSPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct keyspace;

int keyspace_create(struct keyspace **ret, size_t max_bytes); /* -ENOMEM */
void keyspace_destroy(struct keyspace *k);

/* The value, borrowed until the next change; NULL if there is no such key (an empty value is not NULL). */
const char *keyspace_get(const struct keyspace *k, const char *key, size_t key_len, size_t *ret_len);

/* Each returns 0; -ENOSPC beyond the limit; -ENOMEM. Nothing changes on failure. *created (may be NULL): the key is new. */
int keyspace_set(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, bool *created);
int keyspace_append(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, size_t *ret_len,
                    bool *created);
/* -EINVAL: the value is no integer. -ERANGE: the sum is none. */
int keyspace_add(struct keyspace *k, const char *key, size_t key_len, int64_t delta, int64_t *ret, bool *created);

bool keyspace_delete(struct keyspace *k, const char *key, size_t key_len); /* whether it was there */
void keyspace_clear(struct keyspace *k);

void keyspace_each(const struct keyspace *k, void (*visit)(void *arg, const char *key, size_t key_len), void *arg);
size_t keyspace_count(const struct keyspace *k);

/* Memory others take on behalf of clients (waiters) counts against the same limit. Release with a negative delta. */
bool keyspace_fits(const struct keyspace *k, size_t more);
void keyspace_charge(struct keyspace *k, ptrdiff_t delta);
size_t keyspace_bytes(const struct keyspace *k);
size_t keyspace_entry_bytes(size_t key_len, size_t value_len); /* what a new key takes */

#endif
