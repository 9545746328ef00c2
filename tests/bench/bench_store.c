/* One lean client for every store, so that servers are compared and not clients; and a bare libuv server, the floor.
 *
 *     bench_store ops PROTOCOL PORT CONNECTIONS PIPELINE MILLISECONDS CPU
 *     bench_store storm PROTOCOL PORT CLIENTS CPU
 *     bench_store echo CPU                     prints its port, serves until killed
 *
 * ops: each connection sends PIPELINE additions to a counter of its own in one write and the next ones when all are
 * answered. Prints: operations a second, then the 50th, 99th and 99.9th percentile of a batch's time and the longest,
 * in microseconds.
 *
 * storm: all clients connect, add one to a shared counter and wait for a key; whoever makes the counter complete sets
 * the key. Prints the milliseconds from the first connect() to the last client's release. To the floor the same bytes
 * go, it gives them back.
 *
 * PROTOCOL: resp, tcpstore and tcpstore1 (PyTorch's since 2.2 and before), echo. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/bench/floor.h"

#define REQUEST_MAX 96
#define PIPELINE_MAX 256
#define IN_FLIGHT_MAX 1000 /* connects, as a job's start would throttle them */
#define DEADLINE_NS ((int64_t)60 * 1000000000)

static void die(const char *what)
{
    fprintf(stderr, "bench_store: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* --- protocols */

struct protocol {
    const char *name;
    size_t (*greet)(char *p); /* sent first; its answer has greeting_bytes */
    size_t greeting_bytes;
    size_t (*add)(char *p, const char *key);
    size_t (*wait)(char *p, const char *key);
    size_t (*set)(char *p, const char *key);
    size_t (*replies)(const char *p, size_t n); /* how many (parts of) replies to `add` or `wait` end in these bytes */
    int64_t (*sum)(const char *p, size_t n);    /* what an addition answered */
    size_t unit;                                /* replies are counted in bytes and so long; 0: `replies` counts */
    size_t wait_unit, set_replies;
};

static size_t no_greeting(char *p)
{
    (void)p;
    return 0;
}

static size_t resp_add(char *p, const char *key)
{
    return (size_t)sprintf(p, "*2\r\n$4\r\nINCR\r\n$%zu\r\n%s\r\n", strlen(key), key);
}

static size_t resp_wait(char *p, const char *key)
{
    return (size_t)sprintf(p, "*3\r\n$10\r\nSTORE.WAIT\r\n$%zu\r\n%s\r\n$5\r\n60000\r\n", strlen(key), key);
}

static size_t resp_set(char *p, const char *key)
{
    return (size_t)sprintf(p, "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$1\r\n1\r\n", strlen(key), key);
}

static size_t resp_replies(const char *p, size_t n)
{
    size_t lines = 0;
    for (const char *end = p + n; (p = memchr(p, '\n', (size_t)(end - p))); p++)
        lines++;
    return lines;
}

static int64_t resp_sum(const char *p, size_t n)
{
    return n > 1 && *p == ':' ? strtoll(p + 1, NULL, 10) : -1;
}

static char *put(char *p, const void *v, size_t n)
{
    memcpy(p, v, n);
    return p + n;
}

static char *put_u64(char *p, uint64_t v)
{
    return put(p, &v, sizeof v);
}

static char *put_string(char *p, const char *s)
{
    return put(put_u64(p, strlen(s)), s, strlen(s));
}

static size_t tcpstore_greet(char *p)
{
    static const char validate_and_ping[] = "\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04";
    memcpy(p, validate_and_ping, sizeof validate_and_ping - 1);
    return sizeof validate_and_ping - 1;
}

/* The older generation counts its operations from one less. */
static size_t old_add(char *p, const char *key)
{
    *p = 3;
    return (size_t)(put_u64(put_string(p + 1, key), 1) - p);
}

static size_t old_wait(char *p, const char *key)
{
    *p = 5;
    return (size_t)(put_string(put_u64(p + 1, 1), key) - p);
}

static size_t old_set(char *p, const char *key)
{
    *p = 0;
    return (size_t)(put_string(put_string(p + 1, key), "1") - p);
}

static size_t newer(char *p, size_t n)
{
    ++*p;
    return n;
}

static size_t tcpstore_add(char *p, const char *key)
{
    return newer(p, old_add(p, key));
}

static size_t tcpstore_wait(char *p, const char *key)
{
    return newer(p, old_wait(p, key));
}

static size_t tcpstore_set(char *p, const char *key)
{
    return newer(p, old_set(p, key));
}

static int64_t tcpstore_sum(const char *p, size_t n)
{
    int64_t v;
    if (n < sizeof v)
        return -1;
    memcpy(&v, p, sizeof v);
    return v;
}

static const struct protocol protocols[] = {
    {"resp", no_greeting, 0, resp_add, resp_wait, resp_set, resp_replies, resp_sum, 0, 0, 1},
    {"tcpstore", tcpstore_greet, 4, tcpstore_add, tcpstore_wait, tcpstore_set, NULL, tcpstore_sum, 8, 1, 0},
    {"tcpstore1", no_greeting, 0, old_add, old_wait, old_set, NULL, tcpstore_sum, 8, 1, 0},
    {"echo", no_greeting, 0, resp_add, resp_add, resp_set, NULL, NULL, 1, 1, 0}, /* unit: the request's own length */
};

static const struct protocol *protocol_named(const char *name)
{
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
        if (strcmp(protocols[i].name, name) == 0)
            return &protocols[i];
    fprintf(stderr, "bench_store: protocol '%s': expected resp, tcpstore, tcpstore1 or echo\n", name);
    exit(2);
}

/* --- sockets */

static void pin(const char *cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)atoi(cpu), &set);
    if (sched_setaffinity(0, sizeof set, &set) < 0)
        fprintf(stderr, "bench_store: not pinned to cpu %s: %s\n", cpu, strerror(errno));
}

