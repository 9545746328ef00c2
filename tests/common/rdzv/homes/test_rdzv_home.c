/* The homes of a rendezvous without a daemon: what their URLs mean, and what a shared folder promises, touched here or
 * by a process of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/net/redis_link.h"
#include "common/rdzv/homes/home_process.h"
#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/homes/rdzv_log_home.h"
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
    setenv("CRUN_REDIS_PASSWORD_FILE", "/dev/null", 1);
    assert_int_equal(redis_link_parse(&l, "redis://h", &e), -EINVAL);
    assert_non_null(strstr(e.text, "CRUN_REDIS_PASSWORD_FILE: /dev/null is not a regular file"));
    unsetenv("CRUN_REDIS_PASSWORD_FILE");
    unsetenv("CRUN_REDIS_PASSWORD");
    unsetenv("REDISCLI_AUTH");
}

/* It would be the default user that is asked for nothing, or for somebody else's password. */
static void a_user_without_a_password_is_refused(void **state)
{
    static const char *const urls[] = {"redis://sesame@h", "redis://sesame:@h:1/2", "redis+sentinel://sesame@h/m"};
    struct redis_link l;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        if (redis_link_parse(&l, urls[i], &e) != -EINVAL)
            fail_msg("'%s' was taken", urls[i]);
        assert_non_null(strstr(e.text, "CRUN_REDIS_PASSWORD"));
        assert_null(strstr(e.text, "sesame")); /* which may be meant as one */
        redis_link_finish(&l);
    }
    setenv("CRUN_REDIS_PASSWORD", "word", 1);
    assert_int_equal(redis_link_parse(&l, "redis://me@h", &e), 0);
    assert_string_equal(l.user, "me");
    assert_string_equal(l.password, "word");
    redis_link_finish(&l);
    unsetenv("CRUN_REDIS_PASSWORD");
}

/* --- a shared folder */

static char dir[64];

/* A process that has homes at hand, and our sockets to it; 0: none, folders are touched here. */
static pid_t process;
static int process_fd, process_caller;

static void start_process(void)
{
    process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        close(process_fd);
        _exit(home_process_run(process_caller, home_serve_folder));
    }
}

static void end_process(void)
{
    int status;
    kill(process, SIGKILL);
    assert_int_equal(waitpid(process, &status, 0), process);
}

/* No thread of it does anything until SIGCONT. */
static void stop_process(void)
{
    int status;
    kill(process, SIGSTOP);
    assert_int_equal(waitpid(process, &status, WUNTRACED), process);
    assert_true(WIFSTOPPED(status));
}

static struct rdzv_home *open_job(const char *run_id, int64_t io_timeout_ms)
{
    const struct rdzv_home_options o = {
        .run_id = run_id, .io_timeout_ms = io_timeout_ms, .keep_ms = 1000, .process_fd = process_fd};
    struct rdzv_home *h;
    struct err e;
    char url[96];
    snprintf(url, sizeof url, "file://%s", dir);
    assert_int_equal(rdzv_home_open(&h, url, &o, &e), 0);
    assert_string_equal(h->ops->name, process_fd ? "far" : "file");
    return h;
}

static struct rdzv_home *open_folder_within(int64_t io_timeout_ms)
{
    return open_job("a/b {c}", io_timeout_ms);
}

static struct rdzv_home *open_folder(void)
{
    return open_folder_within(60000);
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

static int make_dir_and_process(void **state)
{
    int calls[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, calls) < 0)
        return -1;
    process_fd = calls[0];
    process_caller = calls[1];
    start_process();
    return make_dir(state);
}

static int remove_dir_and_process(void **state)
{
    end_process();
    close(process_fd);
    close(process_caller);
    process_fd = 0;
    return remove_dir(state);
}

static struct buf text(const char *p)
{
    struct buf b = {0};
    buf_addstr(&b, p);
    return b;
}

static struct rdzv_claim claim_of(const char *epoch)
{
    struct rdzv_claim c = {.port = 4711, .addrs = "10.0.0.1,fd00::1", .node = "node one"};
    snprintf(c.epoch, sizeof c.epoch, "%s", epoch);
    return c;
}

