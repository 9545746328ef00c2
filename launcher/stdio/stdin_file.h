/* Standard input where it is a regular file that a worker is to read: `crun --stdin-rank 0 ... <file`.
 *
 *     the file ──► a thread of the output process ──pipe──► agent, worker
 *
 * A worker that waits for a disk cannot be killed, nor can an agent that closes the file in the end. So, as with
 * standard output (console_file.h), nobody whose end is waited for has it open: to the worker it is as `cat file |
 * crun ...`, and a disk that hangs is an input that does not come.
 *   - the file and the pipe's end to write to are put aside (aside.h), and the guardian holds the socket;
 *   - the place in the file moves on by what the pipe took. Another process takes the place of one that is killed, and
 *     goes on there;
 *   - the end of the file ends the pipe. So does an error, which the guardian reports. */
#ifndef CRUN_LAUNCHER_STDIN_FILE_H
#define CRUN_LAUNCHER_STDIN_FILE_H

/* In the agent: standard input becomes the pipe. The socket, the caller's; -1: it is no regular file, or stays as it is
 * for want of descriptors. */
int stdin_file_open(void);

/* In the output process: a thread that passes it on until the file is at its end, or nobody reads the pipe. done_fd, an
 * eventfd: 1 then, and the errno of the file added. 0 or -errno. */
int stdin_file_start(int kept, int done_fd);

#endif