/* Source addresses are spread over 127.0.0.0/24: one address has ports for some 28,000 connections only. */
static int begin_connect(int port, int i)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in from = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0)
        die("socket");
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + (uint32_t)(i % 200));
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&from, sizeof from) < 0)
        die("bind");
    if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS)
        die("connect");
    return fd;
}

static void send_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno != EAGAIN)
            die("write");
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        }
    }
}

/* --- ops */

struct client {
    int fd;
    size_t request_len, need, have; /* need, have: replies, or their bytes */
    bool is_served;                 /* it had its first replies */
    size_t greeting;                /* bytes of its answer still to come */
    int64_t sent_ns;
    char *request; /* the whole batch */
};

/* Times by powers of 2^(1/32) of a nanosecond. */
#define BUCKETS 1280
static uint32_t histogram[BUCKETS];

static int bucket_of(int64_t ns)
{
    uint64_t v = ns < 1 ? 1 : (uint64_t)ns;
    int top = 63 - __builtin_clzll(v);
    int fine = top >= 5 ? (int)(v >> (top - 5)) & 31 : (int)(v << (5 - top)) & 31;
    int b = top * 32 + fine;
    return b < BUCKETS ? b : BUCKETS - 1;
}

static double percentile_us(double p, uint64_t total)
{
    uint64_t want = (uint64_t)(p * (double)total), seen = 0;
    int b = 0;
    while (b < BUCKETS - 1 && (seen += histogram[b]) <= want)
        b++;
    return (double)((32 + b % 32) * (double)(1ull << (b / 32)) / 32) / 1e3;
}

static void send_batch(struct client *c, int64_t now)
{
    c->have = 0;
    c->sent_ns = now;
    send_all(c->fd, c->request, c->request_len);
}

static void prepare(struct client *c, const struct protocol *pr, int i, int pipeline)
{
    char key[32];
    snprintf(key, sizeof key, "counter:%06d", i);
    c->request = malloc((size_t)pipeline * REQUEST_MAX);
    if (!c->request)
        die("malloc");
    for (int k = 0; k < pipeline; k++)
        c->request_len += pr->add(c->request + c->request_len, key);
    c->need = pr->replies ? (size_t)pipeline : pr->unit * (size_t)pipeline;
    if (strcmp(pr->name, "echo") == 0)
        c->need = c->request_len;
}

