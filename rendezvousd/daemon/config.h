/* The room rendezvousd/daemon: the program around the server. (A hosting crun has the server without it.) main.c reads
 * options (here), locks the state directory, opens gate, server, jobs and HTTP on one loop, tells systemd that it is
 * ready (sd_notify.h), and ends on SIGTERM; SIGHUP reads tokens and certificates again. Pages for people and probes
 * (http.h, metrics.h) only read figures of the other rooms.
 *
 * rendezvousd's command line. */
#ifndef CRUN_RENDEZVOUSD_CONFIG_H
#define CRUN_RENDEZVOUSD_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/args/args.h"

struct err;

struct config {
    const char *bind; /* addresses, comma-separated */
    const char *port_file;
    int64_t port, ready_fd; /* ready_fd -1: none */
    double port_timeout_s;
    bool insecure;

    const char *token_file, *operators;
    bool plain_auth;
    double auth_timeout_s;
    int64_t max_unauthenticated, max_per_address;

    const char *tls_cert, *tls_key, *tls_client_ca;
    bool tls_only;

    int64_t http_port; /* -1: no HTTP */
    const char *http_bind, *http_token_file;
    bool http_insecure;

    const char *state_dir;
    const char *state, *advertise; /* state: shared with other daemons; NULL: not */
    int64_t history;

    int64_t max_clients, max_per_principal, max_jobs, max_jobs_per_principal, max_nodes;
    int64_t max_memory, max_principal_memory, max_request, max_output, max_job_memory; /* bytes */
    double request_timeout_s;

    int log_level;
};

extern const struct arg_program config_program;

/* Checks of several options together: contradictions, and unprotected addresses beyond loopback. ERR_USAGE names
 * options and remedies. */
int config_check(const struct config *c, struct err *e);

/* Take the next address of a comma-separated list: 1, 0 at its end, -1 if it is empty or too long. */
int config_next_address(const char **list, char *ret, int cap);

#endif
