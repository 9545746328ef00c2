/* `trainer make-db`: a data set of any kind into an LMDB or LevelDB of records. */
#ifndef CRUN_WORKER_DATA_MAKE_DB_H
#define CRUN_WORKER_DATA_MAKE_DB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/data/db/record.h"
#include "worker/data/sets/dataset.h"

struct db_writer_ops;

struct make_db_options {
    const char *src, *dst; /* dst must not exist; it appears, with its classes.txt, when it is whole */
    struct dataset_options source;
    const struct db_writer_ops *writer;
    enum record_format format;
    bool raw;   /* pixels instead of the files' bytes */
    int resize; /* short side in pixels; 0: as it is */
    bool grey;  /* one channel; implies decoding */
    bool shuffle;
    uint64_t seed; /* of the shuffle */
    size_t limit;  /* pictures taken, the first in that order; 0: all */
    bool strict;   /* a picture that cannot be decoded is an error, not left out */
};

struct make_db_result {
    size_t written, left_out;
    uint64_t bytes; /* of the records */
};

/* Progress on stderr: each second if it is a terminal, else each 10,000 pictures. ERR_DATA, ERR_OUTPUT, -ENOSPC:
 * nothing is left at dst. */
int make_db(const struct make_db_options *o, struct make_db_result *ret, struct err *e);

#define MAKE_DB_KEY_MAX 255 /* LMDB takes keys of up to 511 bytes */

/* The key of the picture `name` at a place of n: the keys of all places rise in byte order, as data bases want them.
 * Returns its length. */
size_t make_db_key(char key[MAKE_DB_KEY_MAX], size_t place, size_t n, const char *name);

/* The subcommand: argv[0] is "make-db". Returns an exit code. */
int make_db_main(int argc, char **argv);

#endif