/* Replace `seen` by a claim of that epoch, with a record of it. */
static int claim(struct rdzv_home *h, const struct rdzv_claim *seen, const char *epoch, struct err *e)
{
    const struct rdzv_claim own = claim_of(epoch);
    char identity[RDZV_IDENTITY_MAX + 1], line[96];
    assert_int_equal(h->ops->identity(h, identity, e), 0);
    snprintf(line, sizeof line, "@reign epoch=%s claim=1\n", epoch);
    struct buf record = text(line);
    const int rc = h->ops->claim(h, seen, &own, &record, e);
    buf_free(&record);
    return rc;
}

static int append(struct rdzv_home *h, const char *epoch, const char *words, struct err *e)
{
    char line[160];
    snprintf(line, sizeof line, "@reign epoch=%s\n%s\n", epoch, words);
    struct buf d = text(line);
    const int rc = h->ops->append(h, &(struct rdzv_write){.decision = &d, .epoch = epoch}, e);
    buf_free(&d);
    return rc;
}

static void check_log(struct rdzv_home *h, const char *expected)
{
    struct buf log = {0};
    assert_int_equal(h->ops->load(h, &log, NULL), 0);
    assert_string_equal(log.data, expected);
    buf_free(&log);
}

static const struct rdzv_claim none;

static void the_claim_says_who_leads_and_how_often_it_was_renewed(void **state)
{
    struct rdzv_home *a = open_folder(), *b = open_folder();
    struct rdzv_claim own = claim_of("1-x"), seen;
    struct err e;
    (void)state;
    assert_int_equal(b->ops->look(b, &seen, &e), 0);
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    assert_int_equal(b->ops->look(b, &seen, &e), 1);
    assert_true(rdzv_claim_is(&seen, &own));
    assert_string_equal(seen.addrs, "10.0.0.1,fd00::1");
    assert_string_equal(seen.node, "node one");
    assert_int_equal(seen.port, 4711);
    assert_int_equal(a->ops->renew(a, &own, &e), 1);
    assert_int_equal(own.n, 1);
    own.released = true;
    own.hold_ms = 1234;
    own.held = true;
    assert_int_equal(a->ops->renew(a, &own, &e), 1);
    assert_int_equal(b->ops->look(b, &seen, &e), 1);
    assert_true(rdzv_claim_is(&seen, &own) && seen.released);
    assert_int_equal(seen.n, 2);
    assert_int_equal(seen.hold_ms, 1234);
    assert_true(seen.held);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    assert_int_equal(a->ops->look(a, &seen, &e), 1);
    assert_false(seen.released);
    a->ops->close(a);
    b->ops->close(b);
}

