/* Clients of a rendezvousd without sockets: each seems to be writing all the time, so replies pile up where they can be
 * looked at. */
#ifndef CRUN_TESTS_FUZZ_CLIENTS_H
#define CRUN_TESTS_FUZZ_CLIENTS_H

#include "rendezvousd/net/server_impl.h"

void clients_start(const struct server_options *o, const struct front *front); /* once; o may be NULL */
void clients_stop(void);

/* A key-space of its own, the clients in it, and their end: what is charged must be given back then. */
struct space *clients_begin(size_t max_bytes);
struct conn *clients_add(struct space *sp);
void clients_end(struct conn *const *c, size_t n, struct space *sp);

bool clients_is_open(const struct conn *c);
void clients_feed(struct conn *c, const void *data, size_t n); /* nothing to one that is closed */

/* Inputs are lists of pieces: a byte that names the client (modulo `parties`), a byte that tells the length, the
 * bytes. */
struct piece {
    size_t client, n;
    const uint8_t *p;
};
bool clients_piece(const uint8_t *data, size_t n, size_t parties, size_t *at, struct piece *ret); /* false: none left */

/* All bytes to one client, at once or cut by what they say: what it was told is appended to out, and what became of
 * it. */
void clients_tell_one(struct conn *c, const uint8_t *data, size_t n, bool cut, struct buf *out);

#endif
