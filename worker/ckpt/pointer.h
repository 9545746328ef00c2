/* What points at a checkpoint in DIR: the links `latest`, `best` and <name>_<epoch>.mdl. Where there are no links, and
 * of older versions, `latest` and `best` are text files with the folder's name. */
#ifndef CRUN_WORKER_CKPT_POINTER_H
#define CRUN_WORKER_CKPT_POINTER_H

#include <stdbool.h>
#include <stdint.h>

struct err;

#define CKPT_LATEST "latest"
#define CKPT_BEST "best"
#define CKPT_LINK_SUFFIX ".mdl"

/* DIR/<name> leads to the folder from now on: replaced by rename, fsynced. */
int pointer_write(const char *dir, const char *name, int64_t step, struct err *e);

/* Step whose folder, beside it, the link or file `latest` or `best` at path names; -1 for any other file, or none. */
int64_t pointer_read(const char *path);

/* Must this checkpoint stay: is it the best, or does a link lead to it? */
bool pointer_to(const char *dir, int64_t step);

#endif
