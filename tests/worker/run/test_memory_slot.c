/* Copies of the state in memory that outlives a process: by whom they are found, and that there is always a whole
 * one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/err.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/session/memory_slot.h"
#include "worker/state/state.h"

enum { ROWS = 40, STATS = 8, KIN = 7 };

struct process { /* and what it has made; stays where it is */
    struct param params[3];
    struct program program;
    struct device *device;
    struct ownership own;
    struct state state;
    struct memory_slot *slot;
};

static int slot_of(struct process *p, int fd, int local_rank, int64_t rows, uint32_t kin, struct err *e)
{
    const size_t bias = ((size_t)rows + 15) / 16 * 16;
    *p = (struct process){.params = {{.name = "fc.weight", .role = PARAM_TRAIN, .init = INIT_UNIFORM, .init_scale = 1},
                                     {.name = "fc.bias", .role = PARAM_TRAIN, .offset = bias},
                                     {.name = "bn.running_var", .role = PARAM_STAT}},
                          .program = {.nparams = 3, .n_train = bias + 16, .n_stats = 16}};
    for (int i = 0; i < 3; i++) {
        p->params[i].ndim = 1;
        p->params[i].shape[0] = i ? STATS : rows;
        p->params[i].count = (size_t)p->params[i].shape[0];
    }
    p->program.params = p->params;
    p->program.n_reduce = p->program.n_train + p->program.n_stats + METRIC_N;
    TRY(device_open(&p->device, "ref", &(struct device_options){.threads = 1}, e));
    TRY(ownership_init_alone(&p->own, &p->program, e));
    TRY(state_init(&p->state, p->device, &p->program, &p->own, &(struct state_options){.seed = 3}, e));
    return memory_slot_open(&p->slot, fd, local_rank, &p->state, kin, e);
}

static void begin(struct process *p, int fd, int local_rank, int64_t rows, uint32_t kin)
{
    struct err e;
    if (slot_of(p, fd, local_rank, rows, kin, &e) < 0)
        fail_msg("%s", e.text);
}

static void end(struct process *p)
{
    memory_slot_close(p->slot);
    state_finish(&p->state);
    ownership_finish(&p->own);
    p->device->ops->close(p->device);
}

/* ref's memory is the host's. */
static double *weight(struct process *p)
{
    return p->state.params;
}

static void keep(struct process *p, int64_t updates, int64_t round)
{
    struct err e;
    const struct memory_copy as = {.updates = updates, .round = round};
    weight(p)[5] = (double)updates;
    if (memory_slot_keep(p->slot, as, &updates, sizeof updates, &e) < 0)
        fail_msg("%s", e.text);
}

static int has(const struct process *p, int64_t updates, int64_t round)
{
    struct memory_copy c[MEMORY_SLOT_HALVES];
    int n = 0;
    memory_slot_find(p->slot, c);
    for (int i = 0; i < MEMORY_SLOT_HALVES; i++)
        n += c[i].updates == updates && (updates < 0 || c[i].round == round);
    return n;
}

