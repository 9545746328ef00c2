/* Many agents join one job in rendezvousd, beside a bare libuv server; what a tick of a large job costs.
 *
 *     bench_join RENDEZVOUSD [AGENTS | ticks | check]
 *
 * One process plays all agents: each opens its own connection (sources spread over 127.0.0.0/24), proves who it is
 * (HMAC both ways), JOINs and asks for news, the last three in one write. The time runs from the first connect() to the
 * last agent that knows its rank, daemon and agents sharing the machine. After each run the floor: the same connections
 * and writes of the same sizes, to a server that reads nothing into them, from clients that do not either. Printed: the
 * median of 5 and all five, the floor's median and the ratio to it within a turn (median), the bytes on the wire per
 * agent, and what a run took of the processors. Once more for 10,000 agents that all connect at once. AGENTS:
 * that many alone. With `check` the exit code is 1 where 10,000 take longer than a second (median).
 *
 * First RDZV_TICK, the machine's event that time has passed, in a running round of 20,000 nodes beside one of 20, where
 * nobody waits: median of 5 turns and the ratio within a turn (median). With `check` the exit code is 1 where a tick of
 * the large job takes more than 3 times that of the small one. `ticks`: these alone. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/auth/auth.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "tests/bench/floor.h"

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

#define SOURCES 250
#define IN_FLIGHT 1000
#define RUNS 5
#define BOUND_MS 1000.0
#define TICKS 1000
#define BOUND_TICK 3.0 /* to a tick of 20 nodes */
#define DEADLINE_NS ((int64_t)60 * 1000000000)
#define TOKEN "bench 0123456789abcdef0123456789abcdef"

static void die(const char *what)
{
    fprintf(stderr, "bench_join: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void die_of(const char *what, const char *text)
{
    fprintf(stderr, "bench_join: %s: %s\n", what, text);
    exit(1);
}

/* --- the daemon */

struct daemon {
    pid_t pid;
    int port;
    char token[64];
};

static void write_token(struct daemon *d)
{
    strcpy(d->token, "/tmp/bench-join-XXXXXX");
    int fd = mkstemp(d->token);
    if (fd < 0 || write(fd, TOKEN "\n", sizeof TOKEN) != (ssize_t)sizeof TOKEN)
        die("token file");
    close(fd);
}

/* Its first line ends in ADDRESS:PORT, the floor's is the port alone. path NULL: the floor, with these sizes. */
static void start_server(struct daemon *d, const char *path, const struct floor *sizes)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC) < 0)
        die("pipe");
    d->pid = fork();
    if (d->pid < 0)
        die("fork");
    if (d->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(p[1], 1);
        if (!path)
            _exit(floor_serve(sizes));
        execl(path, path, "--port", "0", "--token-file", d->token, "--max-clients", "12000", "--max-unauthenticated",
              "12000", "--max-clients-per-address", "0", "--log-level", "warn", (char *)NULL);
        _exit(127);
    }
    close(p[1]);
    FILE *f = fdopen(p[0], "r");
    char line[256] = "";
    if (!f || !fgets(line, sizeof line, f))
        die_of("the server", "it is not ready");
    const char *colon = strrchr(line, ':');
    d->port = atoi(colon ? colon + 1 : line);
    fclose(f);
    if (d->port <= 0)
        die_of("the server", line);
}

static double cpu_ms(const struct rusage *u)
{
    return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) * 1e3 +
           (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec) / 1e3;
}

/* Returns the processor time it took, ms. */
static double stop_server(const struct daemon *d)
{
    struct rusage u = {0};
    kill(d->pid, SIGKILL);
    wait4(d->pid, NULL, 0, &u);
    return cpu_ms(&u);
}

/* --- an agent */

enum stage { CONNECTING, AUTH, PROVE, NEXT, TOLD };

struct agent {
    int fd;
    enum stage stage;
    struct auth_client auth;
    struct buf in;
    size_t heard; /* bytes of its stage's answer; floor only */
};

/* Bytes of what one agent said and heard, in order; the floor's do the same. */
struct sizes {
    size_t ask, challenge, prove, joined, news;
};

