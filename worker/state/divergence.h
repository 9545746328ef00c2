/* Saying what is not a number after training diverged. */
#ifndef CRUN_WORKER_DIVERGENCE_H
#define CRUN_WORKER_DIVERGENCE_H

struct comm;
struct ddp;
struct err;
struct state;

/* Sets ERR_DIVERGED, names the loss and the first tensor that holds an infinity or a NaN: a weight; else, in the order
 * of the model, the statistics of a batch norm's input; else a gradient. All ranks of d. Returns ERR_DIVERGED (another
 * code if the device or, where gradients are cut, telling one another fails). */
int divergence_error(struct state *s, struct ddp *d, double loss, struct err *e);

/* A test loss that is no number: ERR_DIVERGED with the first weight that holds an infinity or a NaN; 0 if none does.
 * All ranks of c, which hold the model between them. */
int divergence_of_weights(struct state *s, struct comm *c, double loss, struct err *e);

#endif
