/* The room rendezvousd/resp: RESP2 as bytes, and nothing of what it means. Received bytes go into a parser (here),
 * which keeps them and points into them (argbuf.h, shared with TCPStore's parser): a request is a list of arguments,
 * valid until the next bytes come. Answers are appended to a bounded buffer (reply.h), which a connection sends.
 *
 * Incremental parser of RESP2 requests: multi-bulk ("*1\r\n$4\r\nPING\r\n") and inline ("PING\r\n").
 *
 * The result does not depend on how the network cuts the bytes. An announced length allocates nothing: it is checked
 * against the limits, and the buffer grows only with received bytes. After a protocol error the parser is unusable:
 * the connection must be closed. */
#ifndef CRUN_RENDEZVOUSD_REQUEST_H
#define CRUN_RENDEZVOUSD_REQUEST_H

#include "rendezvousd/resp/argbuf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

#define REQUEST_INLINE_MAX 65536 /* bytes of an inline request */

struct request_limits {
    size_t max_bytes; /* of one request in its encoded form */
    size_t max_args;
};

/* Valid until the next call with the same parser. */
struct request {
    const struct request_arg *argv;
    size_t argc; /* >= 1 */
};

struct request_parser {
    struct request_limits limits;
    struct argbuf args;
    bool broken;
    bool multibulk;    /* the current request is one, and begun */
    int64_t args_left; /* multi-bulk: arguments still to come */
    int64_t bulk_len;  /* length of the argument being read; -1: its header comes next */
    char *line;        /* unquoted arguments of an inline request */
};

void request_parser_init(struct request_parser *p, const struct request_limits *l);
void request_parser_limit(struct request_parser *p, const struct request_limits *l); /* other limits from now on */
void request_parser_free(struct request_parser *p);

/* Add bytes from the network. 0, -ENOMEM, -E2BIG (too many requests that were not fetched). */
int request_feed(struct request_parser *p, const void *data, size_t n);

/* 1: *ret is the next request. 0: more bytes are needed. -EPROTO: e->text is Redis' "Protocol error: ..."; -ENOMEM. */
int request_next(struct request_parser *p, struct request *ret, struct err *e);

/* bytes of a request that is unfinished, or was not fetched yet, are there */
bool request_begun(const struct request_parser *p);
size_t request_buffered(const struct request_parser *p);
size_t request_memory(const struct request_parser *p); /* bytes taken */

/* Parse a decimal integer as Redis does: no sign but '-', no leading zeros or blanks, no overflow. */
bool request_i64(const char *p, size_t n, int64_t *ret);

/* Is the argument this word, in any case? word: lower-case letters. */
bool request_arg_is(const struct request_arg *a, const char *word);

#endif
