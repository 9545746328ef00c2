/* Layers over the ranks of a tensor group: those of a block, and the last one of a classifier with its loss. A program
 * is one rank's.
 *
 *   two layers of each position, and what is between them (attention, by heads; what works on each channel)
 *     x (N,C) --gather--> (ranks * N,C) --linear--> its channels --...--> --linear--> partial sums --scatter--> (N,K)
 *     + bias. Between the two it has some channels of the rows of all ranks, elsewhere all channels of its own rows.
 *
 *   last layer, split over classes: a rank has the weight's rows, and the biases, of some classes
 *     features (N,C) --gather--> (ranks * N,C) --linear--> logits of its classes --loss over parts-->
 *     backward: gradients of its logits -> of its rows; of all features, a partial sum --scatter--> (N,C)
 *
 *   last layer, split over features: a rank has some columns of the weight, and all biases
 *     features (N,C) --gather--> (ranks * N,C) --slice--> its features --linear--> partial sums of all logits
 *     --scatter--> (N,K) + bias -> the loss of its samples, as without a group
 *
 *   embedding and head, split over the vocabulary: a rank has the table's rows of some tokens
 *     tokens (N,1) --gather--> (ranks * N,1) --embed--> its rows, or zeros --scatter--> (N,C)
 *     x (N,C) --gather--> (ranks * N,C) --head: logits of its tokens, and the loss over parts of them-->
 *     backward: of all of x, a partial sum --scatter--> (N,C)
 *
 * The loss over parts of the logits never has the logits of all classes in one place: the group takes the maximum of
 *   TOP    each row's largest logit, and the logit of its label, which one rank has
 * and then the sum of
 *   SUMS   exp(z - max), the logits themselves (for smoothing), and how many beat the label's: the rank of the label,
 *          ties going to the lower class, so hits are exact. */
#ifndef CRUN_WORKER_PROGRAM_SPLIT_H
#define CRUN_WORKER_PROGRAM_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

struct program;

enum split_kind { SPLIT_NONE, SPLIT_CLASSES, SPLIT_FEATURES }; /* a vocabulary: with each but NONE */

struct split {
    enum split_kind kind;
    int ranks, index; /* of the group, and which of them this one is */
};

/* Part `index` of n things: sizes differ by one at most, the first ones are the larger. */
struct split_part {
    size_t first, n;
};
struct split_part split_part(size_t n, int parts, int index);

/* Append the layer `name` of each position with k outputs, of which this rank has some: those of split_part(), or
 * (heads > 0: queries, keys and values of so many heads) of some heads of keys and values and all that read them.
 * x: of this rank's rows; the new tensor: of the group's. */
int program_columns(struct program *p, const char *name, int x, int k, int heads, int kv_heads, bool bias,
                    const struct split *s);
/* Append the layer `name` of each position with k outputs over x, which has this rank's channels of `whole` ones, cut
 * by split_part() into `units` of equal size. The new tensor: of this rank's rows. */
int program_rows(struct program *p, const char *name, int x, int k, int whole, int units, bool bias,
                 const struct split *s);

/* program_embed() and program_head() of the part of the vocabulary that this rank has, or of all of it. A building
 * error: fewer tokens than ranks. */
int program_embedding(struct program *p, const char *name, int tokens, int c, const struct split *s);
bool program_vocabulary(struct program *p, const char *name, int x, int tied, const struct split *s);

/* Append the layer `name` of `classes` outputs over x, of this rank's rows or of the group's, and the loss. A
 * building error: fewer classes, or features, than ranks; features that are maps of more than 1 x 1. */
void program_classifier(struct program *p, const char *name, int x, int classes, const struct split *s);

/* --- what it is made of: as the functions of program.h */
int program_slice(struct program *p, const char *name, int x, int first, int n);
int program_gather(struct program *p, const char *name, int x);
int program_scatter(struct program *p, const char *name, int x);
int program_sum(struct program *p, const char *name, int x);
int program_max(struct program *p, const char *name, int x);
/* The group that these are over; before the first of them. */
void program_set_group(struct program *p, int ranks);

#endif
