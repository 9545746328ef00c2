/* remote.c, remote_ends.c, remote_control.c and remote_stream.c: the agents of crun -H and what they say. */
#ifndef CRUN_LAUNCHER_REMOTE_INTERNAL_H
#define CRUN_LAUNCHER_REMOTE_INTERNAL_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "launcher/base/ending.h"
#include "launcher/base/program.h"
#include "launcher/base/watch.h"
#include "launcher/output/lines.h"
#include "launcher/output/log_conf.h"
#include "launcher/output/log_console.h"
#include "launcher/remote/remote_plan.h"

struct config;
struct err;
struct guardian_link;

#define REMOTE_READ_BYTES (64u << 10)

struct far;

struct far_stream {
    struct far *far;
    int fd; /* -1: closed */
    struct watch *watch;
    struct lines lines;
    struct log_voice voice;
};

/* The agent of one host. */
struct far {
    struct remote *m;
    const struct host *host;
    pid_t pid;              /* of its ssh, 0: not started */
    int control;            /* its standard input, -1: closed */
    struct watch *writable; /* of control, while something of unsent waits */
    struct buf unsent;      /* from unsent_at on it has not gone out yet */
    size_t unsent_at;
    int unanswered; /* questions since anything was heard */
    struct far_stream out, err;
    bool ready, over, ended; /* it began; it reported its end; its ssh has ended */
    bool joined;             /* it heard from the rendezvous of a round, or of the end */
    bool lost;               /* that is reported; its exit code says nothing */
    bool given_up;           /* it never began, and nobody waits for it any more */
    struct ending ending;
};

struct remote {
    const struct config *c;
    const struct guardian_link *link;
    struct remote_plan plan;
    struct log_conf conf; /* of the console: nothing is added to what the agents say */
    uv_loop_t loop;
    uv_timer_t begin, late; /* until they must have begun; until they must have ended */
    uv_timer_t alive;       /* when they are asked whether they live */
    struct log_console *console;
    struct watch *signals, *guardian;
    int signal_fd, stop_fd; /* stop_fd: of the signals that stop us only; it is never read */
    struct program rsh;
    struct far *far;
    int n, left;
    bool paused, stopping, failed;
    int fail_code; /* failed: too few were left because of this */
    int stop_code; /* if none began before we had to stop */
    int code;      /* of the job, as far as agents have ended, -1: none has */
    char scratch[REMOTE_READ_BYTES];
};

/* Questions without an answer until a host is lost: the rendezvous has long given it up after one, but an ssh that
 * stalls is no lost host. */
#define REMOTE_PATIENCE 10

/* One line, "crun: " in front and the newline behind. */
void remote_print_line(struct remote *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* --- remote_ends.c */

void remote_send_to_all(struct remote *m, unsigned char byte);
/* The agents get the signal; their ends are waited for, for a time that their options give. */
void remote_stop_all(struct remote *m, int signo, bool typed);
/* Kill its ssh and what that started: its connection ends, and an agent that just begins there stops at once. */
void remote_end_far(struct far *f);
void remote_judge(struct far *f); /* it has ended: what that means for the job */
/* A connection may hang before anything begins: ssh that waits, a shell there that does. t->data: struct remote. */
void remote_on_begin_late(uv_timer_t *t);

/* ret_fd: the agent's standard input, with its order, the caller's to close. On failure remote_control_close() still
 * has to be called. */
int remote_control_open(struct far *f, int i, int *ret_fd, struct err *e);
/* Never blocks, nothing is lost; a question (REMOTE_ASK) only if nothing waits. */
void remote_control_send(struct far *f, unsigned char byte);
void remote_control_close(struct far *f);
/* Ask all whether they live; end those that do not say so. t->data: struct remote. */
void remote_on_alive(uv_timer_t *t);

/* What one of an agent's two streams says goes to the console line by line. ret_fd: the agent's end, the caller's to
 * close. */
int remote_stream_open(struct far_stream *s, struct far *f, bool is_err, int *ret_fd, struct err *e);

/* Read what is left, bounded, and close. */
void remote_stream_finish(struct far_stream *s);

/* The console has room again. arg: struct remote. */
void remote_drained(void *arg);

#endif
