/* What crun was started with, and what becomes of it: descriptors, signals, limits. Workers get theirs back
 * (guardian_link). */
#ifndef CRUN_LAUNCHER_INHERITED_H
#define CRUN_LAUNCHER_INHERITED_H

#include <signal.h>

#include <stdbool.h>
#include <termios.h>

struct guardian_link;

struct inherited_terminal {
    bool is_there; /* as standard input */
    struct termios was;
};

/* 0 or -errno. */
int inherited_fill_fds(void);
/* Those that the guardian waits for are blocked; which they are. */
void inherited_block_signals(struct guardian_link *l, sigset_t *waited);
void inherited_raise_files(struct guardian_link *l);

/* A worker that had the terminal may have left it without echo. A shell gives it back only for those that die of a
 * signal. */
void inherited_look_at_terminal(struct inherited_terminal *ret);
void inherited_give_back_terminal(const struct inherited_terminal *t);

#endif
