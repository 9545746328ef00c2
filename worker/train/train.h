/* Training from a configuration. The room puts the others together:
 *
 *   config -> session.h: opens data, model, device, state, communicator, plans, loaders
 *   round.c: resume -> epochs of steps (run/step.h: the page that everything else serves) -> run/eval.h at their ends
 *   results of a step -> journal.h: metrics, progress lines, logs (worker/report)
 *   places where something is due -> saver.h -> snapshot_writer.h: a copy of the state, written beside training
 *   launcher's wish to stop -> stop.h -> the next all-reduce: all ranks stop after the same step
 *
 * Rates of steps are rate.h's, the timeline is trace.h's, what memory is for is memory.h's. */
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
