/* What one turn of the loop costs, whatever a client asks for: in time of this thread's processor, of which others on
 * the machine take nothing. Each request is the largest that the server takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/net/front.h"
#include "tests/rendezvousd/rig.h"
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWER = 10 };
#else
enum { SLOWER = 1 };
#endif
enum { KEYS = 200000, NAMES = 65000, TORCH_NAMES = 131000, MIB = 1 << 20, LARGE = 8 * MIB, BOUND_MS = 50 * SLOWER };
/* Fresh memory costs whatever the machine has for it, and more if it is busy: this sees who goes through such a word
 * again and again. */
enum { LARGE_BOUND_MS = 500 * SLOWER };

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

struct cost {
    int turns;
    double longest_ms, sum_ms;
};

static void turn(struct rig *r, struct cost *c)
{
    const double began = cpu_ms();
    uv_run(&r->loop, UV_RUN_NOWAIT);
    const double ms = cpu_ms() - began;
    c->turns++;
    c->sum_ms += ms;
    if (ms > c->longest_ms)
        c->longest_ms = ms;
}

/* The last bytes that came. */
struct tail {
    char last[32];
    size_t n;
};

static void look(int fd, struct tail *t)
{
    static char in[MIB];
    for (ssize_t n; (n = recv(fd, in, sizeof in, MSG_DONTWAIT)) != -1;) {
        const size_t new = (size_t)n < t->n ? (size_t)n : t->n;
        assert_int_not_equal(n, 0);
        memmove(t->last, t->last + new, t->n - new);
        memcpy(t->last + t->n - new, in + n - new, new);
    }
}

