/* Command line and environment of crun. */
#ifndef CRUN_LAUNCHER_CONFIG_H
#define CRUN_LAUNCHER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/args.h"

struct config {
    int nnodes;
    int64_t nproc; /* workers of this node */
    bool standalone;
    int64_t max_restarts;
    const char *run_id; /* never NULL after config_read() */
    const char *role;
    const char *log_dir; /* NULL: no files */
    bool log_prefix;
    int log_level;
    double shutdown_timeout; /* seconds */
    char random_id[40];      /* run_id may point here */
};

extern const struct arg_program config_program;

/* Returns 0, or ERR_USAGE with *e. r->help and the like are the caller's to act on. */
int config_read(struct config *c, struct arg_result *r, int argc, char **argv, struct err *e);

/* How long the rendezvous waits for a node: at least for as long as stopping its workers may take. */
int64_t config_join_timeout_ms(const struct config *c);

/* Cores this process may run on. */
int config_cores(void);

#endif
