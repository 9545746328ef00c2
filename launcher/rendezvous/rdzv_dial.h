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
};

/* done comes once, never from inside: fd >= 0 is the caller's, connected and non-blocking; else -errno. -ECONNREFUSED
 * and -ECONNRESET are reported only if every address that this host has a route to gave one: then nobody listens.
 * -ETIMEDOUT after timeout_ms. */
int dial_start(struct dial **ret, uv_loop_t *loop, const struct endpoint *to, int64_t timeout_ms,
               void (*done)(void *arg, int fd, const char *text), void *arg, struct err *e);
void dial_cancel(struct dial *d); /* NULL allowed; done will not come */

#endif