/* Send it and turn until the answer ends with these bytes. */
static void ask(struct rig *r, int fd, const char *name, struct buf *b, const void *end, size_t n, int bound_ms)
{
    struct cost c = {0};
    struct tail t = {.n = n};
    size_t sent = 0;
    while (sent < b->len || memcmp(t.last, end, n) != 0) {
        const ssize_t some = sent < b->len ? send(fd, b->data + sent, b->len - sent, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
        sent += some > 0 ? (size_t)some : 0;
        turn(r, &c);
        look(fd, &t);
    }
    if (name)
        print_message("# %-24s %8zu bytes %5d turns %7.1f ms, the longest %5.1f ms\n", name, b->len, c.turns, c.sum_ms,
                      c.longest_ms);
    buf_free(b);
    if (c.longest_ms > bound_ms)
        fail_msg("%s: a turn of %.1f ms", name, c.longest_ms);
}

static void ask_redis(struct rig *r, int fd, const char *name, struct buf *b, int bound_ms)
{
    static const char mark[] = "$4\r\nDONE\r\n";
    buf_printf(b, "*2\r\n$4\r\nECHO\r\n%s", mark);
    ask(r, fd, name, b, mark, sizeof mark - 1, bound_ms);
}

static void ask_torch(struct rig *r, int fd, const char *name, struct buf *b)
{
    buf_addstr(b, "\x0d"); /* PING */
    buf_addstr(b, "DONE");
    ask(r, fd, name, b, "DONE", 4, BOUND_MS);
}

static void add_u64(struct buf *b, uint64_t v)
{
    buf_add(b, &v, sizeof v);
}

/* An operation of TCPStore on n keys, each followed by a value unless NULL. */
static void torch_names(struct buf *b, char op, int first, int n, const char *value)
{
    char name[16];
    buf_add(b, &op, 1);
    add_u64(b, (uint64_t)n);
    for (int i = first; i < first + n; i++) {
        add_u64(b, 8);
        buf_add(b, name, (size_t)snprintf(name, sizeof name, "k%07d", i));
        if (value) {
            add_u64(b, strlen(value));
            buf_addstr(b, value);
        }
    }
}

struct fixture {
    struct rig r;
    struct jobs *jobs;
    int redis, torch;
};

static void on_closed(void *arg)
{
    jobs_destroy(arg);
}

static int start(void **state)
{
    static struct fixture f;
    struct err e;
    rig_start(&f.r, &(struct server_options){.binary = &front_tcpstore});
    if (jobs_create(&f.jobs, &(struct jobs_options){.loop = &f.r.loop}, &e) < 0 ||
        server_set_jobs(f.r.server, f.jobs, &e) < 0)
        fail_msg("%s", e.text);
    f.redis = rig_open(&f.r);
    f.torch = rig_open(&f.r);
    rig_send(&f.r, f.torch, "\x00\xce\xf7\x85\x3c", 5);
    for (int i = 0; i < KEYS; i += 1000) {
        struct buf b = {0};
        rig_names(&b, "MSET", i, 1000, "v", NULL);
        ask_redis(&f.r, f.redis, NULL, &b, BOUND_MS);
    }
    *state = &f;
    return 0;
}

static int stop(void **state)
{
    struct fixture *f = *state;
    rig_close(&f->r, f->redis);
    rig_close(&f->r, f->torch);
    server_close(f->r.server, on_closed, f->jobs);
    uv_run(&f->r.loop, UV_RUN_DEFAULT);
    return uv_loop_close(&f->r.loop);
}

/* Of names that are there, and of some that are not. */
static void requests_of_many_names_are_cut(void **state)
{
    static const struct {
        const char *command;
        int first, n;
        const char *value, *last;
    } rows[] = {
        {"EXISTS", KEYS - NAMES / 2, NAMES, NULL, NULL},
        {"MGET", KEYS - NAMES / 2, NAMES, NULL, NULL},
        {"STORE.WAIT", 0, NAMES, NULL, "0"},
        {"STORE.WAIT", KEYS - NAMES / 2, NAMES, NULL, "1"},
        {"STORE.WAIT", 10 * KEYS, NAMES, NULL, "1"},
        {"MSET", KEYS - NAMES / 4, NAMES / 2, "w", NULL},
        {"MSET", 20 * KEYS, NAMES / 2, "w", NULL},
        {"DEL", KEYS - NAMES / 2, NAMES, NULL, NULL},
        {"CLIENT", 0, NAMES, NULL, NULL},
        {"INFO", 0, NAMES, NULL, NULL},
        {"COMMAND", 0, NAMES, NULL, NULL},
        {"SCAN", 0, NAMES, NULL, NULL},
        {"RDZV.JOIN", 0, NAMES, NULL, "v=1 nnodes=1 slots=1"},
        {"RDZV.REPORT", 0, NAMES / 2, "v=1", NULL},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b = {0};
        rig_names(&b, rows[i].command, rows[i].first, rows[i].n, rows[i].value, rows[i].last);
        ask_redis(&f->r, f->redis, rows[i].command, &b, BOUND_MS);
    }
}

static void operations_on_many_keys_are_cut(void **state)
{
    static const struct {
        const char *name;
        char op;
        int first, n;
        const char *value;
    } rows[] = {
        {"MULTI_SET", 11, KEYS - 1000, TORCH_NAMES, "w"},
        {"MULTI_GET", 10, KEYS - 2000, TORCH_NAMES, NULL},
        {"CHECK", 5, KEYS - 1000, TORCH_NAMES, NULL},
        {"WAIT", 6, KEYS - 1000, TORCH_NAMES, NULL},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b = {0};
        torch_names(&b, rows[i].op, rows[i].first, rows[i].n, rows[i].value);
        ask_torch(&f->r, f->torch, rows[i].name, &b);
    }
    struct buf b = {0}; /* one that is not over: it is cancelled, and what it leaves is swept up */
    torch_names(&b, 6, 30 * KEYS, TORCH_NAMES, NULL);
    buf_addstr(&b, "\x0c"); /* CANCEL_WAIT */
    ask_torch(&f->r, f->torch, "WAIT, CANCEL_WAIT", &b);
}

/* A word of LARGE bytes stands for each NULL. */
static void one_large_word_takes_a_fraction_of_it(void **state)
{
    static const struct {
        int n;
        const char *words[5];
    } rows[] = {
        {2, {"ECHO", NULL}},
        {3, {"SET", "big", NULL}},
        {2, {"GET", "big"}},
        {4, {"SET", "big", NULL, "GET"}},
        {5, {"STORE.CAS", "big", "1", NULL, "y"}},
        {3, {"APPEND", "other", NULL}},
        {3, {"MSET", "big", NULL}},
        {4, {"MGET", "big", "big", "big"}},
        {2, {"GETDEL", "big"}},
        {2, {"DEL", "other"}},
        {2, {"EXISTS", NULL}},
        {3, {"SET", NULL, "v"}},
        {2, {"INCR", NULL}},
        {4, {"SCAN", "0", "MATCH", NULL}},
        {3, {"CLIENT", "SETNAME", NULL}},
        {2, {"STORE.USE", NULL}},
        {3, {"STORE.AUTH", NULL, "x"}},
        {4, {"RDZV.JOIN", "r", "n", NULL}},
        {5, {"RDZV.FAIL", "r", "n", "1", NULL}},
        {4, {"RDZV.REPORT", "r", "n", NULL}},
        {4, {"RDZV.POSTMORTEM", "r", "n", NULL}},
        {1, {NULL}},
    };
    struct fixture *f = *state;
    struct buf large = {0};
    for (int i = 0; i < LARGE / 4; i++)
        buf_addstr(&large, "a=b ");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b = {0};
        buf_printf(&b, "*%d\r\n", rows[i].n);
        for (int k = 0; k < rows[i].n; k++) {
            const char *word = rows[i].words[k] ? rows[i].words[k] : large.data;
            const size_t n = rows[i].words[k] ? strlen(word) : large.len;
            buf_printf(&b, "$%zu\r\n", n);
            buf_add(&b, word, n);
            buf_addstr(&b, "\r\n");
        }
        ask_redis(&f->r, f->redis, rows[i].words[0] ? rows[i].words[0] : "(a large word)", &b, LARGE_BOUND_MS);
    }
    buf_free(&large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_of_many_names_are_cut),
        cmocka_unit_test(operations_on_many_keys_are_cut),
        cmocka_unit_test(one_large_word_takes_a_fraction_of_it),
    };
    signal(SIGPIPE, SIG_IGN); /* as every program around a server does */
    return cmocka_run_group_tests(tests, start, stop);
}
