/* The main loop of the output process: requests of the agent, the deaths of others, and its own end
 * (output_process.h). */
#include "launcher/output/process/output_process.h"

#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/net/loop.h"
#include "launcher/base/watch.h"
#include "launcher/guard/guardian.h"
#include "launcher/output/log_console.h"
#include "launcher/output/output_wire.h"
#include "launcher/output/process/apart_jobs.h"
#include "launcher/output/process/chores.h"
#include "launcher/output/process/event_file.h"
#include "launcher/output/process/file_thread.h"
#include "launcher/output/process/queued_file.h"
#include "launcher/output/process/streams.h"
#include "launcher/output/sink.h"
#include "launcher/stdio/console.h"

enum phase {
    SERVING,
    ENDING, /* the guardian or the agent is gone: read until the pipes are at end-of-file, or until ends_at */
    FILES,  /* no more input: write the files first, because errors of theirs are printed on consoles */
    CONSOLES,
    FLUSHED
};

struct process {
    const struct guardian_output *g;
    struct output_page *page;
    uv_loop_t loop;
    struct output_out out;
    struct watch *agent, *guardian; /* NULL: gone */
    struct streams *streams;        /* NULL: nothing is known yet */
    struct output_setup setup;
    struct chores *chores;     /* likewise */
    struct event_file *events; /* NULL: none */
    enum phase phase;
    bool drops;          /* a console that does not accept bytes at once loses them */
    int64_t still_ms;    /* ms for a disk that makes no progress */
    uv_timer_t deadline; /* of the phase */
    bool goes_on, ends;
    struct apart_jobs *apart;
    struct output_message setup_message; /* its strings are borrowed */
    struct output_message message;
};

static void process_tell(struct process *p, enum output_word word, uint64_t round, int64_t number, int n,
                         const void *body, size_t bytes);
static int process_watch(struct process *p, struct watch **ret, int fd, void (*ready)(void *arg));
static void process_go_on(struct process *p);

static void on_deadline(uv_timer_t *t)
{
    struct process *p = t->data;
    if (p->phase == CONSOLES)
        p->drops = true;
    process_go_on(p);
}

/* in this phase */
static void process_wait_at_most(struct process *p, int64_t ms)
{
    uv_timer_start(&p->deadline, on_deadline, ms > 0 ? (uint64_t)ms : 1, 0);
}

/* The guardian or the agent is gone without OUTPUT_FLUSH. */
static void process_begin_end(struct process *p, int64_t ms)
{
    if (p->phase > ENDING)
        return;
    p->still_ms = OUTPUT_LAST_MS;
    p->phase = ENDING;
    process_wait_at_most(p, ms);
}

/* Is there a file to wait for? A slow disk is waited for as long as it makes progress. */
static bool has_files_to_wait_for(struct process *p)
{
    if (!p->streams)
        return false;
    struct file_thread *threads[] = {streams_files(p->streams), chores_thread(p->chores),
                                     p->events ? event_file_thread(p->events) : NULL};
    int64_t longest = 0;
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        if (!threads[i] || file_thread_is_idle(threads[i]))
            continue;
        const int64_t left = p->still_ms - file_thread_still_ms(threads[i]);
        longest = left > longest ? left : longest;
    }
    if (longest > 0)
        process_wait_at_most(p, longest);
    return longest > 0;
}

static void print_lost(struct process *p)
{
    struct file_thread *files = streams_files(p->streams);
    const struct amount held = queued_files_waiting(files);
    const uint64_t lost = queued_files_lost(files);
    char at[256];
    if (lost > 0)
        streams_print(p->streams, "%llu bytes of the workers' output are missing in the log files",
                      (unsigned long long)lost);
    if (held.bytes > 0)
        streams_print(p->streams,
                      "%llu lines (%llu bytes) of the workers' output are held by a disk that does not answer (%s): "
                      "what it does not take until crun is gone is lost",
                      (unsigned long long)held.lines, (unsigned long long)held.bytes,
                      file_thread_at(files, at, sizeof at));
    if (p->events && event_file_waiting(p->events) > 0)
        streams_print(p->streams,
                      "%llu lines of the event log are held by a disk that does not answer (%s): what it does not "
                      "take until crun is gone is lost",
                      (unsigned long long)event_file_waiting(p->events), p->setup.event_log);
}

static bool has_consoles_to_wait_for(struct process *p)
{
    for (int i = 0; i < 2; i++) {
        struct sink *s = log_console_sink(streams_console(p->streams), i);
        if (s && !s->error && s->queue.len > s->written && !p->drops)
            return true;
    }
    return false;
}

