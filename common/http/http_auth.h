/* Who may read over HTTP, and where. Pure. */
#ifndef CRUN_COMMON_HTTP_AUTH_H
#define CRUN_COMMON_HTTP_AUTH_H

#include <stdbool.h>
#include <stddef.h>

struct auth_tokens;
struct err;

/* The value of an Authorization header (NULL: there was none): "Bearer SECRET", or Basic with a principal and its
 * secret. */
bool http_auth_token(const struct auth_tokens *tokens, const char *header);

/* The value of a Host header: an IP address or localhost, with or without a port. */
bool http_auth_host(const char *header);

/* --http-port (-1: none), --http-bind, --http-token-file and --http-insecure fit together. ERR_USAGE with a sentence
 * that names them. */
int http_auth_check(int port, const char *bind, bool loopback, const char *token_file, bool insecure, struct err *e);

/* "http://127.0.0.1:4711/"; returns out. */
char *http_auth_url(const char *bind, int port, char *out, size_t cap);

#endif