static int node_memory(void)
{
    const int fd = memfd_create("test-memory", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

/* --- cases */

static void the_next_process_goes_on_from_either_of_the_last_two(void **state)
{
    struct process first, next;
    struct err e;
    int64_t note = 0;
    const int fd = node_memory();
    (void)state;
    begin(&first, fd, 0, ROWS, KIN);
    assert_int_equal(has(&first, -1, 0), MEMORY_SLOT_HALVES);
    for (int64_t step = 10; step <= 40; step += 10)
        keep(&first, step, 1);
    end(&first);
    begin(&next, fd, 0, ROWS, KIN);
    assert_true(has(&next, 30, 1) && has(&next, 40, 1));
    for (int64_t step = 40; step >= 30; step -= 10) {
        const uint64_t version = next.state.version;
        assert_int_equal(memory_slot_restore(next.slot, (struct memory_copy){step, 1}, &note, sizeof note, &e), 0);
        assert_int_equal(note, step);
        assert_true(weight(&next)[5] == (double)step && next.state.version > version);
    }
    assert_int_equal(memory_slot_restore(next.slot, (struct memory_copy){40, 2}, &note, sizeof note, &e), -ENOENT);
    end(&next);
    close(fd);
}

/* What is where in a copy does not depend on where a process has its arenas. */
static void arenas_that_have_changed_places_are_found_again(void **state)
{
    struct process first, next;
    struct err e;
    int64_t note = 0, need;
    const int fd = node_memory();
    (void)state;
    begin(&first, fd, 0, ROWS, KIN);
    ((double *)first.state.momentum)[5] = -1;
    keep(&first, 10, 1);
    assert_int_equal(memory_slot_need(&first.state, &need, &e), 0);
    assert_int_equal(need, memory_slot_bytes(first.slot));
    end(&first);
    begin(&next, fd, 0, ROWS, KIN);
    memory_slot_close(next.slot);
    void *was = next.state.params;
    next.state.params = next.state.momentum;
    next.state.momentum = was;
    assert_int_equal(memory_slot_open(&next.slot, fd, 0, &next.state, KIN, &e), 0);
    assert_int_equal(memory_slot_restore(next.slot, (struct memory_copy){10, 1}, &note, sizeof note, &e), 0);
    assert_true(weight(&next)[5] == 10 && ((double *)next.state.momentum)[5] == -1);
    end(&next);
    close(fd);
}

static void copies_of_others_are_not_found(void **state)
{
    struct process first, other;
    const int fd = node_memory();
    (void)state;
    begin(&first, fd, 0, ROWS, KIN);
    keep(&first, 10, 1);
    const struct {
        int local_rank, rows, kin, found;
    } cases[] = {{0, ROWS, KIN, 1}, {1, ROWS, KIN, 0}, {0, ROWS + 1, KIN, 0}, {0, ROWS, KIN + 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(&other, fd, cases[i].local_rank, cases[i].rows, (uint32_t)cases[i].kin);
        assert_int_equal(has(&other, 10, 1), cases[i].found);
        end(&other);
    }
    end(&first);
    close(fd);
}

/* Between the arenas of a state lies other memory, which the copy of a span has as well. */
static void only_the_state_is_written(void **state)
{
    struct process p;
    struct err e;
    int64_t note;
    const int fd = node_memory();
    (void)state;
    begin(&p, fd, 0, ROWS, KIN); /* of 48 elements before the bias eight are nobody's */
    keep(&p, 10, 1);
    for (int i = ROWS; i < ROWS + 8; i++)
        weight(&p)[i] = 77;
    assert_int_equal(memory_slot_restore(p.slot, (struct memory_copy){10, 1}, &note, sizeof note, &e), 0);
    for (int i = ROWS; i < ROWS + 8; i++)
        assert_true(weight(&p)[i] == 77);
    end(&p);
    close(fd);
}

static void steps_that_are_to_be_done_again_are_forgotten(void **state)
{
    struct process p;
    const int fd = node_memory();
    (void)state;
    begin(&p, fd, 0, ROWS, KIN);
    keep(&p, 10, 1);
    keep(&p, 20, 1);
    memory_slot_forget_beyond(p.slot, 10);
    assert_true(has(&p, 10, 1) && !has(&p, 20, 1));
    keep(&p, 15, 2); /* not over the one that the run went back to */
    assert_true(has(&p, 10, 1) && has(&p, 15, 2));
    end(&p);
    close(fd);
}

static void what_is_not_finite_is_not_kept(void **state)
{
    struct process p;
    const int fd = node_memory();
    (void)state;
    begin(&p, fd, 0, ROWS, KIN);
    keep(&p, 10, 1);
    ((double *)p.state.stats)[STATS - 1] = INFINITY;
    keep(&p, 20, 1);
    assert_true(has(&p, 10, 1) && !has(&p, 20, 1));
    end(&p);
    close(fd);
}

static void a_node_without_memory_says_so(void **state)
{
    struct process p;
    struct err e;
    const int fd = node_memory();
    (void)state;
    close(fd);
    assert_int_equal(slot_of(&p, fd, 0, ROWS, KIN, &e), -EBADF);
    assert_non_null(strstr(e.text, "bytes of the node's memory for a copy of the state"));
    p.slot = NULL;
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_next_process_goes_on_from_either_of_the_last_two),
                                       cmocka_unit_test(arenas_that_have_changed_places_are_found_again),
                                       cmocka_unit_test(copies_of_others_are_not_found),
                                       cmocka_unit_test(only_the_state_is_written),
                                       cmocka_unit_test(steps_that_are_to_be_done_again_are_forgotten),
                                       cmocka_unit_test(what_is_not_finite_is_not_kept),
                                       cmocka_unit_test(a_node_without_memory_says_so)};
    return cmocka_run_group_tests_name("memory_slot", tests, NULL, NULL);
}
