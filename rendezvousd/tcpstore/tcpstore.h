/* PyTorch's TCPStore on the wire, both generations: an incremental parser of requests and the table of operations.
 * Pure: no I/O, no clock.
 *
 * One byte names the operation; its fields follow without a length of the whole: keys and values as a u64 length and
 * their bytes, counts as u64, numbers as i64, all little-endian. The newer generation (torch 2.2 and later) begins
 * with 00 CE F7 85 3C, which in the older one would be a SET with a key of 1 GB. The result does not depend on how
 * the network cuts the bytes. An announced length allocates nothing: it is checked against the limits, and the
 * buffer grows only with received bytes. */
#ifndef CRUN_RENDEZVOUSD_TCPSTORE_H
#define CRUN_RENDEZVOUSD_TCPSTORE_H

#include "rendezvousd/resp/argbuf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

#define TCPSTORE_MAGIC 0x3C85F7CEu
#define TCPSTORE_NONE (-1)

/* operation, its byte in the older and in the newer generation, its fields: k key, v value, i number, u 32-bit
 * number, K keys, P pairs of key and value; K and P begin with a count */
#define TCPSTORE_OPS(X)                                                                                                \
    X(VALIDATE, TCPSTORE_NONE, 0, "u")                                                                                 \
    X(SET, 0, 1, "kv")                                                                                                 \
    X(COMPARE_SET, 1, 2, "kvv")                                                                                        \
    X(GET, 2, 3, "k")                                                                                                  \
    X(ADD, 3, 4, "ki")                                                                                                 \
    X(CHECK, 4, 5, "K")                                                                                                \
    X(WAIT, 5, 6, "K")                                                                                                 \
    X(NUM_KEYS, 6, 7, "")                                                                                              \
    X(DELETE_KEY, 8, 8, "k")                                                                                           \
    X(APPEND, 9, 9, "kv")                                                                                              \
    X(MULTI_GET, 10, 10, "K")                                                                                          \
    X(MULTI_SET, 11, 11, "P")                                                                                          \
    X(CANCEL_WAIT, 12, 12, "")                                                                                         \
    X(PING, TCPSTORE_NONE, 13, "u")                                                                                    \
    X(QUEUE_PUSH, TCPSTORE_NONE, 14, "kv")                                                                             \
    X(QUEUE_POP, TCPSTORE_NONE, 15, "k")                                                                               \
    X(QUEUE_LEN, TCPSTORE_NONE, 16, "k")                                                                               \
    X(LIST_KEYS, TCPSTORE_NONE, 17, "")                                                                                \
    X(BARRIER, TCPSTORE_NONE, 18, "ki")

enum tcpstore_op {
#define X(name, older, newer, fields) TCPSTORE_##name,
    TCPSTORE_OPS(X)
#undef X
        TCPSTORE_OP_COUNT
};

enum tcpstore_generation {
    TCPSTORE_UNKNOWN, /* too few bytes to decide */
    TCPSTORE_OLDER,
    TCPSTORE_NEWER,
};

/* PyTorch's own are 8 KiB, 8 MiB and 131,072. */
#define TCPSTORE_KEY_MAX (64 * 1024)
#define TCPSTORE_KEYS_MAX 131072

struct tcpstore_limits {
    size_t max_bytes; /* of one request in its encoded form */
    size_t max_key, max_keys;
};

/* Valid until the next call with the same parser. */
struct tcpstore_request {
    enum tcpstore_op op;
    const struct request_arg *argv; /* keys and values, in the order of the fields */
    size_t argc;
    int64_t number;
};

struct tcpstore_parser {
    struct tcpstore_limits limits;
    enum tcpstore_generation generation;
    struct argbuf args;
    bool broken;
    int op;            /* of the current request, or -1 */
    const char *field; /* the one being read */
    bool counted;      /* its count has been read */
    uint64_t left;     /* items of it still to come */
    int64_t number;
};

void tcpstore_parser_init(struct tcpstore_parser *p, const struct tcpstore_limits *l);
void tcpstore_parser_free(struct tcpstore_parser *p);

/* Add bytes from the network. 0, -ENOMEM, -E2BIG (too many requests that were not fetched). */
int tcpstore_feed(struct tcpstore_parser *p, const void *data, size_t n);

/* 1: *ret is the next request. 0: more bytes are needed. -EPROTO: the connection must be closed; -ENOMEM. */
int tcpstore_next(struct tcpstore_parser *p, struct tcpstore_request *ret, struct err *e);

/* The operation (enum tcpstore_op) of the next request, even if it is incomplete; -1: not known yet, or there is
 * none. */
int tcpstore_peek(const struct tcpstore_parser *p);

size_t tcpstore_buffered(const struct tcpstore_parser *p); /* bytes of requests not fetched yet */
size_t tcpstore_memory(const struct tcpstore_parser *p);   /* bytes taken */

const char *tcpstore_op_name(enum tcpstore_op op);

/* Parse the integer with which a value begins, like std::stoll in PyTorch's servers: white space, a sign, digits.
 * False: there is none, or it exceeds 64 bits. */
bool tcpstore_read_i64(const char *p, size_t n, int64_t *ret);

#endif
