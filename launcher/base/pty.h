/* A pty for a worker, and the command that copies what is typed into it. */
#ifndef CRUN_LAUNCHER_PTY_H
#define CRUN_LAUNCHER_PTY_H

struct err;

/* Open a pty. Both ends are close-on-exec; the caller closes them. Lines end with "\n" alone,
 * as in a file. Its size is that of crun's terminal, if there is one. */
int pty_open(int *ret_ours, int *ret_theirs, struct err *e);

/* A command of crun's: copy what is typed on standard input, a terminal, to the terminal `fd`, until nobody has that
 * open any more, or SIGTERM comes. Meanwhile standard input neither echoes nor collects lines, because `fd` does
 * both; its signal keys and job control stay as they are. Returns an exit code. */
#define PTY_TYPIST_COMMAND "-typist"
int pty_type(const char *fd);

#endif
