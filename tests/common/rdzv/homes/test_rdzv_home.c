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
static int process_fd, process_end, process_caller;

static void start_process(void)
{
    process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        close(process_fd);
        _exit(home_process(process_caller, process_end));
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
    int calls[2], ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, calls) < 0 || pipe(ends) < 0)
        return -1;
    process_fd = calls[0];
    process_caller = calls[1];
    process_end = ends[0];
    start_process();
    return make_dir(state);
}

static int remove_dir_and_process(void **state)
{
    end_process();
    close(process_fd);
    close(process_caller);
    close(process_end);
    process_fd = 0;
    return remove_dir(state);
}

static struct buf text(const char *p)
{
    struct buf b = {0};
    buf_addstr(&b, p);
    return b;
}

static int exchange(struct rdzv_home *h, const char *said, struct err *e)
{
    struct rdzv_view v = {0};
    struct buf beat = text(said);
    const int rc = h->ops->exchange(h, "one", &beat, true, &v, e);
    buf_free(&beat);
    buf_free(&v.pulse);
    buf_free(&v.slot);
    return rc;
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

/* As `crun status` does: its folder would refuse a job of another user. */
static void who_only_reads_makes_no_folder(void **state)
{
    struct rdzv_home *h = open_folder();
    struct buf log = {0};
    struct err e;
    (void)state;
    assert_int_equal(h->ops->load(h, &log, &e), 0);
    assert_int_equal(log.len, 0);
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

/* While a beat is young its node may only stand still, and is to learn of the end: 1 s here. */
static void a_killed_node_does_not_keep_the_folder_for_ever(void **state)
{
    struct rdzv_view v = {0};
    struct buf beat = text("inc=1 n=1");
    struct err e;
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct rdzv_home *h = open_folder();
        assert_int_equal(h->ops->exchange(h, "killed", &beat, true, &v, &e), 0);
        assert_int_equal(h->ops->exchange(h, "one", &beat, true, &v, &e), 0);
        age(JOB "/beats/killed", i == 0 ? -60 : 2);
        h->ops->forget(h, "one");
        h->ops->close(h);
        assert_int_equal(is_there(JOB "/beats/killed"), i == 0);
        assert_int_equal(is_there(JOB), i == 0);
    }
    assert_int_equal(rmdir(dir), 0);
    buf_free(&beat);
    buf_free(&v.pulse);
    buf_free(&v.slot);
}

static void make(const char *path, int seconds)
{
    char command[400];
    snprintf(command, sizeof command, "umask 077; mkdir -p '%s/%s/beats' '%s/%s/slots'", dir, path, dir, path);
    assert_int_equal(system(command), 0);
    static const char *const files[] = {"decision-00000001", "pulse", "beats/x", "slots/x"};
    for (int i = 0; i < 4; i++) {
        snprintf(command, sizeof command, "%s/%s/%s", dir, path, files[i]);
        close(open(command, O_WRONLY | O_CREAT, 0600));
        snprintf(command, sizeof command, "%s/%s", path, files[i]);
        age(command, seconds);
    }
    age(path, seconds);
}

static void what_killed_jobs_left_goes_with_the_end_of_another(void **state)
{
    struct rdzv_home *h = open_folder();
    struct rdzv_view v = {0};
    struct buf beat = text("inc=1 n=1");
    struct err e;
    (void)state;
    make("crun-dead", 5);
    make("crun-~old-1-1", 5);
    drop("crun-~old-1-1/decision-00000001");
    drop("crun-~old-1-1/beats/x");
    drop("crun-~old-1-1/beats");
    age("crun-~old-1-1", 5);
    make("crun-lives", -60);
    make("crun-leads", 5);
    age("crun-leads/pulse", -60);
    make("crun-beats", 5);
    age("crun-beats/beats/x", -60);
    make("crun-results", 5); /* somebody's own */
    drop("crun-results/decision-00000001");
    age("crun-results", 5);
    assert_int_equal(h->ops->exchange(h, "one", &beat, true, &v, &e), 0);
    h->ops->forget(h, "one");
    h->ops->close(h);
    assert_false(is_there("crun-dead") || is_there("crun-~old-1-1") || is_there(JOB));
    assert_true(is_there("crun-lives/beats/x") && is_there("crun-leads/beats/x") && is_there("crun-beats/beats/x"));
    assert_true(is_there("crun-results/beats/x") && is_there("crun-results/pulse"));
    buf_free(&beat);
    buf_free(&v.pulse);
    buf_free(&v.slot);
}

/* Whoever was to clear it was killed once its beats were gone. */
static void a_folder_without_beats_goes_once_it_is_old(void **state)
{
    static const char *const jobs[] = {"crun-old", "crun-young"};
    struct rdzv_home *h = open_folder();
    struct err e;
    char path[32];
    (void)state;
    for (int i = 0; i < 2; i++) {
        make(jobs[i], 5);
        snprintf(path, sizeof path, "%s/beats/x", jobs[i]);
        drop(path);
        snprintf(path, sizeof path, "%s/beats", jobs[i]);
        drop(path);
        age(jobs[i], i == 0 ? 5 : -60);
    }
    assert_int_equal(exchange(h, "inc=1 n=1", &e), 0);
    h->ops->forget(h, "one");
    h->ops->close(h);
    assert_false(is_there("crun-old"));
    assert_true(is_there("crun-young/decision-00000001") && is_there("crun-young/slots/x"));
}

static void no_run_id_is_taken_for_the_name_of_a_removed_job(void **state)
{
    struct rdzv_home *h = open_job("exp.old-2", 60000);
    struct err e;
    (void)state;
    make("crun-lives.old-1", 5);
    age("crun-lives.old-1/beats/x", -60);
    assert_int_equal(exchange(h, "inc=1 n=1", &e), 0);
    make_empty("crun-exp.old-2/kept"); /* not ours: what holds it stays, under another name */
    h->ops->forget(h, "one");
    h->ops->close(h);
    assert_true(is_there("crun-lives.old-1/decision-00000001") && is_there("crun-lives.old-1/slots/x"));
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
    assert_int_equal(exchange(h, "inc=1 n=1", &e), 0);
    h->ops->forget(h, "one");
    h->ops->close(h);
    assert_int_equal(rmdir(dir), 0);
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

/* --- a folder in a process of its own */

static void read_beat(void *arg, const char *node, const char *beat, size_t n)
{
    assert_string_equal(node, "one");
    assert_int_equal(buf_add(arg, beat, n), 0);
}

static char *beat_of(struct rdzv_home *h, struct buf *b)
{
    struct err e;
    buf_clear(b);
    assert_int_equal(h->ops->beats(h, true, read_beat, b, &e), 0);
    return b->data;
}

static void a_call_that_is_not_answered_ends_with_its_time_and_happens_later(void **state)
{
    struct rdzv_home *h = open_folder_within(100), *other = open_folder();
    char identity[RDZV_IDENTITY_MAX + 1];
    struct buf beat = {0};
    struct err e;
    (void)state;
    assert_int_equal(other->ops->identity(other, identity, &e), 0);
    int rc;
    while ((rc = exchange(h, "n=1", &e)) == -ETIMEDOUT) /* a thread starts for it */
        ;
    assert_int_equal(rc, 0);
    stop_process();
    assert_int_equal(exchange(h, "n=2", &e), -ETIMEDOUT);
    assert_non_null(strstr(e.text, dir));
    assert_non_null(strstr(e.text, "has not answered for "));
    assert_int_equal(exchange(h, "n=3", &e), -ETIMEDOUT); /* it is not even asked */
    kill(process, SIGCONT);
    while ((rc = h->ops->wait_slot(h, "one", 0, &e)) == -ETIMEDOUT)
        ;
    assert_int_equal(rc, 0);
    assert_string_equal(beat_of(other, &beat), "n=2");
    h->ops->close(h);
    other->ops->close(other);
    buf_free(&beat);
}

static void *cancel(void *home)
{
    rdzv_home_cancel(home);
    return NULL;
}

static void a_call_is_cancelled_from_another_thread(void **state)
{
    struct rdzv_home *h = open_folder();
    pthread_t thread;
    struct err e;
    (void)state;
    assert_int_equal(exchange(h, "n=1", &e), 0);
    stop_process();
    assert_int_equal(pthread_create(&thread, NULL, cancel, h), 0);
    assert_int_equal(exchange(h, "n=2", &e), -ECANCELED);
    assert_int_equal(exchange(h, "n=3", &e), -ECANCELED);
    pthread_join(thread, NULL);
    h->ops->close(h);
    kill(process, SIGCONT);
}

static void *interrupt(void *home)
{
    rdzv_home_interrupt(home);
    return NULL;
}

static void an_interrupt_reaches_the_wait_there(void **state)
{
    struct rdzv_home *h = open_folder_within(3600000);
    pthread_t thread;
    struct err e;
    (void)state;
    assert_int_equal(exchange(h, "n=1", &e), 0);
    assert_int_equal(pthread_create(&thread, NULL, interrupt, h), 0);
    assert_int_equal(h->ops->wait_slot(h, "one", 3600000, &e), 0);
    pthread_join(thread, NULL);
    h->ops->close(h);
}

static void an_interrupt_at_the_deadline_is_not_lost(void **state)
{
    struct rdzv_home h = {0};
    (void)state;
    assert_int_equal(rdzv_home_init_(&h, NULL, 0, NULL), 0);
    rdzv_home_interrupt(&h);
    assert_int_equal(rdzv_home_wait_(&h, -1, -1, 0), -EINTR);
    assert_int_equal(rdzv_home_wait_(&h, -1, -1, 0), 0);
    rdzv_home_finish_(&h);
}

static void a_node_goes_on_with_another_process_but_a_leader_begins_anew(void **state)
{
    struct rdzv_home *node = open_folder(), *leader = open_folder();
    struct buf record = text("@reign epoch=1-x\n");
    char identity[RDZV_IDENTITY_MAX + 1];
    struct err e;
    (void)state;
    assert_int_equal(exchange(node, "n=1", &e), 0);
    assert_int_equal(leader->ops->identity(leader, identity, &e), 0);
    assert_int_equal(leader->ops->claim(leader, "", "1-x", &record, &e), 1);
    end_process();
    start_process();
    assert_int_equal(exchange(node, "n=2", &e), -ECONNRESET);
    assert_int_equal(exchange(node, "n=3", &e), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(leader->ops->pulse(leader, &record, &e), -ECONNRESET);
    assert_int_equal(leader->ops->identity(leader, identity, &e), 0);
    assert_int_equal(leader->ops->claim(leader, "1-x", "2-y", &record, &e), 1);
    node->ops->close(node);
    leader->ops->close(leader);
    buf_free(&record);
}

static void a_large_batch_goes_through_in_one_piece(void **state)
{
    enum { SLOTS = 3000, LONG = 1000 };
    struct rdzv_home *h = open_folder(), *node = open_folder();
    struct buf record = text("@reign epoch=1-x\n"), d = text("@reign epoch=1-x\n"), log = {0};
    struct rdzv_slot_write *slots = calloc(SLOTS, sizeof *slots);
    char identity[RDZV_IDENTITY_MAX + 1], slot[LONG];
    struct err e;
    (void)state;
    memset(slot, 's', sizeof slot);
    for (int i = 0; i < SLOTS; i++)
        slots[i] = (struct rdzv_slot_write){.node = i == SLOTS - 1 ? "last" : "one", .text = slot, .len = sizeof slot};
    for (int i = 0; i < 100000; i++)
        buf_addstr(&d, "0123456789");
    assert_int_equal(h->ops->identity(h, identity, &e), 0);
    assert_int_equal(h->ops->claim(h, "", "1-x", &record, &e), 1);
    const struct rdzv_write w = {.decision = &d, .slots = slots, .slot_count = SLOTS};
    assert_int_equal(h->ops->append(h, &w, &e), 1);
    assert_int_equal(node->ops->load(node, &log, &e), 0);
    assert_int_equal(log.len, record.len + d.len);
    assert_memory_equal(log.data + record.len, d.data, d.len);
    struct rdzv_view v = {0};
    assert_int_equal(node->ops->exchange(node, "last", &record, false, &v, &e), 0);
    assert_int_equal(v.slot.len, sizeof slot);
    assert_string_equal(v.epoch, "1-x");
    h->ops->close(h);
    node->ops->close(node);
    free(slots);
    buf_free(&v.pulse);
    buf_free(&v.slot);
    buf_free(&record);
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
        IN_A_FOLDER(an_older_leader_can_append_nothing, ),
        IN_A_FOLDER(an_older_leader_can_append_nothing, _and_process),
        IN_A_FOLDER(the_last_node_clears_the_folder, ),
        IN_A_FOLDER(the_last_node_clears_the_folder, _and_process),
        IN_A_FOLDER(who_only_reads_makes_no_folder, ),
        IN_A_FOLDER(who_only_reads_makes_no_folder, _and_process),
        IN_A_FOLDER(a_killed_node_does_not_keep_the_folder_for_ever, ),
        IN_A_FOLDER(a_killed_node_does_not_keep_the_folder_for_ever, _and_process),
        IN_A_FOLDER(what_killed_jobs_left_goes_with_the_end_of_another, ),
        IN_A_FOLDER(a_folder_without_beats_goes_once_it_is_old, ),
        IN_A_FOLDER(no_run_id_is_taken_for_the_name_of_a_removed_job, ),
        IN_A_FOLDER(a_job_with_a_long_id_leaves_nothing, ),
        IN_A_FOLDER(a_call_that_is_not_answered_ends_with_its_time_and_happens_later, _and_process),
        IN_A_FOLDER(a_call_is_cancelled_from_another_thread, _and_process),
        IN_A_FOLDER(an_interrupt_reaches_the_wait_there, _and_process),
        IN_A_FOLDER(an_interrupt_at_the_deadline_is_not_lost, _and_process),
        IN_A_FOLDER(a_node_goes_on_with_another_process_but_a_leader_begins_anew, _and_process),
        IN_A_FOLDER(a_large_batch_goes_through_in_one_piece, _and_process),
        cmocka_unit_test(a_redis_that_may_lose_writes_is_refused_with_the_remedy),
        cmocka_unit_test(a_redis_of_which_both_sides_of_a_cut_would_take_writes_is_refused),
        cmocka_unit_test(a_redis_that_does_not_say_its_lag_is_told_it),
        IN_A_FOLDER(a_node_makes_its_slot_before_it_looks_for_it, ),
        IN_A_FOLDER(a_node_makes_its_slot_before_it_looks_for_it, _and_process),
        IN_A_FOLDER(a_folder_others_may_write_is_refused, ),
        IN_A_FOLDER(a_folder_others_may_write_is_refused, _and_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
