/* The agent's way to the rendezvous of its job: the client of the home it has, and, where this crun hosts it, server
 * and jobs.
 *
 * Who hosts: by what was typed (home.h) this crun may or must. It tries to listen; a port that is taken means that
 * somebody hosts already, who is dialled (a lone static node can meet nobody, and ends). Where nobody answers later on,
 * and this crun may host, it tries again each second: so two agents that start at once settle it, and an agent on the
 * same machine takes over from a host that died; its first round waits until the others, who may not know yet, have no
 * workers left. A hosting crun drains the job when it leaves, and stays until
 * everybody has been told how the job ended. */
#ifndef CRUN_LAUNCHER_RENDEZVOUS_H
#define CRUN_LAUNCHER_RENDEZVOUS_H

#include <stdbool.h>
#include <uv.h>

#include "launcher/rendezvous/rdzv_client.h"

struct config;
struct hosted;
struct server;

struct rendezvous {
    const struct config *config;
    uv_loop_t *loop;
    struct rdzv_client_options options;
    struct rdzv_client *client;
    struct hosted *hosted; /* NULL: somebody else hosts */
    bool may_host;
    char addr[RDZV_ADDR_MAX + 1], addrs[RDZV_ADDRS_MAX + 1];
    uv_timer_t late; /* bounds rendezvous_see_off() */
    bool is_late;
};

/* callbacks: on_..., store_port, majority and arg of it are taken, and node, slots; the rest follows from the
 * configuration. ERR_USAGE: an address, a token or a combination that cannot work, with the remedy. */
int rendezvous_open(struct rendezvous *z, const struct config *c, uv_loop_t *loop,
                    const struct rdzv_client_options *callbacks, struct err *e);

/* Nobody answers where the rendezvous should be. 1: this crun hosts it from now on, with rounds above last_round, and
 * must join again; 0: it may not, or somebody does already. Not from inside a callback of the client. */
int rendezvous_take_over(struct rendezvous *z, uint64_t last_round, struct err *e);

/* This node wishes to go (why: rdzv_client.h); one that hosts takes the job with it. */
int rendezvous_leave(struct rendezvous *z, const struct rdzv_cause *why, struct err *e);

/* The job is over for this node: if it hosts, serve until the others know as well, at most bound_ms, or until *hurry.
 * Runs the loop. */
void rendezvous_see_off(struct rendezvous *z, int64_t bound_ms, const bool *hurry);

/* The server of a hosting crun, NULL if it hosts not: a fixed port serves the workers' store as well. */
struct server *rendezvous_server(const struct rendezvous *z);

/* Idempotent; z must live until the loop has turned. */
void rendezvous_close(struct rendezvous *z);

#endif
