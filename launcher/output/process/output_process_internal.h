/* What output_process.c and output_end.c share; for them alone. */
#ifndef CRUN_LAUNCHER_OUTPUT_PROCESS_INTERNAL_H
#define CRUN_LAUNCHER_OUTPUT_PROCESS_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/output/output_wire.h"

struct chores;
struct event_file;
struct guardian_output;
struct streams;
struct watch;

enum phase {
    SERVING,
    ENDING, /* the guardian or the agent is gone: until the pipes are at end-of-file, or ends_at */
    FILES,  /* nothing more comes: files first, as they have something to say */
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
    bool drops;          /* a console that does not take it at once has lost */
    int64_t still_ms;    /* for a disk that does not move */
    uv_timer_t deadline; /* of the phase */
    bool goes_on, ends;
    struct output_message setup_message; /* its strings are borrowed */
    struct output_message message;
};

/* --- output_process.c */

void process_tell(struct process *p, enum output_word word, uint64_t round, int64_t number, int n, const void *body,
                  size_t bytes);

/* --- output_end.c */

void process_wait_at_most(struct process *p, int64_t ms); /* in this phase */
/* The guardian or the agent is gone without having announced that nothing more comes: pipes are read for so long. */
void process_begin_end(struct process *p, int64_t ms);
/* Nothing more comes; still_ms: for a disk that does not move. */
void process_begin_flush(struct process *p, int64_t still_ms);
void process_drop_consoles(struct process *p); /* what they do not take at once */
/* From phase to phase, as far as it goes now. What it does may call it again. */
void process_go_on(struct process *p);

#endif
