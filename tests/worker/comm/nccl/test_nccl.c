/* The backend over NCCL with an NCCL that is not there: every call gives what it must, messages go in groups, groups of
 * ranks have communicators of their own, and a rank that goes away is an error of the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/comm/nccl/fake_nccl.h"
#include "tests/worker/comm/ranks.h"
#include "tests/worker/comm/shm_store.h"
#include "worker/device/device.h"

extern const struct comm_ops comm_nccl_ops;

enum { TIMEOUT_MS = 20000, LARGE = 1000000 };

/* --- a device whose memory is the host's */

static int host_alloc(struct device *d, size_t bytes, void **ret, struct err *e)
{
    *ret = calloc(1, bytes);
    return *ret ? 0 : err_set(e, -ENOMEM, "no memory");
}

static void host_release(struct device *d, void *p)
{
    free(p);
}

static int copy(struct device *d, void *stream, void *to, const void *from, size_t bytes, struct err *e)
{
    memcpy(to, from, bytes);
    return 0;
}

static int sync_stream(struct device *d, void *stream, struct err *e)
{
    return 0;
}

static atomic_int torn, whole_at_abort;

static void tear(struct device *d, bool is_torn)
{
    atomic_store(&torn, is_torn);
}

static void at_abort(void)
{
    if (!atomic_load(&torn))
        atomic_fetch_add(&whole_at_abort, 1);
}

static const struct device_async async = {.host_alloc = host_alloc,
                                          .host_release = host_release,
                                          .copy_in = copy,
                                          .copy_out = copy,
                                          .sync = sync_stream,
                                          .tear = tear};
static const struct device_ops device_ops = {.name = "cuda", .async = &async};
static struct device device = {&device_ops};

/* --- worlds */

static struct comm_options options(struct store *s, int rank, int world)
{
    return (struct comm_options){.rank = rank,
                                 .world = world,
                                 .store = s,
                                 .name = "nccl",
                                 .timeout_ms = TIMEOUT_MS,
                                 .device = &device,
                                 .nccl = &comm_nccl_ops};
}

struct opening {
    struct ranks *w;
    struct store *store;
};

static int open_one(struct comm *none, int rank, void *arg, struct err *e)
{
    const struct opening *o = arg;
    const struct comm_options mine = options(o->store, rank, o->w->world);
    fake_nccl_use_gpu(rank);
    return comm_open(&o->w->comm[rank], "nccl", &mine, e);
}

static void expect_all(const struct ranks *w, int code)
{
    for (int r = 0; r < w->world; r++)
        if (w->rc[r] != code)
            fail_msg("rank %d of %d: code %d, expected %d: %s", r, w->world, w->rc[r], code, w->err[r].text);
}

static void open_world(struct ranks *w, int world)
{
    struct opening o = {w, shm_store_open()};
    *w = (struct ranks){.world = world};
    ranks_run(w, open_one, &o);
    shm_store_close(o.store);
    expect_all(w, 0);
}

static void run_every_call(struct ranks *w, rank_fn *fn)
{
    static const enum dtype types[] = {DT_F32, DT_F64, DT_BF16, DT_F16, DT_I64};
    for (int i = 0; i < 4 * 2 * KNOWN_CALL_COUNT; i++) {
        const int world = w->world;
        struct ranks_call j = {.k = {.call = (enum known_call)(i / 8),
                                     .type = types[i % 5],
                                     .op = (enum comm_op)(i % 4),
                                     .uneven = i / 4 % 2,
                                     .root = 0,
                                     .n = 120u * (size_t)world},
                               .ch = i % 3 ? COMM_GRADIENTS : COMM_STATISTICS};
        ranks_run(w, fn, &j);
        expect_all(w, 0);
    }
}

static void every_call_gives_what_it_must(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) {
        struct ranks w;
        open_world(&w, world);
        assert_string_equal(w.comm[0]->ops->name, "nccl");
        run_every_call(&w, ranks_known);
        ranks_close(&w);
    }
}

static void equal_parts_are_one_call_and_uneven_ones_a_group(void **state)
{
    (void)state;
    struct ranks w;
    open_world(&w, 3);
    struct ranks_call j = {.k = {.call = KNOWN_ALL_GATHER, .type = DT_F32, .n = 300}, .ch = COMM_GRADIENTS};
    const int gathers = fake_nccl_calls("ncclAllGather"), broadcasts = fake_nccl_calls("ncclBroadcast");
    ranks_run(&w, ranks_known, &j);
    expect_all(&w, 0);
    assert_int_equal(fake_nccl_calls("ncclAllGather") - gathers, 3);
    j.k.uneven = true;
    ranks_run(&w, ranks_known, &j);
    expect_all(&w, 0);
    assert_int_equal(fake_nccl_calls("ncclAllGather") - gathers, 3);
    assert_int_equal(fake_nccl_calls("ncclBroadcast") - broadcasts, 9);
    ranks_close(&w);
}

/* The other rank's bytes; each waits for its send first. */
static int send_first(struct comm *c, int rank, void *arg, struct err *e)
{
    struct comm_request *both[2] = {NULL, NULL};
    char *out = malloc(LARGE), *in = calloc(1, LARGE);
    memset(out, 5 + rank, LARGE);
    int rc = c->ops->isend(c, COMM_GRADIENTS, out, LARGE, 1 - rank, NULL, &both[0], e);
    if (rc == 0)
        rc = c->ops->irecv(c, COMM_GRADIENTS, in, LARGE, 1 - rank, NULL, &both[1], e);
    rc = comm_wait_all(both, 2, rc, e);
    if (rc == 0 && (in[0] != 6 - rank || in[LARGE - 1] != 6 - rank))
        rc = err_set(e, -EIO, "rank %d received %d", rank, in[0]);
    free(in);
    free(out);
    return rc;
}

