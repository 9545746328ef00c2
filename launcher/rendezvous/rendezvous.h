/* The client side of the rendezvous: how a node meets the others of its job.
 *
 * Each home of a rendezvous has a client behind one small table of functions (rdzv_client.h): inside this process
 * (rdzv_client_local.c); behind a connection to a rendezvousd or a crun that hosts (rdzv_client_tcp.c around
 * common/rdzv/client: rdzv_dial.c connects, rdzv_conn.c speaks RESP, rdzv_tcp_alive.c asks whether the round goes on);
 * over a Redis or a shared folder the same behind a connection to the leader, whom the nodes elect and who may be this
 * one (rdzv_client_elected.c, keeper.c), or to the host of a list that they choose (rdzv_client_listed.c,
 * host_question.c). Requests (join, fail, done, leave) go down through it; news, leases and failures come up as
 * callbacks, which only queue. Beside it stands the bootstrap store (bootstrap.h), where the workers of a round meet on
 * the machine of group rank 0.
 *
 * This file puts them together for the agent: the client of the home it has, and, where this crun hosts the
 * rendezvous, server and jobs. Who hosts: by what was typed (home.h) this crun may or must. It tries to listen; a port
 * that is taken means that somebody hosts already, who is dialled (a lone static node can meet nobody, and ends).
 * A name that is not this machine's, or not known, is asked for again whenever nobody listens there: the name service
 * may have been late. Where nobody answers later on, and this crun may host, it tries again each second: so two agents
 * that start at once settle it, and an agent on the same machine takes over from a host that died; its first round
 * waits until the others, who may not know yet, have no workers left. A hosting crun drains the job when it leaves,
 * and stays until everybody has been informed how the job ended. Loop thread only. */
#ifndef CRUN_LAUNCHER_RENDEZVOUS_H
#define CRUN_LAUNCHER_RENDEZVOUS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/rendezvous/rdzv_client.h"

struct home;
struct page;
struct rendezvous;
struct server;

struct rendezvous_options { /* all of it is borrowed */
    const struct home *home;
    bool one_node;                  /* the job has no other */
    const char *iface, *local_addr; /* which address of this node the others get; NULL: not typed */
    /* The host turned out to be this machine: rendezvous_take_over() is due. With client.arg. NULL: nobody asks. */
    void (*may_host)(void *arg);
    struct rdzv_client_options client; /* endpoint, node_rank, addr, addrs and jobs follow from the above */
};

/* *ret is to be closed after a failure too. ERR_USAGE: an address, a token or a combination that cannot work, with the
 * remedy. */
int rendezvous_open(struct rendezvous **ret, uv_loop_t *loop, const struct rendezvous_options *o, struct err *e);

/* Requests of this node: see struct rdzv_client_ops. */
int rendezvous_join(struct rendezvous *z, struct err *e);
int rendezvous_fail(struct rendezvous *z, const struct rdzv_cause *cause, struct err *e);
int rendezvous_done(struct rendezvous *z, struct err *e);
/* A node that hosts takes the job along; why->fatal: at once, with that code; without
 * a meaning for others. */
int rendezvous_leave(struct rendezvous *z, const struct rdzv_cause *why, struct err *e);
/* Where the home takes no reports, nothing happens. */
void rendezvous_report(struct rendezvous *z, const char *fields);
void rendezvous_answer(struct rendezvous *z, uint64_t id, const char *text); /* to a question; it may get lost */
bool rendezvous_takes_reports(const struct rendezvous *z);
/* The job is over and has failed: its report, for status pages. Runs the loop until it is taken,
 * RENDEZVOUS_PUBLISH_MS at most or until *hurry. */
void rendezvous_publish_failure(struct rendezvous *z, const char *text, const bool *hurry);
#define RENDEZVOUS_PUBLISH_MS 1000

/* Nobody answers where the rendezvous should be. 1: this crun hosts it from now on, with rounds above those it knows,
 * and must join again; 0: it may not, does not know yet whether it may, or somebody does already. Not from inside a
 * callback of the client. */
int rendezvous_take_over(struct rendezvous *z, struct err *e);

bool rendezvous_hosts(const struct rendezvous *z);
/* The last rendezvous_take_over() found the port of this machine taken, by whoever does not answer there. */
bool rendezvous_port_is_taken(const struct rendezvous *z);
/* The server of a hosting crun, NULL if it does not host: a fixed port serves the workers' store as well. */
struct server *rendezvous_server(const struct rendezvous *z);
/* Of a crun that hosts or leads, while it does; NULL: it does not, or nobody looks. */
struct page *rendezvous_page(const struct rendezvous *z);

/* Other members of the newest round that this crun, which hosts, reaches (jobs_reach()); -1: it does not host. */
int rendezvous_reached(const struct rendezvous *z);

/* The job is over for this node: if it hosts, serve until the others know as well, at most bound_ms, or until *hurry;
 * for those that are out of reach until their workers must have ended. Runs the loop. */
void rendezvous_see_off(struct rendezvous *z, int64_t bound_ms, const bool *hurry);

void rendezvous_close(struct rendezvous *z); /* NULL allowed; the loop must turn once more */

#endif
