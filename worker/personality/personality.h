/* Command lines of other trainers, mapped onto ours.
 *
 *   trainer imagenet ARGS -> its own table and that of `trainer` -> apply(): its options become ours -> train_config
 *   -> the same run as any other
 *
 * A personality has a table of the options whose meaning is its own; all options of `trainer` are known beside them,
 * with defaults of its choice. Its apply() turns the former into the latter. Single-dash long names (-nr) are those of
 * the personality's own table only. */
#ifndef CRUN_WORKER_PERSONALITY_H
#define CRUN_WORKER_PERSONALITY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/args/args.h"
#include "worker/config/config.h"

struct err;

struct personality_default {
    const char *option;  /* canonical name in trainer's table */
    const char *def;     /* NULL: trainer's own */
    char short_name;     /* 0: trainer's own */
    const char *aliases; /* further names, comma-separated; NULL: none */
};

/* What apply() may look at. */
struct personality_args {
    const struct arg_program *program; /* both tables */
    const struct arg_result *result;
    int argc;
    char **argv;
};

struct personality {
    const char *name, *usage, *summary, *epilog;
    const struct arg_spec *own;                 /* offsets into a struct that begins with a struct train_config */
    const struct personality_default *defaults; /* ends with option NULL */
    size_t config_size;
    enum arg_operands operands;
    bool recipes; /* --recipe: its options are named as trainer's, and mean the same */
    /* ERR_USAGE, or -ENOTSUP for what is not supported. Warnings go to stderr. */
    int (*apply)(void *config, const struct personality_args *a, struct err *e);
};

extern const struct personality personality_caffe2, personality_imagenet, personality_mnist;

/* Parse. 0: *ret is filled, its owner frees it (strings point into argv, environ or static storage); 1: --help or the
 * like was answered on stdout; negative: *e. */
int personality_parse(const struct personality *p, int argc, char **argv, const char *version,
                      struct train_config **ret, struct err *e);

/* --- for apply() */
bool personality_given(const struct personality_args *a,
                       const char *option); /* on the command line or in the environment */
void personality_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Work for each of procs processes a machine, on nodes machines. The ranks that a launcher made go before both. */
struct personality_world {
    bool launched; /* a launcher made the ranks */
    int world, nodes, procs;
};
int personality_world(struct personality_world *ret, int nodes, int procs, struct err *e);

/* Says that there is no GPU, once, unless --device was given. */
void personality_say_slow(const struct personality_args *a);

/* 0, or -ENOTSUP in a sentence: `option` asks for `what`, which is not supported. */
int personality_refuse(bool given, const char *option, const char *what, struct err *e);

#endif
