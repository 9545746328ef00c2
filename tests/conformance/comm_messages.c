/* What every backend must do with messages between two ranks, over ranks as threads: order, waits in any order, both
 * sending first, and what goes wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "tests/worker/comm/ranks.h"

enum { TIMEOUT_MS = 20000, SHORT_MS = 1000, SOON_MS = 5000, LARGE = 3000000 };

static void expect_all(const struct ranks *w, int code)
{
    for (int r = 0; r < w->world; r++)
        if (w->rc[r] != code)
            fail_msg("rank %d: code %d, expected %d: %s", r, w->rc[r], code, w->err[r].text);
}

/* --- what arrives */

/* Byte i of message `number` of one rank to another. */
static char byte_of(int from, int to, int number, size_t i)
{
    return (char)((size_t)from * 31 + (size_t)to * 7 + (size_t)number * 13 + i * (i >> 8 | 1));
}

static char *filled(int from, int to, int number, size_t n)
{
    char *p = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        p[i] = byte_of(from, to, number, i);
    return p;
}

static int check(const char *got, int from, int to, int number, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != byte_of(from, to, number, i))
            return err_set(e, -EIO, "message %d of rank %d to %d: byte %zu of %zu is %d, expected %d", number, from, to,
                           i, n, got[i], byte_of(from, to, number, i));
    return 0;
}

static const size_t sizes[] = {1, 8, 0, 1003, 8, 300001, 7, 65536, 1, 8};
enum { MESSAGES = sizeof sizes / sizeof *sizes };

struct exchange {
    struct comm_request *sends[RANKS_MAX][MESSAGES], *recvs[RANKS_MAX][MESSAGES];
    char *out[RANKS_MAX][MESSAGES], *in[RANKS_MAX][MESSAGES];
};

static int begin_all(struct comm *c, struct exchange *x, struct err *e)
{
    for (int m = 0; m < MESSAGES; m++)
        for (int p = 0; p < c->world; p++) {
            x->out[p][m] = filled(c->rank, p, m, sizes[m]);
            x->in[p][m] = calloc(1, sizes[m] + 1);
            TRY(c->ops->isend(c, COMM_GRADIENTS, x->out[p][m], sizes[m], p, NULL, &x->sends[p][m], e));
            TRY(c->ops->irecv(c, COMM_GRADIENTS, x->in[p][m], sizes[m], p, NULL, &x->recvs[p][m], e));
        }
    return 0;
}

