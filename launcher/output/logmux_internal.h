/* Shared by logmux.c, logmux_rounds.c and logmux_words.c; for them alone. */
#ifndef CRUN_LAUNCHER_LOGMUX_INTERNAL_H
#define CRUN_LAUNCHER_LOGMUX_INTERNAL_H

#include "common/base/err.h"
#include "launcher/output/logmux.h"

struct event_lines;
struct own_texts;
struct watch;

/* A round that was sent to the output process, and may not be read to its end yet. */
struct sent_round {
    struct sent_round *next;
    uint64_t id;
    struct output_round what;
    int n; /* workers */
    bool is_handed_over, is_ended;
    int fds[]; /* read ends: stdout and stderr of each */
};

struct asked {
    bool is_asked;
    int question; /* number of the question; a late answer carries an earlier one */
    char *paths;  /* paths of error record and core file, as OUTPUT_TELL sends them; NULL: none */
    size_t n_paths;
    struct logmux_words words;
};

struct logmux {
    uv_loop_t *loop;
    struct logmux_options o;
    struct output_out out;
    struct watch *watch;
    int64_t pid;      /* pid of the process that has everything; 0: none */
    int64_t given_up; /* pid of an output process that was ended because it missed a message */
    bool is_cut_off;  /* no output process will come */
    bool flushes, drops, is_heard, is_flushed;
    struct sent_round *first, *last;
    uint64_t rounds;                                     /* begun so far */
    void (*opened)(void *arg, int rc, const char *text); /* NULL: nobody waits */
    void *opened_arg;
    bool root_is_open;
    struct err root_error;
    struct own_texts *texts;
    struct event_lines *lines; /* NULL: there is no event log */
    bool events_are_open;
    struct err events_error;
    int questions;                 /* number of the newest question */
    int waits_for;                 /* answers */
    int writes;                    /* of them: files */
    struct asked *asked;           /* max_workers */
    struct output_message message; /* the last: its body is not cleared */
};

/* --- logmux.c */

void logmux_send(struct logmux *m, const struct output_head *head, const void *body, size_t n, const int *fds,
                 int n_fds);
/* Send a message, if there is a process. */
void logmux_say(struct logmux *m, enum output_word word, uint64_t round, int64_t number, const void *body, size_t n);

/* --- logmux_rounds.c */

void logmux_send_rounds(struct logmux *m); /* send all that is known of the rounds to a new output process */
void logmux_drop_rounds(struct logmux *m);
void logmux_on_ended(struct logmux *m, uint64_t id);
void logmux_on_opened(struct logmux *m, const struct output_message *a);

/* --- logmux_words.c */

void logmux_forget_words(struct logmux *m);
void logmux_send_questions(struct logmux *m);
void logmux_on_tail(struct logmux *m, const struct output_message *a);
void logmux_on_record(struct logmux *m, const struct output_message *a);
void logmux_on_wrote(struct logmux *m, const struct output_message *a);

#endif
