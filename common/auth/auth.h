/* Proves who a peer is without showing the secret: HMAC-SHA256 challenge and response, both ways; and the files that
 * hold the secrets.
 *
 *     client                                             server
 *     STORE.AUTH principal client-nonce          ->
 *                                                <-      [server-nonce, server-proof, instance]
 *     (checks server-proof)
 *     STORE.PROVE client-proof                   ->
 *                                                <-      +OK
 *
 * proof = hex(HMAC-SHA256(secret, "crun-auth-1" NUL role NUL principal NUL client-nonce NUL server-nonce NUL
 * instance)), role "server" or "client". Nonces are 32 random bytes in lower-case hex. Both nonces are fresh for each
 * connection, so a recorded exchange cannot be replayed; the role prevents that a proof is sent back to the peer that
 * made it; the instance (random id of the server's run) prevents its use at another server. A principal that the server
 * does not know is answered like any other, with a proof that nobody can check, so that trying names reveals nothing.
 *
 * Pure functions over strings: they serve blocking and event-driven callers alike. They load libcrypto on first use. */
#ifndef CRUN_COMMON_AUTH_H
#define CRUN_COMMON_AUTH_H

#include <stdbool.h>
#include <stddef.h>

struct err;

#define AUTH_HEX 64 /* characters of a nonce or a proof */
#define AUTH_PRINCIPAL_MAX 63
#define AUTH_SECRET_MIN 16
#define AUTH_SECRET_MAX 255
#define AUTH_INSTANCE_MAX 63

struct auth_token {
    char principal[AUTH_PRINCIPAL_MAX + 1]; /* letters, digits, '.', '_', '-', '@' */
    char secret[AUTH_SECRET_MAX + 1];       /* printable, no blanks */
};

/* --- the client's side */

struct auth_client {
    struct auth_token token;
    char nonce[AUTH_HEX + 1]; /* sent as the second argument of STORE.AUTH; the first is token.principal */
};

/* Copies the token and draws a nonce. */
int auth_client_begin(struct auth_client *c, const struct auth_token *t, struct err *e);

/* Check the server's answer (strings need not be NUL-terminated) and compute the argument of STORE.PROVE.
 * ERR_REFUSED: the server does not hold our secret, so it is not the one we look for, or our token is not in its
 * file; ERR_CORRUPT: malformed answer. */
int auth_client_answer(const struct auth_client *c, const char *server_nonce, size_t nonce_len,
                       const char *server_proof, size_t proof_len, const char *instance, size_t instance_len,
                       char ret_proof[AUTH_HEX + 1], struct err *e);

/* Forget the secret. */
void auth_client_end(struct auth_client *c);

/* --- the server's side */

struct auth_server {
    char expected[AUTH_HEX + 1]; /* the client's proof; empty: no challenge is open */
    bool known;                  /* the principal has a secret here */
};

/* Answer STORE.AUTH. token: the principal's, or NULL if there is none, and then no proof succeeds. ERR_CORRUPT:
 * malformed nonce. ret_nonce and ret_proof are the first two elements of the answer. */
int auth_server_challenge(struct auth_server *s, const struct auth_token *token, const char *principal,
                          const char *client_nonce, size_t nonce_len, const char *instance,
                          char ret_nonce[AUTH_HEX + 1], char ret_proof[AUTH_HEX + 1], struct err *e);

/* Does STORE.PROVE's argument answer the challenge? Takes the same time in every case. A challenge can be checked
 * once only. */
bool auth_server_check(struct auth_server *s, const char *proof, size_t n);

/* A value to compare tokens by without showing them: equal for equal tokens and the same nonce. It cannot serve as a
 * proof: it is computed with a role of its own. */
int auth_fingerprint(const struct auth_token *t, const char *nonce, char ret[AUTH_HEX + 1], struct err *e);

/* --- tokens */

struct auth_tokens {
    struct auth_token *v;
    size_t n;
};

#define AUTH_TOKENS_MAX_BYTES (4 << 20)

/* Parse lines "principal secret"; blank lines and those that begin with '#' are skipped. ERR_USAGE names the line. A
 * text without any token is an error. */
int auth_tokens_parse(struct auth_tokens *ret, const char *text, size_t n, const char *what, struct err *e);

/* Read tokens from a file that only its owner may read (else ERR_USAGE, with the remedy), or from an inherited
 * descriptor ("fd:3"), which is read to its end (at most 5 s) and closed. -ENOENT and the like. */
int auth_tokens_read(struct auth_tokens *ret, const char *path, struct err *e);

/* Read the file again into *t, which stays as it is after an error. ERR_USAGE: `path` is a descriptor, which can be
 * read only once: its number may belong to another file now. */
int auth_tokens_reread(struct auth_tokens *t, const char *path, struct err *e);

/* NULL if there is none. */
const struct auth_token *auth_tokens_find(const struct auth_tokens *t, const char *principal, size_t n);

/* Wipe and free; *t is empty then. */
void auth_tokens_free(struct auth_tokens *t);

/* Are both equal in length and bytes? Takes the same time wherever they differ. */
bool auth_equal(const char *a, size_t na, const char *b, size_t nb);

/* n random bytes in hex, NUL-terminated. */
int auth_random_hex(char *ret, size_t n, struct err *e);

/* Where a user's own token came from. */
enum auth_origin {
    AUTH_FROM_FILE,     /* named by the user: --token-file, CRUN_TOKEN_FILE */
    AUTH_FROM_VARIABLE, /* CRUN_TOKEN: "SECRET" (of the principal AUTH_PRINCIPAL) or "PRINCIPAL SECRET" */
    AUTH_FROM_HOME,     /* ~/.config/crun/token */
    AUTH_FROM_DRAWN,    /* no place to keep one: drawn for this process, so it serves only a job of one node */
};

#define AUTH_VARIABLE "CRUN_TOKEN"
#define AUTH_PRINCIPAL "crun"

/* The tokens that a client uses (its own comes first): those of `file`; if file is NULL, that of CRUN_TOKEN; else
 * that of ~/.config/crun/token, which is made with mode 0600 if it does not exist (two processes that make it at
 * once get the same one); if it cannot be made, a random one. */
int auth_tokens_own(struct auth_tokens *ret, const char *file, enum auth_origin *ret_origin, struct err *e);

#endif
