/* The protocol of agent and output process: whole messages over a SOCK_SEQPACKET pair, with descriptors, and a page of
 * memory that the guardian maps for both (output_process.h has the contract).
 *
 * Both ends are forks of one program, so structs are sent as they are. Sending never blocks: what the socket does
 * not accept waits in struct output_out. */
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
    X(OUTPUT_HELLO)   /* to the agent: this process (pid) is up, and knows nothing yet */                              \
    X(OUTPUT_SETUP)   /* the reply (pid: for which process): struct output_setup and its strings */                    \
    X(OUTPUT_ROUND)   /* a round begins (round): struct output_round */                                                \
    X(OUTPUT_STREAMS) /* read ends of stdout and stderr of workers number .. number + n - 1 */                         \
    X(OUTPUT_OPEN)    /* all streams have been sent: make the folders, open the files */                               \
    X(OUTPUT_OPENED)  /* to the agent (round; number: 0 or an error): text of the error */                             \
    X(OUTPUT_END)     /* all writers of the round are dead: read the rest, and close */                                \
    X(OUTPUT_ENDED)   /* to the agent (round): all of its output has been read */                                      \
    X(OUTPUT_PRINT)   /* a text of crun's own (number: its order) */                                                   \
    X(OUTPUT_TELL)    /* what did a worker leave (round, number: local rank, n: question)? paths of record and core */ \
    X(OUTPUT_TAIL)    /* to the agent (round, number, n: question): the worker's last lines of stderr */               \
    X(OUTPUT_RECORD)  /* to the agent (round, number, n: question and OUTPUT_HAS_...): struct failure_record */        \
    X(OUTPUT_WRITE)   /* a part of a file to write (n: 1 if last, number: 1 for a log); path and NUL come first */     \
    X(OUTPUT_WROTE)   /* to the agent: the file is written, or text of the error */                                    \
    X(OUTPUT_EVENT)   /* a line of the event log (number) */                                                           \
    X(OUTPUT_EVENTS)  /* to the agent (number: 0 or an error): the event log is open, or text of the error */          \
    X(OUTPUT_NOTICE)  /* to the agent: the preemption file exists */                                                   \
    X(OUTPUT_FLUSH)   /* no further message follows: write everything out, then report it */                           \
    X(OUTPUT_HEARD)   /* to the agent, at once: FLUSH has arrived */                                                   \
    X(OUTPUT_DROP)    /* do not wait for consoles any more */                                                          \
    X(OUTPUT_FLUSHED) /* to the agent */

enum output_word {
#define X(name) name,
    OUTPUT_WORDS(X)
#undef X
};

/* n of OUTPUT_RECORD: these bits, plus the question's number times OUTPUT_ASKED. */
enum { OUTPUT_HAS_RECORD = 1, OUTPUT_HAS_CORE = 2, OUTPUT_ASKED = 4 };

struct output_head {
    uint32_t word; /* enum output_word */
    int32_t n;
    int64_t number;
    uint64_t round; /* numbered by the agent, 1, 2, ... */
    int64_t pid;
};

struct output_setup {
    struct log_conf conf;     /* its strings follow in the message, in the order of setup_strings() */
    struct log_layout layout; /* its root */
    int max_workers;
    bool makes_root; /* the root folder must be new */
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

/* The shared page. Its values survive the death of either process. */
struct output_page {
    _Atomic uint64_t claimed;  /* texts of crun's own up to this number have a writer: output_claim() */
    _Atomic uint64_t launched; /* workers of rounds up to this number may be running */
    _Atomic int64_t pid;       /* of the process that answers */
    _Atomic uint64_t bytes[2]; /* read from workers: stdout, stderr */
    _Atomic uint64_t lost;     /* bytes that no log file took */
    _Atomic uint64_t waiting;  /* bytes not yet written to log files and consoles */
    _Atomic uint64_t left_out; /* lines: --log-rate */
    _Atomic uint64_t dropped;  /* bytes that no console took */
    _Atomic uint64_t events;   /* lines of the event log up to this number are written, or lost */
    _Atomic uint32_t scratch;  /* what became of the temporary folder */
};
enum { OUTPUT_SCRATCH_NONE = 1, OUTPUT_SCRATCH_MADE = 2 }; /* 0: it is not known */

/* Claim a text for writing. True: the caller writes it; false: the other process does. Texts are claimed in order. */
bool output_claim(struct output_page *page, uint64_t number);

/* --- sending */

struct output_out {
    int fd, again_fd; /* two descriptors of the same socket; the second is polled for writing */
    struct watch *watch;
    struct output_waiting *first, *last;
};

/* fd is borrowed. */
int output_out_open(struct output_out *o, uv_loop_t *loop, int fd, struct err *e);
/* Send a message; body and fds are borrowed, but descriptors of a message that has to wait must stay open. -ENOMEM:
 * it would have had to wait, and is lost; the two ends are out of step then, and the output process must be
 * replaced. */
int output_send(struct output_out *o, const struct output_head *head, const void *body, size_t n, const int *fds,
                int n_fds);
void output_out_pump(struct output_out *o);   /* send as many of the waiting messages as possible */
void output_out_forget(struct output_out *o); /* what waits is not sent */
void output_out_close(struct output_out *o);

/* --- receiving */

struct output_message {
    struct output_head head;
    size_t n; /* bytes of body */
    int n_fds, fds[OUTPUT_FDS_MAX];
    char body[OUTPUT_BODY_MAX + 1]; /* a NUL stands behind them */
};

/* Receive a message: 1; 0: none is there now; -EPIPE after the last. The caller closes the descriptors. */
int output_receive(int fd, struct output_message *m);
void output_drop_fds(struct output_message *m);

/* --- the setup: its strings are borrowed when packing, and point into the message when unpacked */

int output_setup_pack(const struct output_setup *s, struct buf *out);
bool output_setup_unpack(struct output_message *m, struct output_setup *ret);

#endif
