/* Environment and arguments of a worker. Pure. */
#ifndef CRUN_LAUNCHER_SPAWN_ENV_H
#define CRUN_LAUNCHER_SPAWN_ENV_H

#include <stddef.h>

struct env_contract;
struct err;

/* base (NULL-terminated, borrowed) with the contract's variables and extra ("NAME=value" strings, NULL-terminated) put
 * over it. *ret: NULL-terminated, one allocation, freed with free(); it points into base for inherited variables.
 * -ENOMEM. */
int spawn_env_build(char **base, const struct env_contract *c, const char *const *extra, char ***ret, struct err *e);

#endif
