/* Pictures that several processes keep together: what one adds all find, within the size that was given; nobody waits
 * for one that dies, and nothing is left of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "worker/data/loader/decoded_cache.h"

enum { N = 64, W = 20, H = 10, ROOM = 1 << 20 };

/* Picture id: of a size and a colour of its own. */
static struct image picture(int id)
{
    struct image im = {.w = W + id % 7, .h = H, .c = 3};
    const size_t n = (size_t)im.w * (size_t)im.h * 3;
    im.px = malloc(n);
    memset(im.px, id, n);
    return im;
}

static void add(struct decoded_cache *c, int id)
{
    struct image im = picture(id);
    decoded_cache_add(c, (size_t)id, &im, 1000 + id);
    image_free(&im);
}

/* 0: it is not there; -1: it is another. */
static int has(const struct decoded_cache *c, int id)
{
    struct image got, want = picture(id);
    int label;
    int rc = decoded_cache_find(c, (size_t)id, &got, &label);
    if (rc && (label != 1000 + id || got.w != want.w || got.h != want.h || got.c != 3 ||
               memcmp(got.px, want.px, (size_t)want.w * (size_t)want.h * 3) != 0))
        rc = -1;
    image_free(&want);
    return rc;
}

static struct decoded_cache *create(size_t bytes)
{
    struct decoded_cache *c;
    MUST(decoded_cache_create(&c, bytes, N, 3, e));
    return c;
}

static struct decoded_cache *join(const struct decoded_cache *c, size_t bytes)
{
    struct decoded_cache *other;
    char record[DECODED_RECORD];
    decoded_cache_record(c, record);
    MUST(decoded_cache_join(&other, record, bytes, N, 3, e));
    return other;
}

static void what_is_added_is_found(void **state)
{
    (void)state;
    struct decoded_cache *c = create(ROOM);
    for (int id = 0; id < N; id++)
        assert_int_equal(0, has(c, id));
    for (int id = 0; id < N; id++)
        add(c, id);
    add(c, 5);
    for (int id = 0; id < N; id++)
        assert_int_equal(1, has(c, id));
    struct decoded_stats s;
    decoded_cache_stats(c, &s);
    assert_int_equal(N, s.pictures);
    assert_false(decoded_cache_has_room(c)); /* there is nothing left to add */
    decoded_cache_close(c);
}

static void it_keeps_within_its_size_and_what_it_has(void **state)
{
    (void)state;
    enum { SMALL = 8192 };
    struct decoded_cache *c = create(SMALL);
    struct decoded_stats s;
    int kept = 0;
    for (int id = 0; id < N; id++)
        add(c, id);
    decoded_cache_stats(c, &s);
    assert_false(decoded_cache_has_room(c));
    assert_in_range(s.bytes, SMALL / 2, SMALL);
    for (int id = 0; id < N; id++) {
        assert_int_equal(id < (int)s.pictures, has(c, id)); /* the first ones stay */
        kept += has(c, id);
    }
    assert_in_range(kept, 1, N - 1);
    decoded_cache_close(c);
}

