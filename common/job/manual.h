/* The manual pages' sections about what workers and launcher agree on, made from the lists that the code uses. */
#ifndef CRUN_COMMON_JOB_MANUAL_H
#define CRUN_COMMON_JOB_MANUAL_H

#include "common/args/args.h"

extern const struct arg_section manual_exit_status;        /* of crun */
extern const struct arg_section manual_program_exit_codes; /* of rendezvousd and trainer */
extern const struct arg_section manual_environment;        /* what crun starts a worker with */

#endif
