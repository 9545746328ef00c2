/* What the files of the reader share; nobody else includes this.
 *
 *   net_line.c   words of a line, values put in
 *   net_op.c     an operation
 *   net_read.c   blocks, repetitions, the whole text */
#ifndef CRUN_WORKER_NET_READER_H
#define CRUN_WORKER_NET_READER_H

#include <stdbool.h>

#include "worker/model/net_read.h"

enum {
    TOKENS_MAX = 16, /* of a line */
    WORD_MAX = 31,   /* bytes of a value's, a block's or a key's name */
    VALUE_MAX = 191, /* bytes of a value */
    VALUES_MAX = 128,
    BLOCKS_MAX = 32,
    PARAMS_MAX = 8, /* of a block */
    DEPTH_MAX = 16, /* blocks and repetitions within one another */
    TIMES_MAX = 10000,
    LINE_LENGTH_MAX = 512,
    WORDS_MAX = 64 /* of the language */
};

struct token {
    const char *at;
    int n;
};

struct line {
    struct token text;
    int end; /* of `block` and `repeat`: the line of its `end`; -1: none */
};

struct value {
    char name[WORD_MAX + 1], text[VALUE_MAX + 1];
};

struct block {
    char name[WORD_MAX + 1];
    int line, nparams;
    struct value params[PARAMS_MAX]; /* text: the default */
    bool needed[PARAMS_MAX];         /* has none */
};

struct reader {
    const char *what;
    struct line *lines;
    int nlines, line; /* line: where we are, from 0 */
    struct value values[VALUES_MAX], sets[VALUES_MAX];
    int nvalues, base, nglobal; /* seen are [base, nvalues) and [0, nglobal) */
    int nsets, set_line[VALUES_MAX];
    bool set_used[VALUES_MAX];
    struct block blocks[BLOCKS_MAX];
    int nblocks, depth, steps;
    char scope[NET_NAME_MAX + 2]; /* "layer1.0.", what names begin with */
    int counts[WORDS_MAX];        /* of each word in this scope */
    int x, in;                    /* operations: the one before; what the block reads; -1: none */
    struct net *net;
    struct err *e;
};

/* NAME KEY=VALUE... of a line, values put in. */
struct arguments {
    char name[VALUE_MAX + 1]; /* "": none */
    struct value pairs[TOKENS_MAX];
    int n;
};

/* -EINVAL, with the line where we are; of what *e says, if it does not name the line yet. */
int net_fail(const struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int net_fail_at(const struct reader *r);

/* --- words of a line */
bool net_is(struct token t, const char *word);
bool net_is_word(const char *s, int n); /* a name of a value, a block or a key */
bool net_is_name(const char *s);        /* of an operation, a parameter or a scope */
/* The line where we are; *ret: how many there are. */
int net_split(const struct reader *r, struct token t[TOKENS_MAX], int *ret);
const char *net_equals(struct token t); /* '=' of it, outside of braces; NULL: none */

/* --- values */
int net_expand(struct reader *r, struct token t, char out[VALUE_MAX + 1]);
int net_define(struct reader *r, const char *name, const char *text);

/* --- arguments: of the words of a line behind the first one */
int net_read_arguments(struct reader *r, const struct token *t, int n, struct arguments *a);
/* One of them, from 0 to max. otherwise: where it is not given; -1: it must be. */
int net_read_whole(const struct reader *r, const struct arguments *a, const char *key, int otherwise, int max,
                   int *ret);
int net_check_keys(const struct reader *r, const struct arguments *a, const char *one, const char *two);

/* --- operations */
int net_add_op(struct reader *r, const struct net_word *w, const struct arguments *a);

#endif
