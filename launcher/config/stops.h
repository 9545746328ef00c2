/* What the options on failures and stops say: graces, signals, codes. Types, parsers, answers. Pure. */
#ifndef CRUN_LAUNCHER_STOPS_H
#define CRUN_LAUNCHER_STOPS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct err;

/* Signals that crun can be configured to take as a stop request; the first four are torchrun's list. Left out: those
 * that cannot be caught, that report a fault of crun itself, and job control. */
#define STOPS_SIGNALS(X)                                                                                               \
    X(SIGTERM)                                                                                                         \
    X(SIGINT)                                                                                                          \
    X(SIGHUP)                                                                                                          \
    X(SIGQUIT)                                                                                                         \
    X(SIGUSR1)                                                                                                         \
    X(SIGUSR2)                                                                                                         \
    X(SIGALRM)                                                                                                         \
    X(SIGVTALRM)                                                                                                       \
    X(SIGPROF)                                                                                                         \
    X(SIGXCPU)                                                                                                         \
    X(SIGIO)                                                                                                           \
    X(SIGPWR)

#define STOPS_HANDLED "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
#define STOPS_FORWARDED "SIGUSR1,SIGUSR2"
#define STOPS_INSIST_MS 5000
#define STOPS_LIMIT_MAX (86400.0 * 365)
#define STOPS_GRACE_MAX (86400.0 * 5) /* seconds; with a kill and a minute less than RDZV_TIME_MAX_MS */

struct stops {
    double shutdown, resize,
        drain;   /* seconds between SIGTERM and SIGKILL: after a failure, for a resize, for a drain */
    double kill; /* seconds between SIGKILL and giving up */
    double hold; /* seconds that a worker which outlives rounds has to let go of one */
    struct stops_signals {
        sigset_t set;
        char names[128]; /* "SIGTERM,SIGINT" */
    } handled;
    struct stops_signals forwarded; /* to the workers that catch or block them; handled ones are not */
    int preempt;                    /* 0: none */
    const char *notice_file;        /* NULL: none */
    double time_limit;              /* seconds, 0: none; below 0: what Slurm says, until stops_settle_limit() */
    struct stops_codes {
        uint32_t bits[8]; /* of 0..255 */
    } fatal;
};

/* Parsers for the option table. A grace of "same" is that of --shutdown-timeout, once stops_settle() has run. */
int stops_parse_grace(const char *text, void *field, struct err *e);
int stops_parse_signals(const char *text, void *field, struct err *e);
int stops_parse_forwarded(const char *text, void *field, struct err *e); /* or "none" */
int stops_parse_signal(const char *text, void *field, struct err *e);    /* or "none" */
int stops_parse_codes(const char *text, void *field, struct err *e);     /* "3,77,130-139" or "none" */
int stops_parse_limit(const char *text, void *field, struct err *e);     /* "90m", "auto" or "off" */

void stops_settle(struct stops *s);

/* A limit of 'auto', after stops_settle(): end_text is SLURM_JOB_END_TIME (seconds since 1970) or NULL: no limit.
 * What a drain may take, and STOPS_INSIST_MS, are left to it. now_s: the same clock as this host shows it. */
int stops_settle_limit(struct stops *s, const char *end_text, int64_t now_s, struct err *e);

/* "SIGINT" of a signal that can be handled, and back from the first word of a text; "" and 0: none of them. */
const char *stops_signal_name(int signo);
int stops_signal_of(const char *text);

/* The grace of workers that are stopped for this reason (enum crun_stop_reason), in ms. */
int64_t stops_grace_ms(const struct stops *s, int reason);

/* How long after another signal the workers that are left get SIGTERM: STOPS_INSIST_MS before the grace is over, or
 * when half of a short one is. */
int64_t stops_insist_ms(int64_t grace_ms);

/* The longest that stopping the workers may take, for whatever reason, in ms. */
int64_t stops_longest_ms(const struct stops *s);

/* A failure with this code, as a shell sees it, is not worth another try. */
bool stops_fatal(const struct stops *s, int code);

#endif
