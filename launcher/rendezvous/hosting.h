/* The rendezvous in this process, for others: gate, server, jobs and status page of a crun that hosts. Loop thread
 * only. */
#ifndef CRUN_LAUNCHER_HOSTING_H
#define CRUN_LAUNCHER_HOSTING_H

#include <stdbool.h>
#include <uv.h>

struct err;
struct history;
struct jobs;
struct page;
struct rdzv_config;
struct server;

/* Of the HTTP server that shows the status page. */
struct hosting_page {
    bool has_tokens, any_host; /* as struct page_options */
};

struct hosting_options {              /* borrowed for the call */
    const char *token_file;           /* NULL: the user's own */
    bool insecure, one_node;          /* one_node: the job has no other: a secret of its own will do */
    bool has_store;                   /* the workers' store is on the same port */
    const char *host;                 /* to listen on; NULL: all interfaces */
    int port;                         /* 0: the kernel draws one */
    const struct rdzv_config *listed; /* a host of a list, of the job listed_run; NULL: it is none */
    const char *listed_run;
    void (*stranger)(void *arg, const char *host); /* as struct gate_options; NULL: nobody listens */
    void *arg;
    bool elected;                    /* one that may come to lead a job (jobs_lead()) */
    const struct hosting_page *page; /* NULL: nobody looks */
};

struct hosting {
    struct gate *gate;
    struct server *server;
    struct jobs *jobs;
    struct history *history; /* for the page; NULL: there is none */
    struct page *page;
    int port;
};

/* ERR_USAGE: there is no secret that the other nodes could share; -EADDRINUSE: somebody has the port. */
int hosting_open(struct hosting **ret, uv_loop_t *loop, const struct hosting_options *o, struct err *e);
/* NULL allowed. Connections are closed when the loop has turned; jobs go with them. */
void hosting_close(struct hosting *h);

#endif
