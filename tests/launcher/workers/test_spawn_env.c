/* The environment of a worker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/job/env_contract.h"
#include "launcher/workers/spawn_env.h"

static int count(char *const *env, const char *name)
{
    int n = 0;
    size_t len = strlen(name);
    for (; *env; env++)
        n += strncmp(*env, name, len) == 0 && (*env)[len] == '=';
    return n;
}

static const char *value(char *const *env, const char *name)
{
    size_t n = strlen(name);
    for (; *env; env++)
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=')
            return *env + n + 1;
    return NULL;
}

static void inherited_variables_stay_and_the_contracts_replace_them(void **state)
{
    char *base[] = {(char *)"HOME=/h", (char *)"RANK=9", (char *)"RANKLE=x", (char *)"RANK=8", (char *)"EMPTY=", NULL};
    const char *extra[] = {"CRUN_PAGE_FD=7", "HOME=/other", NULL};
    const struct env_contract c = {.rank = 2, .world_size = 4, .master_addr = "127.0.0.1", .prev_rank = -1};
    char **env;
    assert_int_equal(spawn_env_build(base, &c, extra, &env, NULL), 0);
    assert_string_equal(value(env, "RANK"), "2");
    assert_int_equal(count(env, "RANK"), 1);
    assert_string_equal(value(env, "RANKLE"), "x");
    assert_string_equal(value(env, "EMPTY"), "");
    assert_string_equal(value(env, "CRUN_PAGE_FD"), "7");
    assert_string_equal(value(env, "HOME"), "/other");
    assert_int_equal(count(env, "HOME"), 1);
    assert_string_equal(value(env, "CRUN_PREV_RANK"), "-1");
    assert_null(value(env, "ROLE_NAME")); /* NULL strings are left out */
    free(env);
}

static void every_variable_of_the_contract_is_there_once(void **state)
{
    char *base[] = {NULL};
    const char *extra[] = {NULL};
    struct env_contract c = {0};
    char **env;
#define X(field, variable, meaning) c.field = "text";
    ENV_STRINGS(X)
#undef X
    assert_int_equal(spawn_env_build(base, &c, extra, &env, NULL), 0);
#define X(field, variable, meaning) assert_int_equal(count(env, variable), 1);
    ENV_INTS(X)
    ENV_STRINGS(X)
#undef X
    free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inherited_variables_stay_and_the_contracts_replace_them),
        cmocka_unit_test(every_variable_of_the_contract_is_there_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
