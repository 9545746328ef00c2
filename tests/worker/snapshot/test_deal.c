/* Checkpoints of states that are cut over ranks (threads): the files of one rank that has all, whoever saves and
 * whoever loads, and no more memory than the slices and a few buffers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/sanitizer.h"
#include "tests/support/today.h"
#include "tests/worker/scratch/scratch.h"
#include "tests/worker/snapshot/deal_rig.h"
#include "worker/ckpt/ckpt.h"
#include "worker/snapshot/deal.h"

enum { SMALL = 300, LARGE = 1500000 };

static const int layouts[][3] = {{1, 1, 0}, {1, 1, 1}, {2, 1, 0}, {2, 1, 1}, {3, 1, 1}, {5, 1, 1},
                                 {1, 2, 0}, {1, 3, 1}, {2, 2, 0}, {2, 2, 1}, {4, 2, 2}, {1, 1, 3},
                                 {2, 1, 3}, {3, 1, 3}, {2, 2, 3}, {1, 3, 3}, {4, 2, 3}, {3, 1, 2}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void same_file(const char *a, const char *b, const char *name)
{
    char path[2][4300];
    size_t n[2];
    snprintf(path[0], sizeof path[0], "%s/step-%08d/%s", a, STEP, name);
    snprintf(path[1], sizeof path[1], "%s/step-%08d/%s", b, STEP, name);
    char *x = scratch_read(path[0], &n[0]), *y = scratch_read(path[1], &n[1]);
    if (n[0] != n[1] || memcmp(x, y, n[0]) != 0)
        fail_msg("%s and %s differ", path[0], path[1]);
    free(x);
    free(y);
}

static void same_files(const char *a, const char *b)
{
    same_file(a, b, "model.safetensors");
    same_file(a, b, "train.safetensors");
    same_file(a, b, "manifest.json");
}

/* --- cases */

static void every_layout_loads_and_saves_the_same_files(void **state)
{
    char *one = strdup(scratch(state, "one"));
    job_must(&(struct job){.layout = layout_of(1, 1, 0), .trunk = SMALL, .save = one});
    for (int i = 0; i < 2 * LAYOUTS; i++) {
        const int *l = layouts[i / 2];
        if (!is_for_today((size_t)i))
            continue;
        char *dir = strdup(scratch(state, "of-%d", i));
        job_must(&(struct job){
            .layout = layout_of(l[0], l[1], l[2]), .trunk = SMALL, .load = one, .save = dir, .copied = i % 2});
        same_files(one, dir);
        free(dir);
    }
    free(one);
}

static void every_rank_may_write(void **state)
{
    char *one = strdup(scratch(state, "one"));
    job_must(&(struct job){.layout = layout_of(1, 1, 0), .trunk = SMALL, .save = one});
    for (int copied = 0; copied < 2; copied++) {
        char *dir = strdup(scratch(state, "all-%d", copied));
        job_must(&(struct job){.layout = layout_of(2, 2, 1),
                               .trunk = SMALL,
                               .load = one,
                               .save = dir,
                               .copied = copied,
                               .all_write = true});
        for (int r = 0; r < 4; r++)
            same_files(one, scratch(state, "all-%d.%d", copied, r));
        free(dir);
    }
    free(one);
}

static void damage_is_known_on_all_ranks(void **state)
{
    char *one = strdup(scratch(state, "one"));
    job_must(&(struct job){.layout = layout_of(1, 1, 0), .trunk = SMALL, .save = one});
    int fd = open(scratch(state, "one/step-%08d/train.safetensors", STEP), O_WRONLY);
    assert_int_equal(pwrite(fd, "damaged", 7, 9000), 7);
    close(fd);
    const struct job job = {.layout = layout_of(2, 2, 1), .trunk = SMALL, .load = one};
    struct rank ranks[RANKS_MAX];
    job_do(&job, ranks);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ranks[i].reading, ERR_CORRUPT);
        assert_int_equal(ranks[i].rc, i == 3 ? ERR_CORRUPT : -ECANCELED);
    }
    assert_non_null(strstr(ranks[3].e.text, "is damaged: its CRC32C"));
    free(one);
}

/* The disk is full when half is written: what was there before stays, the others do not hang. */
static void a_file_that_fails_half_way_leaves_the_one_before(void **state)
{
    struct rlimit before, small;
    struct rank ranks[RANKS_MAX];
    char *one = strdup(scratch(state, "one")), *dir = strdup(scratch(state, "two"));
    struct err e;
    int64_t step;
    job_must(&(struct job){.layout = layout_of(1, 1, 0), .trunk = LARGE / 4, .save = one});
    const struct job job = {.layout = layout_of(2, 2, 1), .trunk = LARGE / 4, .load = one, .save = dir};
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 6 << 20;
    setrlimit(RLIMIT_FSIZE, &small);
    job_do(&job, ranks);
    setrlimit(RLIMIT_FSIZE, &before);
    for (int i = 0; i < 4; i++)
        assert_int_equal(ranks[i].rc, 0);
    assert_int_equal(ranks[0].saving, -EFBIG);
    assert_int_equal(scratch_count(dir, ".tmp"), 0);
    assert_int_equal(ckpt_latest(dir, &step, &e), 0);
    assert_int_equal(step, -1);
    job_must(&job);
    same_files(one, dir);
    free(one);
    free(dir);
}

