/* The protocol of a connection, chosen once by its first byte. A front end turns bytes into requests and executes
 * them one at a time; the connection (conn.c) reads, writes, blocks and keeps deadlines. front_resp.c is RESP;
 * server_options.binary may name a second front end for connections whose first byte is below 0x20 and neither CR
 * nor LF. */
#ifndef CRUN_RENDEZVOUSD_FRONT_H
#define CRUN_RENDEZVOUSD_FRONT_H

#include <stdbool.h>
#include <stddef.h>

struct conn;

struct front {
    const char *name;
    int (*open)(struct conn *c);   /* sets up c->front_state, which belongs to it; -ENOMEM: the connection is closed */
    void (*close)(struct conn *c); /* frees front_state */
    int (*feed)(struct conn *c, const void *data, size_t n); /* take bytes; < 0: close */
    /* Execute the next complete request into c->reply (or block c: conn_block()). 1: done; 0: more bytes are needed;
     * < 0: send what is in c->reply, then close the connection. */
    int (*step)(struct conn *c);
    bool (*ready)(struct conn *c);      /* a complete request is there */
    bool (*unfinished)(struct conn *c); /* part of a request is there: it must be complete within request_timeout_ms */
    size_t (*buffered)(struct conn *c); /* bytes not executed yet */
    size_t (*memory)(struct conn *c);   /* bytes taken */
};

extern const struct front front_resp, front_tcpstore;

#endif
