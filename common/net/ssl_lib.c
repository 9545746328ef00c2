/* See ssl_lib.h. */
#include "common/net/ssl_lib.h"
#include "common/base/err.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct symbol {
    const char *name;
    size_t at; /* of its pointer in the struct */
};

static const struct symbol crypto_symbols[] = {
#define X(name) {#name, offsetof(struct crypto_lib, name)},
    CRYPTO_LIB_FUNCTIONS(X)
#undef X
};

static const struct symbol ssl_symbols[] = {
#define X(name) {#name, offsetof(struct ssl_lib, name)},
    SSL_LIB_FUNCTIONS(X)
#undef X
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* The names that the headers we were built with belong to. */
#if OPENSSL_VERSION_MAJOR >= 3
#define SONAME_SUFFIX ".so.3"
#else
#error "OpenSSL 3 is needed (Debian: libssl-dev)"
#endif

static int open_library(const char *file, const struct symbol *symbols, size_t n, void *functions, struct err *e)
{
    void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(
            e, -ENOENT,
            "%s is not installed or cannot be loaded (Debian 12: libssl3; Debian 13, Ubuntu 24.04: libssl3t64): %s",
            file, dlerror());
    for (size_t i = 0; i < n; i++) {
        void *f = dlsym(lib, symbols[i].name);
        if (!f)
            return err_set(e, -ENOENT, "%s has no %s: expected OpenSSL 3", file, symbols[i].name);
        memcpy((char *)functions + symbols[i].at, &f, sizeof f);
    }
    return 0;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const struct crypto_lib *crypto_lib(struct err *e)
{
    static struct crypto_lib lib;
    static bool loaded;
    pthread_mutex_lock(&lock);
    if (!loaded)
        loaded = open_library("libcrypto" SONAME_SUFFIX, crypto_symbols, COUNT(crypto_symbols), &lib, e) == 0;
    pthread_mutex_unlock(&lock);
    return loaded ? &lib : NULL;
}

const struct ssl_lib *ssl_lib(struct err *e)
{
    static struct ssl_lib lib;
    static bool loaded;
    if (!crypto_lib(e))
        return NULL;
    pthread_mutex_lock(&lock);
    if (!loaded)
        loaded = open_library("libssl" SONAME_SUFFIX, ssl_symbols, COUNT(ssl_symbols), &lib, e) == 0;
    pthread_mutex_unlock(&lock);
    return loaded ? &lib : NULL;
}
