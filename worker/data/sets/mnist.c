/* MNIST's IDX files, as they are or as gzip: magic 0x0803 (pictures) or 0x0801 (labels), then big-endian sizes, then
 * bytes (http://yann.lecun.com/exdb/mnist). Fashion-MNIST and the like have the same form. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/image/image.h"
#include "worker/data/sets/raw_set.h"

#define CLASSES 10
#define PICTURES_MAX 100000000u

static const char *const parts[2][2] = {{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
                                        {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}};

static bool find_file(const char *dir, const char *name, char *ret, size_t cap)
{
    char zipped[64];
    snprintf(zipped, sizeof zipped, "%s.gz", name);
    const bool plain = dataset_has_file(dir, name), packed = !plain && dataset_has_file(dir, zipped);
    snprintf(ret, cap, "%s/%s", dir, packed ? zipped : name);
    return plain || packed;
}

bool dataset_is_mnist(const char *path)
{
    char file[PATH_MAX];
    return find_file(path, parts[0][0], file, sizeof file) || find_file(path, parts[1][0], file, sizeof file);
}

static int read_exactly(gzFile f, const char *path, void *dst, size_t n, struct err *e)
{
    for (size_t at = 0; at < n;) {
        const unsigned want = n - at < INT_MAX / 2 ? (unsigned)(n - at) : INT_MAX / 2;
        const int got = gzread(f, (char *)dst + at, want);
        if (got <= 0) {
            int code;
            const char *why = gzerror(f, &code);
            return err_set(e, ERR_DATA, "'%s' is cut short or damaged%s%s", path, code ? ": " : "", code ? why : "");
        }
        at += (size_t)got;
    }
    return 0;
}

static int get_u32(gzFile f, const char *path, uint32_t *ret, struct err *e)
{
    uint8_t b[4];
    TRY(read_exactly(f, path, b, sizeof b, e));
    *ret = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    return 0;
}

/* The header: magic 0x08 and the number of sizes, then the sizes. */
static int get_sizes(gzFile f, const char *path, int dims, uint32_t *sizes, struct err *e)
{
    uint32_t magic;
    TRY(get_u32(f, path, &magic, e));
    if (magic != (0x800u | (unsigned)dims))
        return err_set(e, ERR_DATA, "'%s' is no IDX file of bytes in %d dimensions (it begins with %08x)", path, dims,
                       magic);
    for (int i = 0; i < dims; i++)
        TRY(get_u32(f, path, &sizes[i], e));
    return sizes[0] <= PICTURES_MAX ? 0 : err_set(e, ERR_DATA, "'%s' claims %u entries", path, sizes[0]);
}

#define DEFLATE_MAX 1032u /* bytes that one byte can become */

/* Before memory is taken: can the file hold as much? */
static int check_bytes(gzFile f, const char *path, uint64_t n, struct err *e)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return err_errno(e, errno, "cannot read '%s'", path);
    const uint64_t bytes = (uint64_t)st.st_size;
    if (n <= (gzdirect(f) ? bytes : bytes * DEFLATE_MAX))
        return 0;
    return err_set(e, ERR_DATA, "'%s' is cut short or damaged: it claims %ju bytes of pictures and has %ju", path,
                   (uintmax_t)n, (uintmax_t)bytes);
}

static int get_pictures(struct raw_set *r, gzFile f, const char *path, uint32_t *n, struct err *e)
{
    uint32_t sizes[3];
    TRY(get_sizes(f, path, 3, sizes, e));
    if (sizes[1] < 1 || sizes[2] < 1 || sizes[1] > 4096 || sizes[2] > 4096)
        return err_set(e, ERR_DATA, "'%s' holds pictures of %u x %u", path, sizes[2], sizes[1]);
    r->h = (int)sizes[1];
    r->w = (int)sizes[2];
    r->c = 1;
    *n = sizes[0];
    TRY(check_bytes(f, path, (uint64_t)*n * sizes[1] * sizes[2], e));
    TRY(raw_set_reserve(r, *n, e));
    return read_exactly(f, path, r->px, (size_t)*n * sizes[1] * sizes[2], e);
}

static int get_labels(struct raw_set *r, gzFile f, const char *path, uint32_t n, struct err *e)
{
    uint32_t count;
    TRY(get_sizes(f, path, 1, &count, e));
    if (count != n)
        return err_set(e, ERR_DATA, "'%s' holds %u labels for %u pictures", path, count, n);
    return read_exactly(f, path, r->labels, n, e);
}

static int load_part(struct raw_set *r, const char *dir, const struct dataset_options *o, struct err *e)
{
    char path[PATH_MAX];
    uint32_t n = 0;
    for (int labels = 0; labels < 2; labels++) {
        if (!find_file(dir, parts[o->testing][labels], path, sizeof path))
            return err_set(e, ERR_DATA, "'%s' (or .gz) does not exist", path);
        const int fd = file_open_regular(path, ERR_DATA, e);
        if (fd < 0)
            return fd;
        gzFile f = gzdopen(fd, "rb");
        if (!f) {
            close(fd);
            return err_errno(e, ENOMEM, "cannot read '%s'", path);
        }
        gzbuffer(f, 1u << 17);
        int rc = labels ? get_labels(r, f, path, n, e) : get_pictures(r, f, path, &n, e);
        gzclose(f);
        TRY(rc);
    }
    r->base.n = n;
    return 0;
}

int dataset_open_mnist(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e)
{
    struct raw_set *r = raw_set_create("MNIST");
    if (!r)
        return err_set(e, -ENOMEM, "no memory for a data set");
    int rc = load_part(r, path, o, e);
    if (rc == 0)
        rc = raw_set_check(r, o, NULL, CLASSES, e);
    if (rc < 0)
        dataset_close(&r->base);
    else
        *ret = &r->base;
    return rc;
}
