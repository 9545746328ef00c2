/* The state directory: its format, and jobs that outlive their daemon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/job/exitcode.h"
#include "common/rdzv/leader/leader_impl.h"
#include "common/rdzv/machine/rdzv_impl.h"
#include "common/rdzv/wire/rdzv_frame.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include "rendezvousd/state/state_internal.h"
#include "rendezvousd/state/state_log.h"
#include "tests/rendezvousd/jobs/jobs_rig.h"
#include "tests/support/today.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- a daemon without a network */

struct daemon {
    char dir[64];
    uv_loop_t loop;
    struct state_dir *p;
    struct jobs *j;
    uint64_t epoch;
    struct err e;
};

static void make_dir(struct daemon *d)
{
    memset(d, 0, sizeof *d); /* in memory where there is such a place: thousands of syncs */
    snprintf(d->dir, sizeof d->dir, "%s/test-state-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(d->dir));
}

static int start(struct daemon *d)
{
    assert_int_equal(uv_loop_init(&d->loop), 0);
    if (state_dir_open(&d->p, &d->loop, d->dir, &d->epoch, &d->e) < 0)
        fail_msg("%s", d->e.text);
    d->j = rig_jobs(&(struct jobs_options){.dir = d->p, .epoch = d->epoch});
    return jobs_load(d->j, &d->e);
}

static void stop(struct daemon *d)
{
    jobs_destroy(d->j);
    state_dir_close(d->p);
    uv_run(&d->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&d->loop), 0);
}

/* Until all that was appended is on disk and told. */
static void settle(struct daemon *d)
{
    uv_run(&d->loop, UV_RUN_DEFAULT);
}

static void remove_dir(struct daemon *d)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", d->dir);
    assert_int_equal(system(command), 0);
}

/* Path of the one log there is; false: there is none. */
static bool log_path(const struct daemon *d, char *out, size_t cap)
{
    char jobs[80];
    bool found = false;
    snprintf(jobs, sizeof jobs, "%s/jobs", d->dir);
    DIR *dir = opendir(jobs);
    assert_non_null(dir);
    for (struct dirent *f; (f = readdir(dir));)
        if (strstr(f->d_name, ".log")) {
            snprintf(out, cap, "%s/%.64s", jobs, f->d_name);
            found = true;
        }
    closedir(dir);
    return found;
}

static void read_log(const char *path, struct buf *out)
{
    char part[4096];
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    for (ssize_t n; (n = read(fd, part, sizeof part)) > 0;)
        assert_int_equal(buf_add(out, part, (size_t)n), 0);
    close(fd);
}

static void write_log(const char *path, const char *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, p, n), n);
    close(fd);
}

/* --- the format */

static const char *const texts[] = {"first", "", "a longer third record\nwith two lines", "4"};

/* The texts of the first n, as they are read. */
static void check_texts(struct buf *read, int n)
{
    struct buf expected = {0};
    for (int i = 0; i < n; i++)
        if (texts[i][0])
            assert_int_equal(buf_printf(&expected, "%s\n", texts[i]), 0);
    assert_int_equal(read->len, expected.len);
    if (expected.len)
        assert_memory_equal(read->data, expected.data, expected.len);
    buf_free(&expected);
    buf_free(read);
}

static void make_log(struct buf *b, size_t *ends)
{
    state_log_header(b);
    for (uint32_t i = 0; i < 4; i++) {
        rdzv_frame_put(b, i + 1, texts[i], strlen(texts[i]));
        ends[i] = b->len;
    }
}

static void a_torn_log_is_good_up_to_there(void **s)
{
    struct buf b = {0};
    size_t ends[4], good;
    struct err e;
    (void)s;
    make_log(&b, ends);
    for (size_t n = 0; n <= b.len; n++) {
        struct buf read = {0};
        int whole = 0;
        while (whole < 4 && ends[whole] <= n)
            whole++;
        if (state_log_parse(b.data, n, &read, &good, &e) < 0)
            fail_msg("at %zu: %s", n, e.text);
        check_texts(&read, whole);
        assert_true(good <= n);
    }
    buf_free(&b);
}

static void a_tail_of_zeroes_or_rubbish_is_torn(void **s)
{
    struct buf b = {0};
    size_t ends[4], good;
    struct buf read = {0};
    (void)s;
    make_log(&b, ends);
    memset(b.data + ends[2], 0, b.len - ends[2]);
    assert_int_equal(state_log_parse(b.data, b.len, &read, &good, NULL), 0);
    check_texts(&read, 3);
    assert_int_equal(good, ends[2]);
    buf_free(&b);
}

static void damage_before_the_end_is_refused(void **s)
{
    struct buf b = {0};
    size_t ends[4], good;
    struct err e;
    (void)s;
    make_log(&b, ends);
    for (size_t i = 0; i < ends[2]; i++) {
        struct buf read = {0};
        const bool version = i == strlen("rendezvousd-log ");
        b.data[i] ^= 0x04;
        assert_int_equal(state_log_parse(b.data, b.len, &read, &good, &e), version ? ERR_MISMATCH : ERR_CORRUPT);
        buf_free(&read);
        b.data[i] ^= 0x04;
    }
    assert_non_null(strstr(e.text, "record 3 at byte"));
    buf_free(&b);
}

static void records_do_not_change_places(void **s)
{
    struct buf b = {0};
    size_t good;
    struct buf read = {0};
    struct err e;
    (void)s;
    state_log_header(&b);
    rdzv_frame_put(&b, 1, texts[0], strlen(texts[0]));
    rdzv_frame_put(&b, 3, texts[2], strlen(texts[2]));
    assert_int_equal(state_log_parse(b.data, b.len, &read, &good, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "record 2"));
    buf_free(&read);
    buf_free(&b);
}

static void the_version_before_is_read_and_no_other(void **s)
{
    static const char *const refused[] = {"rendezvousd-log 1\n", "rendezvousd-log 4\n", "rendezvousd-log 99999\n"};
    struct buf read = {0};
    size_t good;
    struct err e;
    (void)s;
    assert_int_equal(state_log_parse("rendezvousd-log 2\n", 18, &read, &good, NULL), 0);
    assert_int_equal(good, 18);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_int_equal(state_log_parse(refused[i], strlen(refused[i]), &read, &good, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "its format is 99999, but this rendezvousd reads formats 2 and 3"));
    assert_int_equal(state_log_parse("rendezvousd-log \n", 17, &read, &good, NULL), ERR_CORRUPT);
    assert_int_equal(state_log_parse("rendezvousd-log 3x\n", 19, &read, &good, NULL), ERR_CORRUPT);
}

/* --- the directory */

static void the_epoch_counts_openings(void **s)
{
    struct daemon d;
    (void)s;
    make_dir(&d);
    for (uint64_t i = 1; i <= 3; i++) {
        assert_int_equal(start(&d), 0);
        assert_int_equal(d.epoch, i);
        stop(&d);
    }
    remove_dir(&d);
}

