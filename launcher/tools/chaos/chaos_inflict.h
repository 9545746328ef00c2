/* Doing what a plan says. */
#ifndef CRUN_LAUNCHER_CHAOS_INFLICT_H
#define CRUN_LAUNCHER_CHAOS_INFLICT_H

#include <stddef.h>

struct chaos_means;
struct chaos_part;
struct chaos_table;
struct err;

/* Do one part of a fault, and record in the table what must be undone. outcome: "4242 (rank 3)", or "nobody" if
 * there is no such process, link or file now. Returns 1 if it found something, 0 if not; < 0: it cannot be done here
 * (-EPERM, ...). */
int chaos_inflict(const struct chaos_part *part, const struct chaos_means *m, struct chaos_table *t, char *outcome,
                  size_t cap, struct err *e);

#endif
