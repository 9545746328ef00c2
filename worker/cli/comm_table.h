/* The table of comm-bench and comm-test: a row for each size of each call, type and operation. */
#ifndef CRUN_WORKER_CLI_COMM_TABLE_H
#define CRUN_WORKER_CLI_COMM_TABLE_H

#include "worker/cli/comm_ranks.h"

/* Prints on rank 0. *ret_wrong: elements that were wrong, of all ranks. */
int comm_table(struct comm_ranks *b, double *ret_wrong, struct err *e);

#endif