/* The waits in an order of this rank's own. */
static int finish_all(struct comm *c, struct exchange *x, struct err *e)
{
    int order[RANKS_MAX * MESSAGES], n = c->world * MESSAGES;
    unsigned seed = 17u + (unsigned)c->rank;
    for (int i = 0; i < n; i++) {
        int j = (int)(rand_r(&seed) % (unsigned)(i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    int rc = 0;
    for (int i = 0; i < n; i++) {
        const int p = order[i] / MESSAGES, m = order[i] % MESSAGES;
        struct comm_request *both[] = {x->recvs[p][m], x->sends[p][m]};
        rc = comm_wait_all(both, 2, rc, e);
    }
    for (int p = 0; p < c->world; p++)
        for (int m = 0; m < MESSAGES; m++) {
            if (rc == 0)
                rc = check(x->in[p][m], p, c->rank, m, sizes[m], e);
            free(x->in[p][m]);
            free(x->out[p][m]);
        }
    return rc;
}

static int everybody_to_everybody(struct comm *c, int rank, void *arg, struct err *e)
{
    struct exchange *x = calloc(1, sizeof *x);
    int rc = begin_all(c, x, e);
    if (rc == 0)
        rc = finish_all(c, x, e);
    free(x);
    return rc;
}

static void messages_arrive_in_order_whatever_the_order_of_the_waits(void **state)
{
    for (int world = 1; world <= 4; world++) {
        struct ranks w;
        ranks_open(&w, *state, world, TIMEOUT_MS);
        ranks_run(&w, everybody_to_everybody, NULL);
        expect_all(&w, 0);
        ranks_close(&w);
    }
}

static int send_to_all_first(struct comm *c, int rank, void *arg, struct err *e)
{
    char *buf = malloc(LARGE);
    int rc = 0;
    for (int p = 0; p < c->world && rc == 0; p++) {
        char *out = filled(rank, p, 1, LARGE);
        rc = c->ops->send(c, COMM_GRADIENTS, out, LARGE, p, NULL, e);
        memset(out, 0, LARGE); /* it is the caller's again */
        free(out);
    }
    for (int p = 0; p < c->world && rc == 0; p++) {
        rc = comm_recv(c, COMM_GRADIENTS, buf, LARGE, p, NULL, e);
        if (rc == 0)
            rc = check(buf, p, rank, 1, LARGE, e);
    }
    free(buf);
    return rc;
}

/* Each waits for its send before it waits for what it receives. */
static int begin_to_send_first(struct comm *c, int rank, void *arg, struct err *e)
{
    const int other = 1 - rank;
    struct comm_request *both[2] = {NULL, NULL};
    char *out = filled(rank, other, 2, LARGE), *in = malloc(LARGE);
    int rc = c->ops->isend(c, COMM_STATISTICS, out, LARGE, other, NULL, &both[0], e);
    if (rc == 0)
        rc = c->ops->irecv(c, COMM_STATISTICS, in, LARGE, other, NULL, &both[1], e);
    rc = comm_wait_all(both, 2, rc, e);
    if (rc == 0)
        rc = check(in, other, rank, 2, LARGE, e);
    free(in);
    free(out);
    return rc;
}

static void ranks_that_all_send_first_go_on(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, 3, TIMEOUT_MS);
    ranks_run(&w, send_to_all_first, NULL);
    expect_all(&w, 0);
    ranks_close(&w);
    ranks_open(&w, *state, 2, TIMEOUT_MS);
    ranks_run(&w, begin_to_send_first, NULL);
    expect_all(&w, 0);
    ranks_close(&w);
}

/* A message is begun before a collective of the same channel and received after it, on one rank; the other way round on
 * the other. */
static int around_a_collective(struct comm *c, int rank, void *arg, struct err *e)
{
    struct comm_request *r = NULL;
    char in[100], *out = filled(rank, 1 - rank, 3, sizeof in);
    float sum = 1;
    int rc = c->ops->isend(c, COMM_GRADIENTS, out, sizeof in, 1 - rank, NULL, &r, e);
    if (rc == 0 && rank == 1)
        rc = comm_recv(c, COMM_GRADIENTS, in, sizeof in, 0, NULL, e);
    if (rc == 0)
        rc = c->ops->all_reduce(c, COMM_GRADIENTS, &sum, 1, DT_F32, COMM_SUM, NULL, e);
    if (rc == 0 && rank == 0)
        rc = comm_recv(c, COMM_GRADIENTS, in, sizeof in, 1, NULL, e);
    rc = comm_wait_all(&r, 1, rc, e);
    free(out);
    if (rc == 0 && sum != 2)
        return err_set(e, -EIO, "the sum is %g", (double)sum);
    return rc < 0 ? rc : check(in, 1 - rank, rank, 3, sizeof in, e);
}

static void messages_go_beside_collectives(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, 2, TIMEOUT_MS);
    ranks_run(&w, around_a_collective, NULL);
    expect_all(&w, 0);
    ranks_close(&w);
}

/* Rank 0 is gone before rank 1 receives: what was sent arrives. Rank 2 is gone from the beginning: nobody minds. */
static int send_and_close(struct comm *c, int rank, void *arg, struct err *e)
{
    struct ranks *w = arg;
    char in[100], *out = filled(0, 1, 4, sizeof in);
    int rc = 0;
    if (rank == 0)
        rc = c->ops->send(c, COMM_CONTROL, out, sizeof in, 1, NULL, e);
    free(out);
    if (rank != 1) {
        w->comm[rank] = NULL;
        c->ops->close(c);
        return rc;
    }
    TRY(comm_recv(c, COMM_CONTROL, in, sizeof in, 0, NULL, e));
    return check(in, 0, 1, 4, sizeof in, e);
}

static void what_was_sent_arrives_though_the_sender_closes(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, 3, TIMEOUT_MS);
    ranks_run(&w, send_and_close, &w);
    expect_all(&w, 0);
    ranks_close(&w);
}

/* --- what goes wrong */

static int rank_0_receives(struct comm *c, int rank, void *arg, struct err *e)
{
    char buf[8];
    return rank == 0 ? comm_recv(c, COMM_CONTROL, buf, sizeof buf, 1, NULL, e) : 0;
}

static void the_deadline_names_the_peer_that_does_not_send(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, 3, SHORT_MS);
    ranks_run(&w, rank_0_receives, NULL);
    assert_int_equal(w.rc[0], -ETIMEDOUT);
    if (!strstr(w.err[0].text, "rank 1"))
        fail_msg("%s", w.err[0].text);
    assert_in_range(w.took_ms[0], SHORT_MS - 5, SHORT_MS + SOON_MS);
    ranks_close(&w);
}

static int rank_1_closes(struct comm *c, int rank, void *arg, struct err *e)
{
    struct ranks *w = arg;
    if (rank != 1)
        return rank_0_receives(c, rank, NULL, e);
    w->comm[1] = NULL;
    c->ops->close(c);
    return 0;
}

