/* The descriptors, signals and limits that crun was started with, and what crun changes. Workers get the original
 * ones (guardian_link). */
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
/* Block the signals that the guardian waits for; *waited gets them. */
void inherited_block_signals(struct guardian_link *l, sigset_t *waited);
void inherited_raise_files(struct guardian_link *l);

/* Save the terminal's settings, and restore them. A worker that had the terminal may leave it without echo; a shell
 * restores it only for programs that die of a signal. */
void inherited_look_at_terminal(struct inherited_terminal *ret);
void inherited_give_back_terminal(const struct inherited_terminal *t);

#endif
