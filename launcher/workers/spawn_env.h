/* Environment and arguments of a worker. Pure. */
#ifndef CRUN_LAUNCHER_SPAWN_ENV_H
#define CRUN_LAUNCHER_SPAWN_ENV_H

#include <stddef.h>

struct env_contract;
struct err;

/* Merge environments: base (NULL-terminated, borrowed), overridden by the contract's variables and by extra
 * ("NAME=value" strings, NULL-terminated). *ret: NULL-terminated, one allocation, freed with free(); inherited
 * variables point into base. -ENOMEM. */
int spawn_env_build(char **base, const struct env_contract *c, const char *const *extra, char ***ret, struct err *e);

#endif
