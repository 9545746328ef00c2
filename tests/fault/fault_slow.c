/* Slow files, slow words, and ranks that meet by way of a proxy, for LD_PRELOAD:
 *
 *   FAULT_SLOW_RANK=N         the rank that the next two are about
 *   FAULT_SLOW_PATH=TEXT      opening a file whose path holds TEXT takes FAULT_SLOW_MS milliseconds longer,
 *   FAULT_SLOW_WHEN=FILE      while FILE exists
 *   FAULT_SLOW_WORDS=TEXT     write(2) of what begins with TEXT takes FAULT_SLOW_MS milliseconds longer, in any process
 *   FAULT_SLOW_PROXY=PORT     connect(2) over TCP goes to the proxy at 127.0.0.1:PORT, which is told in a first line
 *                             "RANK HOST PORT" who wants to go where, and answers with the port that it goes on
 *                             from, in a line; but for those to the round's store. getsockname(2) and getpeername(2)
 *                             know nothing of a proxy: both ends see the same addresses
 *   FAULT_SLOW_PORTS=FILE     listen(2) appends a line "RANK PORT" to FILE */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *rank(void)
{
    const char *r = getenv("RANK");
    return r ? r : "-1";
}

/* --- files */

static void delay(void)
{
    const char *ms = getenv("FAULT_SLOW_MS");
    if (!ms)
        return;
    const struct timespec t = {.tv_sec = atoi(ms) / 1000, .tv_nsec = (long)(atoi(ms) % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static void delay_file(const char *path)
{
    const char *text = getenv("FAULT_SLOW_PATH"), *when = getenv("FAULT_SLOW_WHEN"), *who = getenv("FAULT_SLOW_RANK");
    if (text && when && who && strcmp(who, rank()) == 0 && strstr(path, text) && access(when, F_OK) == 0)
        delay();
}

static int open_slowly(const char *name, const char *path, int flags, mode_t mode)
{
    int (*real)(const char *, int, ...);
    *(void **)&real = dlsym(RTLD_NEXT, name);
    delay_file(path);
    return real(path, flags, mode);
}

/* By their plain names: where headers have large files in mind they call open64 what is written open. */
int plain_open(const char *path, int flags, ...) __asm__("open");
int plain_open(const char *path, int flags, ...)
{
    va_list a;
    va_start(a, flags);
    const mode_t mode = va_arg(a, mode_t);
    va_end(a);
    return open_slowly("open", path, flags, mode);
}

int large_open(const char *path, int flags, ...) __asm__("open64");
int large_open(const char *path, int flags, ...)
{
    va_list a;
    va_start(a, flags);
    const mode_t mode = va_arg(a, mode_t);
    va_end(a);
    return open_slowly("open64", path, flags, mode);
}

static int open_at_slowly(const char *name, int fd, const char *path, int flags, mode_t mode)
{
    int (*real)(int, const char *, int, ...);
    *(void **)&real = dlsym(RTLD_NEXT, name);
    delay_file(path);
    return real(fd, path, flags, mode);
}

int plain_openat(int fd, const char *path, int flags, ...) __asm__("openat");
int plain_openat(int fd, const char *path, int flags, ...)
{
    va_list a;
    va_start(a, flags);
    const mode_t mode = va_arg(a, mode_t);
    va_end(a);
    return open_at_slowly("openat", fd, path, flags, mode);
}

int large_openat(int fd, const char *path, int flags, ...) __asm__("openat64");
int large_openat(int fd, const char *path, int flags, ...)
{
    va_list a;
    va_start(a, flags);
    const mode_t mode = va_arg(a, mode_t);
    va_end(a);
    return open_at_slowly("openat64", fd, path, flags, mode);
}

/* --- words */

ssize_t write(int fd, const void *data, size_t n)
{
    ssize_t (*real)(int, const void *, size_t);
    const char *text = getenv("FAULT_SLOW_WORDS");
    *(void **)&real = dlsym(RTLD_NEXT, "write");
    if (text && n >= strlen(text) && memcmp(data, text, strlen(text)) == 0)
        delay();
    return real(fd, data, n);
}

/* --- connections */

/* Where it leads, as the proxy is told; false: no TCP, or to the store. */
static bool describe(int fd, const struct sockaddr *to, char *out, size_t cap)
{
    char host[INET6_ADDRSTRLEN], port[16];
    const char *store = getenv("CRUN_STORE"), *colon = store ? strrchr(store, ':') : NULL;
    int type = 0;
    socklen_t n = sizeof type;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)to;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)to;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) < 0 || type != SOCK_STREAM)
        return false;
    if (to->sa_family == AF_INET)
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
    else if (to->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
    else
        return false;
    snprintf(port, sizeof port, "%d", ntohs(to->sa_family == AF_INET ? v4->sin_port : v6->sin6_port));
    snprintf(out, cap, "%s %s %s\n", rank(), host, port);
    return !colon || strcmp(colon + 1, port) != 0;
}

/* Connections by way of the proxy. */
static struct way {
    int port;                   /* of this end: to the proxy */
    int seen;                   /* what the other end sees instead */
    struct sockaddr_storage to; /* the other end */
    socklen_t n;
} ways[256];
static int n_ways;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool port_of(struct sockaddr *a, in_port_t **ret)
{
    if (a->sa_family != AF_INET && a->sa_family != AF_INET6)
        return false;
    *ret = a->sa_family == AF_INET ? &((struct sockaddr_in *)a)->sin_port : &((struct sockaddr_in6 *)a)->sin6_port;
    return true;
}

