/* A terminal for a worker, and who types into it. */
#ifndef CRUN_LAUNCHER_PTY_H
#define CRUN_LAUNCHER_PTY_H

struct err;

/* Both ends are close-on-exec and the caller's. Lines end with "\n" alone, as in a file; its size is that of the
 * terminal that crun has, if it has one. */
int pty_open(int *ret_ours, int *ret_theirs, struct err *e);

/* crun's own command: what is typed on standard input, a terminal, goes to the terminal `fd`, until nobody has that any
 * more or SIGTERM comes. Meanwhile the typed one neither echoes nor gathers lines, as the other one does both; its keys
 * for signals and its job control stay what they are. Returns an exit code. */
#define PTY_TYPIST_COMMAND "-typist"
int pty_type(const char *fd);

#endif
