/* What output_process.c, output_end.c and apart_jobs.c share; for them alone. */
#ifndef CRUN_LAUNCHER_OUTPUT_PROCESS_INTERNAL_H
#define CRUN_LAUNCHER_OUTPUT_PROCESS_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "common/rdzv/homes/home_process.h"
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
    /* apart_jobs.c */
    struct home_threads homes;
    struct watch *home, *input;          /* NULL: nobody asks any more; standard input is no file, or at its end */
    int input_fd;                        /* eventfd of stdin_file_start() */
    int consoles;                        /* threads that write files as consoles */
    int silent_fd, gone_fd;              /* console_files_start() */
    bool is_silent;                      /* GUARDIAN_SILENT has come */
    struct output_message setup_message; /* its strings are borrowed */
    struct output_message message;
};

/* --- output_process.c */

void process_tell(struct process *p, enum output_word word, uint64_t round, int64_t number, int n, const void *body,
                  size_t bytes);

int process_watch(struct process *p, struct watch **ret, int fd, void (*ready)(void *arg));

/* --- apart_jobs.c */

int process_start_apart(struct process *p); /* 0 or -errno */
/* For what the guardian says at the end. Not where a disk may hold other threads: the guardian names a process that
 * cannot end, and another one writes that. */
bool process_stays(struct process *p);
/* Blocks until all that is printed is in the files: stays: by the guardian too; else so far. */
void process_end_consoles(struct process *p, bool stays);

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