static const char *reason_of_loss(int error)
{
    return error == EINTR       ? "it was not read, and the job was stopped"
           : error == ETIMEDOUT ? "it was not read"
                                : strerror(error);
}

static void tell_dropped(struct process *p)
{
    static const int at_once[2] = {-1, -1};
    for (int i = 0; i < 2; i++) {
        struct sink *s = log_console_sink(streams_console(p->streams), i);
        if (!s)
            continue;
        sink_flush(s, 0, at_once);
        if (p->drops && s->error == ETIMEDOUT)
            s->error = EINTR;
        if (s->dropped > 0 && s->error != EPIPE) /* EPIPE: the reader closed on purpose */
            console_try("crun: %llu bytes for %s were lost: %s\n", (unsigned long long)s->dropped,
                        i == 0 ? "stdout" : "stderr", reason_of_loss(s->error));
    }
}

/* No more input comes: write everything out. still_ms: for a disk that makes no progress. */
static void process_begin_flush(struct process *p, int64_t still_ms)
{
    if (p->phase >= FILES)
        return;
    if (p->streams && streams_round(p->streams))
        streams_end_round(p->streams);
    p->still_ms = still_ms;
    p->phase = FILES;
}

/* The pipes have been read to their end, or the time for that is over. */
static bool is_read(struct process *p)
{
    return !p->streams || streams_at_end(p->streams) || !uv_is_active((uv_handle_t *)&p->deadline);
}

static void end_files(struct process *p)
{
    if (has_files_to_wait_for(p))
        return;
    uv_timer_stop(&p->deadline);
    chores_end(p->chores); /* in the background: the agent need not wait for it */
    print_lost(p);
    p->phase = CONSOLES;
    if (!p->agent)
        process_wait_at_most(p, OUTPUT_LAST_MS);
}

static void end_consoles(struct process *p)
{
    log_console_kick(streams_console(p->streams));
    if (has_consoles_to_wait_for(p))
        return;
    uv_timer_stop(&p->deadline);
    tell_dropped(p);
    p->phase = FLUSHED;
    process_tell(p, OUTPUT_FLUSHED, 0, 0, 0, NULL, 0);
}

/* Go from phase to phase as far as possible now. The steps may call this function again. */
static void process_go_on(struct process *p)
{
    if (p->goes_on)
        return;
    p->goes_on = true;
    if (p->phase == ENDING && is_read(p))
        process_begin_flush(p, OUTPUT_LAST_MS);
    if (p->phase >= FILES && !p->streams)
        p->phase = FLUSHED;
    if (p->phase == FILES)
        end_files(p);
    if (p->phase == CONSOLES)
        end_consoles(p);
    p->ends = p->phase == FLUSHED && !p->agent && !has_files_to_wait_for(p);
    p->goes_on = false;
}

/* what they do not take at once */
static void process_drop_consoles(struct process *p)
{
    p->drops = true;
    p->still_ms = OUTPUT_LAST_MS;
    process_go_on(p);
}

static void process_tell(struct process *p, enum output_word word, uint64_t round, int64_t number, int n,
                         const void *body, size_t bytes)
{
    const struct output_head head = {.word = word, .n = n, .number = number, .round = round, .pid = getpid()};
    if (output_send(&p->out, &head, body, bytes, NULL, 0) == 0)
        return;
    console_try("crun: no memory to keep a message of the output process (pid %d): another has to take over\n",
                (int)getpid());
    _exit(EXIT_INTERNAL);
}

/* --- what the agent asks for */

static void on_opened(void *arg, uint64_t id, int rc, const char *text)
{
    process_tell(arg, OUTPUT_OPENED, id, rc, 0, text, strlen(text));
}

static void on_moved(void *arg)
{
    struct process *p = arg;
    if (p->phase >= FILES)
        process_go_on(p);
}

static void pass_on(void *arg, const struct output_head *h, const void *body, size_t n)
{
    process_tell(arg, (enum output_word)h->word, h->round, h->number, h->n, body, n);
}

static void on_events_opened(void *arg, int rc, const char *text)
{
    process_tell(arg, OUTPUT_EVENTS, 0, rc, 0, text, strlen(text));
}

static void print_text(void *arg, const char *text)
{
    const struct process *p = arg;
    streams_print(p->streams, "%s", text);
}

static void on_notice(void *arg)
{
    process_tell(arg, OUTPUT_NOTICE, 0, 0, 0, NULL, 0);
}

