/* Makes and checks the challenge and the proofs of both sides (auth.h). */
#include "common/auth/auth.h"
#include "common/base/err.h"
#include "common/base/numbers.h"
#include "common/net/ssl_lib.h"
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#define BYTES (AUTH_HEX / 2)
#define CONTEXT "crun-auth-1"

static bool is_hex(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((p[i] >= '0' && p[i] <= '9') || (p[i] >= 'a' && p[i] <= 'f')))
            return false;
    return n == AUTH_HEX;
}

int auth_random_hex(char *ret, size_t n, struct err *e)
{
    unsigned char bytes[BYTES];
    if (n > sizeof bytes)
        return err_set(e, -EINVAL, "%zu random bytes: expected up to %zu", n, sizeof bytes);
    if (getrandom(bytes, n, 0) != (ssize_t)n)
        return err_errno(e, errno, "no random bytes");
    hex_write(ret, bytes, n);
    explicit_bzero(bytes, sizeof bytes);
    return 0;
}

bool auth_equal(const char *a, size_t na, const char *b, size_t nb)
{
    const struct crypto_lib *lib = crypto_lib(NULL);
    return lib && na == nb && lib->CRYPTO_memcmp(a, b, na) == 0;
}

/* Compute a proof. Each part is hashed with its NUL, so that two different lists of parts never hash the same bytes. */
static int prove(const struct auth_token *t, const char *role, const char *client_nonce, const char *server_nonce,
                 const char *instance, char ret[AUTH_HEX + 1], struct err *e)
{
    const struct crypto_lib *lib = crypto_lib(e);
    if (!lib)
        return -ENOENT;
    const char *parts[] = {CONTEXT, role, t->principal, client_nonce, server_nonce, instance};
    char text[sizeof CONTEXT + 16 + sizeof t->principal + 2 * (AUTH_HEX + 1) + AUTH_INSTANCE_MAX + 1];
    unsigned char mac[EVP_MAX_MD_SIZE];
    unsigned mac_len = 0;
    size_t n = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t len = strlen(parts[i]) + 1;
        if (n + len > sizeof text)
            return err_set(e, -EINVAL, "a part of the proof is too long");
        memcpy(text + n, parts[i], len);
        n += len;
    }
    if (!lib->HMAC(lib->EVP_sha256(), t->secret, (int)strlen(t->secret), (unsigned char *)text, n, mac, &mac_len) ||
        mac_len != BYTES)
        return err_set(e, -EIO, "HMAC-SHA256 failed");
    hex_write(ret, mac, BYTES);
    return 0;
}

int auth_fingerprint(const struct auth_token *t, const char *nonce, char ret[AUTH_HEX + 1], struct err *e)
{
    if (!is_hex(nonce, strlen(nonce)))
        return err_set(e, ERR_CORRUPT, "the nonce is not %d hex digits", AUTH_HEX);
    return prove(t, "fingerprint", nonce, "", "", ret, e);
}

/* --- client */

int auth_client_begin(struct auth_client *c, const struct auth_token *t, struct err *e)
{
    c->token = *t;
    return auth_random_hex(c->nonce, BYTES, e);
}

int auth_client_answer(const struct auth_client *c, const char *server_nonce, size_t nonce_len,
                       const char *server_proof, size_t proof_len, const char *instance, size_t instance_len,
                       char ret_proof[AUTH_HEX + 1], struct err *e)
{
    char nonce[AUTH_HEX + 1] = {0}, id[AUTH_INSTANCE_MAX + 1] = {0}, expected[AUTH_HEX + 1];
    if (!is_hex(server_nonce, nonce_len) || !is_hex(server_proof, proof_len) || instance_len > AUTH_INSTANCE_MAX)
        return err_set(e, ERR_CORRUPT, "the answer to STORE.AUTH is no nonce, proof and instance");
    memcpy(nonce, server_nonce, nonce_len);
    memcpy(id, instance, instance_len);
    TRY(prove(&c->token, "server", c->nonce, nonce, id, expected, e));
    if (!auth_equal(expected, AUTH_HEX, server_proof, proof_len))
        return err_set(e, ERR_REFUSED, "the server does not hold the secret that we hold for principal '%s'",
                       c->token.principal);
    return prove(&c->token, "client", c->nonce, nonce, id, ret_proof, e);
}

void auth_client_end(struct auth_client *c)
{
    explicit_bzero(c, sizeof *c);
}

/* --- server */

int auth_server_challenge(struct auth_server *s, const struct auth_token *token, const char *principal,
                          const char *client_nonce, size_t nonce_len, const char *instance,
                          char ret_nonce[AUTH_HEX + 1], char ret_proof[AUTH_HEX + 1], struct err *e)
{
    struct auth_token nobody = {{0}, {0}};
    char nonce[AUTH_HEX + 1] = {0};
    *s = (struct auth_server){.known = token != NULL};
    if (!is_hex(client_nonce, nonce_len))
        return err_set(e, ERR_CORRUPT, "the nonce is not %d hex digits", AUTH_HEX);
    memcpy(nonce, client_nonce, nonce_len);
    if (!token) { /* no such principal: do the same work with a secret that nobody knows */
        strncpy(nobody.principal, principal, AUTH_PRINCIPAL_MAX);
        TRY(auth_random_hex(nobody.secret, BYTES, e));
        token = &nobody;
    }
    TRY(auth_random_hex(ret_nonce, BYTES, e));
    int rc = prove(token, "server", nonce, ret_nonce, instance, ret_proof, e);
    if (rc == 0)
        rc = prove(token, "client", nonce, ret_nonce, instance, s->expected, e);
    explicit_bzero(&nobody, sizeof nobody);
    return rc;
}

bool auth_server_check(struct auth_server *s, const char *proof, size_t n)
{
    bool right = s->expected[0] && auth_equal(s->expected, AUTH_HEX, proof, n);
    right = right && s->known;
    explicit_bzero(s, sizeof *s);
    return right;
}
