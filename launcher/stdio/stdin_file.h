/* Standard input that is a regular file and that a worker reads: `crun --stdin-rank 0 ... <file`.
 *
 *     the file ──► a thread of the output process ──pipe──► agent, worker
 *
 * A worker that waits for a disk cannot be killed, nor can an agent that closes the file at the end. So, as with
 * standard output (console_file.h), no process whose end is waited for has it open. To the worker it looks like `cat
 * file | crun ...`: if the disk hangs, no input comes.
 *   - the file and the pipe's write end are put aside (aside.h), and the guardian holds the socket;
 *   - the file offset advances by what the pipe accepted. If the output process is killed, its successor continues
 *     there;
 *   - the end of the file ends the pipe. So does an error, which the guardian reports. */
#ifndef CRUN_LAUNCHER_STDIN_FILE_H
#define CRUN_LAUNCHER_STDIN_FILE_H

/* In the agent: make standard input the pipe. Returns the socket, which the caller closes; -1: it is not a regular
 * file, or is left as it is for lack of descriptors. */
int stdin_file_open(void);

/* In the output process: start a thread that copies the file until its end, or until nobody reads the pipe. done_fd,
 * an eventfd, then gets 1 plus the errno of the file. 0 or -errno. */
int stdin_file_start(int kept, int done_fd);

#endif
