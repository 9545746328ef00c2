/* Loads OpenSSL's libcrypto and libssl (ssl_lib.h). */
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

/* Compiled with the headers of OpenSSL 3. Version 1.1.1 of older distributions has the same functions, and is loaded
 * if there is no 3. */
#if OPENSSL_VERSION_MAJOR < 3
#error "OpenSSL 3 is needed (Debian: libssl-dev)"
#endif

#define PACKAGE " (Debian 12: libssl3; Debian 13, Ubuntu 24.04: libssl3t64)"
#define LIB(name, suffix) SHARED_LIB("lib" #name suffix, PACKAGE, "OpenSSL 3", name##_symbols, &name##_functions)

static struct crypto_lib crypto_functions;
static struct ssl_lib ssl_functions;
static struct shared_lib crypto = LIB(crypto, ".so.3"), older_crypto = LIB(crypto, ".so.1.1");

const struct crypto_lib *crypto_lib(struct err *e)
{
    if (shared_lib_is_open(&older_crypto) || shared_lib_open(&crypto, e) || shared_lib_open(&older_crypto, NULL))
        return &crypto_functions;
    return NULL;
}

const struct ssl_lib *ssl_lib(struct err *e)
{
    static struct shared_lib ssl = LIB(ssl, ".so.3"), older_ssl = LIB(ssl, ".so.1.1");
    if (!crypto_lib(e))
        return NULL;
    return shared_lib_open(shared_lib_is_open(&older_crypto) ? &older_ssl : &ssl, e); /* both of one release */
}