static void two_daemons_never_share_a_directory(void **s)
{
    struct daemon d;
    struct state_dir *other;
    uint64_t epoch;
    struct err e;
    (void)s;
    make_dir(&d);
    start(&d);
    assert_int_equal(state_dir_open(&other, &d.loop, d.dir, &epoch, &e), -EBUSY);
    assert_non_null(strstr(e.text, d.dir));
    stop(&d);
    remove_dir(&d);
}

struct echo {
    struct daemon *d;
    struct rdzv_home *from, *to;
    int left, told, too_early;
};

static void append(struct rdzv_home *h, const char *text)
{
    struct buf decision = {0};
    assert_int_equal(buf_addstr(&decision, text), 0);
    assert_int_equal(rdzv_home_append(h, &(struct rdzv_write){.decision = &decision}, NULL), RDZV_UNDER_WAY);
    buf_free(&decision);
}

static void write_again(void *arg)
{
    struct echo *e = arg;
    if (e->left-- > 0)
        append(e->to, "more");
}

static void look_at_the_file(void *arg)
{
    struct echo *e = arg;
    struct buf b = {0}, read = {0};
    char path[96];
    uint64_t there = 0;
    size_t good;
    snprintf(path, sizeof path, "%s/jobs/to.log", e->d->dir);
    read_log(path, &b);
    assert_int_equal(state_log_parse(b.data, b.len, &read, &good, NULL), 0);
    for (size_t i = 0; i < read.len; i++)
        there += read.data[i] == '\n';
    buf_free(&b);
    buf_free(&read);
    e->told++;
    e->too_early += e->to->stands > there;
}

/* Both logs are in flight together, and whoever hears of the first one's landing writes to the second. */
static void who_hears_of_the_disk_may_write_again(void **s)
{
    struct daemon d;
    struct echo e = {.d = &d, .left = 20};
    (void)s;
    make_dir(&d);
    start(&d);
    assert_int_equal(state_dir_home(d.p, "from", &e.from, &d.e), 0);
    assert_int_equal(state_dir_home(d.p, "to", &e.to, &d.e), 0);
    e.from->landed = write_again;
    e.to->landed = look_at_the_file;
    e.from->arg = e.to->arg = &e;
    for (int i = 0; i < 20; i++) {
        append(e.from, "one");
        append(e.to, "two");
        uv_run(&d.loop, UV_RUN_ONCE);
    }
    settle(&d);
    assert_true(e.told > 0);
    assert_int_equal(e.too_early, 0);
    assert_int_equal(e.to->stands, e.to->asked);
    e.from->ops->forget(e.from);
    e.from->ops->close(e.from);
    e.to->ops->forget(e.to);
    e.to->ops->close(e.to);
    stop(&d);
    remove_dir(&d);
}

static void a_damaged_epoch_is_refused(void **s)
{
    static const char *const bad[] = {"", "x\n", "12", "1 2\n", "-3\n", "99999999999999999999999\n"};
    struct daemon d;
    struct state_dir *p;
    uint64_t epoch;
    char path[80];
    (void)s;
    make_dir(&d);
    uv_loop_init(&d.loop);
    snprintf(path, sizeof path, "%s/epoch", d.dir);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_log(path, bad[i], strlen(bad[i]));
        assert_int_equal(state_dir_open(&p, &d.loop, d.dir, &epoch, &d.e), ERR_CORRUPT);
    }
    uv_loop_close(&d.loop);
    remove_dir(&d);
}

/* --- jobs that outlive their daemon */

struct pair {
    struct daemon d;
    struct rdzv_config c;
    struct agent a, b;
};

static void open_pair(struct pair *p)
{
    rig_open(p->d.j, &p->a, "r", "node1", "10.0.0.2");
    rig_open(p->d.j, &p->b, "r", "node2", "10.0.0.3");
}

static void close_pair(struct pair *p)
{
    rig_close(&p->a, JOBS_SILENT);
    rig_close(&p->b, JOBS_SILENT);
}

static void end_pair(struct pair *p)
{
    close_pair(p);
    stop(&p->d);
    remove_dir(&p->d);
}

static void join_pair(struct pair *p)
{
    make_dir(&p->d);
    p->c = rig_config(2, 2);
    assert_int_equal(start(&p->d), 0);
    open_pair(p);
    assert_int_equal(rig_join(&p->a, &p->c, 0), 0);
    assert_int_equal(rig_next(&p->a), 0);
    assert_int_equal(rig_join(&p->b, &p->c, 0), 0);
    assert_int_equal(rig_next(&p->b), 0);
}

/* Both have been told of the first round. */
static void begin_pair(struct pair *p)
{
    join_pair(p);
    settle(&p->d);
}

/* The daemon dies as by SIGKILL: what is not on disk is lost, connections are reset. A copy stands for the disk. */
static void kill_daemon(struct pair *p, struct daemon *ret)
{
    char command[256];
    make_dir(ret);
    snprintf(command, sizeof command, "cp -r '%s/.' '%s/'", p->d.dir, ret->dir);
    assert_int_equal(system(command), 0);
    end_pair(p);
}

static void kill_and_start(struct pair *p)
{
    struct daemon after;
    kill_daemon(p, &after);
    p->d = after;
    if (start(&p->d) < 0)
        fail_msg("%s", p->d.e.text);
}

static void news_wait_for_the_disk(void **s)
{
    struct pair p;
    (void)s;
    join_pair(&p);
    assert_int_equal(p.a.told + p.b.told, 0);
    settle(&p.d);
    assert_int_equal(p.a.told, 1);
    assert_int_equal(p.b.told, 1);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_ROUND);
    end_pair(&p);
}

static void a_restart_is_not_noticed(void **s)
{
    struct pair p;
    char instance[LEADER_INSTANCE_LEN + 1];
    (void)s;
    begin_pair(&p);
    const uint64_t seq_a = p.a.news.seq, seq_b = p.b.news.seq;
    strcpy(instance, p.a.joined.instance);
    kill_and_start(&p);
    assert_int_equal(p.d.epoch, 2);
    open_pair(&p);
    p.a.news.seq = seq_a;
    p.b.news.seq = seq_b;
    assert_int_equal(rig_next(&p.a), 0);
    rig_pass(p.d.j, 2900);
    rig_next(&p.a);
    assert_int_equal(rig_next(&p.b), 0); /* late, but within what any silent node has */
    for (int i = 0; i < 10; i++) {
        rig_pass(p.d.j, 1000);
        rig_next(&p.a);
        rig_next(&p.b);
        settle(&p.d);
    }
    assert_int_equal(p.a.told + p.b.told, 0);
    assert_int_equal(rig_say(&p.b, RDZV_FAIL, 1, 7), 0);
    settle(&p.d);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_STOP);
    assert_int_equal(rig_join(&p.a, &p.c, 1), 0);
    assert_string_equal(p.a.joined.instance, instance);
    assert_int_equal(p.a.joined.epoch, 2);
    rig_next(&p.a);
    rig_join(&p.b, &p.c, 1);
    rig_next(&p.b);
    settle(&p.d);
    assert_int_equal(p.a.news.round, 2);
    assert_int_equal(p.a.news.restart_count, 1);
    end_pair(&p);
}

