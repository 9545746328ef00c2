/* Models as text: a shipped one (nets/) or a user's FILE.net, one operation a line. docs/guide/models.md describes the
 * language. The room knows the words, shapes and names of parameters, and nothing of devices or training.
 *
 *   --arch resnet50, FILE.net or config.json -> model_text(): the text, which is also what a checkpoint keeps
 *   text -> net_read.h: lines, values, blocks -> a straight list of operations -> net_words.h: program_conv(), ...
 *   -> program_differentiate() -> a program that a device can plan (program.h)
 *
 * A text may come from a stranger's checkpoint: its length, the lines that are gone through, the operations and the
 * elements that they would take are bounded, and what exceeds a bound is refused before memory is taken for it. Errors
 * are one sentence with the line. A new model is a file in nets/ and a line in model.c. */
#ifndef CRUN_WORKER_MODEL_H
#define CRUN_WORKER_MODEL_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/choice.h"
#include "worker/program/input.h"
#include "worker/program/split.h"

struct err;
struct program;

/* Details in which two well-known ResNets differ. */
#define NET_STYLES(X)                                                                                                  \
    X(NET_TORCH, "torch") /* torchvision: batch-norm eps 1e-5, new statistics weigh 0.1, max-pool padded by 1 */       \
    X(NET_CAFFE2,                                                                                                      \
      "caffe2") /* Caffe2's resnet.py: eps 1e-3, new statistics weigh 0.9, max-pool without padding, the   \
                               last layer drawn by XavierFill with a bias of 0 */

enum net_style { NET_STYLES(CHOICE_ID) };

enum {
    MODEL_TEXT_MAX = 1 << 16, /* bytes */
    MODEL_NAME_MAX = 31       /* bytes of a model's name */
};

/* *ret: the text that arch means, a shipped model's name or the path of a file (it ends in ".net", or in ".json"
 * (hf_config.h), or has a slash), from malloc. Options of the trainer that the text has values for stand behind it as
 * `set` lines: style, and zero_init_residual (residual_gamma). -EINVAL: neither, with the list of names, or what is
 * wrong with the text, and in which line; -errno of the file. Blocks on the file. */
int model_text(char **ret, const char *arch, enum net_style style, bool zero_init_residual, struct err *e);

/* What a model that arch means is called: "tiny" of nets/tiny.net and of tiny/config.json. */
void model_name(const char *arch, char out[MODEL_NAME_MAX + 1]);

/* What a text says of its input and its end. */
struct model_facts {
    bool tokens;            /* it reads tokens, not pictures */
    int size, channels;     /* of pictures: the only ones that it takes; 0: any */
    int length, vocabulary; /* of tokens: the most of a sample, and how many there are; 0: as the data have */
    char last[64];          /* name of the layer that has an output a class */
};

/* what: stands before "line N" in errors. -EINVAL: see model_text(). */
int model_facts(const char *what, const char *text, struct model_facts *ret, struct err *e);

/* Do both texts make the same network, whatever its initial values are? *same; if not, *e says which operation is the
 * first that differs (ERR_MISMATCH). Both have been read before. */
int model_compare(const char *theirs, const char *ours, struct err *e);

struct model_options {
    const char *arch;   /* name of the program, and of the shipped model where text is NULL */
    const char *text;   /* NULL: the shipped one, in torchvision's style, each gamma 1 */
    int classes;        /* of pictures, >= 2 */
    struct input input; /* square pictures of 1 or 3 channels, or tokens. input.vocabulary 0: the text's; length at most
                          * the text's */
    bool whole_logits;  /* of a head: the logits of all positions are a tensor, program.logits, for those who read them;
                          * else nothing of that size exists */
    int positions;      /* rows of tables of positions: model_build() knows them; 0: as there are positions */
    struct split split; /* over a tensor group: of blocks, and of the last layer as `kind` says; all-zero: none */
    size_t align;       /* program_align(); 0: as it is without */
    const char *factors; /* program_freeze(); NULL: none */
};

/* Build and differentiate. *ret is freed with program_destroy(). -EINVAL: unknown arch (with the list), a text that is
 * wrong, an impossible size. */
int model_build(struct program **ret, const struct model_options *o, struct err *e);

/* Weight of a step's batch statistics in the running ones. */
double model_bn_momentum(enum net_style style);

/* "resnet18, resnet34, ..." */
const char *model_names(void);

#endif
