/* CIFAR-10 and CIFAR-100 (https://www.cs.toronto.edu/~kriz/cifar.html), pixels in three planes, red first. The binary
 * version: data_batch_1.bin .. 5 and test_batch.bin, records of one label byte and 32 x 32 pixels; of CIFAR-100
 * train.bin and test.bin, with the label of a superclass in front. The version for Python: the same names without .bin,
 * pickles (cifar10_pickle.h). Each also in the sub-folder that its archive unpacks to. */
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
#define PICTURE (SIZE * SIZE * CHANNELS)

static const char *const class_names[CLASSES] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                                 "dog",      "frog",       "horse", "ship", "truck"};

static const char *const names_of_100[100] = {
    "apple",      "aquarium_fish", "baby",         "bear",       "beaver",      "bed",         "bee",
    "beetle",     "bicycle",       "bottle",       "bowl",       "boy",         "bridge",      "bus",
    "butterfly",  "camel",         "can",          "castle",     "caterpillar", "cattle",      "chair",
    "chimpanzee", "clock",         "cloud",        "cockroach",  "couch",       "crab",        "crocodile",
    "cup",        "dinosaur",      "dolphin",      "elephant",   "flatfish",    "forest",      "fox",
    "girl",       "hamster",       "house",        "kangaroo",   "keyboard",    "lamp",        "lawn_mower",
    "leopard",    "lion",          "lizard",       "lobster",    "man",         "maple_tree",  "motorcycle",
    "mountain",   "mouse",         "mushroom",     "oak_tree",   "orange",      "orchid",      "otter",
    "palm_tree",  "pear",          "pickup_truck", "pine_tree",  "plain",       "plate",       "poppy",
    "porcupine",  "possum",        "rabbit",       "raccoon",    "ray",         "road",        "rocket",
    "rose",       "sea",           "seal",         "shark",      "shrew",       "skunk",       "skyscraper",
    "snail",      "snake",         "spider",       "squirrel",   "streetcar",   "sunflower",   "sweet_pepper",
    "table",      "tank",          "telephone",    "television", "tiger",       "tractor",     "train",
    "trout",      "tulip",         "turtle",       "wardrobe",   "whale",       "willow_tree", "wolf",
    "woman",      "worm"};

/* Where the versions lie, how their files end, and what lies beside them. */
static const struct version {
    const char *folder, *suffix;
    bool pickled, fine; /* fine: CIFAR-100 */
    const char *beside;
} versions[] = {{".", ".bin", false, false, NULL},
                {"cifar-10-batches-bin", ".bin", false, false, NULL},
                {".", "", true, false, NULL},
                {"cifar-10-batches-py", "", true, false, NULL},
                {".", ".bin", false, true, "fine_label_names.txt"},
                {"cifar-100-binary", ".bin", false, true, "fine_label_names.txt"},
                {".", "", true, true, "meta"},
                {"cifar-100-python", "", true, true, "meta"}};

/* A folder train is no file of CIFAR-100. */
static bool has_file(const char *path, const char *folder, const char *name, const char *suffix)
{
    char file[PATH_MAX];
    struct stat st;
    return snprintf(file, sizeof file, "%s/%s/%s%s", path, folder, name, suffix) < (int)sizeof file &&
           stat(file, &st) == 0 && !S_ISDIR(st.st_mode);
}

/* The version with that part. */
static const struct version *version_with(const char *path, bool testing)
{
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        const struct version *v = &versions[i];
        const char *name = v->fine ? testing ? "test" : "train" : testing ? "test_batch" : "data_batch_1";
        if (has_file(path, v->folder, name, v->suffix) && (!v->beside || has_file(path, v->folder, v->beside, "")))
            return v;
    }
    return NULL;
}

bool dataset_is_cifar10(const char *path)
{
    return version_with(path, false) || version_with(path, true);
}

static int add_records(struct raw_set *r, FILE *f, bool fine, const char *path, struct err *e)
{
    struct stat st;
    const int labels = fine ? 2 : 1, record = labels + PICTURE;
    if (fstat(fileno(f), &st) != 0)
        return err_errno(e, errno, "cannot read '%s'", path);
    if (st.st_size == 0 || st.st_size % record != 0)
        return err_set(e, ERR_DATA, "'%s' has %lld bytes (expected a multiple of %d)", path, (long long)st.st_size,
                       record);
    const size_t n = (size_t)st.st_size / (size_t)record;
    TRY(raw_set_reserve(r, n, e));
    for (size_t i = 0; i < n; i++, r->base.n++)
        if ((fine && getc(f) == EOF) || fread(r->labels + r->base.n, 1, 1, f) != 1 ||
            fread(r->px + r->base.n * PICTURE, PICTURE, 1, f) != 1)
            return err_set(e, ERR_DATA, "'%s' is cut short", path);
    return 0;
}

static int add_pickle(struct raw_set *r, FILE *f, bool fine, const char *path, struct err *e)
{
    struct buf b = {.max = 1u << 30};
    const int code = file_read_all(fileno(f), &b);
    struct cifar10_pickle p = {.room = b.len / PICTURE, .fine = fine};
    int rc = code < 0 ? err_errno(e, -code, "cannot read '%s'", path) : raw_set_reserve(r, p.room, e);
    if (rc == 0) {
        p.labels = r->labels + r->base.n;
        if ((rc = cifar10_pickle_read(&p, b.data, b.len, e)) < 0)
            err_wrap(e, "'%s'", path);
    }
    if (rc == 0) {
        memcpy(r->px + r->base.n * PICTURE, p.pixels, p.n * PICTURE);
        r->base.n += p.n;
    }
    buf_free(&b);
    return rc;
}

static int add_file(struct raw_set *r, const char *dir, const struct version *v, const char *name, struct err *e)
{
    char path[PATH_MAX];
    FILE *f = NULL;
    if (snprintf(path, sizeof path, "%s/%s/%s%s", dir, v->folder, name, v->suffix) >= (int)sizeof path)
        return err_set(e, ERR_DATA, "the path of '%s' in '%.200s' is too long", name, dir);
    TRY(file_stream_regular(&f, path, ERR_DATA, e));
    int rc = v->pickled ? add_pickle(r, f, v->fine, path, e) : add_records(r, f, v->fine, path, e);
    fclose(f);
    return rc;
}

static int load_batches(struct raw_set *r, const char *dir, const struct version *v, bool testing, struct err *e)
{
    char name[32];
    r->w = r->h = SIZE;
    r->c = CHANNELS;
    r->planar = true;
    if (v->fine)
        return add_file(r, dir, v, testing ? "test" : "train", e);
    if (testing)
        return add_file(r, dir, v, "test_batch", e);
    for (int i = 1; i <= 5; i++) {
        snprintf(name, sizeof name, "data_batch_%d", i);
        TRY(add_file(r, dir, v, name, e));
    }
    return 0;
}

int dataset_open_cifar10(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e)
{
    const struct version *v = version_with(path, o->testing);
    if (!v)
        return err_set(e, ERR_DATA, "'%s/%s.bin' does not exist", path, o->testing ? "test_batch" : "data_batch_1");
    struct raw_set *r = raw_set_create(v->fine ? "CIFAR-100" : "CIFAR-10");
    if (!r)
        return err_set(e, -ENOMEM, "no memory for a data set");
    int rc = load_batches(r, path, v, o->testing, e);
    if (rc == 0)
        rc = raw_set_check(r, o, (char *const *)(v->fine ? names_of_100 : class_names), v->fine ? 100 : CLASSES, e);
    if (rc < 0)
        dataset_close(&r->base);
    else
        *ret = &r->base;
    return rc;
}