static void who_does_not_come_back_is_given_up(void **s)
{
    struct pair p;
    (void)s;
    begin_pair(&p);
    const uint64_t seq = p.a.news.seq;
    kill_and_start(&p);
    open_pair(&p);
    p.a.news.seq = seq;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rig_next(&p.a), 0);
        rig_pass(p.d.j, 1000);
    }
    settle(&p.d);
    assert_int_equal(p.a.told, 0);
    rig_next(&p.a);
    rig_pass(p.d.j, 1000); /* 4 s: silence and kill */
    settle(&p.d);
    assert_int_equal(p.a.told, 1);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_STOP);
    end_pair(&p);
}

/* One whose connection was lost, and logged so, just before the daemon died has a full time after its return. */
static void who_was_silent_before_has_a_full_time_too(void **s)
{
    struct pair p;
    (void)s;
    begin_pair(&p);
    const uint64_t seq = p.a.news.seq, seq_b = p.b.news.seq;
    rig_close(&p.b, JOBS_SILENT);
    rig_pass(p.d.j, 2900);
    rig_next(&p.a); /* another step: the log says how little is left */
    rig_say(&p.a, RDZV_LEAVE, 1, 0);
    settle(&p.d);
    kill_and_start(&p);
    open_pair(&p);
    p.a.news.seq = seq;
    p.b.news.seq = seq_b;
    rig_pass(p.d.j, 2900);
    assert_int_equal(rig_next(&p.b), 0);
    settle(&p.d);
    assert_int_equal(p.b.news.kind, RDZV_NEWS_STOP);
    end_pair(&p);
}

static void untold_news_are_told_after_the_restart(void **s)
{
    struct pair p;
    struct buf out = {0};
    (void)s;
    begin_pair(&p);
    rig_close(&p.a, JOBS_SILENT);
    rig_say(&p.b, RDZV_FAIL, 1, 7);
    settle(&p.d);
    kill_and_start(&p);
    assert_int_equal(jobs_status_from(p.d.j, NULL, "r", 0, &out, NULL), 0);
    assert_non_null(strstr(out.data, "\"cause\":\"rank 0 broke\""));
    buf_free(&out);
    open_pair(&p);
    p.a.news.seq = 1;
    assert_int_equal(rig_next(&p.a), 0);
    settle(&p.d);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_STOP);
    assert_string_equal(p.a.news.cause.text, "rank 0 broke");
    end_pair(&p);
}

/* The log of a job that has seen two rounds and its end, cut at every byte (every fifth of them today): each cut is a
 * state the job was in. */
static void a_log_cut_anywhere_loads(void **s)
{
    struct pair p;
    struct daemon d;
    struct buf log = {0};
    char path[160], copy[160];
    struct err e;
    uint64_t round = 0;
    (void)s;
    begin_pair(&p);
    rig_say(&p.b, RDZV_FAIL, 1, 7);
    rig_join(&p.a, &p.c, 1);
    rig_join(&p.b, &p.c, 1);
    rig_say(&p.a, RDZV_DONE, 2, 0);
    rig_say(&p.b, RDZV_DONE, 2, 0);
    settle(&p.d);
    assert_true(log_path(&p.d, path, sizeof path));
    read_log(path, &log);
    make_dir(&d);
    assert_int_equal(start(&d), 0);
    stop(&d);
    snprintf(copy, sizeof copy, "%s/jobs/%s", d.dir, strrchr(path, '/') + 1);
    for (size_t n = 0; n <= log.len; n++) {
        struct presence now = {0};
        if (n < log.len && !is_for_today(n))
            continue;
        write_log(copy, log.data, n);
        if (start(&d) < 0)
            fail_msg("cut at %zu of %zu: %s", n, log.len, d.e.text);
        if (jobs_progress(d.j, NULL, "r", &now, &e) == 0) {
            assert_true(now.round >= round);
            round = now.round;
        } else {
            assert_int_equal(round, 0);
        }
        stop(&d);
    }
    assert_int_equal(round, 2);
    buf_free(&log);
    remove_dir(&d);
    end_pair(&p);
}

static int64_t age_of(struct jobs *j)
{
    struct buf out = {0};
    int64_t age = -1;
    assert_int_equal(jobs_status_from(j, NULL, "r", 0, &out, NULL), 0);
    const char *at = strstr(out.data, "\"age_ms\":");
    assert_non_null(at);
    age = strtoll(at + strlen("\"age_ms\":"), NULL, 10);
    buf_free(&out);
    return age;
}

static void a_job_is_as_old_as_before_the_restart(void **s)
{
    struct pair p;
    struct daemon killed;
    (void)s;
    begin_pair(&p);
    rig_now += 2000;
    rig_say(&p.b, RDZV_FAIL, 1, 7);
    settle(&p.d);
    rig_now += 3000;
    assert_int_equal(age_of(p.d.j), 5000);
    make_dir(&killed);
    char command[256];
    snprintf(command, sizeof command, "cp -r '%s/.' '%s/'", p.d.dir, killed.dir);
    assert_int_equal(system(command), 0);
    close_pair(&p);
    stop(&p.d);
    rig_now += 1000000;
    assert_int_equal(start(&p.d), 0);
    assert_int_equal(age_of(p.d.j), 5000); /* as it ended in good order */
    settle(&p.d);
    stop(&p.d);
    assert_int_equal(start(&killed), 0);
    assert_int_equal(age_of(killed.j), 2000); /* as of its last decision */
    stop(&killed);
    remove_dir(&killed);
    remove_dir(&p.d);
}

static void a_damaged_log_is_set_aside(void **s)
{
    struct pair p;
    struct daemon after;
    struct buf log = {0};
    struct jobs_stats stats;
    char path[160], aside[176];
    (void)s;
    begin_pair(&p);
    rig_say(&p.b, RDZV_FAIL, 1, 7);
    settle(&p.d);
    kill_daemon(&p, &after);
    assert_true(log_path(&after, path, sizeof path));
    read_log(path, &log);
    log.data[log.len * 2 / 3] ^= 1; /* the job itself has been read by then */
    rdzv_frame_put(&log, 99, "", 0);
    write_log(path, log.data, log.len);
    assert_int_equal(start(&after), 0);
    jobs_stats(after.j, &stats);
    assert_int_equal(stats.jobs, 0);
    assert_int_equal(stats.damaged, 1);
    settle(&after);
    snprintf(aside, sizeof aside, "%s.damaged", path);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(aside, F_OK), 0);
    stop(&after);
    after.e.text[0] = 0;
    assert_int_equal(start(&after), 0); /* what is aside stays there */
    jobs_stats(after.j, &stats);
    assert_int_equal(stats.damaged, 0);
    assert_int_equal(access(aside, F_OK), 0);
    stop(&after);
    buf_free(&log);
    remove_dir(&after);
}

