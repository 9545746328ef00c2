/* What streams.c, stream.c and stream_pace.c share; for them alone. */
#ifndef CRUN_LAUNCHER_STREAMS_INTERNAL_H
#define CRUN_LAUNCHER_STREAMS_INTERNAL_H

#include <uv.h>

#include "launcher/output/lines.h"
#include "launcher/output/log_console.h"
#include "launcher/output/output_wire.h"
#include "launcher/output/process/partial.h"
#include "launcher/output/process/streams.h"

struct queued_file;
struct watch;

struct stream {
    struct streams *all;
    struct log_voice voice;
    bool shown;               /* on the console, by lines */
    bool live;                /* to our terminal as it comes: from a worker's, or from a worker that is alone */
    bool held;                /* until its file has room */
    int fd;                   /* our end of the pipe, -1: none */
    struct queued_file *file; /* NULL: none */
    struct lines lines;
    struct partial partial;  /* of the line without an end, on the console */
    int64_t look_at;         /* by the loop's clock, -1: nothing of it waits */
    struct lines_tail *tail; /* NULL: its lines are in no report */
    struct watch *watch;     /* NULL: closed */
};

struct source { /* one worker */
    struct lines_tail tail;
    struct stream out, err;
};

struct streams {
    uv_loop_t *loop;
    struct streams_options o;
    struct log_console *console;
    struct file_thread *files;
    int root_fd; /* of the log files; their thread's */
    uint64_t id; /* of the round, 0: none */
    struct output_round round;
    struct log_words words[2];       /* of the duplicate filters */
    struct queued_file *filtered[2]; /* stdout, stderr; NULL: none */
    struct {
        uint64_t lost, dropped, left_out;
    } before; /* what processes before this one counted */
    bool paused;
    int n;
    struct source *sources; /* o.max_workers */
    uv_timer_t timer;       /* lines without an end */
    uv_timer_t still;       /* streams that are held */
    char scratch[64 << 10];
};

/* --- streams.c */

struct stream *streams_stream(struct streams *m, int i); /* stdout and stderr of each worker in turn, 2 * m->n */
struct queued_file *streams_create_file(struct streams *m, const char *path);
/* For whoever looks at the page, and for the process after this one. */
void streams_note_figures(struct streams *m);

/* --- stream.c */

/* tail: for the report, NULL: its lines are in none. */
void stream_init(struct stream *s, struct streams *m, bool is_err, struct lines_tail *tail);
int stream_open(struct stream *s, int local, int fd, struct err *e);
/* One read. False when there is nothing more now, or ever. */
bool stream_read(struct stream *s);
void stream_read_rest(struct stream *s);
void stream_finish(struct stream *s); /* the rest, and a last line without an end */
void stream_close(struct stream *s);

/* --- stream_pace.c */

void stream_grew(struct stream *s, size_t bytes); /* so much was read */
void stream_update_watch(struct stream *s);
void stream_hold_if_behind(struct stream *s);
void streams_release(struct streams *m, bool all);  /* those that were held and need not be, or all */
void streams_pause(struct streams *m, bool paused); /* a console is behind, or no longer */
void streams_on_drained(void *arg);                 /* it may be no longer */

#endif
