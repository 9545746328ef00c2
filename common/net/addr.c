/* Parses and prints IP addresses and host:port (addr.h). */
#include "common/net/addr.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

static void from_v4(const struct in_addr *in, uint8_t ret[ADDR_BYTES])
{
    memcpy(ret, mapped, sizeof mapped);
    memcpy(ret + sizeof mapped, in, 4);
}

bool addr_of(const struct sockaddr *sa, uint8_t ret[ADDR_BYTES])
{
    memset(ret, 0, ADDR_BYTES);
    if (sa->sa_family == AF_INET)
        from_v4(&((const struct sockaddr_in *)(const void *)sa)->sin_addr, ret);
    else if (sa->sa_family == AF_INET6)
        memcpy(ret, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr, ADDR_BYTES);
    else
        return false;
    return true;
}

int addr_port_of(const struct sockaddr *sa)
{
    return sa->sa_family == AF_INET    ? ntohs(((const struct sockaddr_in *)(const void *)sa)->sin_port)
           : sa->sa_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)(const void *)sa)->sin6_port)
                                       : 0;
}

bool addr_is_v4(const uint8_t ip[ADDR_BYTES])
{
    return memcmp(ip, mapped, sizeof mapped) == 0;
}

char *addr_text(const uint8_t ip[ADDR_BYTES], char *ret)
{
    const bool v4 = addr_is_v4(ip);
    inet_ntop(v4 ? AF_INET : AF_INET6, ip + (v4 ? sizeof mapped : 0), ret, INET6_ADDRSTRLEN);
    return ret;
}

bool addr_read(const char *text, uint8_t ret[ADDR_BYTES])
{
    char bare[INET6_ADDRSTRLEN];
    struct in_addr in;
    const size_t n = strcspn(text, "%");
    if (n >= sizeof bare)
        return false;
    memcpy(bare, text, n);
    bare[n] = 0;
    if (inet_pton(AF_INET, bare, &in) == 1) {
        from_v4(&in, ret);
        return true;
    }
    return inet_pton(AF_INET6, bare, ret) == 1;
}

bool addr_is_loopback(const uint8_t ip[ADDR_BYTES])
{
    static const uint8_t v6[ADDR_BYTES] = {[15] = 1};
    return (addr_is_v4(ip) && ip[12] == 127) || memcmp(ip, v6, sizeof v6) == 0;
}

bool addr_host_is_loopback(const char *host)
{
    uint8_t ip[ADDR_BYTES];
    return addr_read(host, ip) ? addr_is_loopback(ip) : strcasecmp(host, "localhost") == 0;
}

bool addr_split(const char *text, size_t n, struct host_port *ret)
{
    const char *end = text + n, *colon = memchr(text, ':', n);
    struct host_port p = {.host = text};
    if (n > 0 && *text == '[') {
        const char *close = memchr(text, ']', n);
        if (!close || (close + 1 < end && close[1] != ':'))
            return false;
        p.host++;
        p.host_len = (size_t)(close - p.host);
        p.port = close + 1 < end ? close + 2 : NULL;
    } else {
        p.bare_v6 = colon && memchr(colon + 1, ':', (size_t)(end - colon - 1));
        p.host_len = colon && !p.bare_v6 ? (size_t)(colon - text) : n;
        p.port = colon && !p.bare_v6 ? colon + 1 : NULL;
    }
    p.port_len = p.port ? (size_t)(end - p.port) : 0;
    *ret = p;
    return p.host_len > 0 && !memchr(p.host, '[', p.host_len) && !memchr(p.host, ']', p.host_len);
}

int addr_port(const char *text, size_t n)
{
    int port = 0;
    for (size_t i = 0; i < n && n <= 5; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        port = 10 * port + (text[i] - '0');
    }
    return port >= 1 && port <= 65535 ? port : -1;
}