static void end_of_a_job_with_a_fault(const struct agent *a)
{
    assert_int_equal(a->news.kind, RDZV_NEWS_END);
    assert_int_equal(a->news.exit_code, EXIT_INTERNAL);
    assert_non_null(strstr(a->news.cause.text, "the rendezvous has a fault in itself and ended the job: counted are"));
}

static void break_machine(struct leader *l)
{
    leader_machine(l)->members++;
}

static void break_leader(struct leader *l)
{
    l->elders++;
}

static void check_broken_job(void (*break_it)(struct leader *l))
{
    struct pair p;
    struct agent other;
    struct jobs_stats stats;
    char path[160], aside[176];
    begin_pair(&p);
    assert_true(log_path(&p.d, path, sizeof path));
    snprintf(aside, sizeof aside, "%s.damaged", path);
    const struct rdzv_config one = rig_config(1, 1);
    rig_open(p.d.j, &other, "other", "node3", "10.0.0.4");
    assert_int_equal(rig_join(&other, &one, 0), 0);
    rig_next(&other);
    settle(&p.d);
    break_it(job_find_(p.d.j, "alice", "r")->reign.leader);
    assert_int_equal(rig_say(&p.b, RDZV_FAIL, 1, 7), 0);
    settle(&p.d);
    rig_next(&p.a);
    rig_next(&p.b);
    end_of_a_job_with_a_fault(&p.a);
    end_of_a_job_with_a_fault(&p.b);
    rig_next(&other);
    assert_int_equal(other.news.kind, RDZV_NEWS_ROUND);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(aside, F_OK), 0);
    jobs_stats(p.d.j, &stats);
    assert_int_equal(stats.damaged, 1);
    assert_int_equal(stats.failed, 1);
    rig_pass(p.d.j, 2 * LEADER_LINGER_MS); /* its end was kept for those that come late; what is aside stays */
    settle(&p.d);
    assert_null(job_find_(p.d.j, "alice", "r"));
    assert_int_equal(access(aside, F_OK), 0);
    rig_close(&other, JOBS_SILENT);
    end_pair(&p);
}

/* The memory of a job goes wrong under a daemon with two of them. */
static void a_broken_rule_ends_its_job_alone(void **s)
{
    (void)s;
    check_broken_job(break_machine);
    check_broken_job(break_leader);
}

/* A log in good order, each line of which can be read, but for a member that has news of another instance. */
static void craft_news(const char *path)
{
    struct buf log = {0}, text = {0}, crafted = {0};
    size_t good;
    read_log(path, &log);
    assert_int_equal(state_log_parse(log.data, log.len, &text, &good, NULL), 0);
    char *at = strstr(text.data, "@news ");
    assert_non_null(at);
    assert_non_null(at = strstr(at, " instance="));
    memcpy(at + strlen(" instance="), "ffffffff", 8);
    state_log_header(&crafted);
    assert_int_equal(rdzv_frame_put(&crafted, 1, text.data, text.len), 0);
    write_log(path, crafted.data, crafted.len);
    buf_free(&log);
    buf_free(&text);
    buf_free(&crafted);
}

/* Its job is not served, and the other one of the same directory goes on. */
static void a_log_whose_replay_breaks_a_rule_is_set_aside_alone(void **s)
{
    struct pair p;
    struct daemon after;
    struct agent other;
    struct jobs_stats stats;
    char path[160], aside[176];
    (void)s;
    begin_pair(&p);
    assert_true(log_path(&p.d, path, sizeof path));
    const struct rdzv_config one = rig_config(1, 1);
    rig_open(p.d.j, &other, "other", "node3", "10.0.0.4");
    assert_int_equal(rig_join(&other, &one, 0), 0);
    rig_next(&other);
    settle(&p.d);
    const uint64_t seq = other.news.seq;
    rig_close(&other, JOBS_SILENT);
    char name[80];
    snprintf(name, sizeof name, "%.79s", strrchr(path, '/'));
    kill_daemon(&p, &after);
    snprintf(path, sizeof path, "%s/jobs%s", after.dir, name);
    craft_news(path);
    assert_int_equal(start(&after), 0);
    jobs_stats(after.j, &stats);
    assert_int_equal(stats.damaged, 1);
    assert_int_equal(stats.jobs, 1);
    assert_null(job_find_(after.j, "alice", "r"));
    snprintf(aside, sizeof aside, "%s.damaged", path);
    assert_int_equal(access(aside, F_OK), 0);
    rig_open(after.j, &other, "other", "node3", "10.0.0.4");
    other.news.seq = seq;
    assert_int_equal(rig_next(&other), 0);
    assert_int_equal(rig_say(&other, RDZV_DONE, 1, 0), 0);
    settle(&after);
    assert_int_equal(other.news.kind, RDZV_NEWS_END);
    assert_int_equal(other.news.exit_code, 0);
    rig_close(&other, JOBS_SILENT);
    stop(&after);
    remove_dir(&after);
}

/* Whoever started the wrong version can go back to the right one: nothing is renamed, written or counted. */
static void a_directory_of_another_version_is_refused_as_it_is(void **s)
{
    struct pair p;
    struct buf log = {0}, after = {0};
    struct state_dir *dir;
    uint64_t epoch;
    char path[160];
    struct err e;
    (void)s;
    begin_pair(&p);
    close_pair(&p);
    stop(&p.d);
    assert_true(log_path(&p.d, path, sizeof path));
    read_log(path, &log);
    log.data[strlen("rendezvousd-log ")] = '9';
    write_log(path, log.data, log.len);
    assert_int_equal(uv_loop_init(&p.d.loop), 0);
    assert_int_equal(state_dir_open(&dir, &p.d.loop, p.d.dir, &epoch, &e), ERR_MISMATCH);
    assert_int_equal(uv_loop_close(&p.d.loop), 0);
    assert_non_null(strstr(e.text, path));
    assert_non_null(strstr(e.text, "its format is 9"));
    read_log(path, &after);
    assert_int_equal(after.len, log.len);
    assert_memory_equal(after.data, log.data, log.len);
    log.data[strlen("rendezvousd-log ")] = '3';
    write_log(path, log.data, log.len);
    assert_int_equal(start(&p.d), 0);
    assert_int_equal(p.d.epoch, 2);
    stop(&p.d);
    buf_free(&log);
    buf_free(&after);
    remove_dir(&p.d);
}