struct bench {
    const struct daemon *d;
    struct auth_token token;
    struct agent *agents;
    int n, opened, in_flight, told, limit;
    int ep;
    long long sent, received;
    struct rdzv_config job;
    struct buf out;
    bool *ranks;
    struct sizes seen;         /* the newest agent's */
    const struct sizes *floor; /* NULL: agents of a rendezvous */
};

static void put(struct bench *b, int argc, const char *const *argv)
{
    buf_printf(&b->out, "*%d\r\n", argc);
    for (int i = 0; i < argc; i++)
        buf_printf(&b->out, "$%zu\r\n%s\r\n", strlen(argv[i]), argv[i]);
}

static void say(struct bench *b, struct agent *a)
{
    if (send(a->fd, b->out.data, b->out.len, MSG_NOSIGNAL) != (ssize_t)b->out.len)
        die("send");
    b->sent += (long long)b->out.len;
    buf_clear(&b->out);
}

static void say_bytes(struct bench *b, struct agent *a, size_t n)
{
    static const char zeroes[FLOOR_BYTES];
    buf_add(&b->out, zeroes, n);
    say(b, a);
}

static const char *name_of(const struct bench *b, const struct agent *a, char *out)
{
    sprintf(out, "node%d-%d", (int)(a - b->agents), 4711);
    return out;
}

static void say_auth(struct bench *b, struct agent *a)
{
    struct err e;
    if (b->floor) {
        a->stage = AUTH;
        say_bytes(b, a, b->floor->ask);
        return;
    }
    if (auth_client_begin(&a->auth, &b->token, &e) < 0)
        die_of("auth", e.text);
    a->stage = AUTH;
    put(b, 3, (const char *const[]){"STORE.AUTH", a->auth.token.principal, a->auth.nonce});
    b->seen.ask = b->out.len;
    say(b, a);
}

static void put_join(struct bench *b, struct agent *a)
{
    struct rdzv_event ev = {.kind = RDZV_JOIN, .slots = 8, .node_rank = -1, .port = 29500, .role = "default"};
    char name[32];
    struct buf fields = {0};
    name_of(b, a, ev.node);
    if (rdzv_event_encode(&ev, &fields) < 0 || rdzv_config_encode(&b->job, &fields) < 0)
        die("join");
    put(b, 4, (const char *const[]){"RDZV.JOIN", "bench", name_of(b, a, name), fields.data});
    buf_free(&fields);
}

static void put_next(struct bench *b, struct agent *a)
{
    char name[32];
    put(b, 5, (const char *const[]){"RDZV.NEXT", "bench", name_of(b, a, name), "0", "1000"});
}

