/* Gloo between real processes: a peer that is killed, ranks that never come, cannot be reached or disagree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/worker/comm/shm_store.h"
#include "worker/comm/comm.h"
#include "worker/comm/peers.h"
#include "worker/device/device.h"

enum { WORLD = 3, VICTIM = 2, TIMEOUT_MS = 20000, SHORT_MS = 2000, SOON_MS = 5000 };

/* What a child tells its parent, in one write. */
struct word {
    int rank;
    int code; /* 0: a round is done; else how its last call ended */
    int64_t at_ms;
    char text[160];
};

static void tell(int fd, int rank, int code, const char *text)
{
    struct word w = {.rank = rank, .code = code, .at_ms = clock_ms()};
    snprintf(w.text, sizeof w.text, "%s", text);
    if (write(fd, &w, sizeof w) != sizeof w)
        _exit(3);
}

/* Reduce 4 MB for ever. */
static void child(struct store *s, int rank, int fd)
{
    struct err e = {0};
    struct comm *c;
    struct comm_options o = {.rank = rank, .world = WORLD, .store = s, .name = "kill", .timeout_ms = TIMEOUT_MS};
    if (comm_open(&c, "gloo", &o, &e) < 0) {
        tell(fd, rank, e.code, e.text);
        _exit(1);
    }
    enum { N = 1000000 };
    float *buf = calloc(N, sizeof *buf);
    for (int i = 0;; i++) {
        if (c->ops->all_reduce(c, COMM_GRADIENTS, buf, N, DT_F32, COMM_SUM, NULL, &e) < 0)
            break;
        if (i == 2)
            tell(fd, rank, 0, "");
    }
    tell(fd, rank, e.code, e.text);
    c->ops->close(c);
    free(buf);
    _exit(0);
}

static bool hear(int fd, struct word *w)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, TIMEOUT_MS + 5000) == 1 && read(fd, w, sizeof *w) == sizeof *w;
}

/* Kill one of three in the middle of a transfer, `delay_us` after all are under way. Returns the slowest survivor's
 * time. The first survivor to notice names the victim, and shuts its connections, so that the other one learns of it.
 * That one may see this before the kernel has closed the victim's: then it names the first. */
static int64_t kill_one(int delay_us)
{
    int fds[2];
    pid_t pids[WORLD];
    struct store *s = shm_store_open();
    assert_int_equal(pipe(fds), 0);
    for (int r = 0; r < WORLD; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0)
            child(s, r, fds[1]);
    }
    struct word w;
    for (int r = 0; r < WORLD; r++) {
        assert_true(hear(fds[0], &w));
        if (w.code != 0)
            fail_msg("rank %d: %s", w.rank, w.text);
    }
    nanosleep(&(struct timespec){.tv_nsec = delay_us * 1000L}, NULL); /* a moment, not a synchronisation */
    kill(pids[VICTIM], SIGKILL);
    int64_t killed = clock_ms(), slowest = 0;
    int told = 0;
    for (int i = 0; i < WORLD - 1; i++) {
        assert_true(hear(fds[0], &w));
        if (w.code != -ECONNRESET)
            fail_msg("rank %d: code %d: %s", w.rank, w.code, w.text);
        if (!strstr(w.text, " 2") && !strstr(w.text, w.rank == 0 ? "rank 1 went away" : "rank 0 went away"))
            fail_msg("rank %d names neither rank 2 nor the other survivor: %s", w.rank, w.text);
        told += strstr(w.text, " 2") != NULL;
        slowest = w.at_ms - killed > slowest ? w.at_ms - killed : slowest;
    }
    assert_true(told > 0);
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(waitpid(pids[r], NULL, 0), pids[r]);
    close(fds[0]);
    close(fds[1]);
    shm_store_close(s);
    return slowest;
}

static void survivors_of_a_killed_rank_return_soon_and_it_is_named(void **state)
{
    int64_t worst = 0;
    for (int i = 0; i < 12; i++) {
        int64_t ms = kill_one(i * 1370);
        worst = ms > worst ? ms : worst;
    }
    print_message("# slowest survivor of 12 kills: %lld ms\n", (long long)worst);
    assert_in_range(worst, 0, SOON_MS);
}

static void ranks_that_do_not_come_are_named(void **state)
{
    struct store *s = shm_store_open();
    struct comm_options o = {.rank = 1, .world = 4, .store = s, .name = "gap", .timeout_ms = 200};
    struct comm *c = NULL;
    struct err e;
    assert_int_equal(comm_open(&c, "auto", &o, &e), -ETIMEDOUT);
    assert_non_null(strstr(e.text, "3 of 4 ranks did not come"));
    assert_non_null(strstr(e.text, "rank 0 2 3"));
    assert_null(c);
    shm_store_close(s);
}