static void open_client(struct client *c, const struct protocol *pr, int port, int i, int ep)
{
    char hello[REQUEST_MAX];
    c->fd = begin_connect(port, i);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) & ~O_NONBLOCK); /* loopback: the connect is over by now or soon */
    size_t n = pr->greet(hello);
    for (int64_t end = clock_ns() + DEADLINE_NS;;) {
        struct sockaddr_in sa;
        socklen_t len = sizeof sa;
        if (getpeername(c->fd, (struct sockaddr *)&sa, &len) == 0)
            break;
        if (clock_ns() > end)
            die("connect takes too long");
        sched_yield();
    }
    send_all(c->fd, hello, n);
    c->greeting = pr->greeting_bytes;
    char answer[64];
    while (c->greeting > 0) {
        ssize_t k = read(c->fd, answer, c->greeting);
        if (k <= 0)
            die("greeting");
        c->greeting -= (size_t)k;
    }
    if (epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &ev) < 0)
        die("epoll_ctl");
}

static int ops(const struct protocol *pr, int port, int n, int pipeline, int64_t ms)
{
    static char in[65536];
    struct epoll_event ev[1024];
    struct client *clients = calloc((size_t)n, sizeof *clients);
    int ep = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < n; i++) {
        prepare(&clients[i], pr, i, pipeline);
        open_client(&clients[i], pr, port, i, ep);
    }
    int64_t warm = INT64_MAX, end = INT64_MAX, now = clock_ns(), longest = 0; /* the first two: once all are served */
    uint64_t done = 0, batches = 0;
    int unserved = n;
    for (int i = 0; i < n; i++)
        send_batch(&clients[i], clock_ns());
    while (now < end) {
        int k = epoll_wait(ep, ev, 1024, 1000);
        for (int i = 0; i < k; i++) {
            struct client *c = ev[i].data.ptr;
            ssize_t got = read(c->fd, in, sizeof in);
            if (got <= 0)
                die("read");
            c->have += pr->replies ? pr->replies(in, (size_t)got) : (size_t)got;
            if (c->have < c->need)
                continue;
            if (pr->replies && in[0] == '-') {
                fprintf(stderr, "bench_store: %.*s", (int)got, in);
                return 1;
            }
            now = clock_ns();
            unserved -= !c->is_served;
            c->is_served = true;
            if (unserved == 0 && warm == INT64_MAX) {
                warm = now + ms * 200000;
                end = warm + ms * 1000000;
            }
            if (now > warm) {
                int64_t took = now - c->sent_ns;
                histogram[bucket_of(took)]++;
                longest = took > longest ? took : longest;
                batches++;
                done += (uint64_t)pipeline;
            }
            send_batch(c, now);
        }
        if (k == 0) {
            errno = ETIMEDOUT;
            die("no reply for a second");
        }
    }
    printf("%.0f %.1f %.1f %.1f %.1f\n", (double)done * 1e9 / (double)(now - warm), percentile_us(0.5, batches),
           percentile_us(0.99, batches), percentile_us(0.999, batches), (double)longest / 1e3);
    return 0;
}

/* --- storm */

enum stage { CONNECTING, GREETED, ADDED, WAITING, RELEASED };

struct storm {
    const struct protocol *pr;
    int port, ep, n, begun, in_flight, released;
    bool echo;
    struct storm_client {
        int fd;
        enum stage stage;
        char in[REQUEST_MAX];
        size_t have, need, skip;
    } * clients;
};

static void watch(struct storm *s, struct storm_client *c, int op, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = c};
    if (epoll_ctl(s->ep, op, c->fd, &ev) < 0)
        die("epoll_ctl");
}

static void connect_more(struct storm *s)
{
    for (; s->begun < s->n && s->in_flight < IN_FLIGHT_MAX; s->in_flight++) {
        struct storm_client *c = &s->clients[s->begun];
        c->fd = begin_connect(s->port, s->begun++);
        watch(s, c, EPOLL_CTL_ADD, EPOLLOUT);
    }
}

static void say(struct storm_client *c, const char *request, size_t n, size_t answer_bytes)
{
    c->have = 0;
    c->need = answer_bytes;
    send_all(c->fd, request, n);
}

/* Bytes of a whole answer so far: a line in RESP, else a fixed number. */
static bool answered(const struct storm *s, const struct storm_client *c)
{
    return s->pr->replies && !s->echo ? c->have > 0 && c->in[c->have - 1] == '\n' : c->have >= c->need;
}

