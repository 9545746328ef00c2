/* The table of open faults: what must be undone, and when.
 *
 * It is in memory shared with the watcher (chaos_watcher.h): an entry is written before its fault is done, and
 * erased after it is undone. */
#ifndef CRUN_LAUNCHER_CHAOS_TABLE_H
#define CRUN_LAUNCHER_CHAOS_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "launcher/tools/chaos/chaos_find.h"

struct chaos_means;
struct err;

#define CHAOS_OPEN_MAX 65536
#define CHAOS_SLOW_MS 40 /* period of a slowed process: it runs for 1/by of it */

struct chaos_open {
    _Atomic int deed;             /* enum chaos_deed + 1; 0: a free entry */
    int64_t until_ms;             /* clock_ms() */
    int node;                     /* cut, clock */
    struct chaos_process process; /* stop, slow */
    int fd;                       /* fill: the file that takes the room */
    double by;                    /* slow, clock */
    int64_t turn_ms;              /* slow: when it is continued or stopped next */
    bool halts;                   /* slow: stopped now */
};

struct chaos_table {
    _Atomic int n; /* number of entries ever used; the pages of the others were never touched */
    struct chaos_open v[CHAOS_OPEN_MAX];
};

/* Shared, and empty; NULL: no memory. */
struct chaos_table *chaos_table_create(void);

/* Send a signal to exactly this process. -ESRCH: it is gone. */
int chaos_signal(const struct chaos_process *p, int signo);

/* Enter this fault into the table, then do it: -ESRCH: the process is gone, -ENODEV: the link is, and there is
 * nothing to undo. fill: the table owns the descriptor. -EMFILE: too many are open; it is not done. */
int chaos_table_begin(struct chaos_table *t, const struct chaos_means *m, int deed, struct chaos_open what,
                      struct err *e);

/* End faults whose time is over, and stop or continue slowed processes. Returns clock_ms() of the next call,
 * INT64_MAX: none is needed. */
int64_t chaos_table_keep(struct chaos_table *t, const struct chaos_means *m, int64_t now_ms);

/* End everything. */
void chaos_table_end(struct chaos_table *t, const struct chaos_means *m);

#endif
