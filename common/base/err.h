/* The room common/base: what every program of this tree uses and what knows nothing of the project. It includes no
 * other room. Text comes in through file.h and utf8.h, both bounded; it is put together in buf.h and leaves through
 * file.h, or log.h as lines on stderr. clock.h is the one clock. err.h below is in nearly every signature: a failing
 * function fills it in, and the program, not the library, prints it.
 *
 * Errors: a code for programs and a sentence for people.
 *
 * Functions return 0 or a negative code: -errno, or one of the project codes below. Results go through ret_...
 * parameters, untouched on failure; `struct err *e` is the last parameter and may be NULL. Callers add context in
 * front: err_wrap(e, "join run '%s'", id). Modules never log an error that they return. */
#ifndef CRUN_COMMON_ERR_H
#define CRUN_COMMON_ERR_H

/* Project codes lie below libuv's (-4095) and never leave the process. */
#define ERR_CODES(X)                                                                                                   \
    X(ERR_USAGE, -10001, "the command line or the configuration is wrong")                                             \
    X(ERR_FENCED, -10002, "the request belongs to an older round")                                                     \
    X(ERR_CORRUPT, -10003, "stored data fails its checksum or is not well formed")                                     \
    X(ERR_MISMATCH, -10004, "two parties disagree on something both must share")                                       \
    X(ERR_DATA, -10005, "a data set cannot be used as it is")                                                          \
    X(ERR_DIVERGED, -10006, "training diverged: a loss is not a number")                                               \
    X(ERR_REFUSED, -10007, "the peer understood the request and refused it")                                           \
    X(ERR_OUTPUT, -10008, "an output file or folder cannot be written")                                                \
    X(ERR_FAULTY, -10009, "this process has spoilt what it holds, without an error")

enum err_code {
#define X(name, value, text) name = value,
    ERR_CODES(X)
#undef X
};

struct err {
    int code;       /* 0, -errno or an err_code */
    char text[512]; /* one sentence without a full stop or control bytes; never contains a secret */
};

/* Set *e (if not NULL) and return code. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Set *e to "<text>: <strerror(errno_value)>"; returns -errno_value. */
int err_errno(struct err *e, int errno_value, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The same for a process or a thread that cannot be started: for EAGAIN it names the limit. */
int err_start(struct err *e, int errno_value, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Put "<text>: " in front of what *e says; returns e->code (or -EIO if e is NULL). */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Name of a code: "ENOENT", "ERR_USAGE". Never NULL; static storage. */
const char *err_name(int code);

/* Return from the calling function if the expression is negative. */
#define TRY(expr)                                                                                                      \
    do {                                                                                                               \
        int try_rc_ = (expr);                                                                                          \
        if (try_rc_ < 0)                                                                                               \
            return try_rc_;                                                                                            \
    } while (0)

/* Set rc and jump if the expression is negative. */
#define TRY_GOTO(rc, expr, label)                                                                                      \
    do {                                                                                                               \
        (rc) = (expr);                                                                                                 \
        if ((rc) < 0)                                                                                                  \
            goto label;                                                                                                \
    } while (0)

#endif