static void ranks_that_disagree_on_the_world_are_told_so(void **state)
{
    struct store *s = shm_store_open();
    struct comm_options o = {.rank = 1, .world = 3, .store = s, .name = "world", .timeout_ms = 50};
    struct comm *c = NULL;
    struct err e;
    assert_int_equal(comm_open(&c, "gloo", &o, &e), -ETIMEDOUT); /* leaves its record */
    o.rank = 0;
    o.world = 2;
    assert_int_equal(comm_open(&c, "gloo", &o, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "rank 1 was started for a world of 3, rank 0 for one of 2"));
    shm_store_close(s);
}

static void an_address_of_another_machine_is_refused(void **state)
{
    struct store *s = shm_store_open();
    struct comm *c = NULL;
    struct err e;
    struct comm_options o = {.world = 2, .store = s, .name = "a", .timeout_ms = 50, .bind_addr = "192.0.2.7"};
    o.rank = 1;
    assert_int_equal(comm_open(&c, "gloo", &o, &e), -ETIMEDOUT);
    o.rank = 0;
    assert_int_equal(comm_open(&c, "gloo", &o, &e), -EADDRNOTAVAIL);
    assert_non_null(strstr(e.text, "192.0.2.7"));
    shm_store_close(s);
}

/* What stands at the place where rank 1 of 2 says that it listens. */
struct place {
    struct store *s;
    const char *address;
    int port;
};

/* Rank 1's records: its host; then rank 0's ports with another address in all places. */
static void *pretend_to_be_rank_1(void *arg)
{
    const struct place *p = arg;
    char identity[128], host[256], ports[1024];
    struct buf theirs;
    struct err e;
    peers_host_identity(identity, sizeof identity);
    snprintf(host, sizeof host, "2 %s %s -", identity, p->address);
    buf_init(&theirs, sizeof ports);
    const char *key = "comm/far/ports/0";
    if (store_set(p->s, "comm/far/host/1", host, strlen(host), TIMEOUT_MS, &e) < 0 ||
        store_wait(p->s, &key, 1, TIMEOUT_MS, &e) < 0 || store_get(p->s, key, &theirs, TIMEOUT_MS, &e) < 0)
        abort();
    size_t n = (size_t)snprintf(ports, sizeof ports, "%s", p->address);
    char *text = strndup(theirs.data, theirs.len), *rest = NULL;
    const bool numbered = strchr(text, '/') != NULL;
    (void)strtok_r(text, " ", &rest);
    for (char *place; (place = strtok_r(NULL, " ", &rest));) {
        const char *number = strchr(place, '/'); /* some Gloos number their pairs */
        n += (size_t)snprintf(ports + n, sizeof ports - n, " %d%s", p->port, number ? number : numbered ? "/0" : "");
    }
    if (store_set(p->s, "comm/far/ports/1", ports, n, TIMEOUT_MS, &e) < 0)
        abort();
    free(text);
    buf_free(&theirs);
    return NULL;
}

/* Opens rank 0 at `own` beside that rank 1. The end with the higher address dials. Returns the time it took. */
static int64_t open_beside(const struct place *p, const char *own, int *ret_rc, struct err *e)
{
    pthread_t thread;
    struct comm *c = NULL;
    struct comm_options o = {
        .rank = 0, .world = 2, .store = p->s, .name = "far", .timeout_ms = SHORT_MS, .bind_addr = own};
    assert_int_equal(pthread_create(&thread, NULL, pretend_to_be_rank_1, (void *)p), 0);
    int64_t start = clock_ms();
    *ret_rc = comm_open(&c, "gloo", &o, e);
    int64_t took = clock_ms() - start;
    pthread_join(thread, NULL);
    assert_null(c);
    return took;
}

static int bound_socket(struct place *p)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(inet_pton(AF_INET, p->address, &at.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    p->port = ntohs(at.sin_port);
    return fd;
}

static void expect_late(int rc, const struct err *e, int64_t took)
{
    print_message("# after %lld ms: %s\n", (long long)took, e->text);
    assert_int_equal(rc, -ETIMEDOUT);
    assert_non_null(strstr(e->text, "rank 1 has come, but no connection with it"));
    assert_non_null(strstr(e->text, "within 2000 ms"));
    assert_in_range(took, SHORT_MS - 5, SHORT_MS + SOON_MS);
}

/* A full queue of connections: the kernel drops what else comes, as a firewall does. */
static void a_rank_that_does_not_answer_is_named_at_the_deadline(void **state)
{
    enum { FILLERS = 4 };
    struct place p = {.s = shm_store_open(), .address = "127.0.0.1"};
    int listener = bound_socket(&p), filler[FILLERS], rc;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)p.port)};
    struct err e;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(listen(listener, 0), 0);
    for (int i = 0; i < FILLERS; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (connect(filler[i], (struct sockaddr *)&at, sizeof at) != 0)
            assert_int_equal(errno, EINPROGRESS);
    }
    int64_t took = open_beside(&p, "127.0.0.2", &rc, &e);
    expect_late(rc, &e, took);
    for (int i = 0; i < FILLERS; i++)
        close(filler[i]);
    close(listener);
    shm_store_close(p.s);
}