static int open_files(struct process *p, struct err *e)
{
    const struct chores_options chores = {.page = p->page,
                                          .scratch = p->setup.scratch,
                                          .notice_file = p->setup.notice_file,
                                          .logs = &p->setup.layout,
                                          .log_files = streams_files(p->streams),
                                          .log_root_fd = streams_root_fd(p->streams),
                                          .tell = pass_on,
                                          .print = print_text,
                                          .moved = on_moved,
                                          .noticed = on_notice,
                                          .arg = p};
    const struct event_file_options events = {.path = p->setup.event_log,
                                              .page = p->page,
                                              .opened = on_events_opened,
                                              .print = print_text,
                                              .moved = on_moved,
                                              .arg = p};
    TRY(chores_create(&p->chores, &p->loop, &chores, e));
    return p->setup.event_log ? event_file_create(&p->events, &p->loop, &events, e) : 0;
}

static void set_up(struct process *p)
{
    struct err e;
    if (p->streams || p->message.head.pid != getpid())
        return;
    p->setup_message = p->message;
    if (!output_setup_unpack(&p->setup_message, &p->setup))
        _exit(1);
    const struct streams_options o = {.conf = &p->setup.conf,
                                      .role = p->setup.role,
                                      .host = p->setup.host,
                                      .run_id = p->setup.run_id,
                                      .max_workers = p->setup.max_workers,
                                      .page = p->page,
                                      .opened = on_opened,
                                      .moved = on_moved,
                                      .arg = p};
    if (streams_create(&p->streams, &p->loop, &o, &e) < 0 || open_files(p, &e) < 0) {
        console_try("crun: its output process ends: %s\n", e.text);
        _exit(1);
    }
    if (p->setup.makes_root)
        streams_make_root(p->streams, &p->setup.layout);
}

static void begin_round(struct process *p)
{
    struct output_round round;
    memcpy(&round, p->message.body, sizeof round);
    streams_begin_round(p->streams, p->message.head.round, &round);
}

/* Add the streams of workers. A pipe that cannot be watched is closed: its worker gets SIGPIPE, rather than waiting
 * for ever. */
static void add_streams(struct process *p)
{
    const struct output_message *m = &p->message;
    struct err e;
    for (int i = 0; 2 * i + 1 < m->n_fds; i++)
        if (streams_add(p->streams, (int)m->head.number + i, &m->fds[(ptrdiff_t)2 * i], &e) < 0)
            streams_print(p->streams, "output of local rank %d: %s", (int)m->head.number + i, e.text);
    p->message.n_fds = 0;
}

static void open_round(struct process *p)
{
    if (p->setup.layout.root[0])
        streams_open_files(p->streams);
    else
        chores_tell_opened(p->chores, p->message.head.round);
}

static void end_round(struct process *p)
{
    streams_end_round(p->streams);
    process_tell(p, OUTPUT_ENDED, p->message.head.round, 0, 0, NULL, 0);
}

static void print(struct process *p)
{
    if (output_claim(p->page, (uint64_t)p->message.head.number))
        log_console_print(streams_console(p->streams), p->message.body, p->message.n);
}

static void tell_last_words(struct process *p)
{
    const struct output_head *h = &p->message.head;
    char text[LINES_TAIL_BYTES];
    const size_t n = h->round == streams_round(p->streams) ? streams_copy_tail(p->streams, (int)h->number, text) : 0;
    process_tell(p, OUTPUT_TAIL, h->round, h->number, h->n, text, n);
    chores_tell_record(p->chores, &p->message);
}

/* --- who speaks */

static void obey(struct process *p)
{
    const struct output_message *m = &p->message;
    if (!p->streams && m->head.word != OUTPUT_SETUP) /* meant for an earlier process */
        return;
    switch ((enum output_word)m->head.word) {
    case OUTPUT_SETUP:
        set_up(p);
        break;
    case OUTPUT_ROUND:
        begin_round(p);
        break;
    case OUTPUT_STREAMS:
        add_streams(p);
        break;
    case OUTPUT_OPEN:
        open_round(p);
        break;
    case OUTPUT_EVENT:
        if (p->events)
            event_file_add(p->events, (uint64_t)m->head.number, m->body, m->n);
        break;
    case OUTPUT_END:
        end_round(p);
        break;
    case OUTPUT_PRINT:
        print(p);
        break;
    case OUTPUT_TELL:
        tell_last_words(p);
        break;
    case OUTPUT_WRITE:
        if (!chores_write_part(p->chores, m))
            _exit(1); /* the next process prints that this one is gone */
        break;
    case OUTPUT_FLUSH:
        process_tell(p, OUTPUT_HEARD, 0, 0, 0, NULL, 0);
        process_begin_flush(p, OUTPUT_STILL_MS);
        process_go_on(p);
        break;
    case OUTPUT_DROP:
        process_drop_consoles(p);
        break;
    default:
        break;
    }
}

