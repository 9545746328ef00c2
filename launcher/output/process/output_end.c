/* The end of the output process, from phase to phase: pipes, files, consoles. */
#include "launcher/output/process/output_process_internal.h"

#include <errno.h>
#include <string.h>

#include "launcher/base/watch.h"
#include "launcher/output/log_console.h"
#include "launcher/output/process/chores.h"
#include "launcher/output/process/event_file.h"
#include "launcher/output/process/file_thread.h"
#include "launcher/output/process/output_process.h"
#include "launcher/output/process/queued_file.h"
#include "launcher/output/process/streams.h"
#include "launcher/output/sink.h"
#include "launcher/stdio/console.h"

static void on_deadline(uv_timer_t *t)
{
    struct process *p = t->data;
    if (p->phase == CONSOLES)
        p->drops = true;
    process_go_on(p);
}

void process_wait_at_most(struct process *p, int64_t ms)
{
    uv_timer_start(&p->deadline, on_deadline, ms > 0 ? (uint64_t)ms : 1, 0);
}

/* The guardian or the agent is gone without having announced that nothing more comes. */
void process_begin_end(struct process *p, int64_t ms)
{
    if (p->phase > ENDING)
        return;
    p->still_ms = OUTPUT_LAST_MS;
    p->phase = ENDING;
    process_wait_at_most(p, ms);
}

/* A disk may move while it is slow: then it is waited for. */
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
        if (s->dropped > 0 && s->error != EPIPE) /* `crun ... | head` is no news */
            console_try("crun: %llu bytes for %s were lost: %s\n", (unsigned long long)s->dropped,
                        i == 0 ? "stdout" : "stderr", reason_of_loss(s->error));
    }
}

void process_begin_flush(struct process *p, int64_t still_ms)
{
    if (p->phase >= FILES)
        return;
    if (p->streams && streams_round(p->streams))
        streams_end_round(p->streams);
    p->still_ms = still_ms;
    p->phase = FILES;
}

/* Pipes are read to their end, or that takes too long. */
static bool is_read(struct process *p)
{
    return !p->streams || streams_at_end(p->streams) || !uv_is_active((uv_handle_t *)&p->deadline);
}

static void end_files(struct process *p)
{
    if (has_files_to_wait_for(p))
        return;
    uv_timer_stop(&p->deadline);
    chores_end(p->chores); /* beside what comes now: the agent need not wait for it */
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

/* From phase to phase, as far as it goes now. What it does may call it again. */
void process_go_on(struct process *p)
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

void process_drop_consoles(struct process *p)
{
    p->drops = true;
    p->still_ms = OUTPUT_LAST_MS;
    process_go_on(p);
}
