/* See ssl_lib.h. */
#include "common/net/ssl_lib.h"
#include "common/base/shared_lib.h"

static const struct lib_symbol crypto_symbols[] = {
#define X(name) {#name, offsetof(struct crypto_lib, name)},
    CRYPTO_LIB_FUNCTIONS(X)
#undef X
};

static const struct lib_symbol ssl_symbols[] = {
#define X(name) {#name, offsetof(struct ssl_lib, name)},
    SSL_LIB_FUNCTIONS(X)
#undef X
};

/* The names that the headers we were built with belong to. */
#if OPENSSL_VERSION_MAJOR >= 3
#define SONAME_SUFFIX ".so.3"
#else
#error "OpenSSL 3 is needed (Debian: libssl-dev)"
#endif

#define PACKAGE " (Debian 12: libssl3; Debian 13, Ubuntu 24.04: libssl3t64)"

const struct crypto_lib *crypto_lib(struct err *e)
{
    static struct crypto_lib functions;
    static struct shared_lib lib =
        SHARED_LIB("libcrypto" SONAME_SUFFIX, PACKAGE, "OpenSSL 3", crypto_symbols, &functions);
    return shared_lib_open(&lib, e);
}

const struct ssl_lib *ssl_lib(struct err *e)
{
    static struct ssl_lib functions;
    static struct shared_lib lib = SHARED_LIB("libssl" SONAME_SUFFIX, PACKAGE, "OpenSSL 3", ssl_symbols, &functions);
    return crypto_lib(e) ? shared_lib_open(&lib, e) : NULL;
}