static int real_name(const char *name, int fd, struct sockaddr *a, socklen_t *n)
{
    int (*real)(int, struct sockaddr *, socklen_t *);
    *(void **)&real = dlsym(RTLD_NEXT, name);
    return real(fd, a, n);
}

/* The way that this descriptor is an end of. */
static bool find_way(int fd, struct way *ret)
{
    struct sockaddr_storage own = {0};
    socklen_t n = sizeof own;
    in_port_t *port;
    bool found = false;
    if (real_name("getsockname", fd, (struct sockaddr *)&own, &n) < 0 || !port_of((struct sockaddr *)&own, &port))
        return false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_ways && i < 256 && !found; i++) {
        found = ways[i].port == ntohs(*port);
        *ret = ways[i];
    }
    pthread_mutex_unlock(&lock);
    return found;
}

int plain_getsockname(int fd, struct sockaddr *a, socklen_t *n) __asm__("getsockname");
int plain_getsockname(int fd, struct sockaddr *a, socklen_t *n)
{
    struct way w;
    in_port_t *port;
    const int rc = real_name("getsockname", fd, a, n);
    if (rc == 0 && find_way(fd, &w) && port_of(a, &port))
        *port = htons((uint16_t)w.seen);
    return rc;
}

int plain_getpeername(int fd, struct sockaddr *a, socklen_t *n) __asm__("getpeername");
int plain_getpeername(int fd, struct sockaddr *a, socklen_t *n)
{
    struct way w;
    const int rc = real_name("getpeername", fd, a, n);
    if (rc == 0 && find_way(fd, &w) && *n >= w.n) {
        memcpy(a, &w.to, w.n);
        *n = w.n;
    }
    return rc;
}

static int read_port(int fd)
{
    char text[16];
    size_t n = 0;
    while (n + 1 < sizeof text && read(fd, text + n, 1) == 1 && text[n] != '\n')
        n++;
    text[n] = '\0';
    return atoi(text);
}

static int open_way(int fd, const struct sockaddr *to, socklen_t n, const char *line, int proxy)
{
    int (*real)(int, const struct sockaddr *, socklen_t);
    struct way w = {.n = n};
    struct sockaddr_storage own = {0};
    socklen_t own_n = sizeof own;
    in_port_t *port;
    int rc;
    memcpy(&w.to, to, n);
    *(void **)&real = dlsym(RTLD_NEXT, "connect");
    if (to->sa_family == AF_INET) {
        const struct sockaddr_in v4 = {
            .sin_family = AF_INET, .sin_port = htons((uint16_t)proxy), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        rc = real(fd, (const struct sockaddr *)&v4, sizeof v4);
    } else {
        struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)proxy)};
        inet_pton(AF_INET6, "::ffff:127.0.0.1", &v6.sin6_addr);
        rc = real(fd, (const struct sockaddr *)&v6, sizeof v6);
    }
    if (rc < 0 || write(fd, line, strlen(line)) != (ssize_t)strlen(line) || (w.seen = read_port(fd)) == 0 ||
        real_name("getsockname", fd, (struct sockaddr *)&own, &own_n) < 0 || !port_of((struct sockaddr *)&own, &port)) {
        errno = ECONNREFUSED;
        return -1;
    }
    w.port = ntohs(*port);
    pthread_mutex_lock(&lock);
    ways[n_ways++ % 256] = w;
    pthread_mutex_unlock(&lock);
    return 0;
}

int plain_connect(int fd, const struct sockaddr *to, socklen_t n) __asm__("connect");
int plain_connect(int fd, const struct sockaddr *to, socklen_t n)
{
    int (*real)(int, const struct sockaddr *, socklen_t);
    char line[128];
    const char *proxy = getenv("FAULT_SLOW_PROXY");
    *(void **)&real = dlsym(RTLD_NEXT, "connect");
    if (!proxy || strcmp(rank(), "-1") == 0 || !describe(fd, to, line, sizeof line))
        return real(fd, to, n);
    const int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    const int rc = open_way(fd, to, n, line, atoi(proxy)), error = errno;
    fcntl(fd, F_SETFL, flags);
    errno = error;
    return rc;
}

int listen(int fd, int backlog)
{
    int (*real)(int, int);
    const char *path = getenv("FAULT_SLOW_PORTS");
    struct sockaddr_storage at = {0};
    socklen_t n = sizeof at;
    char line[64];
    *(void **)&real = dlsym(RTLD_NEXT, "listen");
    const int rc = real(fd, backlog);
    if (!path || rc < 0 || real_name("getsockname", fd, (struct sockaddr *)&at, &n) < 0 || at.ss_family == AF_UNIX)
        return rc;
    const int port = ntohs(at.ss_family == AF_INET ? ((struct sockaddr_in *)&at)->sin_port
                                                   : ((struct sockaddr_in6 *)&at)->sin6_port);
    const int log = open_slowly("open", path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    const int length = snprintf(line, sizeof line, "%s %d\n", rank(), port);
    if (log >= 0 && write(log, line, (size_t)length) != length)
        abort();
    close(log);
    return rc;
}
