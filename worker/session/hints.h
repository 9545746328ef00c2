/* Options that can be carried out, and hardly are what was meant: told before the first step. */
#ifndef CRUN_WORKER_HINTS_H
#define CRUN_WORKER_HINTS_H

struct dataset;
struct session;

/* Warnings in the log, after session_open_round(). most_rate: what the learning rate rises to. */
void hints_tell(const struct session *s, double most_rate);

/* Classes that are named as the parts of a data set are ("train", "val"), or a single one with folders in it, because
 * the folder above was given: the one to train on, borrowed; NULL: they are not. root: where the set lies. */
const char *hints_part_to_train_on(const struct dataset *d, const char *root);
void hints_tell_part(const struct dataset *d, const char *root); /* a warning, if there is one */

#endif
