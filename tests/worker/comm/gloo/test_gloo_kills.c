/* Real processes over gloo, one of which is killed in the middle of each call, and of each call of a group: the others
 * get an error that names a rank, within moments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/worker/comm/ranks.h"
#include "tests/worker/comm/shm_store.h"

enum { WORLD = 3, VICTIM = 1, TIMEOUT_MS = 20000, SOON_MS = 5000, N = 60000, ROUNDS = 3 };

/* What is called again and again: a known call, in the world or in a group of all its ranks, or one of these. */
enum { BARRIER = KNOWN_CALL_COUNT, SEND, KINDS };

struct what {
    int kind;
    bool in_group;
};

/* What a child tells its parent, in one write. */
struct word {
    int rank;
    int code; /* 0: some rounds are done; else how its last call ended */
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

/* Copies, from each rank to the next one; all send first. */
static int send_and_receive(struct comm *c, struct err *e)
{
    char *buf = calloc(N, 4);
    int rc = c->ops->send(c, COMM_GRADIENTS, buf, N * 4, (c->rank + 1) % c->world, NULL, e);
    if (rc == 0)
        rc = comm_recv(c, COMM_GRADIENTS, buf, N * 4, (c->rank + c->world - 1) % c->world, NULL, e);
    free(buf);
    return rc;
}

static int call_once(struct comm *c, int kind, struct err *e)
{
    if (kind == BARRIER)
        return c->ops->barrier(c, COMM_GRADIENTS, e);
    if (kind == SEND)
        return send_and_receive(c, e);
    struct ranks_call call = {
        .k = {.call = (enum known_call)kind, .type = DT_F32, .op = COMM_SUM, .n = N, .root = VICTIM},
        .ch = COMM_GRADIENTS};
    return ranks_known(c, c->rank, &call, e);
}

static int open_both(struct store *s, int rank, bool in_group, struct comm **ret_all, struct comm **ret, struct err *e)
{
    static const int ranks[WORLD] = {0, 1, 2};
    const struct comm_options o = {.rank = rank, .world = WORLD, .store = s, .name = "kill", .timeout_ms = TIMEOUT_MS};
    TRY(comm_open(ret_all, "gloo", &o, e));
    *ret = *ret_all;
    return in_group ? comm_group(ret, *ret_all, &o, ranks, WORLD, e) : 0;
}

static void child(struct store *s, int rank, struct what what, int fd)
{
    struct err e = {0};
    struct comm *all, *c;
    int rc = open_both(s, rank, what.in_group, &all, &c, &e);
    for (int i = 0; rc == 0; i++) {
        rc = call_once(c, what.kind, &e);
        if (rc == 0 && i == ROUNDS)
            tell(fd, rank, 0, "");
    }
    tell(fd, rank, rc, e.text);
    if (c != all)
        c->ops->close(c);
    all->ops->close(all);
    _exit(0);
}

static struct word hear(int fd)
{
    struct word w = {0};
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, TIMEOUT_MS + SOON_MS) != 1 || read(fd, &w, sizeof w) != sizeof w)
        fail_msg("a rank says nothing");
    return w;
}

static void kill_one(struct what what)
{
    int fds[2];
    pid_t pids[WORLD];
    struct store *s = shm_store_open();
    const char *name = what.kind == BARRIER ? "barrier"
                       : what.kind == SEND  ? "send"
                                            : known_call_name((enum known_call)what.kind);
    assert_int_equal(pipe(fds), 0);
    for (int r = 0; r < WORLD; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0)
            child(s, r, what, fds[1]);
    }
    for (int r = 0; r < WORLD; r++) {
        const struct word w = hear(fds[0]);
        if (w.code != 0)
            fail_msg("%s, rank %d: %s", name, w.rank, w.text);
    }
    kill(pids[VICTIM], SIGKILL);
    const int64_t killed = clock_ms();
    bool named = false;
    for (int i = 0; i < WORLD - 1; i++) {
        const struct word w = hear(fds[0]);
        if (w.code != -ECONNRESET || !strstr(w.text, "went away") || w.at_ms - killed > SOON_MS)
            fail_msg("%s, rank %d, after %lld ms: code %d: %s", name, w.rank, (long long)(w.at_ms - killed), w.code,
                     w.text);
        named = named || strstr(w.text, "rank 1 went away") || strstr(w.text, "did: 1");
    }
    if (!named)
        fail_msg("%s: nobody names the rank that was killed", name);
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(waitpid(pids[r], NULL, 0), pids[r]);
    close(fds[0]);
    close(fds[1]);
    shm_store_close(s);
}

static void a_rank_killed_in_any_call_is_named(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++)
        kill_one((struct what){kind, kind % 2 == 1});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rank_killed_in_any_call_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
