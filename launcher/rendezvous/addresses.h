/* The network addresses of this machine. */
#ifndef CRUN_LAUNCHER_ADDRESSES_H
#define CRUN_LAUNCHER_ADDRESSES_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

struct err;

/* All addresses of interfaces that are up, link-local ones left out, loopback last; separated by commas, as many as fit
 * into cap. */
int addresses_all(char *ret, size_t cap, struct err *e);

/* An address of interface `name`: IPv4 before IPv6, link-local never. ERR_USAGE names the interfaces there are. */
int addresses_of_interface(const char *name, char *ret, size_t cap, struct err *e);

/* Whether one of these addresses is one of this machine's; all of 127/8 is. */
struct addrinfo;
bool addresses_are_own(const struct addrinfo *found);

/* The same of a host's addresses. Asks the name service, at most timeout_ms. False if the name is unknown. */
bool addresses_own(const char *host, int timeout_ms);

/* The first address of this machine's own name, if that is one of loopback: another machine that gets it reaches
 * itself. Asks the name service, at most timeout_ms. False: it is none, or the name is unknown. */
bool addresses_own_name_is_loopback(int timeout_ms, char name[256], char ret[INET6_ADDRSTRLEN]);

/* --- the same for an event loop */

/* The name service may answer late, or know a name only later (pods before their Service, many nodes that start at
 * once), so that the question can be asked again. Never blocks for longer than OWN_HOST_MS. Loop thread only. */
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
