/* Tries one connection between two hosts: is it possible, and do large packets get through, in both directions?
 *
 *     dialler                                     listener
 *     nonce (64 bytes)                     ->
 *                                          <-     "here"
 *     PROBE_BULK bytes                     ->
 *                                          <-     "full", PROBE_BULK bytes
 *
 * The short words get through if any packet does; the bulk needs packets as large as the interface's MTU. If it does
 * not arrive, the dialler tries smaller segments, to find a size that works. */
#ifndef CRUN_LAUNCHER_DOCTOR_PROBE_H
#define CRUN_LAUNCHER_DOCTOR_PROBE_H

#include <sys/types.h>

#include "common/auth/auth.h"

struct err;

#define PROBE_BULK (256u << 10)
#define PROBE_CONNECT_MS 3000
#define PROBE_BULK_MS 2500
#define PROBE_LONGEST_MS 15000 /* a whole probe_dial() */

#define PROBE_STATES(X)                                                                                                \
    X(PROBE_OK, "ok")                                                                                                  \
    X(PROBE_UNRESOLVED, "unresolved") /* the name is not known */                                                      \
    X(PROBE_CLOSED, "closed")         /* no connection */                                                              \
    X(PROBE_OTHER, "other")           /* somebody else answers there, or nobody does */                                \
    X(PROBE_STUCK, "stuck")           /* small packets pass, large ones do not */

enum probe_state {
#define X(id, name) id,
    PROBE_STATES(X)
#undef X
};

struct probe {
    enum probe_state state;
    char text[256]; /* of the error */
    char iface[32]; /* that the connection left by; "": not known */
    int mtu;        /* of that interface, -1: not known */
    int passes;     /* PROBE_STUCK: size of the largest packet that got through, 0: none */
};

const char *probe_state_name(enum probe_state s);
enum probe_state probe_state_of(const char *name); /* PROBE_OTHER if it is none */

/* Start a process that answers peers that know the nonce, one after the other, until it is killed, or this one ends. */
int probe_listen(const char *nonce, pid_t *ret_pid, int *ret_port, struct err *e);

/* nonce NULL: no listener of ours is there; only try to connect. Blocks up to PROBE_LONGEST_MS. */
void probe_dial(const char *host, int port, const char *nonce, struct probe *ret);

#endif
