/* remote.c and remote_stream.c: the agents of crun -H and what they say. */
#ifndef CRUN_LAUNCHER_REMOTE_INTERNAL_H
#define CRUN_LAUNCHER_REMOTE_INTERNAL_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "launcher/ending.h"
#include "launcher/lines.h"
#include "launcher/log_conf.h"
#include "launcher/log_console.h"
#include "launcher/program.h"
#include "launcher/remote_plan.h"
#include "launcher/watch.h"

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
    pid_t pid; /* of its ssh, 0: not started */
    int control;
    struct far_stream out, err;
    bool ready, over, ended; /* it began; it said that it ended; its ssh has */
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
    struct log_console *console;
    struct watch *signals, *guardian;
    int signal_fd;
    struct program rsh;
    struct far *far;
    int n, left;
    bool paused, stopping, failed;
    int stop_code; /* if none began before we were told to stop */
    int code;      /* of the agent that ended last, -1: none did */
    char scratch[REMOTE_READ_BYTES];
};

/* What one of an agent's two streams says goes to the console line by line. ret_fd: the agent's end, the caller's to close. */
int remote_stream_open(struct far_stream *s, struct far *f, bool is_err, int *ret_fd, struct err *e);

/* Read what is left, bounded, and close. */
void remote_stream_finish(struct far_stream *s);

/* The console has room again. arg: struct remote. */
void remote_drained(void *arg);

#endif
