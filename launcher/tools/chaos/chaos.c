/* `crun chaos`: reads the plan, inflicts faults in time, and ends them (chaos.h). */
#include "launcher/tools/chaos/chaos.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/job/exitcode.h"
#include "launcher/guard/title.h"
#include "launcher/tools/chaos/chaos_draw.h"
#include "launcher/tools/chaos/chaos_find.h"
#include "launcher/tools/chaos/chaos_inflict.h"
#include "launcher/tools/chaos/chaos_means.h"
#include "launcher/tools/chaos/chaos_table.h"
#include "launcher/tools/chaos/chaos_target.h"
#include "launcher/tools/chaos/chaos_watcher.h"

#define PLAN_BYTES_MAX (1 << 20)
#define LOOK_MS 1000 /* between two looks whether anybody is there */

struct chaos_config {
    const char *plan;
    int64_t seed;
    bool dry_run;
};

static const struct arg_spec specs[] = {
    ARG_GROUP("Chaos"),
    {.name = "plan",
     .type = ARG_STRING,
     .at = offsetof(struct chaos_config, plan),
     .metavar = "FILE",
     .required = true,
     .help = "what is to happen, as docs/guide/chaos.md describes it; '-': standard input"},
    {.name = "seed",
     .type = ARG_INT,
     .at = offsetof(struct chaos_config, seed),
     .def = "-1",
     .min = -1,
     .max = INT32_MAX,
     .help = "the same plan, seed and TARGETs give the same sequence of faults; -1: one is drawn, and printed"},
    {.name = "dry-run",
     .type = ARG_FLAG,
     .at = offsetof(struct chaos_config, dry_run),
     .help = "print the sequence of faults and do nothing"},
    ARG_END,
};