static void a_peer_that_closed_is_named_at_once(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, 3, TIMEOUT_MS);
    ranks_run(&w, rank_1_closes, &w);
    assert_int_equal(w.rc[0], -ECONNRESET);
    if (!strstr(w.err[0].text, "rank 1 went away"))
        fail_msg("%s", w.err[0].text);
    assert_in_range(w.took_ms[0], 0, SOON_MS);
    ranks_close(&w);
}

static void *abort_soon(void *arg)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* before the wait, the answer is the same */
    struct comm *c = arg;
    c->ops->abort(c);
    return NULL;
}

static int ranks_0_and_2_receive(struct comm *c, int rank, void *arg, struct err *e)
{
    char buf[8];
    if (rank == 1)
        return 0;
    return comm_recv(c, COMM_CONTROL, buf, sizeof buf, rank == 0 ? 1 : 0, NULL, e);
}

static void abort_wakes_a_wait_and_the_others_learn_of_it(void **state)
{
    struct ranks w;
    pthread_t thread;
    ranks_open(&w, *state, 3, TIMEOUT_MS);
    assert_int_equal(pthread_create(&thread, NULL, abort_soon, w.comm[0]), 0);
    ranks_run(&w, ranks_0_and_2_receive, NULL);
    pthread_join(thread, NULL);
    assert_int_equal(w.rc[0], -ECANCELED);
    assert_int_equal(w.rc[2], -ECONNRESET);
    if (!strstr(w.err[2].text, "rank 0 went away"))
        fail_msg("%s", w.err[2].text);
    assert_in_range(w.took_ms[0], 0, SOON_MS);
    assert_in_range(w.took_ms[2], 0, SOON_MS);
    ranks_close(&w);
}

static int two_sizes(struct comm *c, int rank, void *arg, struct err *e)
{
    char buf[8] = {0};
    return rank == 0 ? c->ops->send(c, COMM_CONTROL, buf, 8, 1, NULL, e)
                     : comm_recv(c, COMM_CONTROL, buf, 4, 0, NULL, e);
}

static void a_message_of_another_size_is_not_received(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, 2, SHORT_MS);
    ranks_run(&w, two_sizes, NULL);
    assert_true(w.rc[1] == -EMSGSIZE || w.rc[1] == -ETIMEDOUT || w.rc[1] == -ECONNRESET);
    if (!strstr(w.err[1].text, "rank 0") || !strstr(w.err[1].text, "4 bytes"))
        fail_msg("%s", w.err[1].text);
    assert_in_range(w.took_ms[1], 0, SHORT_MS + SOON_MS);
    ranks_close(&w);
}

static void a_peer_outside_the_world_is_refused(void **state)
{
    struct ranks w;
    struct comm_request *r = NULL;
    struct err e;
    char buf[8] = {0};
    ranks_open(&w, *state, 2, TIMEOUT_MS);
    struct comm *c = w.comm[0];
    assert_int_equal(c->ops->isend(c, COMM_CONTROL, buf, 8, 2, NULL, &r, &e), -EINVAL);
    assert_string_equal(e.text, "a message with rank 2 of a world of 2");
    assert_int_equal(c->ops->irecv(c, COMM_CONTROL, buf, 8, -1, NULL, &r, &e), -EINVAL);
    assert_int_equal(c->ops->send(c, COMM_CONTROL, buf, 8, 7, NULL, &e), -EINVAL);
    assert_int_equal(c->ops->broadcast(c, COMM_CONTROL, buf, 8, 2, NULL, &e), -EINVAL);
    ranks_close(&w);
}

#define CASES(X)                                                                                                       \
    X(messages_arrive_in_order_whatever_the_order_of_the_waits)                                                        \
    X(ranks_that_all_send_first_go_on)                                                                                 \
    X(messages_go_beside_collectives)                                                                                  \
    X(what_was_sent_arrives_though_the_sender_closes)                                                                  \
    X(the_deadline_names_the_peer_that_does_not_send)                                                                  \
    X(a_peer_that_closed_is_named_at_once)                                                                             \
    X(abort_wakes_a_wait_and_the_others_learn_of_it)                                                                   \
    X(a_message_of_another_size_is_not_received)                                                                       \
    X(a_peer_outside_the_world_is_refused)

int main(void)
{
#define X(name) {#name " (local)", name, NULL, NULL, (void *)"local"},
    const struct CMUnitTest local[] = { CASES(X) };
#undef X
#define X(name) {#name " (gloo)", name, NULL, NULL, (void *)"gloo"},
    const struct CMUnitTest gloo[] = { CASES(X) };
#undef X
    enum { N = sizeof local / sizeof local[0] };
    struct CMUnitTest all[2 * N];
    memcpy(all, local, sizeof local);
    memcpy(all + N, gloo, sizeof gloo);
    return _cmocka_run_group_tests("messages", all, ranks_have("gloo") ? 2 * N : N, NULL, NULL);
}
