/* Standard output or standard error where it is a regular file: `crun ... >log 2>&1`.
 *
 * A process that ends closes what it has open, and a disk that hangs makes it wait there (close(2) flushes), before
 * anybody hears of its end. So nobody whose end is waited for has such a file open:
 *
 *     guardian, deputy, agent, output process ──pipe──► a thread of the output process ──► the file
 *                                                            │
 *                         a socket in whose queue it lies ───┘
 *
 *   - the thread has descriptors of its own (apart.h): a duplicate of what was put aside (aside.h), as has the thread
 *     of a process after this one;
 *   - to all others it is as `crun ... | cat >log`. A disk that hangs is a console that does not read;
 *   - what the file does not take (a full disk) is counted, and the job goes on; when there is room again the file says
 *     how much is missing, and goes on with a whole line;
 *   - in the end a disk that moves is waited for, else what is left is lost, and that is logged.
 * Until the job begins (console_files_enter()) the agent has the file itself: `crun --help >/full/disk` fails as any
 * program does. Where a file cannot be put aside, for want of descriptors, it stays where it is. */
#ifndef CRUN_LAUNCHER_CONSOLE_FILE_H
#define CRUN_LAUNCHER_CONSOLE_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CONSOLE_FILES 2      /* stdout and stderr; where both are one file, the first has them both */
#define CONSOLE_FILE_MS 2000 /* in the end, for a disk that does not move */

/* Shared with whoever writes; zeroed. */
struct console_file_page {
    _Atomic int64_t since_ms;  /* when it began with what it is at now; 0: with nothing */
    _Atomic uint64_t held;     /* bytes that it is at */
    _Atomic uint64_t lost;     /* bytes that the file did not take */
    _Atomic uint64_t reported; /* of these, so many are reported in the file itself */
    _Atomic int error;         /* errno: why, or why what it took last may be lost; the newest */
};

struct console_file {
    int kept;    /* the socket; -1: this is no file, or the other one has it */
    int in, out; /* the pipe; -1: descriptor 1 or 2 is as crun was started with it */
    struct console_file_page *page;
};

/* In the guardian, before it forks: look what descriptors 1 and 2 are, which waits for no disk, and put files aside. */
void console_files_open(struct console_file f[CONSOLE_FILES], struct console_file_page pages[CONSOLE_FILES]);

/* In a process that neither writes nor starts one that does: gives up what is kept for these. */
void console_files_leave(const struct console_file f[CONSOLE_FILES]);

/* From now on descriptors 1 and 2 of this process are the pipes, where they were files. keeps_stdin: a standard input
 * that is a file stays (stdin_file.h); else it is /dev/null. */
void console_files_enter(const struct console_file f[CONSOLE_FILES], bool keeps_stdin);

/* One of the two is a file. */
bool console_files_exist(const struct console_file f[CONSOLE_FILES]);

/* Until the pipe is at its end, or empty and end_fd is readable. -errno: the file cannot be had. */
int console_file_write(const struct console_file *f, int end_fd);

/* In the output process: a thread for each file. end_fd, an eventfd: nothing will be written any more; gone_fd, an
 * eventfd: counts the threads that are done. f stays. How many there are; -errno. */
int console_files_start(const struct console_file f[CONSOLE_FILES], int end_fd, int gone_fd);

/* Bytes that files did not take, of both. */
uint64_t console_files_lost(const struct console_file f[CONSOLE_FILES]);
/* Bytes that are on their way to the file. */
uint64_t console_file_waiting(const struct console_file *f);
/* How long to wait for what was notified to end at notified_ms (clock_ms()); 0: no longer. */
int console_file_patience_ms(const struct console_file *f, int64_t notified_ms);

#endif