static void processes_share_it(void **state)
{
    (void)state;
    struct decoded_cache *c = create(ROOM);
    add(c, 1);
    const pid_t child = fork();
    if (child == 0) {
        struct decoded_cache *mine;
        char record[DECODED_RECORD];
        snprintf(record, sizeof record, "%ld %d", (long)getppid(), -1);
        if (decoded_cache_join(&mine, record, ROOM, N, 3, NULL) == 0)
            _exit(2);
        decoded_cache_record(c, record);
        const long fd = strtol(strchr(record, ' '), NULL, 10);
        decoded_cache_close(c); /* what fork() gave it */
        snprintf(record, sizeof record, "%ld %ld", (long)getppid(), fd);
        if (decoded_cache_join(&mine, record, ROOM, N, 3, NULL) < 0 || has(mine, 1) != 1)
            _exit(3);
        add(mine, 2);
        kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(child, waitpid(child, &status, 0));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(1, has(c, 1));
    assert_int_equal(1, has(c, 2)); /* of one that was killed */
    add(c, 3);
    assert_int_equal(1, has(c, 3));
    decoded_cache_close(c);
}

static void it_outlives_the_one_that_made_it(void **state)
{
    (void)state;
    struct decoded_cache *first = create(ROOM);
    add(first, 4);
    struct decoded_cache *second = join(first, ROOM);
    decoded_cache_close(first);
    struct decoded_cache *third = join(second, ROOM);
    decoded_cache_close(second);
    assert_int_equal(1, has(third, 4));
    decoded_cache_close(third);
}

static void nothing_is_left_of_it(void **state)
{
    (void)state;
    struct decoded_cache *a = create(ROOM), *b = join(a, ROOM);
    add(b, 9);
    decoded_cache_close(a);
    decoded_cache_close(b);
    char line[512];
    FILE *f = fopen("/proc/self/maps", "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        assert_null(strstr(line, "crun-decoded"));
    fclose(f);
}

static void another_size_or_set_is_refused(void **state)
{
    (void)state;
    struct decoded_cache *c = create(ROOM), *other;
    char record[DECODED_RECORD];
    struct err e = {0};
    decoded_cache_record(c, record);
    assert_int_equal(-EPROTO, decoded_cache_join(&other, record, ROOM - 1, N, 3, &e));
    assert_int_equal(-EPROTO, decoded_cache_join(&other, record, ROOM, N + 1, 3, &e));
    assert_int_equal(-EPROTO, decoded_cache_join(&other, record, ROOM, N, 1, &e));
    assert_int_equal(-EPROTO, decoded_cache_join(&other, "", ROOM, N, 3, &e));
    assert_int_equal(-ENOENT, decoded_cache_join(&other, "999999999 3", ROOM, N, 3, &e));
    FILE *some = tmpfile();
    snprintf(record, sizeof record, "%ld %d", (long)getpid(), fileno(some));
    assert_int_equal(-EPROTO, decoded_cache_join(&other, record, ROOM, N, 3, &e));
    fclose(some);
    assert_int_equal(ERR_USAGE, decoded_cache_create(&other, 100, N, 3, &e));
    assert_non_null(strstr(e.text, "--cache-decoded 100: "));
    assert_int_equal(ERR_USAGE, decoded_cache_create(&other, (size_t)1 << 60, N, 3, &e));
    decoded_cache_close(c);
}

struct adder {
    pthread_t thread;
    struct decoded_cache *c;
    int step; /* through the ids, from where it begins */
    int wrong;
};

static void *add_all(void *arg)
{
    struct adder *a = arg;
    for (int i = 0; i < N; i++) {
        const int id = i * a->step % N; /* an odd step: all of them, in another order */
        add(a->c, id);
        a->wrong += has(a->c, id) != 1;
    }
    return NULL;
}

static void threads_and_maps_may_add_the_same_at_once(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    struct adder a[THREADS];
    struct decoded_cache *c = create(ROOM), *same = join(c, ROOM);
    for (int i = 0; i < THREADS; i++) {
        a[i] = (struct adder){.c = i % 2 ? c : same, .step = 2 * i + 1};
        assert_int_equal(0, pthread_create(&a[i].thread, NULL, add_all, &a[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(a[i].thread, NULL);
        assert_int_equal(0, a[i].wrong);
    }
    struct decoded_stats s;
    decoded_cache_stats(c, &s);
    assert_int_equal(N, s.pictures);
    decoded_cache_close(c);
    decoded_cache_close(same);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_added_is_found),
        cmocka_unit_test(it_keeps_within_its_size_and_what_it_has),
        cmocka_unit_test(processes_share_it),
        cmocka_unit_test(it_outlives_the_one_that_made_it),
        cmocka_unit_test(nothing_is_left_of_it),
        cmocka_unit_test(another_size_or_set_is_refused),
        cmocka_unit_test(threads_and_maps_may_add_the_same_at_once),
    };
    return cmocka_run_group_tests_name("decoded pictures", tests, NULL, NULL);
}
