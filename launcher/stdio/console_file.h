/* Standard output or standard error that is a regular file: `crun ... >log 2>&1`.
 *
 * A process that ends closes its files, and a disk that hangs blocks it there (close(2) flushes) before anybody learns
 * of its end. So no process whose end is waited for has such a file open:
 *
 *     guardian, deputy, agent, output process ──pipe──► a thread of the output process ──► the file
 *                                                            │
 *                         a socket in whose queue it lies ───┘
 *
 *   - the thread has descriptors of its own (apart.h): a duplicate of the file that was put aside (aside.h). The thread
 *     of a later output process takes another duplicate;
 *   - to all other processes it looks like `crun ... | cat >log`: a disk that hangs is a console that does not read;
 *   - bytes that the file does not accept (a full disk) are counted, and the job goes on; when there is room again, the
 *     file says how many are missing, and continues with a whole line;
 *   - at the end crun waits for a disk as long as it makes progress; otherwise the rest is lost, and that is logged.
 * Until the job begins (console_files_enter()) the agent has the file itself: `crun --help >/full/disk` fails as any
 * program does. If a file cannot be put aside, for lack of descriptors, it stays where it is. */
#ifndef CRUN_LAUNCHER_CONSOLE_FILE_H
#define CRUN_LAUNCHER_CONSOLE_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CONSOLE_FILES 2      /* stdout and stderr; if both are one file, the first entry is for both */
#define CONSOLE_FILE_MS 2000 /* ms at the end for a disk that makes no progress */

/* Shared with whoever writes; zeroed. */
struct console_file_page {
    _Atomic int64_t since_ms;  /* when the present write began; 0: none is in progress */
    _Atomic uint64_t held;     /* bytes being written */
    _Atomic uint64_t lost;     /* bytes that the file did not take */
    _Atomic uint64_t reported; /* how many of the lost bytes the file itself reports */
    _Atomic int error;         /* the newest errno: why bytes were lost, or why bytes written last may be lost */
};

struct console_file {
    int kept;    /* the socket; -1: this is not a file, or the other entry has it */
    int in, out; /* the pipe; -1: descriptor 1 or 2 is as crun was started with it */
    struct console_file_page *page;
};

/* In the guardian, before it forks: find out what descriptors 1 and 2 are, without waiting for a disk, and put files
 * aside. */
void console_files_open(struct console_file f[CONSOLE_FILES], struct console_file_page pages[CONSOLE_FILES]);

/* In a process that does not write, nor starts one that does: close what is kept for these files. */
void console_files_leave(const struct console_file f[CONSOLE_FILES]);

/* From now on descriptors 1 and 2 of this process are the pipes, if they were files. keeps_stdin: a standard input
 * that is a file stays open (stdin_file.h); otherwise it becomes /dev/null. */
void console_files_enter(const struct console_file f[CONSOLE_FILES], bool keeps_stdin);

/* One of the two is a file. */
bool console_files_exist(const struct console_file f[CONSOLE_FILES]);

/* Write to the file until the pipe is at its end, or until it is empty and end_fd is readable. -errno: the file
 * cannot be taken. */
int console_file_write(const struct console_file *f, int end_fd);

/* In the output process: start a thread for each file. end_fd: eventfd that tells that nothing more will be written;
 * gone_fd: eventfd that counts threads that are done. f must stay. Returns the number of threads; -errno. */
int console_files_start(const struct console_file f[CONSOLE_FILES], int end_fd, int gone_fd);

/* Bytes that both files together did not accept. */
uint64_t console_files_lost(const struct console_file f[CONSOLE_FILES]);
/* Bytes on their way to the file. */
uint64_t console_file_waiting(const struct console_file *f);
/* How long to wait for an end that was announced at notified_ms (clock_ms()); 0: no longer. */
int console_file_patience_ms(const struct console_file *f, int64_t notified_ms);

#endif
