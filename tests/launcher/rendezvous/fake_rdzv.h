/* A rendezvous for tests that does what it is told to, faults included: answers late, in pieces, wrongly or never,
 * resets connections, closes its door. One loop with the code under test. */
#ifndef CRUN_TESTS_FAKE_RDZV_H
#define CRUN_TESTS_FAKE_RDZV_H

#include <stdbool.h>
#include <uv.h>

#define FAKE_CONNS 64

struct fake_conn;

struct fake {
    uv_loop_t *loop;
    uv_tcp_t listener;
    bool listening;
    int port, kept; /* a socket that keeps the port while the door is shut, -1 */
    struct fake_conn *conns[FAKE_CONNS];
    /* what it does */
    bool mute;                                         /* reads, never answers */
    bool deaf;                                         /* accepts, never reads */
    bool queue;                                        /* STORE.AUTH is answered when fake_admit() is called */
    struct fake_conn *queued;                          /* who waits for that */
    bool split;                                        /* answers byte by byte */
    bool half;                                         /* answers half, then nothing */
    const char *garbage;                               /* answers this instead, once */
    const char *reset_on;                              /* resets the connection that asks this verb, once */
    const char *instance;                              /* of JOIN's answer */
    const char *join_error, *next_error, *claim_error; /* "-FENCED ..." */
    const char *alive;                                 /* "+MAJORITY" */
    char news[512];                                    /* the record NEXT answers; it carries seq= */
    unsigned long long seq;                            /* of news */
    /* what it saw */
    char join[2048]; /* the record of the newest JOIN */
    char log[16384]; /* "JOIN(round=0) NEXT(0) ..." */
    int joins, nexts, connections;
};

void fake_open(struct fake *f, uv_loop_t *loop, const char *host);
void fake_listen(struct fake *f);                 /* again, at the same port */
void fake_shut(struct fake *f);                   /* the door; who is in stays */
void fake_tell(struct fake *f, const char *news); /* without seq=: it counts itself. Answers every open NEXT */
void fake_admit(struct fake *f);                  /* who has waited in the queue */
void fake_reset(struct fake *f);                  /* every connection */
void fake_close(struct fake *f);

#endif