/* Whoever would claim has seen it unchanged for a while; a renewal comes first. */
static void a_claim_that_was_renewed_meanwhile_is_not_replaced(void **state)
{
    struct rdzv_home *a = open_folder(), *b = open_folder();
    struct rdzv_claim own = claim_of("1-x"), seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    assert_int_equal(claim(b, &none, "1-z", &e), 0);
    assert_int_equal(b->ops->look(b, &seen, &e), 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(a->ops->renew(a, &own, &e), 1);
    assert_int_equal(claim(b, &seen, "2-y", &e), 0);
    assert_int_equal(append(a, "1-x", "d", &e), 1);
    assert_int_equal(b->ops->look(b, &seen, &e), 1);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    assert_int_equal(a->ops->renew(a, &own, &e), 0); /* it stood still, and wakes up */
    own.released = true;
    assert_int_equal(a->ops->renew(a, &own, &e), 0);
    a->ops->close(a);
    b->ops->close(b);
}

static void a_renewal_whose_answer_was_lost_is_found_by_the_next(void **state)
{
    struct rdzv_home *h = open_folder();
    struct rdzv_claim own = claim_of("1-x"), lost;
    struct err e;
    (void)state;
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    lost = own;
    assert_int_equal(h->ops->renew(h, &lost, &e), 1);
    assert_int_equal(h->ops->renew(h, &own, &e), 1); /* the same again */
    assert_int_equal(own.n, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(h->ops->renew(h, &lost, &e), 1);
    assert_int_equal(h->ops->renew(h, &own, &e), 1);
    assert_int_equal(own.n, lost.n + 1);
    h->ops->close(h);
}

static void an_older_leader_can_append_nothing(void **state)
{
    struct rdzv_home *a = open_folder(), *b = open_folder(), *again;
    struct rdzv_claim seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    assert_int_equal(append(a, "1-x", "one", &e), 1);
    assert_int_equal(b->ops->look(b, &seen, &e), 1);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    assert_int_equal(append(a, "1-x", "two", &e), 0);
    again = open_folder(); /* also by a handle that has read nothing */
    assert_int_equal(append(again, "1-x", "three", &e), 0);
    assert_int_equal(append(b, "2-y", "four", &e), 1);
    check_log(a, "@reign epoch=1-x claim=1\n@reign epoch=1-x\none\n@reign epoch=2-y claim=1\n@reign epoch=2-y\nfour\n");
    a->ops->close(a);
    b->ops->close(b);
    again->ops->close(again);
}

/* Its job's folder was moved, or all of DIR: what comes there later is another job's, before it has a log, too. */
static void a_leader_whose_folder_was_replaced_leads_nobody(void **state)
{
    struct rdzv_home *a = open_folder(), *b = open_folder(), *c = open_folder();
    struct rdzv_claim own = claim_of("1-x"), seen;
    char identity[RDZV_IDENTITY_MAX + 1], moved[96];
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    snprintf(moved, sizeof moved, "%s.old", dir);
    assert_int_equal(rename(dir, moved), 0);
    assert_int_equal(a->ops->renew(a, &own, &e), -ENOTDIR); /* away: it may come back as it was */
    assert_int_equal(rename(moved, dir), 0);
    assert_int_equal(a->ops->renew(a, &own, &e), 1);

    assert_int_equal(c->ops->look(c, &seen, &e), 1);
    assert_int_equal(rename(dir, moved), 0);
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(b->ops->identity(b, identity, &e), 0); /* a new node's folder, with no claim in it yet */
    assert_int_equal(a->ops->renew(a, &own, &e), -ESTALE);
    assert_non_null(strstr(e.text, dir));
    assert_int_equal(append(a, "1-x", "one", &e), 0);
    assert_int_equal(a->ops->renew(a, &own, &e), 0);
    assert_int_equal(c->ops->look(c, &seen, &e), -ESTALE);
    assert_int_equal(c->ops->look(c, &seen, &e), 0);
    assert_int_equal(claim(b, &none, "1-y", &e), 1);
    check_log(a, "@reign epoch=1-y claim=1\n");
    a->ops->close(a);
    b->ops->close(b);
    c->ops->close(c);
    snprintf(moved, sizeof moved, "rm -rf %s.old", dir);
    assert_int_equal(system(moved), 0);
}

static void a_leader_whose_folder_is_mounted_anew_goes_on(void **state)
{
    struct rdzv_home *h = open_folder();
    struct rdzv_claim own = claim_of("1-x");
    char moved[96], copy[512];
    struct err e;
    (void)state;
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    assert_int_equal(append(h, "1-x", "one", &e), 1);
    snprintf(moved, sizeof moved, "%s.old", dir);
    assert_int_equal(rename(dir, moved), 0);
    snprintf(copy, sizeof copy, "cp -a %s %s && rm -rf %s", moved, dir, moved);
    assert_int_equal(system(copy), 0);
    assert_int_equal(append(h, "1-x", "two", &e), -ESTALE);
    assert_int_equal(append(h, "1-x", "two", &e), 1);
    assert_int_equal(h->ops->renew(h, &own, &e), 1);
    check_log(h, "@reign epoch=1-x claim=1\n@reign epoch=1-x\none\n@reign epoch=1-x\ntwo\n");
    h->ops->close(h);
}

static void the_end_of_a_job_clears_its_folder(void **state)
{
    struct rdzv_home *h = open_folder();
    struct err e;
    (void)state;
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    assert_int_equal(append(h, "1-x", "one", &e), 1);
    assert_int_not_equal(rmdir(dir), 0);
    h->ops->forget(h);
    h->ops->close(h);
    assert_int_equal(rmdir(dir), 0);
}

/* As `crun status` does: its folder would refuse a job of another user. */
static void who_only_reads_makes_no_folder(void **state)
{
    struct rdzv_home *h = open_folder();
    struct rdzv_claim seen;
    struct buf log = {0};
    struct err e;
    (void)state;
    assert_int_equal(h->ops->load(h, &log, &e), 0);
    assert_int_equal(log.len, 0);
    assert_int_equal(h->ops->look(h, &seen, &e), 0);
    h->ops->close(h);
    assert_int_equal(rmdir(dir), 0);
    buf_free(&log);
}

/* Below `dir`. */
static void make_empty(const char *path)
{
    char full[300];
    snprintf(full, sizeof full, "%s/%s", dir, path);
    assert_int_equal(mkdir(full, 0700), 0);
}

static void drop(const char *path)
{
    char full[300];
    snprintf(full, sizeof full, "%s/%s", dir, path);
    assert_int_equal(remove(full), 0);
}

/* Below `dir`, as if last written so long ago. */
static void age(const char *path, int seconds)
{
    struct timespec now, t[2];
    char full[300];
    snprintf(full, sizeof full, "%s/%s", dir, path);
    clock_gettime(CLOCK_REALTIME, &now);
    t[0] = t[1] = (struct timespec){.tv_sec = now.tv_sec - seconds};
    assert_int_equal(utimensat(AT_FDCWD, full, t, 0), 0);
}

static bool is_there(const char *path)
{
    char full[300];
    snprintf(full, sizeof full, "%s/%s", dir, path);
    return access(full, F_OK) == 0;
}

#define JOB "crun-a%2Fb%20%7Bc%7D"

static void make(const char *path, int seconds)
{
    static const char *const files[] = {"decision-00000001", "claim/term-1-x.7", "log/00000001"};
    char command[400];
    snprintf(command, sizeof command, "umask 077; mkdir -p '%s/%s/claim' '%s/%s/log'", dir, path, dir, path);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(command, sizeof command, "%s/%s/%s", dir, path, files[i]);
        close(open(command, O_WRONLY | O_CREAT, 0600));
    }
    for (size_t i = 0; i < 2; i++) {
        snprintf(command, sizeof command, "%s/%s", path, i ? "log" : "claim");
        age(command, seconds);
    }
    age(path, seconds);
}

static void what_killed_jobs_left_goes_with_the_end_of_another(void **state)
{
    struct rdzv_home *h = open_folder();
    struct err e;
    (void)state;
    make("crun-dead", 5);
    make("crun-~old-1-1", 5);
    drop("crun-~old-1-1/decision-00000001");
    drop("crun-~old-1-1/log/00000001");
    drop("crun-~old-1-1/log");
    age("crun-~old-1-1", 5);
    make("crun-~new-1-1", 5); /* whose maker was killed */
    make("crun-lives", -60);
    make("crun-leads", 5);
    age("crun-leads/claim", -60);
    make("crun-results", 5); /* somebody's own */
    drop("crun-results/decision-00000001");
    age("crun-results", 5);
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    h->ops->forget(h);
    h->ops->close(h);
    assert_false(is_there("crun-dead") || is_there("crun-~old-1-1") || is_there("crun-~new-1-1") || is_there(JOB));
    assert_true(is_there("crun-lives/log/00000001") && is_there("crun-leads/log/00000001"));
    assert_true(is_there("crun-results/claim/term-1-x.7"));
}

static void no_run_id_is_taken_for_the_name_of_a_removed_job(void **state)
{
    struct rdzv_home *h = open_job("exp.old-2", 60000);
    struct err e;
    (void)state;
    make("crun-lives.old-1", -60);
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    make_empty("crun-exp.old-2/kept"); /* not ours: what holds it stays, under another name */
    h->ops->forget(h);
    h->ops->close(h);
    assert_true(is_there("crun-lives.old-1/decision-00000001"));
    assert_false(is_there("crun-exp.old-2"));
}

/* Its folder's name is as long as names may be, or nearly. */
static void a_job_with_a_long_id_leaves_nothing(void **state)
{
    char id[240];
    struct err e;
    (void)state;
    memset(id, 'i', sizeof id - 1);
    id[sizeof id - 1] = 0;
    struct rdzv_home *h = open_job(id, 60000);
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    h->ops->forget(h);
    h->ops->close(h);
    assert_int_equal(rmdir(dir), 0);
}

static void a_folder_others_may_write_is_refused(void **state)
{
    struct rdzv_home *h = open_folder();
    char identity[RDZV_IDENTITY_MAX + 1], job[128];
    struct err e;
    (void)state;
    snprintf(job, sizeof job, "%s/%s", dir, JOB);
    assert_int_equal(mkdir(job, 0700), 0);
    assert_int_equal(chmod(job, 0777), 0);
    assert_int_equal(h->ops->identity(h, identity, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "may be written by others (mode 777): expected 700"));
    h->ops->close(h);
}

static void a_folder_of_an_older_version_is_refused(void **state)
{
    struct rdzv_home *h = open_folder();
    char identity[RDZV_IDENTITY_MAX + 1];
    struct err e;
    (void)state;
    make_empty(JOB);
    make_empty(JOB "/beats");
    assert_int_equal(h->ops->identity(h, identity, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "is of an older version of crun"));
    h->ops->close(h);
}

/* --- a folder in a process of its own */

static void a_call_that_is_not_answered_ends_with_its_time_and_happens_later(void **state)
{
    struct rdzv_home *h = open_folder_within(100), *other = open_folder();
    struct rdzv_claim own = claim_of("1-x"), seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(other, &none, "1-x", &e), 1);
    int rc;
    while ((rc = h->ops->look(h, &seen, &e)) == -ETIMEDOUT) /* a thread starts for it */
        ;
    assert_int_equal(rc, 1);
    stop_process();
    assert_int_equal(h->ops->renew(h, &own, &e), -ETIMEDOUT);
    assert_non_null(strstr(e.text, dir));
    assert_non_null(strstr(e.text, "has not answered for "));
    assert_int_equal(h->ops->look(h, &seen, &e), -ETIMEDOUT); /* it is not even asked */
    kill(process, SIGCONT);
    while ((rc = h->ops->look(h, &seen, &e)) == -ETIMEDOUT)
        ;
    assert_int_equal(rc, 1);
    assert_int_equal(seen.n, 1);
    h->ops->close(h);
    other->ops->close(other);
}

