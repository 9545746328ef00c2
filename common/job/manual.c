/* Prints the environment and the exit codes as sections of manual pages (manual.h). */
#include "common/job/manual.h"

#include <stddef.h>

#include "common/job/env_contract.h"
#include "common/job/exitcode.h"

static const struct arg_row exit_codes[] = {
#define X(name, value, text) {#value, text},
    EXIT_CODES(X)
#undef X
        {NULL, NULL},
};

static const struct arg_row variables[] = {
#define X(field, variable, meaning) {variable, meaning},
    ENV_INTS(X) ENV_STRINGS(X)
#undef X
        {ENV_PAGE_FD, "descriptor of the page shared with crun, for libcrun"},
    {NULL, NULL},
};

const struct arg_section manual_exit_status = {
    .title = "EXIT STATUS",
    .intro = "That of the first worker that failed, or 128 + the signal that ended it. crun itself ends with:",
    .rows = exit_codes,
};

const struct arg_section manual_program_exit_codes = {.title = "EXIT STATUS", .rows = exit_codes};

const struct arg_section manual_environment = {
    .title = "ENVIRONMENT",
    .intro = "Options name the variables that stand in for them. A worker starts with crun's own environment and:",
    .rows = variables,
};