/* The same in the words of the version before. */
static void write_as_before(const char *path)
{
    struct buf log = {0}, text = {0}, older = {0};
    size_t good;
    read_log(path, &log);
    assert_int_equal(state_log_parse(log.data, log.len, &text, &good, NULL), 0);
    for (char *at = text.data; (at = strstr(at, " format=3 "));)
        at[strlen(" format=")] = '2';
    assert_int_equal(buf_addstr(&older, "rendezvousd-log 2\n"), 0);
    assert_int_equal(rdzv_frame_put(&older, 1, text.data, text.len), 0);
    write_log(path, older.data, older.len);
    buf_free(&log);
    buf_free(&text);
    buf_free(&older);
}

static void a_log_of_the_version_before_is_read_and_written_anew(void **s)
{
    struct pair p;
    struct presence now;
    struct buf log = {0};
    char path[160];
    (void)s;
    begin_pair(&p);
    close_pair(&p);
    stop(&p.d);
    assert_true(log_path(&p.d, path, sizeof path));
    write_as_before(path);
    assert_int_equal(start(&p.d), 0);
    assert_int_equal(jobs_progress(p.d.j, NULL, "r", &now, NULL), 0);
    assert_int_equal(now.round, 1);
    stop(&p.d);
    read_log(path, &log);
    assert_memory_equal(log.data, "rendezvousd-log 3\n", 18);
    assert_non_null(strstr(log.data, "format=3"));
    assert_null(strstr(log.data, "format=2"));
    buf_free(&log);
    remove_dir(&p.d);
}

static void finished_and_forgotten_jobs_leave_nothing(void **s)
{
    struct pair p;
    char path[160];
    (void)s;
    begin_pair(&p);
    assert_true(log_path(&p.d, path, sizeof path));
    rig_say(&p.a, RDZV_DONE, 1, 0);
    rig_say(&p.b, RDZV_DONE, 1, 0);
    rig_pass(p.d.j, LEADER_LINGER_MS);
    settle(&p.d);
    assert_false(log_path(&p.d, path, sizeof path));
    end_pair(&p);
}

static void a_long_life_takes_bounded_room(void **s)
{
    struct pair p;
    struct daemon after;
    struct stat st;
    struct presence now;
    char path[160];
    off_t most = 0;
    (void)s;
    begin_pair(&p);
    for (int i = 0; i < 8000; i++) {
        rig_close(&p.b, JOBS_SILENT);
        rig_open(p.d.j, &p.b, "r", "node2", "10.0.0.3");
        p.b.news.seq = 1;
        assert_int_equal(rig_next(&p.b), 0);
        if (i % 100)
            continue;
        settle(&p.d);
        assert_true(log_path(&p.d, path, sizeof path));
        assert_int_equal(stat(path, &st), 0);
        most = st.st_size > most ? st.st_size : most;
    }
    print_message("# 16000 steps, largest file %lld bytes\n", (long long)most);
    assert_in_range(most, 100000, 3 << 20);
    settle(&p.d);
    kill_daemon(&p, &after);
    assert_int_equal(start(&after), 0);
    assert_int_equal(jobs_progress(after.j, NULL, "r", &now, NULL), 0);
    assert_int_equal(now.state, RDZV_RUNNING);
    stop(&after);
    remove_dir(&after);
}

/* --- bad disks */

/* The process that writes stands still, as it does behind a disk that does not answer. */
static void stop_writer(const struct daemon *d)
{
    int status;
    kill(d->p->process->pid, SIGSTOP);
    assert_int_equal(waitpid(d->p->process->pid, &status, WUNTRACED), d->p->process->pid);
    assert_true(WIFSTOPPED(status));
}

static void a_disk_that_stands_still_delays_no_heartbeat(void **s)
{
    struct pair p;
    (void)s;
    begin_pair(&p);
    rig_next(&p.a);
    stop_writer(&p.d);
    assert_int_equal(rig_say(&p.b, RDZV_FAIL, 1, 7), 0); /* claims are taken */
    for (int i = 0; i < 10; i++) {
        rig_pass(p.d.j, 1000);
        assert_int_equal(rig_next(&p.a), 0); /* heartbeats are answered */
        uv_run(&p.d.loop, UV_RUN_NOWAIT);
    }
    assert_int_equal(p.a.told, 1); /* but nothing is told that is not on disk */
    kill(p.d.p->process->pid, SIGCONT);
    settle(&p.d);
    assert_int_equal(p.a.told, 2);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_STOP);
    end_pair(&p);
}

static void a_disk_that_stands_still_holds_up_no_end(void **s)
{
    struct daemon again;
    struct pair p;
    (void)s;
    begin_pair(&p);
    rig_next(&p.a);
    stop_writer(&p.d);
    rig_say(&p.b, RDZV_FAIL, 1, 7);
    const pid_t writer = p.d.p->process->pid;
    close_pair(&p);
    stop(&p.d);
    again = p.d;
    assert_int_equal(uv_loop_init(&again.loop), 0);
    assert_int_equal(state_dir_open(&again.p, &again.loop, again.dir, &again.epoch, &again.e), -EBUSY);
    assert_int_equal(uv_loop_close(&again.loop), 0);
    kill(writer, SIGCONT);
    assert_int_equal(waitpid(writer, NULL, 0), writer);
    assert_int_equal(start(&again), 0); /* what was sent is there */
    stop(&again);
    remove_dir(&again);
}

/* Until the news of its next turn are told. */
static void await_news(struct pair *p)
{
    while (p->a.news.kind != RDZV_NEWS_STOP)
        uv_run(&p->d.loop, UV_RUN_ONCE);
}

/* No file in the directory grows beyond so many bytes. */
static void set_room(const struct daemon *d, rlim_t bytes)
{
    struct rlimit room;
    assert_int_equal(prlimit(d->p->process->pid, RLIMIT_FSIZE, NULL, &room), 0);
    room.rlim_cur = bytes;
    assert_int_equal(prlimit(d->p->process->pid, RLIMIT_FSIZE, &room, NULL), 0);
}

static size_t jobs_without_log(const struct daemon *d)
{
    struct jobs_stats stats;
    jobs_stats(d->j, &stats);
    return stats.unlogged;
}

static bool is_told_durable(const struct daemon *d)
{
    struct buf out = {0};
    assert_int_equal(jobs_status_from(d->j, NULL, "r", 0, &out, NULL), 0);
    const bool durable = strstr(out.data, "\"durable\":true");
    assert_true(durable || strstr(out.data, "\"durable\":false"));
    buf_free(&out);
    return durable;
}

/* Both break and join again; a has been told of the stop. */
static void break_and_join(struct pair *p)
{
    rig_next(&p->a);
    rig_say(&p->b, RDZV_FAIL, 1, 7);
    await_news(p);
    rig_join(&p->a, &p->c, 1);
    rig_next(&p->a);
    rig_join(&p->b, &p->c, 1);
    rig_next(&p->b);
}

static void await_round_2(struct pair *p)
{
    while (p->a.news.round != 2)
        uv_run(&p->d.loop, UV_RUN_ONCE);
}

