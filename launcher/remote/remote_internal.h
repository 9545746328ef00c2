/* Shared by remote.c, remote_ends.c, remote_control.c and remote_stream.c: the agents of crun -H. */
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
    struct buf unsent;      /* not written yet from unsent_at on */
    size_t unsent_at;
    int unanswered; /* questions since it was last heard */
    struct far_stream out, err;
    bool ready, over, ended; /* its agent began; reported its end; its ssh has ended */
    bool joined;             /* its agent heard from the rendezvous of a round, or of the end */
    bool lost;               /* reported as lost; its exit code means nothing */
    bool given_up;           /* it never began, and is not waited for any more */
    struct ending ending;
};

struct remote {
    const struct config *c;
    const struct guardian_link *link;
    struct remote_plan plan;
    struct log_conf conf; /* for the console: nothing is added to the agents' lines */
    uv_loop_t loop;
    uv_timer_t begin, late; /* deadlines: for agents to begin; for agents to end */
    uv_timer_t alive;       /* when they are asked whether they live */
    struct log_console *console;
    struct watch *signals, *guardian;
    int signal_fd, stop_fd; /* stop_fd: only for signals that stop us; polled, never read */
    struct program rsh;
    struct far *far;
    int n, left;
    bool paused, stopping, failed;
    int fail_code; /* with `failed`: exit code of the host because of which too few were left */
    int stop_code; /* exit code if no agent had begun when we had to stop */
    int code;      /* exit code of the job so far, -1: no agent has ended */
    char scratch[REMOTE_READ_BYTES];
};

/* Unanswered questions after which a host counts as lost. The rendezvous gives it up after one, but a stalled ssh is
 * not a lost host. */
#define REMOTE_PATIENCE 10

/* Print one line, with "crun: " in front and a newline at the end. */
void remote_print_line(struct remote *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* --- remote_ends.c */

void remote_send_to_all(struct remote *m, unsigned char byte);
/* Send the signal to all agents, and wait for their ends, for a time that follows from their options. */
void remote_stop_all(struct remote *m, int signo, bool typed);
/* Kill this host's ssh and its children: its connection ends, and an agent that is just beginning there stops at
 * once. */
void remote_end_far(struct far *f);
void remote_judge(struct far *f); /* it has ended: decide what that means for the job */
/* Some agents have not begun in time: ssh or a shell on the other host may wait for something. t->data: struct
 * remote. */
void remote_on_begin_late(uv_timer_t *t);

/* ret_fd: the agent's standard input, with its order in it; the caller closes it. On failure remote_control_close()
 * must still be called. */
int remote_control_open(struct far *f, int i, int *ret_fd, struct err *e);
/* Send a byte without blocking or losing it; a question (REMOTE_ASK) is skipped if others wait. */
void remote_control_send(struct far *f, unsigned char byte);
void remote_control_close(struct far *f);
/* Ask all agents whether they are alive; end those that do not answer. t->data: struct remote. */
void remote_on_alive(uv_timer_t *t);

/* Copy one of an agent's two streams to the console, line by line. ret_fd: the agent's end, which the caller closes. */
int remote_stream_open(struct far_stream *s, struct far *f, bool is_err, int *ret_fd, struct err *e);

/* Read what is left, bounded, and close. */
void remote_stream_finish(struct far_stream *s);

/* The console can accept output again. arg: struct remote. */
void remote_drained(void *arg);

#endif
