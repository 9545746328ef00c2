/* A shared folder in which a leader has written a whole decision: older ones go, and nobody who reads is misled. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/leader/rdzv_reign.h"

static char dir[64];

static struct rdzv_home *open_folder(void)
{
    const struct rdzv_home_options o = {.run_id = "j", .io_timeout_ms = 60000, .keep_ms = 3600000};
    struct rdzv_home *h;
    struct err e;
    char url[80];
    snprintf(url, sizeof url, "file://%s", dir);
    if (rdzv_home_open(&h, url, &o, &e) < 0)
        fail_msg("%s", e.text);
    return h;
}

static int claim(struct rdzv_home *h, const struct rdzv_claim *seen, const char *epoch)
{
    char identity[RDZV_IDENTITY_MAX + 1];
    struct rdzv_claim own = {.port = 1, .addrs = "10.0.0.1", .node = "n"};
    struct buf record = {0};
    struct err e;
    snprintf(own.epoch, sizeof own.epoch, "%s", epoch);
    assert_int_equal(h->ops->identity(h, identity, &e), 0);
    assert_int_equal(rdzv_reign_record(epoch, "n", identity, &record), 0);
    const int rc = h->ops->claim(h, seen, &own, &record, &e);
    buf_free(&record);
    return rc;
}

static int append(struct rdzv_home *h, const char *epoch, const char *words, bool whole)
{
    struct buf b = {0};
    struct err e;
    assert_int_equal(buf_printf(&b, "@reign epoch=%s\n%s\n", epoch, words), 0);
    const int rc = rdzv_home_append(h, &(struct rdzv_write){.decision = &b, .epoch = epoch, .whole = whole}, &e);
    buf_free(&b);
    return rc;
}

static bool has(struct rdzv_home *h, const char *words, bool wanted)
{
    struct buf log = {0};
    struct err e;
    assert_int_equal(h->ops->load(h, &log, &e), 0);
    const bool found = log.data && strstr(log.data, words);
    buf_free(&log);
    return found == wanted;
}

static int decisions(void)
{
    char path[100];
    int n = 0;
    snprintf(path, sizeof path, "%s/crun-j/log", dir);
    DIR *d = opendir(path);
    for (const struct dirent *f; d && (f = readdir(d));)
        n += f->d_name[0] == '0';
    closedir(d);
    return n;
}

static void older_decisions_go_and_the_next_leader_reads_on(void **state)
{
    struct rdzv_home *a = open_folder(), *b = open_folder(), *late = open_folder();
    struct rdzv_claim none = {0}, seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x"), 1);
    assert_int_equal(append(a, "1-x", "one", false), 1);
    assert_true(has(late, "one", true));
    for (int i = 0; i < 20; i++)
        assert_int_equal(append(a, "1-x", "more", false), 1);
    assert_int_equal(append(a, "1-x", "all", true), 1);
    assert_int_equal(decisions(), 1);
    assert_int_equal(append(a, "1-x", "two", false), 1);
    assert_true(has(late, "one", false) && has(late, "all", true) && has(late, "two", true));
    assert_int_equal(b->ops->look(b, &seen, &e), 1);
    assert_int_equal(claim(b, &seen, "2-y"), 1);
    assert_true(has(b, "all", true) && has(b, "epoch=2-y", true));
    assert_int_equal(append(a, "1-x", "too late", false), 0); /* its next number is taken */
    assert_int_equal(append(b, "2-y", "three", false), 1);
    assert_int_equal(append(b, "2-y", "all again", true), 1);
    assert_int_equal(decisions(), 1);
    assert_int_equal(append(late, "1-x", "too late", false), 0); /* though older numbers are free */
    assert_true(has(late, "all again", true) && has(late, "three", false) && has(late, "too late", false));
    a->ops->close(a);
    b->ops->close(b);
    late->ops->close(late);
}

/* A request of the leader before, carried out when its number was removed, makes no gap and no decision. */
static void a_removed_number_that_comes_back_counts_nothing(void **state)
{
    char path[200];
    struct rdzv_home *a = open_folder(), *b = open_folder();
    struct rdzv_claim none = {0};
    (void)state;
    assert_int_equal(claim(a, &none, "1-x"), 1);
    for (int i = 0; i < 5; i++)
        assert_int_equal(append(a, "1-x", "some", false), 1);
    assert_int_equal(append(a, "1-x", "all", true), 1);
    snprintf(path, sizeof path, "cp %s/crun-j/log/00000007 %s/crun-j/log/00000003", dir, dir);
    assert_int_equal(system(path), 0);
    assert_int_equal(append(a, "1-x", "end", false), 1);
    struct buf log = {0};
    struct err e;
    assert_int_equal(b->ops->load(b, &log, &e), 0);
    assert_string_equal(log.data, "@reign epoch=1-x\nall\n@reign epoch=1-x\nend\n");
    buf_free(&log);
    a->ops->close(a);
    b->ops->close(b);
}

static int begin(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/test-drop-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static int end(void **state)
{
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(older_decisions_go_and_the_next_leader_reads_on, begin, end),
        cmocka_unit_test_setup_teardown(a_removed_number_that_comes_back_counts_nothing, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
