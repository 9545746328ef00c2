/* Finds a recipe by its name and gives its settings. */
#include "worker/config/recipes.h"

#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/config/config.h"

#define X(name, text) {name, "recipe " name, text},
static const struct {
    const char *name, *origin, *text;
} recipes[] = {RECIPES(X)};
#undef X
enum { N = sizeof recipes / sizeof *recipes };

int recipes_settings(const void *config, struct arg_settings *ret, struct err *e)
{
    const char *name = ((const struct train_config *)config)->recipe;
    char known[256] = "";
    size_t used = 0;
    if (!name)
        return 0;
    for (int i = 0; i < N; i++) {
        if (strcmp(recipes[i].name, name) == 0) {
            *ret = (struct arg_settings){recipes[i].origin, recipes[i].text};
            return 0;
        }
        if (used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", recipes[i].name);
    }
    return err_set(e, ERR_USAGE, "--recipe: '%.64s' is not one of %s", name, known);
}
