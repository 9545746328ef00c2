/* Doing what a plan says. */
#ifndef CRUN_LAUNCHER_CHAOS_INFLICT_H
#define CRUN_LAUNCHER_CHAOS_INFLICT_H

#include <stddef.h>

struct chaos_means;
struct chaos_part;
struct chaos_table;
struct err;

/* Inflict one part of a fault, and note in the table what is to be undone. outcome: "4242 (rank 3)", or "nobody" where
 * there was no such process, link or file just now. Returns 1 if it met something, 0 if nobody; < 0: it cannot be done
 * here (-EPERM, ...). */
int chaos_inflict(const struct chaos_part *part, const struct chaos_means *m, struct chaos_table *t, char *outcome,
                  size_t cap, struct err *e);

#endif
