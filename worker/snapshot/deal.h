/* Tensors between ranks and a file, a piece at a time, in the file's order: no rank holds more than what it has of them
 * and a few buffers of CKPT_PIECE.
 *
 *   save   a rank that writes asks for piece after piece of what it does not hold whole; the others go through the same
 *          pieces and send what they save of each
 *   load   the reader reads piece after piece; what all ranks hold is broadcast, else each gets what it holds
 *
 * All ranks of the communicator make the same calls. A rank whose file fails goes on: it takes what it is sent, or
 * sends anything, to the end; then all ranks get the error. */
#ifndef CRUN_WORKER_SNAPSHOT_DEAL_H
#define CRUN_WORKER_SNAPSHOT_DEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/snapshot/slices.h"
#include "worker/snapshot/stored.h"

struct comm;
struct deal;
struct err;

/* Buffers that one save or load may take, bytes. */
#define DEAL_BYTES_MAX (6 * CKPT_PIECE)

/* Every rank of c learns what the others hold. c: its COMM_CONTROL is used, from the thread that calls; NULL: this rank
 * is alone, or holds all there is to save. Both borrowed. -EINVAL: the ranks do not hold each element. */
int deal_open(struct deal **ret, struct comm *c, struct slices *s, struct err *e);
void deal_close(struct deal *d); /* NULL allowed */

/* Which slices this rank sends or writes in a save to these ranks; wanted[n_held]. */
void deal_wanted(const struct deal *d, const bool *writers, bool *wanted);

/* One save to the ranks for which writers[world] says so (NULL: a rank alone). */
int deal_save_begin(struct deal *d, const bool *writers, struct err *e);
/* Give tensors of slices.tensors their source for ckpt_save(): of a rank that writes, until deal_save_end(). */
void deal_set_source(struct deal *d);
/* What is left is sent, and taken and dropped. Errors are those of the communicator, after which it is unusable, or of
 * copying from the device; also those that the source has returned before. */
int deal_save_end(struct deal *d, struct err *e);
/* This rank takes no part in a save that the others have begun: it fails on them. */
void deal_abandon(struct deal *d);
/* Has a save failed in a way after which the communicator is unusable? */
bool deal_broken(const struct deal *d);

struct deal_load {
    int reader;          /* the rank that has */
    struct stored *from; /* of the reader; else NULL */
    const bool *wanted;  /* [n]: which tensors; equal on all ranks */
    bool averages;       /* averages of parameters and statistics become the same */
    const char *what;    /* for errors */
};
/* Into the state, whose version grows. The reader's error, or -ECANCELED if that is another rank; the state is then
 * undefined. *reading: how the reader's reading went, on all ranks; 0 where they do not get to hear it. */
int deal_load(struct deal *d, const struct deal_load *l, int *reading, struct err *e);

#endif
