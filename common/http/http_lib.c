/* See http_lib.h. */
#include "common/http/http_lib.h"
#include "common/base/err.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define FILE_NAME "libmicrohttpd.so.12"

const struct http_lib *http_lib(struct err *e)
{
    static const struct {
        const char *name;
        size_t at;
    } symbols[] = {
#define X(name) {#name, offsetof(struct http_lib, name)},
        HTTP_LIB_FUNCTIONS(X)
#undef X
    };
    static struct http_lib lib;
    static bool loaded; /* the loop's thread only */
    if (loaded)
        return &lib;
    void *so = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        err_set(e, -ENOENT,
                "%s is not installed or cannot be loaded (Debian 12: libmicrohttpd12; Debian 13, Ubuntu 24.04: "
                "libmicrohttpd12t64): %s",
                FILE_NAME, dlerror());
        return NULL;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *f = dlsym(so, symbols[i].name);
        if (!f) {
            err_set(e, -ENOENT, "%s has no %s", FILE_NAME, symbols[i].name);
            return NULL;
        }
        memcpy((char *)&lib + symbols[i].at, &f, sizeof f);
    }
    loaded = true;
    return &lib;
}