/* Of the job that has gone on to its second round: all of it is there. */
static void check_restart(struct pair *p)
{
    struct presence now;
    struct buf out = {0};
    char instance[LEADER_INSTANCE_LEN + 1];
    strcpy(instance, p->a.joined.instance);
    kill_and_start(p);
    assert_int_equal(jobs_progress(p->d.j, NULL, "r", &now, NULL), 0);
    assert_int_equal(now.round, 2);
    assert_int_equal(jobs_status_from(p->d.j, NULL, "r", 0, &out, NULL), 0);
    assert_non_null(strstr(out.data, instance));
    assert_non_null(strstr(out.data, "\"restart_count\":1"));
    assert_non_null(strstr(out.data, "\"cause\":\"rank 0 broke\""));
    buf_free(&out);
    stop(&p->d);
    remove_dir(&p->d);
}

static void a_writer_that_is_killed_costs_what_it_had_until_the_next_one_writes(void **s)
{
    struct pair p;
    char path[160];
    (void)s;
    begin_pair(&p);
    assert_true(log_path(&p.d, path, sizeof path));
    rig_next(&p.a);
    stop_writer(&p.d);
    rig_say(&p.b, RDZV_FAIL, 1, 7);
    kill(p.d.p->process->pid, SIGKILL);
    await_news(&p);                                  /* the job goes on */
    assert_false(log_path(&p.d, path, sizeof path)); /* rather unknown than wrong */
    assert_int_equal(jobs_without_log(&p.d), 1);
    rig_join(&p.a, &p.c, 1);
    rig_next(&p.a);
    rig_join(&p.b, &p.c, 1);
    rig_next(&p.b);
    await_round_2(&p);
    settle(&p.d);
    assert_true(log_path(&p.d, path, sizeof path));
    assert_int_equal(jobs_without_log(&p.d), 0);
    check_restart(&p);
}

static void a_full_disk_costs_the_log_until_there_is_room(void **s)
{
    struct pair p;
    char path[160];
    (void)s;
    begin_pair(&p);
    assert_int_equal(jobs_without_log(&p.d), 0);
    assert_true(is_told_durable(&p.d));
    set_room(&p.d, 16);
    break_and_join(&p);
    assert_false(log_path(&p.d, path, sizeof path)); /* rather unknown than wrong */
    await_round_2(&p);
    assert_int_equal(jobs_without_log(&p.d), 1);
    assert_false(is_told_durable(&p.d));
    set_room(&p.d, RLIM_INFINITY);
    settle(&p.d);
    assert_true(log_path(&p.d, path, sizeof path));
    assert_int_equal(jobs_without_log(&p.d), 0);
    assert_true(is_told_durable(&p.d));
    check_restart(&p);
}

/* From the moment on that it is asked for: or a restart would not know what was told. */
static void news_wait_for_a_log_that_is_written_anew(void **s)
{
    struct pair p;
    (void)s;
    begin_pair(&p);
    rig_next(&p.a);
    set_room(&p.d, 16);
    rig_say(&p.b, RDZV_FAIL, 1, 7);
    await_news(&p);
    while (p.d.p->flies)
        uv_run(&p.d.loop, UV_RUN_ONCE);
    set_room(&p.d, RLIM_INFINITY);
    stop_writer(&p.d);
    while (!p.d.p->flies)
        uv_run(&p.d.loop, UV_RUN_ONCE);
    const int told = p.a.told;
    rig_join(&p.a, &p.c, 1);
    rig_next(&p.a);
    rig_join(&p.b, &p.c, 1);
    rig_next(&p.b);
    uv_run(&p.d.loop, UV_RUN_NOWAIT);
    assert_int_equal(p.a.told, told);
    kill(p.d.p->process->pid, SIGCONT);
    await_round_2(&p);
    check_restart(&p); /* as it is at that moment */
}

static void what_is_lost_is_written_at_the_end_too(void **s)
{
    struct pair p;
    struct presence now;
    char path[160];
    (void)s;
    begin_pair(&p);
    set_room(&p.d, 16);
    break_and_join(&p);
    await_round_2(&p);
    close_pair(&p);
    assert_false(log_path(&p.d, path, sizeof path));
    set_room(&p.d, RLIM_INFINITY);
    stop(&p.d);
    assert_int_equal(start(&p.d), 0);
    assert_int_equal(jobs_progress(p.d.j, NULL, "r", &now, NULL), 0);
    assert_int_equal(now.round, 2);
    stop(&p.d);
    remove_dir(&p.d);
}

enum { MANY = 5 };

/* One after the other asks whether there is room, and then all have their logs again. */
static void all_logs_come_back_together(void **s)
{
    static const char *const runs[MANY] = {"r0", "r1", "r2", "r3", "r4"};
    struct daemon d;
    struct agent a[MANY];
    const struct rdzv_config c = rig_config(1, 1);
    (void)s;
    make_dir(&d);
    assert_int_equal(start(&d), 0);
    for (int i = 0; i < MANY; i++) {
        rig_open(d.j, &a[i], runs[i], "n", "10.0.0.2");
        assert_int_equal(rig_join(&a[i], &c, 0), 0);
        rig_next(&a[i]);
    }
    settle(&d);
    set_room(&d, 16);
    for (int i = 0; i < MANY; i++) {
        rig_next(&a[i]);
        rig_say(&a[i], RDZV_FAIL, 1, 7);
    }
    for (int i = 0; i < MANY; i++)
        while (a[i].news.kind != RDZV_NEWS_STOP)
            uv_run(&d.loop, UV_RUN_ONCE);
    assert_int_equal(jobs_without_log(&d), MANY);
    set_room(&d, RLIM_INFINITY);
    while (jobs_without_log(&d) == MANY)
        uv_run(&d.loop, UV_RUN_ONCE);
    while (d.p->flies || d.p->dirty)
        uv_run(&d.loop, UV_RUN_ONCE);
    assert_int_equal(jobs_without_log(&d), 0);
    for (int i = 0; i < MANY; i++)
        rig_close(&a[i], JOBS_SILENT);
    struct daemon after;
    char command[256];
    make_dir(&after);
    snprintf(command, sizeof command, "cp -r '%s/.' '%s/'", d.dir, after.dir);
    assert_int_equal(system(command), 0);
    stop(&d);
    remove_dir(&d);
    assert_int_equal(start(&after), 0);
    struct jobs_stats stats;
    jobs_stats(after.j, &stats);
    assert_int_equal(stats.jobs, MANY);
    stop(&after);
    remove_dir(&after);
}

/* A folder in its place can be neither written nor unlinked. */
static void put_folder(const struct pair *p, const char *path, char away[176])
{
    snprintf(away, 176, "%s.away", p->d.dir);
    assert_int_equal(rename(path, away), 0);
    assert_int_equal(mkdir(path, 0700), 0);
}

