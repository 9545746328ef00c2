/* What a dying worker leaves for its launcher: error.json, in torchrun's format with our members added.
 *
 *     {"message": {"message": "text", "extraInfo": {"timestamp": "1763732797", "py_callstack": "..."}},
 *      "exitcode": 65, "rank": 3, "step": 120}
 *
 * A plain string "message" with a top-level "timestamp" is read as well. */
#ifndef CRUN_COMMON_FAILURE_RECORD_H
#define CRUN_COMMON_FAILURE_RECORD_H

#include <stdbool.h>
#include <stdint.h>

struct err;

struct failure_record {
    char message[512];
    int64_t timestamp; /* seconds since 1970, 0 if unknown */
    int exitcode;      /* -1 if unknown */
    int rank;          /* -1 if unknown */
    int64_t step;      /* -1 if unknown */
};

/* Written to path.tmp, renamed. A NULL or empty path is a no-op. */
int failure_record_write(const char *path, const struct failure_record *r, struct err *e);

/* -ENOENT if there is none; ERR_CORRUPT if it cannot be understood; at most 1 MiB is read. */
int failure_record_read(const char *path, struct failure_record *ret, struct err *e);

/* Read the record `name` in the folder `at`, for a report. If the file cannot be understood, or is a link, the
 * record's message says so and calls the file `path`. False: there is no such file. */
bool failure_record_look(int at, const char *name, const char *path, struct failure_record *ret);

#endif