static void open_agent(struct bench *b, struct agent *a)
{
    const int i = (int)(a - b->agents), yes = 1;
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001u + (unsigned)(i % SOURCES))};
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001u), .sin_port = htons((uint16_t)b->d->port)};
    a->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (a->fd < 0)
        die("socket");
    setsockopt(a->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
    setsockopt(a->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (bind(a->fd, (struct sockaddr *)&from, sizeof from) < 0)
        die("bind");
    if (connect(a->fd, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS)
        die("connect");
    struct epoll_event ev = {.events = EPOLLOUT, .data.ptr = a};
    if (epoll_ctl(b->ep, EPOLL_CTL_ADD, a->fd, &ev) < 0)
        die("epoll");
    b->in_flight++;
}

/* Bulk string at *p, which is moved behind it; NULL: it is not whole yet. A nil is "" with *ret_n 0. */
static const char *take_bulk(const char **p, const char *end, size_t *ret_n)
{
    const char *nl = memchr(*p, '\n', (size_t)(end - *p));
    if (!nl || **p != '$')
        return NULL;
    long n = strtol(*p + 1, NULL, 10);
    if (n < 0) {
        *ret_n = 0;
        *p = nl + 1;
        return "";
    }
    if (end - nl - 1 < n + 2)
        return NULL;
    *ret_n = (size_t)n;
    *p = nl + 1 + n + 2;
    return nl + 1;
}

/* Each returns false while the answer is not whole. */
static bool on_challenge(struct bench *b, struct agent *a)
{
    const char *p = a->in.data + 4, *end = a->in.data + a->in.len, *part[3];
    char proof[AUTH_HEX + 1];
    size_t n[3];
    struct err e;
    if (a->in.len < 4 || memcmp(a->in.data, "*3\r\n", 4) != 0)
        return false;
    for (int i = 0; i < 3; i++)
        if (!(part[i] = take_bulk(&p, end, &n[i])))
            return false;
    if (auth_client_answer(&a->auth, part[0], n[0], part[1], n[1], part[2], n[2], proof, &e) < 0)
        die_of("the daemon's proof", e.text);
    a->stage = PROVE;
    b->seen.challenge = a->in.len;
    put(b, 2, (const char *const[]){"STORE.PROVE", proof});
    put_join(b, a);
    put_next(b, a);
    b->seen.prove = b->out.len;
    say(b, a);
    return true;
}

/* +OK and what JOIN answers. */
static bool on_joined(struct bench *b, struct agent *a)
{
    const char *p = a->in.data + 5, *end = a->in.data + a->in.len;
    size_t n;
    if (a->in.len < 6 || memcmp(a->in.data, "+OK\r\n", 5) != 0 || !take_bulk(&p, end, &n))
        return false;
    a->stage = NEXT;
    b->seen.joined = (size_t)(p - a->in.data);
    buf_consume(&a->in, (size_t)(p - a->in.data));
    return true;
}

static void take_rank(struct bench *b, struct agent *a, const char *text, size_t n)
{
    struct rdzv_news news;
    struct err e;
    if (rdzv_news_decode(text, n, &news, &e) < 0)
        die_of("news", e.text);
    if (news.kind != RDZV_NEWS_ROUND || news.group_rank < 0 || news.group_rank >= b->n || b->ranks[news.group_rank])
        die_of("news", "a rank is missing or was given twice");
    b->ranks[news.group_rank] = true;
    a->stage = TOLD;
    b->told++;
}

static bool on_news(struct bench *b, struct agent *a)
{
    const char *p = a->in.data, *text;
    size_t n;
    if (!(text = take_bulk(&p, a->in.data + a->in.len, &n)))
        return false;
    if (n > 0) {
        b->seen.news = (size_t)(p - a->in.data);
        take_rank(b, a, text, n);
    } else {
        put_next(b, a); /* a heartbeat's end */
        say(b, a);
    }
    buf_consume(&a->in, (size_t)(p - a->in.data));
    return true;
}

static bool answered(struct bench *b, struct agent *a)
{
    if (a->in.len == 0)
        return false;
    if (memchr(a->in.data, '-', 1) || (a->in.len > 5 && a->in.data[5] == '-'))
        die_of("the daemon answers", a->in.data);
    switch (a->stage) {
    case AUTH:
        if (!on_challenge(b, a))
            return false;
        buf_clear(&a->in);
        return true;
    case PROVE:
        return on_joined(b, a);
    case NEXT:
        return on_news(b, a);
    default:
        die_of("the daemon", "says more than it was asked");
    }
    return false;
}

static void floor_heard(struct bench *b, struct agent *a, size_t n)
{
    a->heard += n;
    if (a->stage == AUTH && a->heard >= b->floor->challenge) {
        a->heard -= b->floor->challenge;
        a->stage = PROVE;
        say_bytes(b, a, b->floor->prove);
    }
    if (a->stage == PROVE && a->heard >= b->floor->joined + b->floor->news) {
        a->stage = TOLD;
        b->told++;
    }
}

static void on_ready(struct bench *b, struct agent *a)
{
    char part[65536];
    if (a->stage == CONNECTING) {
        int rc = 0;
        socklen_t len = sizeof rc;
        getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &rc, &len);
        if ((errno = rc))
            die("connect");
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = a};
        epoll_ctl(b->ep, EPOLL_CTL_MOD, a->fd, &ev);
        b->in_flight--;
        say_auth(b, a);
        return;
    }
    ssize_t n = recv(a->fd, part, sizeof part, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0)
        die("the daemon closed a connection");
    b->received += n;
    if (b->floor) {
        floor_heard(b, a, (size_t)n);
        return;
    }
    if (buf_add(&a->in, part, (size_t)n) < 0)
        die("memory");
    while (answered(b, a))
        ;
}

