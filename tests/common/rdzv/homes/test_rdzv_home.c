/* The homes of a rendezvous without a daemon: what their URLs mean, and what a shared folder promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/net/redis_link.h"
#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/homes/rdzv_log_redis_internal.h"

static void a_url_names_user_password_host_and_database(void **state)
{
    struct redis_link l;
    struct err e;
    (void)state;
    assert_int_equal(redis_link_parse(&l, "rediss://me:p%40%3ass@[fe80::1]:7000/3", &e), 0);
    assert_true(l.tls && !l.sentinel);
    assert_string_equal(l.user, "me");
    assert_string_equal(l.password, "p@:ss");
    assert_string_equal(l.hosts[0].name, "fe80::1");
    assert_string_equal(l.hosts[0].port, "7000");
    assert_int_equal(l.db, 3);
    redis_link_finish(&l);
    assert_int_equal(redis_link_parse(&l, "redis+sentinel://a,b:1,[::1]/prime/2", &e), 0);
    assert_int_equal(l.host_count, 3);
    assert_string_equal(l.hosts[0].port, "26379");
    assert_string_equal(l.hosts[1].port, "1");
    assert_string_equal(l.master, "prime");
    assert_int_equal(l.db, 2);
    redis_link_finish(&l);
}

static void a_bad_url_is_refused_without_showing_its_password(void **state)
{
    static const char *const bad[] = {
        "redis://",          "redis://h:0",     "redis://h:65536",     "redis://h:x",           "redis://a,b",
        "redis://h/x",       "redis://h/12345", "redis://:sesame@h:x", "redis://u:%zz@h",       "redis+sentinel://h",
        "redis+sentinel://", "redis://[::1",    "redis://[::1]junk",   "redis+sentinel://h,/m", "http://h"};
    struct redis_link l;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (redis_link_parse(&l, bad[i], &e) != -EINVAL)
            fail_msg("'%s' was taken", bad[i]);
        assert_null(strstr(e.text, "sesame"));
        redis_link_finish(&l);
    }
}

static void passwords_come_from_the_environment_where_the_url_has_none(void **state)
{
    struct redis_link l;
    struct err e;
    (void)state;
    setenv("REDISCLI_AUTH", "third", 1);
    assert_int_equal(redis_link_parse(&l, "redis://h", &e), 0);
    assert_string_equal(l.password, "third");
    setenv("CRUN_REDIS_PASSWORD", "second", 1);
    assert_int_equal(redis_link_parse(&l, "redis://h", &e), 0);
    assert_string_equal(l.password, "second");
    assert_int_equal(redis_link_parse(&l, "redis://:first@h", &e), 0);
    assert_string_equal(l.password, "first");
    setenv("CRUN_REDIS_PASSWORD_FILE", "/nowhere/at/all", 1);
    assert_int_equal(redis_link_parse(&l, "redis://h", &e), -ENOENT);
    unsetenv("CRUN_REDIS_PASSWORD_FILE");
    unsetenv("CRUN_REDIS_PASSWORD");
    unsetenv("REDISCLI_AUTH");
}

/* --- a shared folder */

static char dir[64];

static struct rdzv_home *open_folder(void)
{
    const struct rdzv_home_options o = {.run_id = "a/b {c}", .io_timeout_ms = 1000, .keep_ms = 1000};
    struct rdzv_home *h;
    struct err e;
    char url[96];
    snprintf(url, sizeof url, "file://%s", dir);
    assert_int_equal(rdzv_home_open(&h, url, &o, &e), 0);
    return h;
}

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/rdzv-home-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    char command[96];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static struct buf text(const char *p)
{
    struct buf b = {0};
    buf_addstr(&b, p);
    return b;
}

static void an_older_leader_can_append_nothing(void **state)
{
    struct rdzv_home *a = open_folder(), *b = open_folder();
    struct buf record = text("T epoch=1-x\n"), second = text("T epoch=2-y\n"), d = text("D epoch=1-x\n"), log = {0};
    const struct rdzv_write w = {.decision = &d};
    char identity[RDZV_IDENTITY_MAX + 1];
    struct err e;
    (void)state;
    assert_int_equal(a->ops->identity(a, identity, &e), 0);
    assert_int_equal(b->ops->identity(b, identity, &e), 0);
    assert_int_equal(a->ops->claim(a, "", "1-x", &record, &e), 1);
    assert_int_equal(b->ops->claim(b, "", "1-z", &record, &e), 0);
    assert_int_equal(a->ops->append(a, &w, &e), 1);
    assert_int_equal(b->ops->claim(b, "1-x", "2-y", &second, &e), 1);
    assert_int_equal(a->ops->append(a, &w, &e), 0);
    assert_int_equal(a->ops->pulse(a, &record, &e), 0);
    assert_int_equal(b->ops->load(b, &log, &e), 0);
    assert_string_equal(log.data, "T epoch=1-x\nD epoch=1-x\nT epoch=2-y\n");
    a->ops->close(a);
    b->ops->close(b);
    buf_free(&record);
    buf_free(&second);
    buf_free(&d);
    buf_free(&log);
}