const struct arg_program chaos_program = {
    .name = "crun chaos",
    .usage = "--plan FILE [options] TARGET...",
    .summary = "Does to a running job on this machine what a plan says: kills, stops and slows its processes, cuts "
               "links, fills a disk, damages files, and makes clocks wrong; prints what it did, and undoes at its end "
               "what can be undone.",
    .epilog = "A TARGET is a node: [PID|FILE][,link=[NETNS:]NAME][,folder=DIR][,clock=FILE][,WORD=PID|FILE]...: the "
              "pid of its crun, or a file that holds it; the link it hangs on; a folder whose disk may be filled and "
              "whose files may be damaged; the file behind its workers' clock; and other processes, by words that the "
              "plan uses.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

struct chaos {
    struct chaos_config config;
    struct chaos_plan plan;
    struct chaos_targets targets;
    struct chaos_sequence sequence;
    struct chaos_means means;
    struct chaos_table *table;
    struct chaos_watcher watcher;
    int64_t begun_ms;
    size_t next; /* of the sequence */
    int met, missed;
    int signal_fd, signo; /* signo: the stop signal that arrived, 0: none */
};

/* --- beginning */

static const char *plan_name(const struct chaos *c)
{
    return strcmp(c->config.plan, "-") == 0 ? "the plan" : c->config.plan;
}

static int read_plan(struct chaos *c, struct err *e)
{
    struct buf text = {.max = PLAN_BYTES_MAX};
    const bool piped = strcmp(c->config.plan, "-") == 0;
    const int fd = piped ? STDIN_FILENO : file_open_regular(c->config.plan, ERR_USAGE, e);
    if (fd < 0)
        return ERR_USAGE;
    int rc = file_read_all(fd, &text);
    if (fd > STDIN_FILENO)
        close(fd);
    if (rc == -E2BIG)
        err_set(e, ERR_USAGE, "%s has more than %d bytes: expected a plan, which is shorter", plan_name(c),
                PLAN_BYTES_MAX);
    else if (rc < 0)
        err_errno(e, -rc, "%s", plan_name(c));
    else if (text.len == 0 || memchr(text.data, '\0', text.len))
        err_set(e, ERR_USAGE, "%s is %s: expected lines of text", plan_name(c), text.len == 0 ? "empty" : "binary");
    else if (chaos_plan_parse(&c->plan, text.data, plan_name(c), e) == 0) {
        buf_free(&text);
        return 0;
    }
    buf_free(&text);
    return ERR_USAGE;
}

static int read_targets(struct chaos *c, char **words, int n, struct err *e)
{
    if (n == 0)
        return err_set(e, ERR_USAGE, "no TARGET: expected the pid of a crun, or a file that holds one, for each node");
    if (n > CHAOS_NODES_MAX)
        return err_set(e, ERR_USAGE, "%d TARGETs: expected %d at most", n, CHAOS_NODES_MAX);
    for (int i = 0; i < n; i++)
        if (chaos_target_parse(&c->targets.v[c->targets.n++], words[i], e) < 0)
            return err_wrap(e, "TARGET %d", i), ERR_USAGE;
    return 0;
}

static void choose_seed(struct chaos *c)
{
    uint32_t drawn;
    if (c->config.seed < 0 && getrandom(&drawn, sizeof drawn, 0) == sizeof drawn)
        c->config.seed = drawn >> 1;
}

/* --- what is printed */

static void print_head(const struct chaos *c)
{
    printf("# %s, seed %" PRId64 ", %d node%s: %zu fault%s\n", plan_name(c), c->config.seed, c->targets.n,
           c->targets.n == 1 ? "" : "s", c->sequence.n, c->sequence.n == 1 ? "" : "s");
}

static void print_fault(const struct chaos_fault *f)
{
    char text[CHAOS_TEXT_MAX];
    printf("%.3f %s", (double)f->at_ms / 1000, chaos_fault_text(f, text));
}

static int print_sequence(const struct chaos *c)
{
    print_head(c);
    for (size_t i = 0; i < c->sequence.n; i++) {
        print_fault(&c->sequence.v[i]);
        putchar('\n');
    }
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : -errno;
}

/* --- the campaign */

/* Inflict one fault that is due, and write its line of the trace. */
static int inflict(struct chaos *c, const struct chaos_fault *f, struct err *e)
{
    char outcome[CHAOS_ACTS_MAX][CHAOS_TEXT_MAX];
    int met = 0;
    for (int i = 0; i < f->n; i++) {
        const int rc = chaos_inflict(&f->parts[i], &c->means, c->table, outcome[i], sizeof outcome[i], e);
        if (rc < 0) {
            char text[CHAOS_TEXT_MAX];
            return err_wrap(e, "%s", chaos_part_text(&f->parts[i], text, sizeof text));
        }
        met += rc;
    }
    c->met += met > 0;
    c->missed += met == 0;
    print_fault(f);
    for (int i = 0; i < f->n; i++)
        printf("%s%s", i == 0 ? " -> " : "; ", outcome[i]);
    putchar('\n');
    if (fflush(stdout) != 0)
        return err_set(e, ERR_OUTPUT, "the trace cannot be written: %s", strerror(errno));
    return 0;
}

/* Inflict all faults that are due; *ret_ms: clock_ms() of the next one, INT64_MAX: there is none. */
static int inflict_due(struct chaos *c, int64_t now_ms, int64_t *ret_ms, struct err *e)
{
    const struct chaos_sequence *s = &c->sequence;
    while (c->next < s->n && c->begun_ms + s->v[c->next].at_ms <= now_ms && !chaos_targets_are_gone(&c->targets))
        TRY(inflict(c, &s->v[c->next++], e));
    *ret_ms = c->next < s->n ? c->begun_ms + s->v[c->next].at_ms : INT64_MAX;
    return 0;
}

/* Wait until something is due, a signal comes, or the watcher is gone; LOOK_MS at most. */
static int wait_until(struct chaos *c, int64_t until_ms, struct err *e)
{
    struct signalfd_siginfo info;
    struct pollfd fds[2] = {{.fd = c->signal_fd, .events = POLLIN}, {.fd = c->watcher.pid_fd, .events = POLLIN}};
    const int left_ms = clock_left(until_ms);
    poll(fds, 2, left_ms < LOOK_MS ? left_ms : LOOK_MS);
    if (fds[0].revents && read(c->signal_fd, &info, sizeof info) == sizeof info)
        c->signo = (int)info.ssi_signo;
    if (!fds[1].revents)
        return 0;
    chaos_watcher_end(&c->watcher); /* somebody killed it: another one */
    c->watcher.pid = 0;
    return chaos_watcher_start(&c->watcher, c->table, &c->means, e);
}

static int campaign(struct chaos *c, struct err *e)
{
    c->begun_ms = clock_ms();
    const int64_t over_ms = c->plan.for_ms > 0 ? c->begun_ms + c->plan.for_ms : 0;
    while (!c->signo && !chaos_targets_are_gone(&c->targets)) {
        const int64_t now_ms = clock_ms();
        int64_t next_ms, ends_ms = chaos_table_keep(c->table, &c->means, now_ms);
        TRY(inflict_due(c, now_ms, &next_ms, e));
        ends_ms = chaos_table_keep(c->table, &c->means, clock_ms());
        if (next_ms == INT64_MAX && (c->plan.for_ms > 0 ? clock_ms() >= over_ms : ends_ms == INT64_MAX))
            break;
        if (next_ms == INT64_MAX && c->plan.for_ms > 0)
            next_ms = over_ms;
        TRY(wait_until(c, ends_ms < next_ms ? ends_ms : next_ms, e));
    }
    return 0;
}

/* From now on read signals from a descriptor instead of being ended by them. */
static int take_signals(struct chaos *c, struct err *e)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    c->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return c->signal_fd < 0 ? err_errno(e, errno, "signals") : 0;
}

