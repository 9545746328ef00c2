/* Who may read over HTTP. Pure. */
#ifndef CRUN_RENDEZVOUSD_HTTP_AUTH_H
#define CRUN_RENDEZVOUSD_HTTP_AUTH_H

#include <stdbool.h>

struct auth_tokens;

/* The value of an Authorization header (NULL: there was none): "Bearer SECRET", or Basic with a principal and its secret. */
bool http_auth_token(const struct auth_tokens *tokens, const char *header);

/* The value of a Host header: an IP address or localhost, with or without a port. */
bool http_auth_host(const char *header);

#endif
