/* Reads in /proc the samples of quiet.h, for a worker that reports nothing. */
#ifndef CRUN_LAUNCHER_SIGNS_H
#define CRUN_LAUNCHER_SIGNS_H

#include <stdbool.h>
#include <sys/types.h>

struct quiet_rank;
struct quiet_sample;

/* Processor time of the process and all below it; bytes that it has itself read and written, 0 if that may not be
 * read. false: it is gone. */
bool signs_read(pid_t pid, struct quiet_sample *ret);

void signs_place(pid_t pid, struct quiet_rank *ret); /* where the process waits */

#endif
