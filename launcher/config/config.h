/* Command line, environment and settings files of crun.
 *
 * How data flows: config.c is the table of options. args_parse() of common/args fills a struct config from it: the
 * command line counts most, then the environment, then crun.conf, then defaults. Values with a form of their own have
 * parsers: config_parse.c, stops.c, rdzv_conf.c, and those of other rooms (log_conf.h, hang.h). config_read() then
 * checks that values fit together, counts workers, and asks home.h where the rendezvous lives, which may be the
 * scheduler's to say (home_scheduler.c).
 *
 * The result is read-only. config_job.c makes of it what all nodes must agree on, config_unused.c says what was typed
 * in vain, dryrun.c prints what would happen. Nothing here starts anything. */
#ifndef CRUN_LAUNCHER_CONFIG_H
#define CRUN_LAUNCHER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/args/args.h"
#include "common/base/choice.h"
#include "common/rdzv/machine/rdzv.h"
#include "launcher/base/program.h"
#include "launcher/config/home.h"
#include "launcher/config/rdzv_conf.h"
#include "launcher/config/stops.h"
#include "launcher/hang/hang.h"
#include "launcher/output/log_conf.h"

struct config_nodes {
    int min, max;
};

enum config_cgroup { CONFIG_CGROUP_AUTO, CONFIG_CGROUP_ON, CONFIG_CGROUP_OFF };

enum config_recovery { CONFIG_RECOVERY_INPROCESS, CONFIG_RECOVERY_RESTART };

#define STRAGGLER_ACTIONS(X)                                                                                           \
    X(STRAGGLER_REPORT, "report")                                                                                      \
    X(STRAGGLER_EXCLUDE, "exclude")
enum straggler_action { STRAGGLER_ACTIONS(CHOICE_ID) };

enum config_order { CONFIG_ORDER_AUTO, CONFIG_ORDER_HOST, CONFIG_ORDER_JOIN, CONFIG_ORDER_NODE_RANK };

#define CONFIG_ROLE "default" /* of --role */

/* -x: each "NAME=VALUE", or a NAME that ends at a comma or the end. */
#define CONFIG_EXPORTS_MAX 128
struct config_exports {
    const char *v[CONFIG_EXPORTS_MAX];
    int n;
};

struct config {
    struct config_nodes nnodes;
    bool nnodes_typed;                                /* or set by a variable or a file */
    const char *hosts, *hostfile, *rsh, *remote_crun; /* NULL: not typed */
    struct config_exports exports;
    int64_t control_fd;  /* -1: nobody else starts this crun (remote_agent.h) */
    int64_t nproc;       /* workers of this node */
    bool nproc_typed;    /* on the command line */
    bool endpoint_typed; /* likewise, --rdzv-endpoint */
    bool standalone;
    const char *rdzv_backend, *rdzv_endpoint, *rdzv_conf; /* as typed, NULL: not */
    const char *master_addr, *local_addr, *iface, *token_file;
    int64_t node_rank, master_port; /* -1: not typed */
    const char *rdzv_ca;
    bool rdzv_tls, insecure;
    int rank_order;   /* enum config_order */
    int cgroup;       /* enum config_cgroup */
    int numa_binding; /* enum binding_mode */
    int recovery;     /* enum config_recovery */
    int64_t warm_spares;
    int64_t max_restarts;
    int64_t max_node_failures;              /* 0: none is too many */
    bool spare;                             /* this node waits where the job has all its nodes */
    int64_t spare_exit_code;                /* of a spare that was not needed */
    double restart_window, restart_backoff; /* seconds */
    const char *run_id;                     /* never NULL after config_read() */
    const char *role;
    struct log_conf log;
    int log_level;
    const char *failure_file; /* NULL: none */
    const char *event_log;    /* NULL: none */
    int64_t http_port;        /* -1: none */
    const char *http_bind, *http_token_file;
    bool http_insecure;
    struct stops stops;
    struct hang_options hang; /* several_nodes and witness_ns are not set */
    int64_t witness_ns;       /* as there */
    int straggler_action;     /* enum straggler_action */
    struct program_how how;   /* the user's program is started */
    int64_t stdin_rank;       /* -1: none was named */
    bool virtual_local_rank, inherit_fds, dry_run;
    bool torchrun_compat;
    char compat_dir[1024];         /* log.default_dir may point here */
    const char *event_log_handler; /* torchrun's; "console" has an effect */
    int start_method;              /* of no effect, like the two below */
    double monitor_interval;
    const char *logs_specs;
    const char *configured_endpoint, *configured_token; /* of crun.conf; NULL: none */
    char own_id[HOME_ID_MAX + 1];                       /* run_id may point here */
    struct home home;
    struct rdzv_conf conf;
    /* What keeps this node from starting its workers, where all nodes of the job are needed: it joins all the same, so
     * that they end with it. code 0: nothing */
    struct config_cannot {
        int code;
        char text[320];
    } cannot;
};

extern const struct arg_program config_program;
extern const struct arg_section *const config_sections[]; /* of its manual page: config_manual.c */

/* config_read.c: returns 0, or ERR_USAGE with *e. r->help and the like are the caller's to act on. Strings of *c point
 * into argv, environ and *r. */
int config_read(struct config *c, struct arg_result *r, int argc, char **argv, struct err *e);

/* True: the job cannot do without this node, and others wait for it. */
bool config_is_awaited(const struct config *c);

/* config_parse.c: values of the option table (struct arg_spec.parse). */
int config_parse_nnodes(const char *text, void *field, struct err *e);
int config_parse_nproc(const char *text, void *field, struct err *e);

int config_parse_export(const char *text, void *field, struct err *e);

/* Whether this crun starts agents on other hosts and is none itself (remote.h). */
bool config_starts_agents(const struct config *c);

/* Count what "auto", "cpu" and "gpu" mean on this machine. ERR_USAGE. */
int config_count_workers(struct config *c, struct err *e);

/* config_compat.c: what --torchrun-compat, or the name torchrun, changes; and whether lines have a prefix where that is
 * not typed. self: argv[0]. */
void config_apply_compat(struct config *c, const struct arg_result *r, const char *self);

/* config_unused.c: one line for each option that was typed and has no effect here, and for srun's nodes where none were
 * typed. */
void config_print_unused(const struct config *c, const struct arg_result *r, FILE *out);

/* config_home.c: c->home, and token_file where only crun.conf names one. ERR_USAGE. */
int config_find_home(struct config *c, struct err *e);

/* How long the rendezvous waits for a node: if not typed, at least for as long as stopping its workers may take. */
int64_t config_join_timeout_ms(const struct config *c);

/* Workers may outlive a round, and there are rounds to outlive: after failures, or as nodes come. */
bool config_holds(const struct config *c);
int config_spares(const struct config *c); /* --warm-spares, 0 where nobody outlives a round */

/* The settings that all nodes of the job must share. */
void config_job(const struct config *c, struct rdzv_config *ret);

#endif