static void the_last_node_clears_the_folder(void **state)
{
    struct rdzv_home *h = open_folder();
    struct rdzv_view v = {0};
    struct buf beat = text("inc=1 n=1");
    struct err e;
    (void)state;
    assert_int_equal(h->ops->exchange(h, "one", &beat, true, &v, &e), 0);
    assert_int_equal(h->ops->exchange(h, "two", &beat, true, &v, &e), 0);
    assert_string_equal(v.epoch, "");
    h->ops->forget(h, "one");
    assert_int_not_equal(rmdir(dir), 0);
    h->ops->forget(h, "two");
    h->ops->close(h);
    assert_int_equal(rmdir(dir), 0);
    buf_free(&beat);
    buf_free(&v.pulse);
    buf_free(&v.slot);
}

static void a_folder_others_may_write_is_refused(void **state)
{
    struct rdzv_home *h = open_folder();
    struct rdzv_view v = {0};
    struct buf beat = text("inc=1 n=1");
    struct err e;
    char job[128];
    (void)state;
    snprintf(job, sizeof job, "%s/crun-a%%2Fb%%20%%7Bc%%7D", dir);
    assert_int_equal(mkdir(job, 0700), 0);
    assert_int_equal(chmod(job, 0777), 0);
    assert_int_equal(h->ops->exchange(h, "one", &beat, true, &v, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "may be written by others (mode 777): expected 700"));
    h->ops->close(h);
    buf_free(&beat);
}

/* On NFS a name that was looked for in vain is not looked for again for a while. */
static void a_node_makes_its_slot_before_it_looks_for_it(void **state)
{
    struct rdzv_home *h = open_folder();
    struct rdzv_view v = {0};
    struct buf beat = text("inc=1 n=1");
    struct err e;
    char slot[160];
    (void)state;
    assert_int_equal(h->ops->exchange(h, "one", &beat, true, &v, &e), 0);
    assert_int_equal(v.slot.len, 0);
    snprintf(slot, sizeof slot, "%s/crun-a%%2Fb%%20%%7Bc%%7D/slots/one", dir);
    assert_int_equal(access(slot, F_OK), 0);
    h->ops->forget(h, "one");
    h->ops->close(h);
    buf_free(&beat);
    buf_free(&v.pulse);
    buf_free(&v.slot);
}

/* --- which Redis is safe */

static int judge(struct redis_facts f, bool allow, int64_t given, int64_t *lag, struct err *e)
{
    if (!f.run_id[0])
        snprintf(f.run_id, sizeof f.run_id, "r1");
    *lag = -1;
    return redis_judge(&f, allow, given, lag, e);
}

static void a_redis_that_may_lose_writes_is_refused_with_the_remedy(void **state)
{
    const struct redis_facts unsafe[] = {
        {.sentinel = true, .max_lag_s = 10},
        {.cluster = true, .max_lag_s = 10},
        {.replicas = 1, .max_lag_s = 10},
        {.replicas = 1, .min_replicas = 1}, /* a lag of 0 switches it off */
    };
    struct err e;
    int64_t lag;
    (void)state;
    for (size_t i = 0; i < sizeof unsafe / sizeof *unsafe; i++) {
        assert_int_equal(judge(unsafe[i], false, 0, &lag, &e), ERR_REFUSED);
        assert_non_null(strstr(e.text, "CONFIG SET min-replicas-to-write 1"));
        assert_non_null(strstr(e.text, "allow_unsafe=1"));
        assert_int_equal(judge(unsafe[i], true, 0, &lag, &e), 0);
    }
    assert_int_equal(judge((struct redis_facts){.min_replicas = 0, .max_lag_s = 10}, false, 0, &lag, &e), 0);
    assert_int_equal(lag, 0); /* alone */
    assert_int_equal(judge((struct redis_facts){.replicas = 2, .min_replicas = 1, .max_lag_s = 10}, false, 0, &lag, &e),
                     0);
    assert_int_equal(lag, 10000);
}

static void a_redis_that_does_not_say_its_lag_is_told_it(void **state)
{
    const struct redis_facts mute = {.sentinel = true, .min_replicas = -1, .max_lag_s = -1};
    struct redis_facts nobody = {.min_replicas = -1, .max_lag_s = -1};
    struct err e;
    int64_t lag;
    (void)state;
    assert_int_equal(judge(mute, false, 0, &lag, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "max_lag=10"));
    assert_int_equal(judge(mute, false, 7000, &lag, &e), 0);
    assert_int_equal(lag, 7000);
    assert_int_equal(redis_judge(&nobody, false, 0, &lag, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "which incarnation it is"));
    assert_int_equal(redis_judge(&nobody, true, 0, &lag, &e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_url_names_user_password_host_and_database),
        cmocka_unit_test(a_bad_url_is_refused_without_showing_its_password),
        cmocka_unit_test(passwords_come_from_the_environment_where_the_url_has_none),
        cmocka_unit_test_setup_teardown(an_older_leader_can_append_nothing, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_last_node_clears_the_folder, make_dir, remove_dir),
        cmocka_unit_test(a_redis_that_may_lose_writes_is_refused_with_the_remedy),
        cmocka_unit_test(a_redis_that_does_not_say_its_lag_is_told_it),
        cmocka_unit_test_setup_teardown(a_node_makes_its_slot_before_it_looks_for_it, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_folder_others_may_write_is_refused, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
