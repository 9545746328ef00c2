/* One attempt to connect to HOST:PORT from the event loop: the name is looked up, its addresses are tried with a short
 * head start each, in turns of IPv6 and IPv4, and the first that answers wins. HOST may be several numeric addresses,
 * separated by commas: they are tried in that order. */
#ifndef CRUN_LAUNCHER_RDZV_DIAL_H
#define CRUN_LAUNCHER_RDZV_DIAL_H

#include <stdint.h>
#include <uv.h>

struct dial;
struct err;

#define DIAL_HOST_MAX 511
#define DIAL_HEAD_START_MS 250 /* as RFC 8305 has it */

struct endpoint {
    char host[DIAL_HOST_MAX + 1], port[8];
    unsigned turn; /* of a name's n addresses the one of number turn modulo n comes first */
};

/* done comes once, never from inside: fd >= 0 is the caller's, connected and non-blocking; else -errno. -ECONNREFUSED
 * and -ECONNRESET are reported only if every address that this host has a route to gave one: then nobody listens.
 * -ETIMEDOUT after timeout_ms. */
int dial_start(struct dial **ret, uv_loop_t *loop, const struct endpoint *to, int64_t timeout_ms,
               void (*done)(void *arg, int fd, const char *text), void *arg, struct err *e);
void dial_cancel(struct dial *d); /* NULL allowed; done will not come */

#define DIAL_LIST_MAX 16
struct dial_list;

/* The same for n endpoints, borrowed, of which `first` has a head start and the others follow in turn. which: the one
 * that answered, or that failed last. -ECONNREFUSED and -ECONNRESET only if each of them refuses. */
int dial_list_start(struct dial_list **ret, uv_loop_t *loop, const struct endpoint *to, int n, int first,
                    int64_t timeout_ms, void (*done)(void *arg, int which, int fd, const char *text), void *arg,
                    struct err *e);
void dial_list_cancel(struct dial_list *d); /* as dial_cancel() */

#endif
