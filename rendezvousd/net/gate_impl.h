/* Shared by gate.c (admission) and gate_auth.c (authentication). */
#ifndef CRUN_RENDEZVOUSD_GATE_IMPL_H
#define CRUN_RENDEZVOUSD_GATE_IMPL_H

#include "common/auth/auth.h"
#include "common/base/seeded_hash.h"
#include "rendezvousd/gate/audit.h"
#include "rendezvousd/gate/peer_addr.h"
#include "rendezvousd/net/gate.h"

/* Where connections come from: one IPv4 address, one /64 of IPv6 (a host has a whole one), or one user of this host. */
struct source {
    uint8_t key[16]; /* of a /64 the first half, then zeroes; of a user see user_of() */
    size_t all, unauthenticated;
    UT_hash_handle hh;
};

struct gate {
    struct gate_options o; /* no zeroes: defaults are filled in */
    struct tokens *tokens;
    struct tls_context *tls;
    struct source *sources;
    struct audit audit;
    char instance[33];
    uint64_t refused, authenticated;
    size_t unauthenticated;
    struct gate_peer *strangers; /* the same ones, the oldest first */
};

/* What the gate knows of a connection. */
struct gate_peer {
    struct peer_addr addr;
    struct auth_server challenge;
    char wants[AUTH_PRINCIPAL_MAX + 1]; /* while a challenge is open: the principal that it claims to be */
    bool audited;
    bool by_token;        /* it has authenticated */
    bool unauthenticated; /* counted as such */
    bool hurried;         /* its time was shortened, because all places are taken */
    /* from: the source in which the stranger is counted, its user's if that was asked for */
    struct source *address, *from;
    struct principal *of;          /* principal as which it authenticated */
    struct conn *c;                /* whose peer it is */
    struct gate_peer *prev, *next; /* in gate.strangers, while unauthenticated */
};

/* c has proved to be `name`: let it do everything. False: that principal has too many connections; the error is in
 * the reply. */
bool gate_raise(struct conn *c, const char *name);

/* A printable form for the log of what a stranger sent. Returns ret. */
const char *gate_printable(const char *text, char ret[AUTH_PRINCIPAL_MAX + 1]);

#endif
