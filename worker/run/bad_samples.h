/* Samples that cannot be used: their names in a file, and the end of a run on a set that is all of such. */
#ifndef CRUN_WORKER_BAD_SAMPLES_H
#define CRUN_WORKER_BAD_SAMPLES_H

#include <stdint.h>

struct comm;
struct dataset;
struct err;
struct loader;

/* So many without one that can be used, and at least BAD_SAMPLES_BATCHES batches of them, are no accident. */
#define BAD_SAMPLES_FEW 64
#define BAD_SAMPLES_BATCHES 2

/* Append what this rank's loader left out since the last time to `path`, a line each: name, a tab, why. path NULL: to
 * nowhere. A file that cannot be written is told, and its names are lost. loader NULL: nothing. */
void bad_samples_write(const char *path, struct loader *l, struct dataset *d);

/* All ranks: what each has left out becomes known to all, so that none names it again; the rank that writes the file
 * (path not NULL) appends what all found, in the order of ranks. loader NULL: this rank has none. */
int bad_samples_share(const char *path, struct loader *l, struct dataset *d, struct comm *c, struct err *e);

/* ERR_DATA: "not one of the first n images of DATA could be used", why, and three of them as far as this rank had
 * some. Call it before they are written or shared. */
int bad_samples_refuse(struct loader *l, struct dataset *d, const char *data, int64_t n, struct err *e);

#endif
