/* Whether a host name is this machine. The name service may answer late, or know the name only later (pods before their
 * Service, many nodes that start at once), so that the question can be asked again. Never blocks for longer than
 * OWN_HOST_MS. Loop thread only. */
#ifndef CRUN_LAUNCHER_OWN_HOST_H
#define CRUN_LAUNCHER_OWN_HOST_H

#include <stdbool.h>
#include <uv.h>

struct own_host;

#define OWN_HOST_MS 100 /* most answers are here by then */

enum own_host_answer {
    OWN_HOST_NO, /* or nobody knows that name now */
    OWN_HOST_YES,
    OWN_HOST_ASKED, /* answered() will be called, unless own_host_close() comes before */
};

/* host: a numeric address, the name of this machine (gethostname(2)) or another name. *ret: set where it is asked, and
 * gone with the call of answered(). */
enum own_host_answer own_host_ask(struct own_host **ret, uv_loop_t *loop, const char *host,
                                  void (*answered)(void *arg, bool own), void *arg);
void own_host_close(struct own_host *o); /* NULL allowed; the loop must turn once more */

#endif