/* And its log of the time before is there again. */
static void take_folder_away(const char *path, const char *away)
{
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rename(away, path), 0);
}

static void a_log_that_cannot_be_removed_is_written_anew_when_it_can(void **s)
{
    struct pair p;
    char path[160], away[176];
    (void)s;
    begin_pair(&p);
    assert_true(log_path(&p.d, path, sizeof path));
    put_folder(&p, path, away);
    break_and_join(&p);
    take_folder_away(path, away);
    await_round_2(&p);
    settle(&p.d);
    assert_int_equal(jobs_without_log(&p.d), 0);
    check_restart(&p);
}

/* Of a job that is forgotten. */
static void forget_it(struct pair *p)
{
    rig_say(&p->a, RDZV_DONE, 1, 0);
    rig_say(&p->b, RDZV_DONE, 1, 0);
    rig_pass(p->d.j, LEADER_LINGER_MS);
    while (!p->d.p->homes->refused)
        uv_run(&p->d.loop, UV_RUN_ONCE);
}

static void a_log_that_cannot_be_removed_goes_when_it_can(void **s)
{
    struct pair p;
    char path[160], away[176];
    (void)s;
    begin_pair(&p);
    assert_true(log_path(&p.d, path, sizeof path));
    put_folder(&p, path, away);
    forget_it(&p);
    take_folder_away(path, away);
    settle(&p.d);
    assert_false(log_path(&p.d, path, sizeof path));
    end_pair(&p);
}

/* What is left when the daemon ends is tried once more then. */
static void a_log_that_could_not_be_removed_goes_at_the_end(void **s)
{
    struct pair p;
    char path[160], away[176];
    (void)s;
    begin_pair(&p);
    assert_true(log_path(&p.d, path, sizeof path));
    put_folder(&p, path, away);
    forget_it(&p);
    close_pair(&p);
    take_folder_away(path, away);
    stop(&p.d);
    assert_false(log_path(&p.d, path, sizeof path));
    remove_dir(&p.d);
}

/* Until its next try nothing happens. */
static bool rests(const struct state_dir *d)
{
    return d->retry && uv_timer_get_due_in(d->retry) > 0 && !d->flies && !d->dirty;
}

/* Neither are processes started one after the other meanwhile. */
static void a_directory_that_is_gone_for_a_while_brings_no_old_log_back(void **s)
{
    struct pair p;
    char path[160], away[80];
    int started = 0;
    (void)s;
    begin_pair(&p);
    assert_true(log_path(&p.d, path, sizeof path));
    snprintf(away, sizeof away, "%s.away", p.d.dir);
    rig_next(&p.a);
    stop_writer(&p.d);
    rig_say(&p.b, RDZV_FAIL, 1, 7);
    assert_int_equal(rename(p.d.dir, away), 0);
    pid_t writer = p.d.p->process->pid;
    kill(writer, SIGKILL);
    await_news(&p);
    while (started == 0 || (!rests(p.d.p) && started <= 3)) { /* one more try, and what comes of it */
        uv_run(&p.d.loop, UV_RUN_ONCE);
        started += p.d.p->process->pid != writer;
        writer = p.d.p->process->pid;
    }
    assert_in_range(started, 1, 3);
    rig_join(&p.a, &p.c, 1);
    rig_next(&p.a);
    rig_join(&p.b, &p.c, 1);
    rig_next(&p.b);
    await_round_2(&p);
    assert_int_equal(rename(away, p.d.dir), 0);
    settle(&p.d);
    assert_int_equal(jobs_without_log(&p.d), 0);
    check_restart(&p);
}

static void a_decision_too_large_for_a_log_costs_the_log(void **s)
{
    struct daemon d;
    struct rdzv_home *h;
    struct buf huge = {0};
    char path[160];
    (void)s;
    make_dir(&d);
    start(&d);
    assert_int_equal(state_dir_home(d.p, "huge", &h, &d.e), 0);
    append(h, "small");
    settle(&d);
    assert_true(log_path(&d, path, sizeof path));
    assert_int_equal(buf_reserve(&huge, STATE_RECORD_MAX + 1), 0);
    huge.len = STATE_RECORD_MAX + 1;
    assert_true(rdzv_home_append(h, &(struct rdzv_write){.decision = &huge}, NULL) > 0);
    buf_free(&huge);
    settle(&d);
    assert_true(h->stands >= h->asked);
    assert_false(log_path(&d, path, sizeof path));
    h->ops->close(h);
    stop(&d);
    remove_dir(&d);
}

/* --- others who can write there */

/* Opens it, and what is within it, and lets it go. */
static int try_to_open(struct daemon *d)
{
    struct state_dir *within = NULL;
    int rc;
    assert_int_equal(uv_loop_init(&d->loop), 0);
    rc = state_dir_open(&d->p, &d->loop, d->dir, &d->epoch, &d->e);
    if (rc == 0) {
        rc = state_dir_open_within(&within, d->p, "history", &d->e);
        state_dir_close(within);
        state_dir_close(d->p);
    }
    uv_run(&d->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&d->loop), 0);
    return rc;
}

static void expect_refusal(struct daemon *d, const char *why)
{
    const int rc = try_to_open(d);
    if (rc != ERR_REFUSED || !strstr(d->e.text, why))
        fail_msg("%d '%s', expected '%s'", rc, rc < 0 ? d->e.text : "", why);
}

static char *in_dir(const struct daemon *d, const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", d->dir, name);
    return path;
}

static void links_in_it_are_not_followed(void **s)
{
    static const char *const files[] = {"epoch", "lock", "history/epoch", "history/lock"};
    static const char *const folders[] = {"jobs", "history", "history/jobs"};
    struct daemon d;
    struct stat st;
    char victim[96], aside[96];
    (void)s;
    make_dir(&d);
    snprintf(victim, sizeof victim, "%s.victim", d.dir);
    snprintf(aside, sizeof aside, "%s.aside", d.dir);
    write_log(victim, "7\n", 2);
    assert_int_equal(symlink(victim, in_dir(&d, "epoch.new")), 0);
    assert_int_equal(try_to_open(&d), 0);
    assert_int_equal(lstat(in_dir(&d, "epoch"), &st), 0);
    assert_true(S_ISREG(st.st_mode));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        assert_int_equal(rename(in_dir(&d, files[i]), aside), 0);
        assert_int_equal(symlink(victim, in_dir(&d, files[i])), 0);
        expect_refusal(&d, "it is a link");
        assert_int_equal(rename(aside, in_dir(&d, files[i])), 0);
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        assert_int_equal(rename(in_dir(&d, folders[i]), aside), 0);
        assert_int_equal(symlink(aside, in_dir(&d, folders[i])), 0);
        expect_refusal(&d, "a link to one");
        assert_int_equal(unlink(in_dir(&d, folders[i])), 0);
        assert_int_equal(rename(aside, in_dir(&d, folders[i])), 0);
    }
    assert_int_equal(try_to_open(&d), 0);
    struct buf all = {0};
    read_log(victim, &all);
    assert_int_equal(all.len, 2);
    assert_memory_equal(all.data, "7\n", 2);
    buf_free(&all);
    assert_int_equal(unlink(victim), 0);
    remove_dir(&d);
}