static bool halves_are_gone(const struct process *p)
{
    return !p->agent && !p->guardian;
}

static void leave_agent(struct process *p)
{
    watch_close(p->agent);
    p->agent = NULL;
    if (p->phase < FILES && p->guardian) /* an agent that ends in good order sends more messages before */
        deputy_stand_in(&p->g->deputy);
    if (p->phase == CONSOLES)
        process_wait_at_most(p, OUTPUT_LAST_MS);
    if (p->phase == FLUSHED)
        p->still_ms = OUTPUT_LAST_MS;
    process_begin_end(p, halves_are_gone(p) ? OUTPUT_ALONE_MS : GUARDIAN_OUTPUT_MS);
    process_go_on(p);
}

static void on_agent(void *arg)
{
    struct process *p = arg;
    int rc;
    while ((rc = output_receive(p->g->agent_fd, &p->message)) > 0) {
        obey(p);
        output_drop_fds(&p->message);
    }
    if (rc < 0)
        leave_agent(p);
}

/* A byte from the guardian says that nobody of the tree is left, or is waited for. (End-of-file of the agent's
 * socket is not enough: an agent that a disk blocks in the kernel keeps it open.) End-of-file means that the
 * guardian is gone: the agent then kills the tree and exits. */
static void on_guardian(void *arg)
{
    struct process *p = arg;
    char word = 0;
    const bool is_gone = read(p->g->guardian_fd, &word, 1) <= 0;
    apart_jobs_take_word(p->apart, word);
    if (is_gone) {
        watch_close(p->guardian);
        p->guardian = NULL;
        if (p->agent)
            deputy_stand_in(&p->g->deputy);
    }
    if (p->agent && !is_gone) /* read its last messages */
        on_agent(p);
    if (p->agent && !is_gone)
        leave_agent(p);
    if (!p->agent || !is_gone) {
        process_begin_end(p, is_gone ? OUTPUT_ALONE_MS : 1);
        process_go_on(p);
    }
}

/* --- life */

static int process_watch(struct process *p, struct watch **ret, int fd, void (*ready)(void *arg))
{
    TRY(watch_open(ret, &p->loop, fd, UV_READABLE, ready, p, NULL));
    watch_set(*ret, true);
    return 0;
}

/* Close the consoles. A disk may block another thread and so this process: readers of our consoles must not wait for
 * that. */
static void close_consoles(struct process *p)
{
    for (int i = 0; i < 2; i++) {
        struct sink *s = p->streams ? log_console_sink(streams_console(p->streams), i) : NULL;
        if (s)
            sink_close(s);
    }
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        close(fd);
}

int output_process_run(const struct guardian_output *g)
{
    static struct process process;
    struct process *p = &process;
    struct err e;
    mallopt(M_ARENA_MAX, 1); /* few threads, which mostly wait */
    p->g = g;
    p->page = g->page;
    if (loop_open(&p->loop, &e) < 0 || output_out_open(&p->out, &p->loop, g->agent_fd, NULL) < 0 ||
        uv_timer_init(&p->loop, &p->deadline) < 0 || process_watch(p, &p->agent, g->agent_fd, on_agent) < 0 ||
        process_watch(p, &p->guardian, g->guardian_fd, on_guardian) < 0)
        return 1;
    const int rc = apart_jobs_start(&p->apart, &p->loop, g);
    if (rc < 0) {
        err_start(&e, -rc, "its output process cannot start a thread");
        console_try("crun: %s\n", e.text);
        return 1;
    }
    p->deadline.data = p;
    atomic_store(&p->page->pid, getpid());
    process_tell(p, OUTPUT_HELLO, 0, 0, 0, NULL, 0);
    while (!p->ends) {
        uv_run(&p->loop, UV_RUN_ONCE);
        if (p->phase == ENDING)
            process_go_on(p);
    }
    const bool stays = apart_jobs_stay(p->apart);
    if (stays)
        guardian_output_is_done(g, true);
    deputy_stand_in_wait();
    close_consoles(p);
    apart_jobs_end(p->apart, !p->guardian, stays);
    if (!stays)
        guardian_output_is_done(g, false);
    return 0;
}
