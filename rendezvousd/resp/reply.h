/* RESP2 replies, appended to a bounded buffer. A reply that does not fit sets `failed`, which the connection checks
 * once per request. */
#ifndef CRUN_RENDEZVOUSD_REPLY_H
#define CRUN_RENDEZVOUSD_REPLY_H

#include "common/base/buf.h"
#include <stdbool.h>
#include <stdint.h>

struct reply {
    struct buf out;
    bool failed;
};

void reply_status(struct reply *r, const char *text);                                          /* +OK */
void reply_error(struct reply *r, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* "ERR ...", one line */
void reply_int(struct reply *r, int64_t v);
void reply_bulk(struct reply *r, const void *p, size_t n);
void reply_text(struct reply *r, const char *s); /* a bulk string */
void reply_nil(struct reply *r);
void reply_array(struct reply *r, size_t n);              /* n replies follow */
void reply_raw(struct reply *r, const void *p, size_t n); /* copy a reply that was made elsewhere */

#endif