/* A running variance overflows before the parameters do; a run that was resumed with it would never be rid of it. */
static void nothing_is_written_of_a_state_that_is_not_finite(void **state)
{
    static const char *const names[] = {"trunk.weight",     "bn.running_var",   "momentum.fc.weight",
                                        "second.up.weight", "ema.trunk.weight", "ema.bn.running_mean"};
    for (int i = 0; i < 2 * (int)(sizeof names / sizeof *names); i++) {
        const char *name = names[i / 2];
        char *dir = strdup(scratch(state, "infinite-%d", i)), expected[200];
        struct rank ranks[RANKS_MAX];
        job_do(
            &(struct job){.layout = layout_of(2, 2, 1), .trunk = SMALL, .save = dir, .copied = i % 2, .infinite = name},
            ranks);
        snprintf(expected, sizeof expected, "no checkpoint is written: %s is not finite", name);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(ranks[r].rc, ERR_DIVERGED);
            assert_string_equal(ranks[r].e.text, expected);
        }
        assert_int_equal(access(dir, F_OK), -1);
        free(dir);
    }
}

/* --- memory */

static long status_kib(const char *what)
{
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    const size_t n = strlen(what);
    while (f && kib < 0 && fgets(line, sizeof line, f))
        if (strncmp(line, what, n) == 0)
            kib = strtol(line + n + 1, NULL, 10);
    if (f)
        fclose(f);
    return kib;
}

/* From now on VmHWM is the most that was resident since. */
static bool reset_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY);
    const bool done = fd >= 0 && write(fd, "5", 1) == 1;
    if (fd >= 0)
        close(fd);
    return done;
}

/* KiB that a job of ranks takes at most beyond what they hold before it; all of them wait for one another meanwhile. */
static long peak_of(const struct job *job)
{
    struct rank ranks[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    pthread_barrier_t barrier;
    struct job with = *job;
    with.barrier = &barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)job->layout.world + 1);
    job_begin(&with, ranks, threads);
    pthread_barrier_wait(&barrier);
    const long before = reset_peak() ? status_kib("VmRSS") : -1;
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    const long peak = status_kib("VmHWM");
    pthread_barrier_wait(&barrier);
    job_end(&with, ranks, threads);
    pthread_barrier_destroy(&barrier);
    for (int i = 0; i < job->layout.world; i++)
        if (ranks[i].rc < 0 || ranks[i].saving < 0)
            fail_msg("rank %d: %s", i, ranks[i].e.text);
    return before < 0 ? -1 : peak - before;
}

/* Parameters of 30 MB, six tensors of them: 180 MB in all, and what a rank keeps is far less. */
static void a_rank_takes_its_slices_and_a_few_buffers(void **state)
{
    enum { WORLD = 4 };
    if (HAS_THREAD_SANITIZER) {
        print_message("# the thread sanitizer needs memory of its own\n");
        skip();
    }
    char *one = strdup(scratch(state, "one")), *dir = strdup(scratch(state, "two"));
    const long slack = 4096, buffers = WORLD * (long)(DEAL_BYTES_MAX / 1024), whole = 5L * LARGE * 4 / 1024;
    job_must(&(struct job){.layout = layout_of(1, 1, 0), .trunk = LARGE, .save = one});
    const struct job jobs[] = {
        {.layout = layout_of(WORLD, 1, 1), .trunk = LARGE, .load = one},
        {.layout = layout_of(WORLD, 1, 1), .trunk = LARGE, .save = dir},
        {.layout = layout_of(WORLD, 1, 1), .trunk = LARGE, .save = one, .copied = true},
    };
    for (int i = 0; i < 3; i++) {
        /* What is in the copies: parameters and averages once, moments once over all ranks. */
        const long copies = jobs[i].copied ? 4 * whole : 0, took = peak_of(&jobs[i]);
        if (took < 0)
            skip();
        print_message("# job %d: %ld KiB, copies of %ld, buffers of at most %ld\n", i, took, copies, buffers);
        assert_true(took <= copies + buffers + slack);
    }
    free(one);
    free(dir);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    log_init(LOG_ERROR, "");
    mallopt(M_MMAP_THRESHOLD, 1 << 20); /* what is freed is the system's again */
    const struct CMUnitTest tests[] = {
        CASE(every_layout_loads_and_saves_the_same_files),
        CASE(every_rank_may_write),
        CASE(damage_is_known_on_all_ranks),
        CASE(a_file_that_fails_half_way_leaves_the_one_before),
        CASE(nothing_is_written_of_a_state_that_is_not_finite),
        CASE(a_rank_takes_its_slices_and_a_few_buffers),
    };
    return cmocka_run_group_tests_name("deal", tests, NULL, NULL);
}