static void ranks_that_both_begin_with_a_send_go_on(void **state)
{
    (void)state;
    struct ranks w;
    open_world(&w, 2);
    ranks_run(&w, send_first, NULL);
    expect_all(&w, 0);
    ranks_close(&w);
}

/* Ranks of equal parity, and each alone. */
static int in_groups(struct comm *c, int rank, void *arg, struct err *e)
{
    const struct comm_options o = options(NULL, 0, 0);
    const int mine[2] = {rank % 2, rank % 2 + 2};
    struct comm *pair = NULL, *alone = NULL;
    fake_nccl_use_gpu(rank);
    int rc = comm_group(&pair, c, &o, mine, 2, e);
    if (rc == 0)
        rc = comm_group(&alone, c, &o, &rank, 1, e);
    if (rc == 0 && strcmp(pair->ops->name, "nccl") != 0)
        rc = err_set(e, -EIO, "the group is over %s", pair->ops->name);
    if (rc == 0)
        rc = ranks_known(pair, pair->rank, arg, e);
    if (rc == 0)
        rc = ranks_known(alone, 0, arg, e);
    if (alone)
        alone->ops->close(alone);
    if (pair)
        pair->ops->close(pair);
    return rc;
}

static void groups_have_communicators_of_their_own(void **state)
{
    (void)state;
    struct ranks w;
    open_world(&w, 4);
    struct ranks_call j = {
        .k = {.call = KNOWN_REDUCE_SCATTER, .type = DT_F32, .op = COMM_MAX, .n = 240, .uneven = true},
        .ch = COMM_GRADIENTS};
    ranks_run(&w, in_groups, &j);
    expect_all(&w, 0);
    ranks_close(&w);
}

/* As those that write checkpoints open theirs: what they carry lies in host memory. */
static int for_host_memory(struct comm *c, int rank, void *arg, struct err *e)
{
    static const int all[] = {0, 1, 2};
    const struct comm_options o = {.name = "checkpoints", .timeout_ms = TIMEOUT_MS};
    struct comm *group = NULL;
    const struct ranks_call *j = arg;
    (void)rank;
    int rc = comm_group(&group, c, &o, all, 3, e);
    for (int ch = 0; ch < COMM_CHANNELS && rc == 0; ch++) {
        struct ranks_call mine = *j;
        mine.ch = (enum comm_channel)ch;
        rc = ranks_known(group, group->rank, &mine, e);
    }
    if (rc == 0 && !group->ops->host_buffers)
        rc = err_set(e, -EIO, "the group is over %s, which takes a GPU's memory", group->ops->name);
    if (group)
        group->ops->close(group);
    return rc;
}

static void a_group_without_a_device_carries_host_memory(void **state)
{
    (void)state;
    struct ranks w;
    open_world(&w, 3);
    struct ranks_call j = {.k = {.call = KNOWN_ALL_GATHER, .type = DT_F32, .n = 300}};
    const int gathers = fake_nccl_calls("ncclAllGather");
    ranks_run(&w, for_host_memory, &j);
    expect_all(&w, 0);
    assert_int_equal(fake_nccl_calls("ncclAllGather"), gathers);
    ranks_close(&w);
}

static int rank_1_closes(struct comm *c, int rank, void *arg, struct err *e)
{
    struct ranks *w = arg;
    char byte;
    if (rank == 0)
        return comm_recv(c, COMM_GRADIENTS, &byte, 1, 1, NULL, e);
    w->comm[1] = NULL;
    c->ops->close(c);
    return 0;
}

static void what_fails_ends_the_communicator(void **state)
{
    (void)state;
    struct ranks w;
    struct comm_request *r = NULL;
    struct err e;
    char byte = 0;
    open_world(&w, 2);
    fake_nccl_at_abort(at_abort);
    struct comm *c = w.comm[0];
    assert_int_equal(c->ops->isend(c, COMM_GRADIENTS, &byte, 1, 2, NULL, &r, &e), -EINVAL);
    assert_int_equal(atomic_load(&torn), 0);
    assert_string_equal(e.text, "a message with rank 2 of a world of 2");
    ranks_run(&w, rank_1_closes, &w);
    assert_int_equal(w.rc[0], -ECONNRESET);
    assert_string_equal(w.err[0].text, "NCCL: receive of 1 bytes from rank 1 (nccl, gradients): remote process exited");
    assert_int_equal(c->ops->check(c, &e), -ECONNRESET);
    assert_int_equal(c->ops->isend(c, COMM_GRADIENTS, &byte, 1, 1, NULL, &r, &e), -ECONNRESET);
    assert_int_equal(atomic_load(&torn), 1); /* whoever judges by sums hears of it, and before kernels are ended */
    ranks_close(&w);
    fake_nccl_at_abort(NULL);
    assert_int_equal(atomic_load(&whole_at_abort), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_gives_what_it_must),
        cmocka_unit_test(equal_parts_are_one_call_and_uneven_ones_a_group),
        cmocka_unit_test(ranks_that_both_begin_with_a_send_go_on),
        cmocka_unit_test(groups_have_communicators_of_their_own),
        cmocka_unit_test(a_group_without_a_device_carries_host_memory),
        cmocka_unit_test(what_fails_ends_the_communicator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
