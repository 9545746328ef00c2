/* The state directory: one append-only log of records per job, so that jobs outlive the daemon.
 *
 *   DIR/lock            held while a daemon uses it: two never share one
 *   DIR/epoch           how often it was opened, a decimal number
 *   DIR/jobs/ID.log     "rendezvousd-log 2", then records (1 is read as well)
 *
 * A record is a line "LENGTH NUMBER CRC32C" (8 hexadecimal digits each; the sum covers the first two words and the
 * text), LENGTH bytes of text, a newline. Numbers count from 1 without gaps. A file that ends within a record (the
 * daemon or its host died while it was written) is good up to there; a bad record with a good one behind it is damage:
 * such a file is set aside.
 *
 * Appending only copies; a process of its own (persist_writer.h) writes everything that has gathered and syncs it
 * (group commit: one fdatasync per log and turn), so that no disk ever delays a heartbeat, or the end of the daemon.
 * What may be told when is the owner's business: persist_durable(). A log that cannot be written any more (disk full,
 * I/O error) is said once, removed, and counts as durable: its job goes on in memory only, and a restarted daemon does
 * not know it rather than knowing it wrongly. Loop thread only. */
#ifndef CRUN_RENDEZVOUSD_PERSIST_H
#define CRUN_RENDEZVOUSD_PERSIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct buf;
struct err;
struct persist;
struct persist_log;

#define PERSIST_RECORD_MAX ((size_t)64 << 20) /* bytes of one record's text */
#define PERSIST_FILE_MAX ((size_t)1 << 30)

/* Make or take over DIR. *ret_epoch: how often it was opened, this time included. -EBUSY: another daemon uses it.
 * Blocks on the disk. */
int persist_open(struct persist **ret, uv_loop_t *loop, const char *dir, uint64_t *ret_epoch, struct err *e);
/* Has what is left written, waits for it, for 2 s where the disk does not answer, and lets the directory go. All logs
 * are closed by then. NULL allowed; the loop must turn once more. */
void persist_close(struct persist *p);

/* Visit every log, in the order of their names: begin() takes the log over (what it gives in *ret_log_arg goes to
 * the others), record() gets its texts. Before anything else is written to it, it must be rewritten or removed: its
 * end may be torn. Where the file is damaged or record() refuses a text, drop() forgets what was read, closing
 * nothing, and the file is renamed to ID.log.damaged and told of: the others are read all the same. Once:
 * afterwards nothing of the directory is open here. An error of begin() or end(), of the disk or of memory ends it:
 * e names the file. */
struct persist_reader {
    int (*begin)(void *arg, struct persist_log *l, void **ret_log_arg, struct err *e);
    int (*record)(void *log_arg, const char *text, size_t n, struct err *e);
    int (*end)(void *log_arg, struct err *e);
    void (*drop)(void *log_arg);
    void *arg;
};
int persist_load(struct persist *p, const struct persist_reader *r, struct err *e);
size_t persist_damaged(const struct persist *p); /* files that were set aside */

/* id: 1 to 64 letters, digits or '-'. durable(arg) is called when more has become durable; it may append. -ENOMEM. */
int persist_log_create(struct persist *p, const char *id, struct persist_log **ret, struct err *e);
void persist_log_watch(struct persist_log *l, void (*durable)(void *arg), void *arg);
void persist_log_close(struct persist_log *l);  /* keeps the file; NULL allowed */
void persist_log_remove(struct persist_log *l); /* the file goes, too; NULL allowed */

/* The number of the record. It becomes durable by itself. */
uint64_t persist_append(struct persist_log *l, const void *text, size_t n);
/* This text takes the place of all records so far (compaction); the old file is whole until the new one is. */
uint64_t persist_rewrite(struct persist_log *l, const void *text, size_t n);
bool persist_durable(const struct persist_log *l, uint64_t number);
uint64_t persist_last(const struct persist_log *l); /* number of the newest record */
/* Bytes appended since the last rewrite (or since the beginning), and of that. */
void persist_sizes(const struct persist_log *l, size_t *ret_appended, size_t *ret_base);

/* --- the format, pure (persist_log.c) */

int persist_frame_header(struct buf *out);
int persist_frame(struct buf *out, uint32_t number, const void *text, size_t n);
/* Hand out every record. *ret_good: bytes of them and the header. ERR_CORRUPT: not our file, or damage before its end;
 * take()'s error if it is negative. */
int persist_parse(const char *p, size_t n, int (*take)(void *arg, const char *text, size_t n, struct err *e), void *arg,
                  size_t *ret_good, struct err *e);

#endif
