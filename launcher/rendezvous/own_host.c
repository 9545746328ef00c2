/* A look-up in a thread of its own (resolve.h): waited for a moment, then watched by the loop. */
#include "launcher/rendezvous/own_host.h"

#include <poll.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/resolve.h"
#include "launcher/rendezvous/addresses.h"

struct own_host {
    struct lookup *lookup;
    uv_poll_t poll;
    void (*answered)(void *arg, bool own);
    void *arg;
};

static bool is_own(struct addrinfo *found)
{
    const bool own = addresses_are_own(found);
    freeaddrinfo(found);
    return own;
}

static bool take(struct lookup *l, const char *host)
{
    struct addrinfo *found;
    return resolve_take(l, host, &found, NULL) == 0 && is_own(found);
}

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

static void finish(struct own_host *o)
{
    uv_poll_stop(&o->poll);
    uv_close((uv_handle_t *)&o->poll, on_closed);
}

static void on_answer(uv_poll_t *p, int status, int events)
{
    struct own_host *o = p->data;
    (void)status;
    (void)events;
    const bool own = take(o->lookup, "");
    finish(o);
    o->answered(o->arg, own);
}

static bool is_name_of_this_machine(const char *host)
{
    char own[256] = "";
    gethostname(own, sizeof own - 1);
    return strcasecmp(host, own) == 0 || strcasecmp(host, "localhost") == 0;
}

enum own_host_answer own_host_ask(struct own_host **ret, uv_loop_t *loop, const char *host,
                                  void (*answered)(void *arg, bool own), void *arg)
{
    struct addrinfo *found;
    struct lookup *lookup;
    if (is_name_of_this_machine(host))
        return OWN_HOST_YES;
    const int rc = resolve_start(host, "1", &found, &lookup, NULL);
    if (rc == 1)
        return is_own(found) ? OWN_HOST_YES : OWN_HOST_NO;
    if (rc < 0)
        return OWN_HOST_NO;
    if (wait_fd(resolve_fd(lookup), POLLIN, clock_ms() + OWN_HOST_MS, -1, NULL) == 0)
        return take(lookup, host) ? OWN_HOST_YES : OWN_HOST_NO;
    struct own_host *o = calloc(1, sizeof *o);
    if (!o || uv_poll_init(loop, &o->poll, resolve_fd(lookup)) < 0) {
        free(o);
        resolve_abandon(lookup);
        return OWN_HOST_NO;
    }
    o->lookup = lookup;
    o->answered = answered;
    o->arg = arg;
    o->poll.data = o;
    uv_poll_start(&o->poll, UV_READABLE, on_answer);
    *ret = o;
    return OWN_HOST_ASKED;
}

void own_host_close(struct own_host *o)
{
    if (!o)
        return;
    resolve_abandon(o->lookup);
    finish(o);
}