static void *cancel(void *home)
{
    rdzv_home_cancel(home);
    return NULL;
}

static void a_call_is_cancelled_from_another_thread(void **state)
{
    struct rdzv_home *h = open_folder();
    struct rdzv_claim seen;
    pthread_t thread;
    struct err e;
    (void)state;
    assert_int_equal(h->ops->look(h, &seen, &e), 0);
    stop_process();
    assert_int_equal(pthread_create(&thread, NULL, cancel, h), 0);
    assert_int_equal(h->ops->look(h, &seen, &e), -ECANCELED);
    assert_int_equal(h->ops->look(h, &seen, &e), -ECANCELED);
    pthread_join(thread, NULL);
    h->ops->close(h);
    kill(process, SIGCONT);
}

static void a_leader_goes_on_with_another_process(void **state)
{
    struct rdzv_home *h = open_folder();
    struct rdzv_claim own = claim_of("1-x");
    struct err e;
    (void)state;
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    end_process();
    start_process();
    assert_int_equal(h->ops->renew(h, &own, &e), -ECONNRESET);
    assert_int_equal(h->ops->renew(h, &own, &e), 1);
    assert_int_equal(append(h, "1-x", "one", &e), 1);
    check_log(h, "@reign epoch=1-x claim=1\n@reign epoch=1-x\none\n");
    h->ops->close(h);
}