/* --- a run */

static double run(struct bench *b)
{
    struct epoll_event evs[512];
    const int64_t begun = clock_ns();
    while (b->told < b->n) {
        while (b->opened < b->n && b->in_flight < b->limit)
            open_agent(b, &b->agents[b->opened++]);
        int n = epoll_wait(b->ep, evs, 512, 1000);
        for (int i = 0; i < n; i++)
            on_ready(b, evs[i].data.ptr);
        if (clock_ns() - begun > DEADLINE_NS)
            die_of("run", "not all were told within a minute");
    }
    return (double)(clock_ns() - begun) / 1e6;
}

struct cost { /* a run's, on average */
    double bytes, daemon_cpu_ms, agents_cpu_ms;
};

static void open_agents(struct bench *b)
{
    sscanf(TOKEN, "%63s %255s", b->token.principal, b->token.secret);
    rdzv_config_defaults(&b->job);
    b->job.min_nodes = b->job.max_nodes = b->n;
    b->agents = calloc((size_t)b->n, sizeof *b->agents);
    b->ranks = calloc((size_t)b->n, sizeof *b->ranks);
    b->ep = epoll_create1(EPOLL_CLOEXEC);
    if (!b->agents || !b->ranks || b->ep < 0)
        die("memory");
}

static void close_agents(struct bench *b)
{
    for (int i = 0; i < b->n; i++) {
        close(b->agents[i].fd);
        buf_free(&b->agents[i].in);
    }
    close(b->ep);
    free(b->agents);
    free(b->ranks);
    buf_free(&b->out);
}

static double run_once(struct bench *b, struct cost *ret)
{
    struct rusage before, after;
    open_agents(b);
    getrusage(RUSAGE_SELF, &before);
    double ms = run(b);
    getrusage(RUSAGE_SELF, &after);
    ret->agents_cpu_ms += (cpu_ms(&after) - cpu_ms(&before)) / RUNS;
    ret->daemon_cpu_ms += stop_server(b->d) / RUNS;
    ret->bytes += (double)(b->sent + b->received) / b->n / RUNS;
    close_agents(b);
    return ms;
}

static double join_once(const char *path, int n, int limit, struct cost *ret, struct sizes *ret_sizes)
{
    struct daemon d;
    struct bench b = {.d = &d, .n = n, .limit = limit};
    write_token(&d);
    start_server(&d, path, NULL);
    double ms = run_once(&b, ret);
    unlink(d.token);
    *ret_sizes = b.seen;
    return ms;
}

static double floor_once(const struct sizes *s, int n, int limit, struct cost *ret)
{
    const struct floor f = {.answers = {s->challenge, s->joined}, .clients = (size_t)n, .news = s->news};
    struct daemon d;
    struct bench b = {.d = &d, .n = n, .limit = limit, .floor = s};
    start_server(&d, NULL, &f);
    return run_once(&b, ret);
}

static int by_size(const void *pa, const void *pb)
{
    const double a = *(const double *)pa, b = *(const double *)pb;
    return (a > b) - (a < b);
}

static double median(double v[RUNS])
{
    qsort(v, RUNS, sizeof *v, by_size);
    return v[RUNS / 2];
}

static double report(const char *path, int n, int limit, const char *what)
{
    double ms[RUNS], floor_ms[RUNS], ratio[RUNS];
    struct cost c = {0}, f = {0};
    for (int i = 0; i < RUNS; i++) {
        struct sizes s;
        ms[i] = join_once(path, n, limit, &c, &s);
        floor_ms[i] = floor_once(&s, n, limit, &f);
        ratio[i] = ms[i] / floor_ms[i];
    }
    const double mid = median(ms), floor_mid = median(floor_ms);
    printf("%6d agents%s: %7.1f ms (of %d: %.1f %.1f %.1f %.1f %.1f), %.0f bytes each, processor time %.0f ms daemon, "
           "%.0f ms agents; bare libuv %.1f ms (%.0f and %.0f), ratio %.2f\n",
           n, what, mid, RUNS, ms[0], ms[1], ms[2], ms[3], ms[4], c.bytes, c.daemon_cpu_ms, c.agents_cpu_ms, floor_mid,
           f.daemon_cpu_ms, f.agents_cpu_ms, median(ratio));
    fflush(stdout);
    return mid;
}

