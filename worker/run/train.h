/* Training from a configuration: set up, epochs, evaluation, checkpoints, logs, stops. */
#ifndef CRUN_WORKER_TRAIN_H
#define CRUN_WORKER_TRAIN_H

struct env_contract;
struct err;
struct train_config;

/* command_line: one line for the log's header. Returns 0 with *ret_exit an exit code (EXIT_OK, EXIT_REQUEUE), or the
 * error. */
int train_run(const struct train_config *cfg, const struct env_contract *env, const char *command_line, int *ret_exit,
              struct err *e);

#endif
