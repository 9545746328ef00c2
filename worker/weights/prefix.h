/* What stands before a model's own names in a file of weights: "module.", "model.", "backbone.". Pure. */
#ifndef CRUN_WORKER_WEIGHTS_PREFIX_H
#define CRUN_WORKER_WEIGHTS_PREFIX_H

#include <stddef.h>

struct err;

/* The beginning, "" or what ends in a dot, behind which most of the file's names are among wanted[n_wanted], which are
 * sorted by strcmp: *ret_length bytes of *ret_name, which is one of names[n]. *ret_found: how many; 0: none is. Of
 * several equal ones the shortest, if the others begin with it, else ERR_MISMATCH names two. -ENOMEM. */
int prefix_find(const char *const *names, size_t n, const char *const *wanted, size_t n_wanted, const char **ret_name,
                size_t *ret_length, size_t *ret_found, struct err *e);

#endif
