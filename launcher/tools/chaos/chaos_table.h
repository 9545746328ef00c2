/* The faults that are not over: what has to be undone, and when.
 *
 * It lies in memory that the watcher shares (chaos_watcher.h): an entry is written before its deed is done, and erased
 * after it is undone. */
#ifndef CRUN_LAUNCHER_CHAOS_TABLE_H
#define CRUN_LAUNCHER_CHAOS_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "launcher/tools/chaos/chaos_find.h"

struct chaos_means;
struct err;

#define CHAOS_OPEN_MAX 65536
#define CHAOS_SLOW_MS 40 /* a turn of a process that is slowed: it runs for 1/by of it */

struct chaos_open {
    _Atomic int deed;             /* enum chaos_deed + 1; 0: a free entry */
    int64_t until_ms;             /* clock_ms() */
    int node;                     /* cut, clock */
    struct chaos_process process; /* stop, slow */
    int fd;                       /* fill: the file that takes the room */
    double by;                    /* slow, clock */
    int64_t turn_ms;              /* slow: when it goes on or halts next */
    bool halts;                   /* slow: just now */
};

struct chaos_table {
    _Atomic int n; /* so many of them were ever taken: no page of the others was touched */
    struct chaos_open v[CHAOS_OPEN_MAX];
};

/* Shared, and empty; NULL: no memory. */
struct chaos_table *chaos_table_create(void);

/* A signal to that very process. -ESRCH: it is gone. */
int chaos_signal(const struct chaos_process *p, int signo);

/* Take an entry that looks so, then do what it says: -ESRCH: the process is gone, -ENODEV: the link is, and there is
 * nothing to undo. fill: its fd is the table's. -EMFILE: too many are open; it is not done. */
int chaos_table_begin(struct chaos_table *t, const struct chaos_means *m, int deed, struct chaos_open what,
                      struct err *e);

/* End what is over by now and give those that are slowed their turns. Returns clock_ms() of the next such moment,
 * INT64_MAX: none. */
int64_t chaos_table_keep(struct chaos_table *t, const struct chaos_means *m, int64_t now_ms);

/* End everything. */
void chaos_table_end(struct chaos_table *t, const struct chaos_means *m);

#endif
