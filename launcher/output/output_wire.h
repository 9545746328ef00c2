/* What the agent and the output process say to each other: whole messages over a SOCK_SEQPACKET pair, descriptors
 * along with them, and a page of memory that the guardian maps for both (output_process.h has the contract).
 *
 * Both ends are the same program, forked: structs go as they are. Sending never blocks; what the socket does not take
 * waits in struct output_out. */
#ifndef CRUN_LAUNCHER_OUTPUT_WIRE_H
#define CRUN_LAUNCHER_OUTPUT_WIRE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "common/base/buf.h"
#include "common/job/failure_record.h"
#include "launcher/output/lines.h"
#include "launcher/output/log_conf.h"
#include "launcher/output/log_layout.h"

struct err;
struct watch;

/* name, direction, what follows the head */
#define OUTPUT_WORDS(X)                                                                                                \
    X(OUTPUT_HELLO)   /* to the agent: a process is there (pid); it knows nothing yet */                               \
    X(OUTPUT_SETUP)   /* the answer (pid: whom it is for): struct output_setup and its strings */                      \
    X(OUTPUT_ROUND)   /* a round begins (round): struct output_round */                                                \
    X(OUTPUT_STREAMS) /* of workers number .. number + n - 1: their read ends, stdout and stderr of each */            \
    X(OUTPUT_OPEN)    /* all streams are handed over: make the folders, open the files */                              \
    X(OUTPUT_OPENED)  /* to the agent (round; number: 0 or an error): the sentence of an error */                      \
    X(OUTPUT_END)     /* all writers of the round are dead: read what is left, close */                                \
    X(OUTPUT_ENDED)   /* to the agent (round): everything of it is read */                                             \
    X(OUTPUT_PRINT)   /* a text of crun's own (number: its place in line) */                                           \
    X(OUTPUT_TELL)    /* what did a worker leave (round, number: local rank, n: question)? paths of record and core */ \
    X(OUTPUT_TAIL)    /* to the agent (round, number, n: question): its last lines of stderr */                        \
    X(OUTPUT_RECORD)  /* to the agent (round, number, n: question and OUTPUT_HAS_...): struct failure_record */        \
    X(OUTPUT_WRITE)   /* a part of a file's text (n: 1 for the last, number: 1 for a log); its path, a NUL first */    \
    X(OUTPUT_WROTE)   /* to the agent: the file is there, or the sentence of an error */                               \
    X(OUTPUT_EVENT)   /* a line of the event log (number) */                                                           \
    X(OUTPUT_EVENTS)  /* to the agent (number: 0 or an error): the event log is open, or the sentence of an error */   \
    X(OUTPUT_NOTICE)  /* to the agent: the preemption file is there */                                                 \
    X(OUTPUT_FLUSH)   /* nothing more will come: write everything out, then say so */                                  \
    X(OUTPUT_HEARD)   /* to the agent, at once: it was heard */                                                        \
    X(OUTPUT_DROP)    /* and wait for consoles no longer */                                                            \
    X(OUTPUT_FLUSHED) /* to the agent */

enum output_word {
#define X(name) name,
    OUTPUT_WORDS(X)
#undef X
};

/* Of OUTPUT_RECORD: bits of n, to which the question is added OUTPUT_ASKED times. */
enum { OUTPUT_HAS_RECORD = 1, OUTPUT_HAS_CORE = 2, OUTPUT_ASKED = 4 };

struct output_head {
    uint32_t word; /* enum output_word */
    int32_t n;
    int64_t number;
    uint64_t round; /* numbered by the agent, 1, 2, ... */
    int64_t pid;
};

struct output_setup {
    struct log_conf conf;     /* its strings are in the message, in the order of setup_strings() */
    struct log_layout layout; /* its root */
    int max_workers;
    bool makes_root; /* a folder of that name must not be there */
    const char *role, *host, *run_id;
    const char *scratch;     /* the temporary folder, NULL: none */
    const char *event_log;   /* NULL: none */
    const char *notice_file; /* NULL: none */
};

struct logmux_round {
    uint64_t round;
    int restarts, rank_base, role_base, group_rank;
};

struct output_round {
    struct logmux_round names;
    struct log_layout layout;
};

#define OUTPUT_BODY_MAX (48u << 10)
#define OUTPUT_FDS_MAX 240

/* The page. Its figures outlive a process that is killed. */
struct output_page {
    _Atomic uint64_t claimed;  /* texts of crun's own up to this one are somebody's: output_claim() */
    _Atomic uint64_t launched; /* workers of rounds up to this one may run */
    _Atomic int64_t pid;       /* of the process that answers */
    _Atomic uint64_t bytes[2]; /* read from workers: stdout, stderr */
    _Atomic uint64_t lost;     /* bytes that no log file took */
    _Atomic uint64_t waiting;  /* bytes on their way to log files and consoles */
    _Atomic uint64_t left_out; /* lines: --log-rate */
    _Atomic uint64_t dropped;  /* bytes that no console took */
    _Atomic uint64_t events;   /* lines of the event log up to this one are written, or lost */
    _Atomic uint32_t scratch;  /* what became of the temporary folder */
};
enum { OUTPUT_SCRATCH_NONE = 1, OUTPUT_SCRATCH_MADE = 2 }; /* 0: it is not known */

/* Who writes this text? True: the caller, for nobody else has it. Texts are claimed in order. */
bool output_claim(struct output_page *page, uint64_t number);

/* --- sending */

struct output_out {
    int fd, again_fd; /* the same socket, for the watch of what it takes */
    struct watch *watch;
    struct output_waiting *first, *last;
};

/* fd is borrowed. */
int output_out_open(struct output_out *o, uv_loop_t *loop, int fd, struct err *e);
/* body and fds are borrowed; descriptors that wait with their message have to stay open. -ENOMEM: it had to wait, and
 * is lost; then the two ends no longer know the same, and the output process has to make way for another. */
int output_send(struct output_out *o, const struct output_head *head, const void *body, size_t n, const int *fds,
                int n_fds);
void output_out_pump(struct output_out *o);   /* send of what waits what can be sent now */
void output_out_forget(struct output_out *o); /* what waits is not sent */
void output_out_close(struct output_out *o);

/* --- receiving */

struct output_message {
    struct output_head head;
    size_t n; /* bytes of body */
    int n_fds, fds[OUTPUT_FDS_MAX];
    char body[OUTPUT_BODY_MAX + 1]; /* a NUL stands behind them */
};

/* Returns 1; 0 where none is there now; -EPIPE after the last. The descriptors are the caller's. */
int output_receive(int fd, struct output_message *m);
void output_drop_fds(struct output_message *m);

/* --- the setup, whose strings are borrowed by the one, and point into the message for the other */

int output_setup_pack(const struct output_setup *s, struct buf *out);
bool output_setup_unpack(struct output_message *m, struct output_setup *ret);

#endif
