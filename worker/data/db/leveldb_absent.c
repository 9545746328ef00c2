/* A build without LevelDB: what needs it says so. */
#include <errno.h>

#include "common/base/err.h"
#include "worker/data/db/db_writer.h"
#include "worker/data/sets/dataset_impl.h"

static int absent(struct err *e)
{
    return err_set(e, -ENOTSUP, "this build has no LevelDB (it was made without libleveldb-dev)");
}

int dataset_open_leveldb(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e)
{
    return absent(e);
}

static int open_absent(struct db_writer **ret, const char *path, struct err *e)
{
    return absent(e);
}

const struct db_writer_ops db_writer_leveldb = {.name = "leveldb", .open = open_absent};
