/* Who may read over HTTP, and from where. Pure. */
#ifndef CRUN_COMMON_HTTP_AUTH_H
#define CRUN_COMMON_HTTP_AUTH_H

#include <stdbool.h>
#include <stddef.h>

#include "common/auth/auth.h"

struct err;

/* What a request shows: "Bearer SECRET", or Basic with a principal and its secret. */
struct http_credentials {
    bool shown, named;                      /* at all; with a principal */
    char principal[AUTH_PRINCIPAL_MAX + 1]; /* "" unless named */
    char secret[AUTH_SECRET_MAX + 1];
};

/* Parse the value of an Authorization header; NULL: the request had none. One that cannot be parsed counts as shown
 * and matches nothing. The caller wipes *ret. */
void http_auth_read(const char *header, struct http_credentials *ret);
/* Takes the same time wherever they differ. */
bool http_auth_matches(const struct http_credentials *c, const struct auth_token *t);

/* Both, for all tokens. */
bool http_auth_token(const struct auth_tokens *tokens, const char *header);

/* Is the value of a Host header an IP address or localhost, with or without a port? */
bool http_auth_host(const char *header);

/* Check that --http-port (-1: none), --http-bind, --http-token-file and --http-insecure fit together. ERR_USAGE with
 * a sentence that names them. */
int http_auth_check(int port, const char *bind, bool loopback, const char *token_file, bool insecure, struct err *e);

/* "http://127.0.0.1:4711/"; returns out. */
char *http_auth_url(const char *bind, int port, char *out, size_t cap);

#endif
