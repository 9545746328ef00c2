/* The words of a model's text that are operations, and their keys. A word is the one of ops.def. */
#ifndef CRUN_WORKER_NET_WORDS_H
#define CRUN_WORKER_NET_WORDS_H

#include <stdbool.h>

#include "common/base/choice.h"
#include "worker/program/program.h"

struct err;
struct model_options;
struct net_op;

/* What is written behind KEY=. */
enum net_type {
    NET_WHOLE,  /* a whole number from min to max */
    NET_REAL,   /* a number from min to max */
    NET_YES_NO, /* yes or no */
    NET_TENSOR, /* the name of an operation above */
    NET_DRAW,   /* initial values: default, zeros, ones, normal:S, truncated:S, uniform:B, constant:X, sincos2d */
    NET_NAMES,  /* names of parameters, with commas between them */
};

/* X(id, word, type, min, max) */
#define NET_KEYS(X)                                                                                                    \
    X(KEY_FROM, "from", NET_TENSOR, 0, 0)                                                                              \
    X(KEY_WITH, "with", NET_TENSOR, 0, 0)                                                                              \
    X(KEY_TIED, "tied", NET_TENSOR, 0, 0)                                                                              \
    X(KEY_OUT, "out", NET_WHOLE, 1, 1 << 24)                                                                           \
    X(KEY_KERNEL, "kernel", NET_WHOLE, 1, 1 << 10)                                                                     \
    X(KEY_STRIDE, "stride", NET_WHOLE, 1, 1 << 10)                                                                     \
    X(KEY_PAD, "pad", NET_WHOLE, 0, 1 << 10)                                                                           \
    X(KEY_GROUPS, "groups", NET_WHOLE, 1, 1 << 24)                                                                     \
    X(KEY_EACH, "each", NET_YES_NO, 0, 0)                                                                              \
    X(KEY_BIAS, "bias", NET_YES_NO, 0, 0)                                                                              \
    X(KEY_EPS, "eps", NET_REAL, 0, 1)                                                                                  \
    X(KEY_RMS, "rms", NET_YES_NO, 0, 0)                                                                                \
    X(KEY_MAP, "map", NET_YES_NO, 0, 0)                                                                                \
    X(KEY_RATE, "rate", NET_REAL, 0, 0.999999)                                                                         \
    X(KEY_SAMPLES, "samples", NET_YES_NO, 0, 0)                                                                        \
    X(KEY_HEADS, "heads", NET_WHOLE, 1, 1 << 16)                                                                       \
    X(KEY_KV_HEADS, "kv_heads", NET_WHOLE, 1, 1 << 16)                                                                 \
    X(KEY_CAUSAL, "causal", NET_YES_NO, 0, 0)                                                                          \
    X(KEY_BASE, "base", NET_REAL, 1, 1e12)                                                                             \
    X(KEY_AT, "at", NET_WHOLE, 0, 1 << 30)                                                                             \
    X(KEY_SIZE, "size", NET_WHOLE, 0, 4096)                                                                            \
    X(KEY_CHANNELS, "channels", NET_WHOLE, 0, 3)                                                                       \
    X(KEY_LENGTH, "length", NET_WHOLE, 0, 32768)                                                                       \
    X(KEY_VOCABULARY, "vocabulary", NET_WHOLE, 0, 1 << 24)                                                             \
    X(KEY_INIT, "init", NET_DRAW, 0, 0)                                                                                \
    X(KEY_BIAS_INIT, "bias_init", NET_DRAW, 0, 0)                                                                      \
    X(KEY_DECAY, "decay", NET_YES_NO, 0, 0)                                                                            \
    X(KEY_TRAIN, "train", NET_YES_NO, 0, 0)                                                                            \
    X(KEY_NAMES, "names", NET_NAMES, 0, 0)

enum net_key {
#define X(id, ...) id,
    NET_KEYS(X)
#undef X
        NET_KEYS_N
};

struct net_key_facts {
    const char *word;
    enum net_type type;
    double min, max;
};
extern const struct net_key_facts net_keys[NET_KEYS_N];

/* An operation of the language. */
struct net_word {
    const char *word;  /* NULL: ops.def's word of kind */
    enum op_kind kind; /* how many tensors it reads, and whether it has parameters, stands there */
    /* Its own keys, a blank between them: "out" must be given, "pad=0" has a default, "kv_heads=heads" that of
     * a key before it. Each operation may have `from`
     * (and `with`, if it reads two; a head `tied`); those with parameters init, bias_init, decay, train and names. */
    const char *keys;
    /* Append it to p; in: tensors that it reads. The new tensor, or -1 as the functions of program.h. */
    int (*build)(struct program *p, const struct net_op *op, const int *in, const struct model_options *o);
};
extern const struct net_word net_words[];
extern const int net_words_n;

bool net_word_begins(const struct net_word *w); /* is it what a model reads? */
const char *net_word_text(const struct net_word *w);
/* Is it the last line of a model? */
bool net_word_ends(const struct net_word *w);
/* Of its own keys, the text behind "KEY="; "" where it has no default; NULL: the word has no such key. */
const char *net_word_key(const struct net_word *w, enum net_key k, char out[32]);

/* Initial values: what a NET_DRAW says of a parameter with these fans. text NULL or "default": untouched. -EINVAL says
 * what is wrong. */
int net_draw(const char *text, double fan_in, double fan_out, struct param *ret, struct err *e);

#endif
