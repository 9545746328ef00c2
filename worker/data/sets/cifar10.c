/* CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html), pixels in three planes, red first. The binary version:
 * data_batch_1.bin .. 5 and test_batch.bin, records of one label byte and 32 x 32 pixels. The version for Python:
 * data_batch_1 .. 5 and test_batch, pickles (cifar10_pickle.h). Each also in the sub-folder that its archive unpacks
 * to. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/sets/cifar10_pickle.h"
#include "worker/data/sets/raw_set.h"

#define SIZE 32
#define CHANNELS 3
#define CLASSES 10
#define RECORD (1 + SIZE * SIZE * CHANNELS)

static const char *const class_names[CLASSES] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                                 "dog",      "frog",       "horse", "ship", "truck"};

/* Where the versions lie, and how their files end. */
static const struct version {
    const char *folder, *suffix;
    bool pickled;
} versions[] = {
    {".", ".bin", false}, {"cifar-10-batches-bin", ".bin", false}, {".", "", true}, {"cifar-10-batches-py", "", true}};

static const struct version *version_with(const char *path, const char *name)
{
    char file[128];
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        snprintf(file, sizeof file, "%s/%s%s", versions[i].folder, name, versions[i].suffix);
        if (dataset_has_file(path, file))
            return &versions[i];
    }
    return NULL;
}

bool dataset_is_cifar10(const char *path)
{
    return version_with(path, "data_batch_1") || version_with(path, "test_batch");
}

static int add_records(struct raw_set *r, FILE *f, const char *path, struct err *e)
{
    struct stat st;
    if (fstat(fileno(f), &st) != 0)
        return err_errno(e, errno, "cannot read '%s'", path);
    if (st.st_size == 0 || st.st_size % RECORD != 0)
        return err_set(e, ERR_DATA, "'%s' has %lld bytes (expected a multiple of %d)", path, (long long)st.st_size,
                       RECORD);
    const size_t n = (size_t)st.st_size / RECORD;
    TRY(raw_set_reserve(r, n, e));
    for (size_t i = 0; i < n; i++, r->base.n++)
        if (fread(r->labels + r->base.n, 1, 1, f) != 1 ||
            fread(r->px + r->base.n * (RECORD - 1), RECORD - 1, 1, f) != 1)
            return err_set(e, ERR_DATA, "'%s' is cut short", path);
    return 0;
}

static int add_pickle(struct raw_set *r, FILE *f, const char *path, struct err *e)
{
    struct buf b = {.max = 1u << 30};
    const int code = file_read_all(fileno(f), &b);
    struct cifar10_pickle p = {.room = b.len / (RECORD - 1)};
    int rc = code < 0 ? err_errno(e, -code, "cannot read '%s'", path) : raw_set_reserve(r, p.room, e);
    if (rc == 0) {
        p.labels = r->labels + r->base.n;
        if ((rc = cifar10_pickle_read(&p, b.data, b.len, e)) < 0)
            err_wrap(e, "'%s'", path);
    }
    if (rc == 0) {
        memcpy(r->px + r->base.n * (RECORD - 1), p.pixels, p.n * (RECORD - 1));
        r->base.n += p.n;
    }
    buf_free(&b);
    return rc;
}

static int add_file(struct raw_set *r, const char *dir, const char *name, struct err *e)
{
    char path[PATH_MAX];
    const struct version *v = version_with(dir, name);
    if (!v)
        return err_set(e, ERR_DATA, "'%s/%s.bin' does not exist", dir, name);
    snprintf(path, sizeof path, "%s/%s/%s%s", dir, v->folder, name, v->suffix);
    FILE *f = NULL;
    TRY(file_stream_regular(&f, path, ERR_DATA, e));
    int rc = v->pickled ? add_pickle(r, f, path, e) : add_records(r, f, path, e);
    fclose(f);
    return rc;
}

static int load_batches(struct raw_set *r, const char *dir, bool testing, struct err *e)
{
    char name[32];
    r->w = r->h = SIZE;
    r->c = CHANNELS;
    r->planar = true;
    if (testing)
        return add_file(r, dir, "test_batch", e);
    for (int i = 1; i <= 5; i++) {
        snprintf(name, sizeof name, "data_batch_%d", i);
        TRY(add_file(r, dir, name, e));
    }
    return 0;
}

int dataset_open_cifar10(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e)
{
    struct raw_set *r = raw_set_create("CIFAR-10");
    if (!r)
        return err_set(e, -ENOMEM, "no memory for a data set");
    int rc = load_batches(r, path, o->testing, e);
    if (rc == 0)
        rc = raw_set_check(r, o, (char *const *)class_names, CLASSES, e);
    if (rc < 0)
        dataset_close(&r->base);
    else
        *ret = &r->base;
    return rc;
}
