/* What rank_order.c takes down and order_play.c plays. */
#ifndef CRUN_TESTS_ORDER_NOTES_H
#define CRUN_TESTS_ORDER_NOTES_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/worker/device/cuda/rank_order.h"
#include "worker/comm/comm.h"

enum kind { CALL, MEET, MARK, WAIT, HOST_STREAM, HOST_MARK, HOST_ALL, POST, TAKE, COME, CONNECT };

struct note {
    enum kind kind;
    int stream;       /* CALL, MARK, WAIT, HOST_STREAM */
    int mark;         /* WAIT, HOST_MARK: index of the note that is waited for; -1: none */
    unsigned members; /* who must be there */
    unsigned of;      /* the communicator's ranks */
    int id;           /* and which of theirs it is */
    int from, to;     /* of a message, ranks of the world; else -1 */
    int group;        /* messages that go on side by side, one after the other in the list; 0: none */
    enum comm_channel channel;
    const char *what;
    size_t n;
};

struct list {
    struct note *at;
    int n, cap;
};

/* Are these of one communicator's channel? */
static inline bool order_same_place(const struct note *a, const struct note *b)
{
    return a->of == b->of && a->id == b->id && a->channel == b->channel;
}

const struct list *order_notes(const struct order_record *r);

#endif