static void a_rank_that_does_not_dial_is_named_at_the_deadline(void **state)
{
    struct place p = {.s = shm_store_open(), .address = "127.0.0.2", .port = 9};
    int rc;
    struct err e;
    int64_t took = open_beside(&p, "127.0.0.1", &rc, &e);
    expect_late(rc, &e, took);
    shm_store_close(p.s);
}

/* Whoever waits for a rank that has come and does not dial is told from elsewhere that it is of no use. */
static void a_wait_for_connections_is_given_up_when_told(void **state)
{
    enum { LONG_MS = 300000 };
    struct place p = {.s = shm_store_open(), .address = "127.0.0.2", .port = 9};
    const int fd = eventfd(0, EFD_CLOEXEC);
    pthread_t thread;
    struct comm *c = NULL;
    struct err e;
    const struct comm_options o = {.rank = 0,
                                   .world = 2,
                                   .store = p.s,
                                   .name = "far",
                                   .timeout_ms = LONG_MS,
                                   .bind_addr = "127.0.0.1",
                                   .cancel_fd = fd};
    assert_int_equal(eventfd_write(fd, 1), 0);
    assert_int_equal(pthread_create(&thread, NULL, pretend_to_be_rank_1, &p), 0);
    assert_int_equal(comm_open(&c, "gloo", &o, &e), -ECANCELED);
    assert_string_equal(e.text, "connections of 2 ranks were given up");
    assert_null(c);
    pthread_join(thread, NULL);
    close(fd);
    shm_store_close(p.s);
}

static void a_rank_that_refuses_the_connection_is_named_at_once(void **state)
{
    struct place p = {.s = shm_store_open(), .address = "127.0.0.1"};
    int fd = bound_socket(&p), rc; /* nobody listens */
    struct err e;
    int64_t took = open_beside(&p, "127.0.0.2", &rc, &e);
    print_message("# after %lld ms: %s\n", (long long)took, e.text);
    assert_int_equal(rc, -ECONNRESET);
    assert_non_null(strstr(e.text, "the connection with it from 127.0.0.2 failed: "));
    assert_non_null(strstr(e.text, "rank 1"));
    assert_non_null(strstr(e.text, "Connection refused"));
    close(fd);
    shm_store_close(p.s);
}

static const char *uuid_of_seven(const struct device *d)
{
    (void)d;
    return "7";
}

/* Rank 0 on GPU 7 beside a rank 1 on `gpu`, which has a network of its own. */
static int open_on_gpus(const char *gpu, bool shares, struct err *e)
{
    static const struct device_ops ops = {.name = "a GPU", .uuid = uuid_of_seven};
    struct device seven = {&ops};
    struct store *s = shm_store_open();
    struct comm *c = NULL;
    char identity[128], host[256];
    const struct comm_options o = {.rank = 0,
                                   .world = 2,
                                   .store = s,
                                   .name = "gpus",
                                   .timeout_ms = 100,
                                   .device = &seven,
                                   .shares_device = shares};
    peers_host_identity(identity, sizeof identity);
    snprintf(host, sizeof host, "2 %.*s:1 127.0.0.1 %s", (int)strcspn(identity, ":"), identity, gpu);
    assert_int_equal(store_set(s, "comm/gpus/host/1", host, strlen(host), TIMEOUT_MS, e), 0);
    const int rc = comm_open(&c, "gloo", &o, e);
    assert_null(c);
    shm_store_close(s);
    return rc;
}

/* Where they do not, or may, rank 1 is waited for as ever. */
static void ranks_in_containers_do_not_share_a_gpu_unasked(void **state)
{
    struct err e;
    assert_int_equal(open_on_gpus("7", false, &e), -ENODEV);
    assert_non_null(strstr(e.text, "ranks 0 and 1 are on the same GPU (UUID 7)"));
    assert_int_equal(open_on_gpus("8", false, &e), -ETIMEDOUT);
    assert_int_equal(open_on_gpus("7", true, &e), -ETIMEDOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_in_containers_do_not_share_a_gpu_unasked),
        cmocka_unit_test(survivors_of_a_killed_rank_return_soon_and_it_is_named),
        cmocka_unit_test(ranks_that_do_not_come_are_named),
        cmocka_unit_test(ranks_that_disagree_on_the_world_are_told_so),
        cmocka_unit_test(an_address_of_another_machine_is_refused),
        cmocka_unit_test(a_rank_that_does_not_answer_is_named_at_the_deadline),
        cmocka_unit_test(a_rank_that_does_not_dial_is_named_at_the_deadline),
        cmocka_unit_test(a_wait_for_connections_is_given_up_when_told),
        cmocka_unit_test(a_rank_that_refuses_the_connection_is_named_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
