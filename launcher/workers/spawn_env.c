/* Builds the environment of a worker (spawn_env.h). */
#include "launcher/workers/spawn_env.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/auth/auth.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/job/env_contract.h"

#define VARIABLES_MAX 64 /* of the contract and extra together */

/* New variables as text, one after the other; offsets, because the buffer moves when it grows. */
struct additions {
    struct buf text;
    size_t at[VARIABLES_MAX], n;
};

static int add_variable(void *ctx, const char *name, const char *value)
{
    struct additions *a = ctx;
    if (a->n == VARIABLES_MAX)
        return -E2BIG;
    size_t start = a->text.len;
    TRY(buf_printf(&a->text, "%s=%s", name, value));
    TRY(buf_add(&a->text, "", 1));
    a->at[a->n++] = start;
    return 0;
}

/* Is this inherited variable replaced? Called for every variable and worker; usually the first letters decide. */
static bool replaced(const struct additions *a, const char *variable)
{
    const size_t n = strcspn(variable, "=");
    for (size_t i = 0; i < a->n; i++) {
        const char *name = a->text.data + a->at[i];
        if (strncmp(name, variable, n) == 0 && (name[n] == '=' || !name[n]))
            return true;
    }
    return false;
}

/* The secret stays with crun, because programs print their environment into logs. */
static bool is_secret(const char *variable)
{
    static const char name[] = AUTH_VARIABLE "=";
    return strncmp(variable, name, sizeof name - 1) == 0;
}

static int collect(struct additions *a, const struct env_contract *c, const char *const *extra)
{
    TRY(env_contract_write(c, add_variable, a));
    for (; *extra; extra++) {
        if (a->n == VARIABLES_MAX)
            return -E2BIG;
        size_t start = a->text.len;
        TRY(buf_add(&a->text, *extra, strlen(*extra) + 1));
        a->at[a->n++] = start;
    }
    return 0;
}

int spawn_env_build(char **base, const struct env_contract *c, const char *const *extra, char ***ret, struct err *e)
{
    struct additions a = {.n = 0};
    size_t inherited = 0, n = 0;
    buf_init(&a.text, 1u << 20);
    int rc = collect(&a, c, extra);
    while (base[inherited])
        inherited++;
    char **env = rc == 0 ? malloc((inherited + a.n + 1) * sizeof *env + a.text.len) : NULL;
    if (!env) {
        buf_free(&a.text);
        return err_errno(e, rc < 0 ? -rc : ENOMEM, "environment of a worker");
    }
    for (size_t i = 0; i < inherited; i++)
        if (!replaced(&a, base[i]) && !is_secret(base[i]))
            env[n++] = base[i];
    char *text = (char *)(env + inherited + a.n + 1);
    memcpy(text, a.text.data, a.text.len);
    for (size_t i = 0; i < a.n; i++)
        env[n++] = text + a.at[i];
    env[n] = NULL;
    buf_free(&a.text);
    *ret = env;
    return 0;
}
