/* Decides which HTTP requests may read: tokens, host names, options (http_auth.h). */
#include "common/http/http_auth.h"
#include "common/base/err.h"
#include "common/base/numbers.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define CREDENTIALS_MAX (AUTH_PRINCIPAL_MAX + 1 + AUTH_SECRET_MAX)

static const char *after_scheme(const char *header, const char *scheme)
{
    size_t n = strlen(scheme);
    if (strncasecmp(header, scheme, n) != 0 || header[n] != ' ')
        return NULL;
    return header + n + strspn(header + n, " ");
}

/* Copy n bytes; "" if they do not fit: no token is "". */
static void keep(char *out, size_t cap, const char *text, size_t n)
{
    const bool fits = n < cap && !memchr(text, 0, n);
    memcpy(out, text, fits ? n : 0);
    out[fits ? n : 0] = 0;
}

void http_auth_read(const char *header, struct http_credentials *ret)
{
    char plain[CREDENTIALS_MAX];
    memset(ret, 0, sizeof *ret);
    ret->shown = header != NULL;
    const char *p = header ? after_scheme(header, "Bearer") : NULL;
    if (p)
        keep(ret->secret, sizeof ret->secret, p, strlen(p));
    if (p || !header || !(p = after_scheme(header, "Basic")))
        return;
    const ptrdiff_t n = base64_read(p, strlen(p), plain, sizeof plain);
    const char *colon = n > 0 ? memchr(plain, ':', (size_t)n) : NULL;
    ret->named = true;
    if (colon) {
        keep(ret->principal, sizeof ret->principal, plain, (size_t)(colon - plain));
        keep(ret->secret, sizeof ret->secret, colon + 1, (size_t)(plain + n - colon) - 1);
    }
    explicit_bzero(plain, sizeof plain);
}

bool http_auth_matches(const struct http_credentials *c, const struct auth_token *t)
{
    const bool who = !c->named || auth_equal(t->principal, strlen(t->principal), c->principal, strlen(c->principal));
    return auth_equal(t->secret, strlen(t->secret), c->secret, strlen(c->secret)) && who;
}

/* Is the secret in the header one of the tokens? All are compared, so that the time taken reveals nothing. */
bool http_auth_token(const struct auth_tokens *tokens, const char *header)
{
    struct http_credentials c;
    bool found = false;
    http_auth_read(header, &c);
    for (size_t i = 0; i < tokens->n; i++)
        found = http_auth_matches(&c, &tokens->v[i]) || found;
    explicit_bzero(&c, sizeof c);
    return found;
}

bool http_auth_host(const char *header)
{
    char host[INET6_ADDRSTRLEN + 2];
    unsigned char bytes[16];
    if (!header)
        return true; /* HTTP/1.0: no browser's */
    const char *end = header[0] == '[' ? strchr(header, ']') : strchr(header, ':');
    size_t skip = header[0] == '[', n = (end ? (size_t)(end - header) : strlen(header)) - skip;
    if (n >= sizeof host)
        return false;
    memcpy(host, header + skip, n);
    host[n] = 0;
    return strcasecmp(host, "localhost") == 0 || inet_pton(AF_INET, host, bytes) == 1 ||
           inet_pton(AF_INET6, host, bytes) == 1;
}

int http_auth_check(int port, const char *bind, bool loopback, const char *token_file, bool insecure, struct err *e)
{
    if (port < 0 && (token_file || insecure))
        return err_set(e, ERR_USAGE, "--%s without --http-port has no effect",
                       token_file ? "http-token-file" : "http-insecure");
    if (token_file && insecure)
        return err_set(e, ERR_USAGE, "--http-token-file and --http-insecure contradict each other");
    if (port >= 0 && !loopback && !token_file && !insecure)
        return err_set(e, ERR_USAGE,
                       "--http-bind %s: beyond loopback readers must show a token: give --http-token-file FILE, or "
                       "--http-insecure to let whoever reaches the port read",
                       bind);
    return 0;
}

char *http_auth_url(const char *bind, int port, char *out, size_t cap)
{
    snprintf(out, cap, strchr(bind, ':') ? "http://[%s]:%d/" : "http://%s:%d/", bind, port);
    return out;
}
