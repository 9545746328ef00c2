/* A model's text as a straight list of operations: values put in, blocks and repetitions written out, references found.
 * Nothing is known of shapes yet. Pure. */
#ifndef CRUN_WORKER_NET_READ_H
#define CRUN_WORKER_NET_READ_H

#include <stdbool.h>

#include "worker/model/net_words.h"

struct buf;
struct err;

enum {
    NET_NAME_MAX = 55,   /* bytes of an operation's name: "d NAME #12" fits into struct tensor */
    NET_OPS_MAX = 2048,  /* of a model */
    NET_STEPS_MAX = 8192 /* lines that are gone through, those of repetitions each time */
};

/* What the ranks of a tensor group share of an operation (net_cut()). */
enum net_role { NET_UNCUT, NET_COLUMNS, NET_INSIDE, NET_ROWS };
struct net_cut {
    enum net_role role;
    int channels;        /* of all ranks: that come out of it; NET_ROWS: that go in */
    int heads, kv_heads; /* of the attention that they are cut by; 0: one by one */
};

struct net_op {
    const struct net_word *word;
    int line; /* from 1 */
    char name[NET_NAME_MAX + 1];
    int in[2];              /* operations before this one, -1 where unused */
    int readers;            /* operations that read it */
    double v[NET_KEYS_N];   /* of keys that are numbers, defaults included; yes: 1, no: 0 */
    char *text[NET_KEYS_N]; /* of the others; names are whole. NULL: not given */
    struct net_cut cut;
};

struct net {
    struct net_op *ops; /* the last one is the classifier, the first one the input */
    int n;
    size_t cap;
};

/* what: the name of the text in errors ("tiny.net, line 3: ..."). -EINVAL: one sentence; -ENOMEM. *ret is freed with
 * net_free(), also after an error. */
int net_read(struct net *ret, const char *what, const char *text, struct err *e);
void net_free(struct net *n);

/* Find what `ranks` ranks can share: how many pairs of layers, with what is between them. */
int net_cut(struct net *n, int ranks);

/* Has the text a line `let NAME=...`, not within a block or a repetition? */
bool net_has_value(const char *text, const char *name);

/* Append operation i as a line, each key with its value, but for initial values. 0 or as buf_printf(). */
int net_print(const struct net *n, int i, struct buf *out);

#endif