static int run(struct chaos *c, struct err *e)
{
    int rc = chaos_means_open(&c->means, &c->targets, e);
    if (rc == 0)
        rc = take_signals(c, e);
    if (rc == 0 && !(c->table = chaos_table_create()))
        rc = err_set(e, -ENOMEM, "no memory for the faults that are open");
    if (rc == 0)
        rc = chaos_watcher_start(&c->watcher, c->table, &c->means, e);
    if (rc == 0) {
        print_head(c);
        fflush(stdout);
        rc = campaign(c, e);
        chaos_table_end(c->table, &c->means);
        if (c->watcher.pid > 0)
            chaos_watcher_end(&c->watcher);
        printf("# over after %.3f s: %d met somebody, %d nobody\n", (double)(clock_ms() - c->begun_ms) / 1000, c->met,
               c->missed);
    }
    chaos_means_close(&c->means);
    return rc;
}

static int complain(const struct err *e, int rc)
{
    fflush(stdout);
    fprintf(stderr, "crun chaos: %s\n", e->text);
    return rc == ERR_USAGE ? EXIT_USAGE_ERROR : rc == ERR_OUTPUT ? EXIT_CANT_CREATE : EXIT_UNAVAILABLE;
}

int chaos_main(int argc, char **args)
{
    char **argv = title_spare(argc, args); /* the process that undoes faults takes the targets' names from this copy */
    static struct chaos c;                 /* some tens of kilobytes */
    struct arg_result r;
    struct err e = {0};
    int rc = args_parse(&chaos_program, argc, argv, &c.config, &r, &e);
    if (rc < 0)
        return complain(&e, ERR_USAGE);
    if (args_answer(&chaos_program, "crun " CRUN_VERSION, &c.config, &r, stdout))
        return EXIT_OK;
    rc = read_targets(&c, argv + r.first_operand, argc - r.first_operand, &e);
    if (rc == 0)
        rc = read_plan(&c, &e);
    choose_seed(&c);
    if (rc == 0)
        rc = chaos_sequence_draw(&c.sequence, &c.plan, (uint64_t)c.config.seed, &c.targets, plan_name(&c), &e);
    if (rc == 0 && !c.config.dry_run)
        rc = chaos_find_check(&c.targets, &e);
    if (rc == 0 && !c.config.dry_run)
        rc = run(&c, &e);
    else if (rc == 0 && print_sequence(&c) < 0)
        rc = err_set(&e, ERR_OUTPUT, "the output cannot be written: %s", strerror(errno));
    chaos_sequence_free(&c.sequence);
    if (rc < 0)
        return complain(&e, rc);
    if (fflush(stdout) != 0)
        return EXIT_CANT_CREATE;
    return c.signo ? 128 + c.signo : EXIT_OK;
}
