/* Patterns of parameters' names as the shell has them, with commas between them: "*.bias,encoder.ln.*". With factors:
 * "PATTERN=FACTOR,PATTERN=FACTOR". NULL: none. Pure. */
#ifndef CRUN_WORKER_PROGRAM_PATTERNS_H
#define CRUN_WORKER_PROGRAM_PATTERNS_H

#include <stdbool.h>

struct err;
struct program;

/* Does one of them fit? */
bool patterns_fit(const char *list, const char *name);
/* The factor of the last one that fits; 1: none does. */
double patterns_factor(const char *list, const char *name);

/* ERR_USAGE, with the option's name: a pattern that is empty or too long; a factor that is no number from 0 on. */
int patterns_check(const char *option, const char *list, bool factors, struct err *e);
/* ERR_USAGE: a pattern fits no trained parameter of the model. */
int patterns_check_model(const char *option, const char *list, const struct program *p, struct err *e);

#endif
