/* OpenSSL, opened on first use: most runs do not need it, and it costs more memory than all other libraries
 * together. The functions are in two structs under their own names: lib->HMAC(...). Macros of its headers that call
 * further functions (SSL_CTX_set_mode and the like) cannot be used: call what they call. */
#ifndef CRUN_COMMON_SSL_LIB_H
#define CRUN_COMMON_SSL_LIB_H

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

struct err;

#define CRYPTO_LIB_FUNCTIONS(X)                                                                                        \
    X(HMAC)                                                                                                            \
    X(EVP_sha256)                                                                                                      \
    X(EVP_MD_CTX_new)                                                                                                  \
    X(EVP_MD_CTX_free)                                                                                                 \
    X(EVP_DigestInit_ex)                                                                                               \
    X(EVP_DigestUpdate)                                                                                                \
    X(EVP_DigestFinal_ex)                                                                                              \
    X(CRYPTO_memcmp)                                                                                                   \
    X(ERR_get_error)                                                                                                   \
    X(ERR_clear_error)                                                                                                 \
    X(ERR_error_string_n)                                                                                              \
    X(ERR_reason_error_string)                                                                                         \
    X(BIO_new)                                                                                                         \
    X(BIO_s_mem)                                                                                                       \
    X(BIO_read)                                                                                                        \
    X(BIO_write)                                                                                                       \
    X(BIO_ctrl)                                                                                                        \
    X(BIO_free)                                                                                                        \
    X(X509_VERIFY_PARAM_set1_ip_asc)                                                                                   \
    X(X509_verify_cert_error_string)

#define SSL_LIB_FUNCTIONS(X)                                                                                           \
    X(TLS_method)                                                                                                      \
    X(SSL_CTX_new)                                                                                                     \
    X(SSL_CTX_free)                                                                                                    \
    X(SSL_CTX_ctrl)                                                                                                    \
    X(SSL_CTX_set_verify)                                                                                              \
    X(SSL_CTX_use_certificate_chain_file)                                                                              \
    X(SSL_CTX_use_PrivateKey_file)                                                                                     \
    X(SSL_CTX_check_private_key)                                                                                       \
    X(SSL_CTX_load_verify_locations)                                                                                   \
    X(SSL_CTX_set_default_verify_paths)                                                                                \
    X(SSL_load_client_CA_file)                                                                                         \
    X(SSL_CTX_set_client_CA_list)                                                                                      \
    X(SSL_new)                                                                                                         \
    X(SSL_free)                                                                                                        \
    X(SSL_set_bio)                                                                                                     \
    X(SSL_ctrl)                                                                                                        \
    X(SSL_set1_host)                                                                                                   \
    X(SSL_get0_param)                                                                                                  \
    X(SSL_set_accept_state)                                                                                            \
    X(SSL_set_connect_state)                                                                                           \
    X(SSL_do_handshake)                                                                                                \
    X(SSL_is_init_finished)                                                                                            \
    X(SSL_read)                                                                                                        \
    X(SSL_write)                                                                                                       \
    X(SSL_shutdown)                                                                                                    \
    X(SSL_get_error)                                                                                                   \
    X(SSL_get_verify_result)

struct crypto_lib {
#define X(name) __typeof__(name) *name;
    CRYPTO_LIB_FUNCTIONS(X)
#undef X
};

struct ssl_lib {
#define X(name) __typeof__(name) *name;
    SSL_LIB_FUNCTIONS(X)
#undef X
};

/* libcrypto and libssl. NULL, with one sentence that names the library, if it is not installed. The first call reads
 * files (some milliseconds); the result stays for the life of the process. Any thread. */
const struct crypto_lib *crypto_lib(struct err *e);
const struct ssl_lib *ssl_lib(struct err *e);

#endif
