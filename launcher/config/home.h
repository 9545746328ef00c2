/* Where the rendezvous of a job lives, from what the user typed and what a scheduler left in the environment. Pure:
 * files, names of machines and environment come through struct home_look.
 *
 *   - --standalone, or one node and nothing else: inside this crun;
 *   - an endpoint HOST[:PORT] (backend c10d, tcp or none): dial it, or host it where HOST is an address of this
 *     machine; with backend rendezvousd only dial it;
 *   - a list of endpoints HOST[:PORT],HOST[:PORT],...: nodes of the job, of which this one dials whoever hears most
 *     nodes, and hosts where it is one of them; or daemons that share their state. crun.conf and backend rendezvousd
 *     mean the latter; else the first of the list that is a daemon says so when it is asked (decision 0047);
 *   - --master-addr with backend c10d: that endpoint, for torchrun's users mean it;
 *   - backend static, --master-addr or --master-port: node rank 0 hosts there, and the workers' store is on the same
 *     port;
 *   - redis://, rediss://, redis+sentinel://, rediss+sentinel://, etcd://, etcds://, k8s://, file://: the decision
 *     log there;
 *   - nothing, for several nodes: Slurm, PBS, Open MPI, a Kubernetes Indexed Job, then rdzv_endpoint of crun.conf
 *     (an HOST[:PORT] there is a rendezvousd's: only dialled), else an error that says what may be done. */
#ifndef CRUN_LAUNCHER_HOME_H
#define CRUN_LAUNCHER_HOME_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/choice.h"

struct err;

#define HOME_ENDPOINT_MAX 1023
#define HOME_HOST_MAX 255
#define HOME_ID_MAX 128
#define HOME_LIST_MAX 16
#define HOME_MASTER_PORT 29500 /* of a static rendezvous without one, as torchrun's */
#define HOME_RUN_ID "none"     /* of a job without a name, as torchrun's; a shared home takes none of that name */

#define HOME_KINDS(X)                                                                                                  \
    X(HOME_LOCAL, "local")   /* inside this crun, for itself alone */                                                  \
    X(HOME_TCP, "tcp")       /* rendezvousd, or a crun that hosts */                                                   \
    X(HOME_STATIC, "static") /* the same, on the port of the workers' store */                                         \
    X(HOME_REDIS, "redis")                                                                                             \
    X(HOME_ETCD, "etcd")                                                                                               \
    X(HOME_K8S, "k8s")                                                                                                 \
    X(HOME_FILE, "file")                                                                                               \
    X(HOME_LISTED, "listed hosts") /* one of several cruns that host, or daemons */

enum home_kind { HOME_KINDS(CHOICE_ID) };

/* Whether this crun carries the rendezvous of HOME_TCP, HOME_STATIC or HOME_LISTED. */
enum home_hosting {
    HOME_DIALS,        /* never */
    HOME_HOSTS_IF_OWN, /* if the host is an address of this machine and nobody listens there */
    HOME_HOSTS,        /* unless somebody listens there; HOME_LISTED: at the host whose place in the list is our seat */
};

/* What the user typed; NULL or -1: nothing. */
struct home_typed {
    const char *backend, *endpoint, *run_id; /* run_id: of at most HOME_ID_MAX characters */
    const char *master_addr;
    int master_port, node_rank; /* -1 */
    int is_host;                /* rdzv_conf: -1 not set, 0, 1 */
    bool store_type_file;       /* rdzv_conf */
    bool standalone;
    bool spare;            /* this node is content to wait */
    bool endpoint_is_near; /* the endpoint was typed on the command line, not inherited */
    int min_nodes, max_nodes;
};

/* What is looked up elsewhere; each returns NULL if there is none, valid until the next call. */
struct home_look {
    const char *(*env)(void *arg, const char *name);
    const char *(*first_line)(void *arg, const char *path); /* of a text file */
    const char *(*configured)(void *arg);                   /* rdzv_endpoint of crun.conf */
    const char *(*domain)(void *arg); /* of this machine, what follows its name: "job.ns.svc.cluster.local" */
    void *arg;
};

struct home_host {
    char host[HOME_HOST_MAX + 1];
    int port;
};

struct home {
    enum home_kind kind;
    enum home_hosting hosting;
    char endpoint[HOME_ENDPOINT_MAX + 1]; /* as the clients take it: "10.0.0.5:29400", "[::1]:29400", a URL; "" local */
    char host[HOME_HOST_MAX + 1];         /* tcp, static: without brackets */
    int port;                             /* tcp, static */
    int store_port;                       /* of the workers' store, typed: --master-port; 0: a fresh one each round */
    struct home_host list[HOME_LIST_MAX]; /* listed */
    int listed;                           /* how many they are */
    bool daemons;                         /* listed: they are daemons, as is known without asking */
    char unfit[600];                      /* listed: why they cannot be nodes of this job that host; "": they can */
    char run_id[HOME_ID_MAX + 1];         /* typed, the scheduler's, HOME_RUN_ID, or "" (local: draw one) */
    int node_rank;                        /* typed or the scheduler's; -1: none */
    bool numbered;                        /* node_rank is a place that one node has: static, or the scheduler's */
    bool is_configured;                   /* the endpoint is that of crun.conf */
    const char *from;                     /* who decided: "--rdzv-endpoint", "Slurm"; static storage */
    const char *unused[6];                /* typed options that mean nothing here, up to a NULL; static storage */
};

/* ERR_USAGE with a sentence that names the remedy. */
int home_decide(const struct home_typed *t, const struct home_look *look, struct home *ret, struct err *e);

const char *home_kind_name(enum home_kind k);

/* "HOST:PORT", "HOST", "[V6]:PORT", "[V6]", "V6" -> host and port (default_port if it says none). ERR_USAGE. */
int home_parse_endpoint(const char *text, int default_port, char host[HOME_HOST_MAX + 1], int *port, struct err *e);

/* "HOST:PORT,HOST,...": each as above, none twice. ERR_USAGE. */
int home_parse_list(const char *list, struct home_host ret[HOME_LIST_MAX], int *ret_n, struct err *e);

/* "HOST:PORT" with brackets where HOST is IPv6; returns out. */
char *home_join(const char *host, int port, char *out, size_t cap);

#endif