static void next_stage(struct storm *s, struct storm_client *c)
{
    char rq[REQUEST_MAX * 2];
    size_t n;
    switch (c->stage) {
    case CONNECTING:
        watch(s, c, EPOLL_CTL_MOD, EPOLLIN);
        s->in_flight--;
        connect_more(s);
        c->stage = GREETED;
        if ((n = s->pr->greet(rq)) > 0) {
            say(c, rq, n, s->pr->greeting_bytes);
            return;
        }
        next_stage(s, c);
        return;
    case GREETED:
        n = s->pr->add(rq, "joined");
        c->stage = ADDED;
        say(c, rq, n, s->echo ? n : s->pr->unit);
        return;
    case ADDED:
        c->stage = WAITING;
        if (!s->echo && s->pr->sum(c->in, c->have) == s->n) {
            n = s->pr->set(rq, "go"); /* its own wait is answered in the same breath */
            if (s->pr->set_replies) {
                send_all(c->fd, rq, n);
                n = 0;
                c->skip = 5; /* +OK */
            }
            n += s->pr->wait(rq + n, "go");
        } else {
            n = s->pr->wait(rq, "go");
        }
        say(c, rq, n, s->echo ? n : s->pr->wait_unit);
        return;
    case WAITING:
        c->stage = RELEASED;
        s->released++;
        return;
    case RELEASED:
        fprintf(stderr, "bench_store: a released client hears more\n");
        exit(1);
    }
}

static void storm_event(struct storm *s, struct storm_client *c)
{
    if (c->stage == CONNECTING) {
        int error = 0;
        socklen_t len = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len);
        if (error) {
            errno = error;
            die("connect");
        }
        next_stage(s, c);
        return;
    }
    ssize_t k = read(c->fd, c->in + c->have, sizeof c->in - c->have);
    if (k < 0 && errno == EAGAIN)
        return;
    if (k <= 0)
        die("read");
    c->have += (size_t)k;
    if (c->skip && c->have >= c->skip) {
        c->have -= c->skip;
        memmove(c->in, c->in + c->skip, c->have);
        c->skip = 0;
    }
    if (answered(s, c))
        next_stage(s, c);
}

static int storm(const struct protocol *pr, int port, int n)
{
    struct storm s = {.pr = pr, .port = port, .n = n, .echo = strcmp(pr->name, "echo") == 0};
    struct epoll_event ev[1024];
    s.clients = calloc((size_t)n, sizeof *s.clients);
    s.ep = epoll_create1(EPOLL_CLOEXEC);
    int64_t begin = clock_ns();
    connect_more(&s);
    while (s.released < n) {
        int k = epoll_wait(s.ep, ev, 1024, 1000);
        for (int i = 0; i < k; i++)
            storm_event(&s, ev[i].data.ptr);
        if (clock_ns() - begin > DEADLINE_NS) {
            fprintf(stderr, "bench_store: %d of %d clients released in time\n", s.released, n);
            return 1;
        }
    }
    printf("%.1f\n", (double)(clock_ns() - begin) / 1e6);
    return 0;
}

/* --- main */

int main(int argc, char **argv)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (argc == 3 && strcmp(argv[1], "echo") == 0) {
        pin(argv[2]);
        return floor_serve(&(struct floor){0});
    }
    if (argc == 8 && strcmp(argv[1], "ops") == 0) {
        int pipeline = atoi(argv[5]);
        pin(argv[7]);
        if (pipeline < 1 || pipeline > PIPELINE_MAX || atoi(argv[4]) < 1)
            return 2;
        return ops(protocol_named(argv[2]), atoi(argv[3]), atoi(argv[4]), pipeline, atoll(argv[6]));
    }
    if (argc == 6 && strcmp(argv[1], "storm") == 0) {
        pin(argv[5]);
        return storm(protocol_named(argv[2]), atoi(argv[3]), atoi(argv[4]));
    }
    fprintf(stderr, "usage: bench_store ops PROTOCOL PORT CONNECTIONS PIPELINE MILLISECONDS CPU\n"
                    "       bench_store storm PROTOCOL PORT CLIENTS CPU\n"
                    "       bench_store echo CPU\n");
    return 2;
}