static void a_large_decision_goes_through_in_one_piece(void **state)
{
    struct rdzv_home *h = open_folder(), *other = open_folder();
    struct buf d = text("@reign epoch=1-x\n"), log = {0};
    struct err e;
    (void)state;
    for (int i = 0; i < 400000; i++)
        buf_addstr(&d, "0123456789");
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    assert_int_equal(h->ops->append(h, &(struct rdzv_write){.decision = &d, .epoch = "1-x"}, &e), 1);
    assert_int_equal(other->ops->load(other, &log, &e), 0);
    assert_true(log.len > d.len);
    assert_memory_equal(log.data + log.len - d.len, d.data, d.len);
    h->ops->close(h);
    other->ops->close(other);
    buf_free(&d);
    buf_free(&log);
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

static void a_redis_of_which_both_sides_of_a_cut_would_take_writes_is_refused(void **state)
{
    struct err e;
    int64_t lag;
    (void)state;
    assert_int_equal(judge((struct redis_facts){.replicas = 3, .min_replicas = 1, .max_lag_s = 10}, false, 0, &lag, &e),
                     ERR_REFUSED);
    assert_non_null(strstr(e.text, "CONFIG SET min-replicas-to-write 2"));
    assert_int_equal(judge((struct redis_facts){.replicas = 3, .min_replicas = 1, .max_lag_s = 10}, true, 0, &lag, &e),
                     0);
    assert_int_equal(judge((struct redis_facts){.replicas = 3, .min_replicas = 2, .max_lag_s = 10}, false, 0, &lag, &e),
                     0);
    assert_int_equal(judge((struct redis_facts){.replicas = 5, .min_replicas = 2, .max_lag_s = 10}, false, 0, &lag, &e),
                     ERR_REFUSED);
    assert_non_null(strstr(e.text, "CONFIG SET min-replicas-to-write 3"));
}

static void a_redis_that_does_not_say_its_lag_is_told_it(void **state)
{
    struct redis_facts mute = {.sentinel = true, .min_replicas = -1, .max_lag_s = -1, .needs_replicas = true};
    struct redis_facts nobody = {.min_replicas = -1, .max_lag_s = -1};
    struct err e;
    int64_t lag;
    (void)state;
    assert_int_equal(judge(mute, false, 0, &lag, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "max_lag=10"));
    assert_int_equal(judge(mute, false, 7000, &lag, &e), 0);
    assert_int_equal(lag, 7000);
    mute.replicas = 3; /* of which it may need one alone */
    assert_int_equal(judge(mute, false, 7000, &lag, &e), ERR_REFUSED);
    mute.replicas = 1;
    mute.needs_replicas = false; /* so it would write for ever without one */
    assert_int_equal(judge(mute, false, 7000, &lag, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "CONFIG SET min-replicas-to-write 1"));
    assert_int_equal(judge(mute, true, 7000, &lag, &e), 0);
    assert_int_equal(redis_judge(&nobody, false, 0, &lag, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "which incarnation it is"));
    assert_int_equal(redis_judge(&nobody, true, 0, &lag, &e), 0);
}

#define IN_A_FOLDER(test, how) cmocka_unit_test_setup_teardown(test, make_dir##how, remove_dir##how)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_url_names_user_password_host_and_database),
        cmocka_unit_test(a_bad_url_is_refused_without_showing_its_password),
        cmocka_unit_test(passwords_come_from_the_environment_where_the_url_has_none),
        cmocka_unit_test(a_user_without_a_password_is_refused),
        IN_A_FOLDER(the_claim_says_who_leads_and_how_often_it_was_renewed, ),
        IN_A_FOLDER(the_claim_says_who_leads_and_how_often_it_was_renewed, _and_process),
        IN_A_FOLDER(a_claim_that_was_renewed_meanwhile_is_not_replaced, ),
        IN_A_FOLDER(a_claim_that_was_renewed_meanwhile_is_not_replaced, _and_process),
        IN_A_FOLDER(a_renewal_whose_answer_was_lost_is_found_by_the_next, ),
        IN_A_FOLDER(a_renewal_whose_answer_was_lost_is_found_by_the_next, _and_process),
        IN_A_FOLDER(an_older_leader_can_append_nothing, ),
        IN_A_FOLDER(an_older_leader_can_append_nothing, _and_process),
        IN_A_FOLDER(a_leader_whose_folder_was_replaced_leads_nobody, ),
        IN_A_FOLDER(a_leader_whose_folder_was_replaced_leads_nobody, _and_process),
        IN_A_FOLDER(a_leader_whose_folder_is_mounted_anew_goes_on, ),
        IN_A_FOLDER(a_leader_whose_folder_is_mounted_anew_goes_on, _and_process),
        IN_A_FOLDER(the_end_of_a_job_clears_its_folder, ),
        IN_A_FOLDER(the_end_of_a_job_clears_its_folder, _and_process),
        IN_A_FOLDER(who_only_reads_makes_no_folder, ),
        IN_A_FOLDER(who_only_reads_makes_no_folder, _and_process),
        IN_A_FOLDER(a_folder_others_may_write_is_refused, ),
        IN_A_FOLDER(a_folder_others_may_write_is_refused, _and_process),
        IN_A_FOLDER(a_folder_of_an_older_version_is_refused, ),
        IN_A_FOLDER(a_folder_of_an_older_version_is_refused, _and_process),
        IN_A_FOLDER(what_killed_jobs_left_goes_with_the_end_of_another, ),
        IN_A_FOLDER(no_run_id_is_taken_for_the_name_of_a_removed_job, ),
        IN_A_FOLDER(a_job_with_a_long_id_leaves_nothing, ),
        IN_A_FOLDER(a_call_that_is_not_answered_ends_with_its_time_and_happens_later, _and_process),
        IN_A_FOLDER(a_call_is_cancelled_from_another_thread, _and_process),
        IN_A_FOLDER(a_leader_goes_on_with_another_process, _and_process),
        IN_A_FOLDER(a_large_decision_goes_through_in_one_piece, _and_process),
        cmocka_unit_test(a_redis_that_may_lose_writes_is_refused_with_the_remedy),
        cmocka_unit_test(a_redis_of_which_both_sides_of_a_cut_would_take_writes_is_refused),
        cmocka_unit_test(a_redis_that_does_not_say_its_lag_is_told_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