static int take_none(void *arg, struct rdzv_home *h, struct err *e)
{
    struct buf text = {0};
    (void)arg;
    const int rc = h->ops->load(h, &text, e);
    buf_free(&text);
    return rc;
}

static void a_log_that_is_a_link_is_not_read(void **s)
{
    struct daemon d;
    struct stat st;
    (void)s;
    make_dir(&d);
    assert_int_equal(try_to_open(&d), 0);
    assert_int_equal(symlink("/etc/passwd", in_dir(&d, "jobs/x-1.log")), 0);
    assert_int_equal(uv_loop_init(&d.loop), 0);
    assert_int_equal(state_dir_open(&d.p, &d.loop, d.dir, &d.epoch, &d.e), 0);
    assert_int_equal(state_dir_each(d.p, take_none, NULL, &d.e), ERR_REFUSED);
    assert_non_null(strstr(d.e.text, "'jobs/x-1.log'"));
    assert_non_null(strstr(d.e.text, "it is a link"));
    state_dir_close(d.p);
    uv_run(&d.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&d.loop), 0);
    assert_int_equal(lstat(in_dir(&d, "jobs/x-1.log"), &st), 0); /* and not set aside */
    remove_dir(&d);
}

static void what_others_may_write_to_is_refused(void **s)
{
    struct daemon d;
    (void)s;
    make_dir(&d);
    assert_int_equal(try_to_open(&d), 0);
    assert_int_equal(chmod(d.dir, 0775), 0);
    expect_refusal(&d, "may be written by others (mode 0775): chmod go-w it");
    assert_int_equal(chmod(d.dir, 0777), 0);
    expect_refusal(&d, "mode 0777");
    assert_int_equal(chmod(d.dir, 01777), 0); /* nobody else can take away what is ours */
    assert_int_equal(try_to_open(&d), 0);
    static const char *const folders[] = {"jobs", "history", "history/jobs"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        assert_int_equal(chmod(in_dir(&d, folders[i]), 01777), 0);
        expect_refusal(&d, "mode 1777");
        assert_int_equal(chmod(in_dir(&d, folders[i]), 0700), 0);
    }
    if (geteuid() == 0) {
        for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
            assert_int_equal(chown(in_dir(&d, folders[i]), 65534, 65534), 0);
            expect_refusal(&d, "belongs to uid 65534, expected our own (0) or root");
            assert_int_equal(chown(in_dir(&d, folders[i]), 0, 0), 0);
        }
        assert_int_equal(chown(in_dir(&d, "epoch"), 65534, 65534), 0);
        expect_refusal(&d, "another user's");
        assert_int_equal(chown(in_dir(&d, "epoch"), 0, 0), 0);
        assert_int_equal(chown(d.dir, 65534, 65534), 0);
        expect_refusal(&d, "belongs to uid 65534");
    }
    remove_dir(&d);
}

static void it_may_be_a_link_of_our_own(void **s)
{
    struct daemon d, real;
    (void)s;
    make_dir(&real);
    d = real;
    strcat(d.dir, "-l");
    assert_int_equal(symlink(real.dir, d.dir), 0);
    assert_int_equal(try_to_open(&d), 0);
    strcat(d.dir, "/");
    assert_int_equal(try_to_open(&d), 0);
    d.dir[strlen(d.dir) - 1] = 0;
    if (geteuid() == 0) {
        assert_int_equal(lchown(d.dir, 65534, 65534), 0);
        expect_refusal(&d, "is a symbolic link of another user");
    }
    assert_int_equal(unlink(d.dir), 0);
    remove_dir(&real);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_torn_log_is_good_up_to_there),
        cmocka_unit_test(a_tail_of_zeroes_or_rubbish_is_torn),
        cmocka_unit_test(damage_before_the_end_is_refused),
        cmocka_unit_test(records_do_not_change_places),
        cmocka_unit_test(the_version_before_is_read_and_no_other),
        cmocka_unit_test(the_epoch_counts_openings),
        cmocka_unit_test(two_daemons_never_share_a_directory),
        cmocka_unit_test(who_hears_of_the_disk_may_write_again),
        cmocka_unit_test(a_damaged_epoch_is_refused),
        cmocka_unit_test(news_wait_for_the_disk),
        cmocka_unit_test(a_restart_is_not_noticed),
        cmocka_unit_test(who_does_not_come_back_is_given_up),
        cmocka_unit_test(who_was_silent_before_has_a_full_time_too),
        cmocka_unit_test(untold_news_are_told_after_the_restart),
        cmocka_unit_test(a_log_cut_anywhere_loads),
        cmocka_unit_test(a_job_is_as_old_as_before_the_restart),
        cmocka_unit_test(a_damaged_log_is_set_aside),
        cmocka_unit_test(a_broken_rule_ends_its_job_alone),
        cmocka_unit_test(a_log_whose_replay_breaks_a_rule_is_set_aside_alone),
        cmocka_unit_test(a_directory_of_another_version_is_refused_as_it_is),
        cmocka_unit_test(a_log_of_the_version_before_is_read_and_written_anew),
        cmocka_unit_test(finished_and_forgotten_jobs_leave_nothing),
        cmocka_unit_test(a_long_life_takes_bounded_room),
        cmocka_unit_test(a_disk_that_stands_still_delays_no_heartbeat),
        cmocka_unit_test(a_disk_that_stands_still_holds_up_no_end),
        cmocka_unit_test(a_writer_that_is_killed_costs_what_it_had_until_the_next_one_writes),
        cmocka_unit_test(a_full_disk_costs_the_log_until_there_is_room),
        cmocka_unit_test(news_wait_for_a_log_that_is_written_anew),
        cmocka_unit_test(what_is_lost_is_written_at_the_end_too),
        cmocka_unit_test(all_logs_come_back_together),
        cmocka_unit_test(a_log_that_cannot_be_removed_is_written_anew_when_it_can),
        cmocka_unit_test(a_log_that_cannot_be_removed_goes_when_it_can),
        cmocka_unit_test(a_log_that_could_not_be_removed_goes_at_the_end),
        cmocka_unit_test(a_directory_that_is_gone_for_a_while_brings_no_old_log_back),
        cmocka_unit_test(a_decision_too_large_for_a_log_costs_the_log),
        cmocka_unit_test(links_in_it_are_not_followed),
        cmocka_unit_test(a_log_that_is_a_link_is_not_read),
        cmocka_unit_test(what_others_may_write_to_is_refused),
        cmocka_unit_test(it_may_be_a_link_of_our_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
