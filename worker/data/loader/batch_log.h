/* What a rank trained on, batch by batch, so that splits and orders can be checked from outside: JSON lines
 * {"rank": 0, "world": 2, "epoch": 0, "step": 3, "sha256": "...", "bad": 0, "ids": [...]}.
 *
 * The hash is SHA-256 (OpenSSL's) over the rank's samples: pixels (count, H, W, C) u8 or tokens (count, T) i32,
 * labels (count, or count, T) i32, weights (count) f32, numbers in the machine's byte order. Ranks may share one
 * file: each line is one write at its end. */
#ifndef CRUN_WORKER_DATA_BATCH_LOG_H
#define CRUN_WORKER_DATA_BATCH_LOG_H

struct batch_log;
struct err;
struct input_options;
struct loader_batch;

/* path: "-" is standard output; a file is appended to. -ENOENT: libcrypto is not installed. */
int batch_log_open(struct batch_log **ret, const char *path, int rank, int world, struct err *e);
int batch_log_write(struct batch_log *l, const struct loader_batch *b, const struct input_options *in, struct err *e);
void batch_log_close(struct batch_log *l); /* NULL allowed */

#endif