/* --- ticks */

static struct rdzv *start_round(int n, struct rdzv_effects *fx)
{
    struct rdzv_config c;
    struct rdzv *r;
    struct err e;
    rdzv_config_defaults(&c);
    c.min_nodes = c.max_nodes = n;
    if (rdzv_create(&r, &c, &e) < 0)
        die_of("a job", e.text);
    for (int i = 0; i < n; i++) {
        struct rdzv_event ev = {.kind = RDZV_JOIN, .slots = 8, .node_rank = -1, .role = "default"};
        snprintf(ev.node, sizeof ev.node, "node%d", i);
        if (rdzv_step(r, &ev, 0, fx, &e) < 0)
            die_of("join", e.text);
    }
    if (rdzv_state(r) != RDZV_RUNNING)
        die_of("a job", "its round does not run");
    return r;
}

/* ns of one. */
static double tick(struct rdzv *r, struct rdzv_effects *fx)
{
    const struct rdzv_event ev = {.kind = RDZV_TICK};
    struct err e;
    const int64_t begun = clock_ns();
    for (int i = 0; i < TICKS; i++)
        if (rdzv_step(r, &ev, 1, fx, &e) < 0)
            die_of("tick", e.text);
    return (double)(clock_ns() - begun) / TICKS;
}

/* The ratio. */
static double report_ticks(void)
{
    enum { SMALL = 20, LARGE = 20000 };
    struct rdzv_effects fx = {0};
    struct rdzv *small = start_round(SMALL, &fx), *large = start_round(LARGE, &fx);
    double small_ns[RUNS], large_ns[RUNS], ratio[RUNS];
    for (int i = 0; i < RUNS; i++) {
        small_ns[i] = tick(small, &fx);
        large_ns[i] = tick(large, &fx);
        ratio[i] = large_ns[i] / small_ns[i];
    }
    printf("a tick of a running round: %d nodes %.0f ns, %d nodes %.0f ns, ratio %.2f\n", LARGE, median(large_ns),
           SMALL, median(small_ns), median(ratio));
    rdzv_destroy(small);
    rdzv_destroy(large);
    rdzv_effects_free(&fx);
    return median(ratio);
}

static void raise_files(void)
{
    struct rlimit l;
    getrlimit(RLIMIT_NOFILE, &l);
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
    if (l.rlim_max >= 10100)
        return;
    printf("SKIP: ulimit -n is %llu, 10,100 files are needed\n", (unsigned long long)l.rlim_max);
    exit(77);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1000, 2000, 5000, 10000};
    double last = 0;
    if (argc < 2)
        die_of("usage", "bench_join RENDEZVOUSD [AGENTS | ticks | check]");
    const bool checks = argc > 2 && strcmp(argv[2], "check") == 0;
    const double ticks = argc > 2 && atoi(argv[2]) > 0 ? 0 : report_ticks();
    if (ticks > BOUND_TICK)
        printf("a tick of the large job takes more than %.0f times that of the small one\n", BOUND_TICK);
    if (argc > 2 && strcmp(argv[2], "ticks") == 0)
        return 0;
    raise_files();
    if (argc > 2 && atoi(argv[2]) > 0) {
        report(argv[1], atoi(argv[2]), IN_FLIGHT, "");
        return 0;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        last = report(argv[1], sizes[i], IN_FLIGHT, "");
    report(argv[1], 10000, 10000, " at once");
    if (last > BOUND_MS)
        printf("10,000 agents took longer than %.0f ms\n", BOUND_MS);
    return checks && (last > BOUND_MS || ticks > BOUND_TICK);
}
