/* Loads a shared library and its functions (shared_lib.h). */
#include "common/base/shared_lib.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "common/base/err.h"

static int load(const struct shared_lib *l, struct err *e)
{
    void *so = dlopen(l->file, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return err_set(e, -ENOENT, "%s is not installed or cannot be loaded%s: %s", l->file, l->package, dlerror());
    for (size_t i = 0; i < l->n; i++) {
        void *f = dlsym(so, l->symbols[i].name);
        if (!f)
            return err_set(e, -ENOENT, "%s has no %s: expected %s", l->file, l->symbols[i].name, l->expected);
        memcpy((char *)l->functions + l->symbols[i].at, &f, sizeof f);
    }
    return 0;
}

const void *shared_lib_open(struct shared_lib *l, struct err *e)
{
    pthread_mutex_lock(&l->lock);
    l->loaded = l->loaded || load(l, e) == 0;
    const void *functions = l->loaded ? l->functions : NULL;
    pthread_mutex_unlock(&l->lock);
    return functions;
}

bool shared_lib_is_open(struct shared_lib *l)
{
    pthread_mutex_lock(&l->lock);
    const bool loaded = l->loaded;
    pthread_mutex_unlock(&l->lock);
    return loaded;
}
