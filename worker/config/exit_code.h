/* The exit code of trainer for an error. */
#ifndef CRUN_WORKER_EXIT_CODE_H
#define CRUN_WORKER_EXIT_CODE_H

int exit_code_of(int rc); /* rc: a negative code of err.h; an enum exit_code */

#endif
