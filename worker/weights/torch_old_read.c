/* Reads the files of torch.save() from before torch 1.6. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/weights/pickle_read.h"
#include "worker/weights/torch_old.h"

#define FIRST_PIECE ((size_t)1 << 20) /* of the file, in which the pickles are looked for */

struct place { /* of a storage */
    const char *key;
    int64_t at, bytes;
};

struct torch_old {
    int fd;
    char *path;
    int64_t file_bytes;
    struct pickle pickle;
    struct place *places; /* (pickle.n_storages), sorted by key */
    char *storage;        /* the one read last: tensors may share it */
    const struct place *of;
};

static int read_at(const struct torch_old *f, void *dst, size_t n, int64_t at, struct err *e)
{
    char *to = dst;
    while (n > 0) {
        const ssize_t r = pread(f->fd, to, n, at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_errno(e, errno, "read %s", f->path);
        if (r == 0)
            return err_set(e, ERR_CORRUPT,
                           "%s is cut short: it ends at byte %" PRId64 ", before its storages do; get it again",
                           f->path, at);
        to += r;
        at += r;
        n -= (size_t)r;
    }
    return 0;
}

/* Of the first n bytes. */
static int try_pickles(struct torch_old *f, size_t n, const char *part, struct err *e)
{
    char *data = malloc(n + 1);
    if (!data)
        return err_errno(e, ENOMEM, "%zu bytes of %s", n, f->path);
    int rc = read_at(f, data, n, 0, e);
    if (rc == 0 && (rc = pickle_read_old(&f->pickle, data, n, part, e)) < 0)
        err_wrap(e, "%s", f->path);
    free(data);
    return rc;
}

/* *e says what is wrong with the pickles in so many bytes. */
static int not_whole(const struct torch_old *f, size_t most, struct err *e)
{
    const struct err why = *e;
    if ((int64_t)most < f->file_bytes)
        return err_set(e, why.code, "%s, in its first %zu bytes (expected all that is no weights there)", why.text,
                       most);
    return err_set(e, why.code, "%s; if it is cut short, get it again", why.text);
}

/* How long the pickles are is not written anywhere: what ends early in so many bytes may be whole in more. */
static int read_pickles(struct torch_old *f, const char *part, struct err *e)
{
    const size_t most = f->file_bytes < (int64_t)PICKLE_BYTES_MAX ? (size_t)f->file_bytes : PICKLE_BYTES_MAX;
    for (size_t n = most < FIRST_PIECE ? most : FIRST_PIECE;; n = n < most / 8 ? 8 * n : most) {
        const int rc = try_pickles(f, n, part, e);
        if (rc == ERR_CORRUPT && n == most)
            return not_whole(f, most, e);
        if (rc != ERR_CORRUPT)
            return rc;
    }
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->key, ((const struct place *)b)->key);
}

/* Each storage: how many elements, then these. */
static int find_places(struct torch_old *f, struct err *e)
{
    int64_t at = (int64_t)f->pickle.used, count = 0;
    const size_t n = f->pickle.n_storages;
    f->places = calloc(n + 1, sizeof *f->places);
    if (!f->places)
        return err_errno(e, ENOMEM, "list of %zu storages", n);
    for (size_t i = 0; i < n; i++) {
        const struct pickled_storage *s = &f->pickle.storages[i];
        struct place *p = &f->places[i];
        TRY(read_at(f, &count, sizeof count, at, e));
        p->key = s->key;
        p->at = at + (int64_t)sizeof count;
        if (count != s->count)
            return err_set(e, ERR_CORRUPT, "%s: storage '%s' has %" PRId64 " elements instead of %" PRId64, f->path,
                           s->key, count, s->count);
        if (__builtin_mul_overflow(count, (int64_t)s->element_bytes, &p->bytes) || p->bytes > f->file_bytes - p->at)
            return err_set(e, ERR_CORRUPT,
                           "%s is cut short: its storage '%s' of %" PRId64 " elements from byte %" PRId64
                           " on goes beyond its end, byte %" PRId64 "; get it again",
                           f->path, s->key, count, p->at, f->file_bytes);
        at = p->at + p->bytes;
    }
    if (n)
        qsort(f->places, n, sizeof *f->places, by_key);
    return 0;
}

static int read_list(struct torch_old *f, const char *part, struct err *e)
{
    struct stat st;
    if (fstat(f->fd, &st) < 0)
        return err_errno(e, errno, "look at %s", f->path);
    f->file_bytes = st.st_size;
    TRY(read_pickles(f, part, e));
    TRY(find_places(f, e));
    return pickle_check_sizes(&f->pickle, f->file_bytes, f->path, e);
}

int torch_old_open(struct torch_old **ret, const char *path, const char *part, struct err *e)
{
    struct torch_old *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path))) {
        free(f);
        return err_errno(e, ENOMEM, "%s", path);
    }
    f->fd = file_open_regular(path, ERR_CORRUPT, e);
    const int rc = f->fd < 0 ? f->fd : read_list(f, part, e);
    if (rc < 0) {
        torch_old_close(f);
        return rc;
    }
    *ret = f;
    return 0;
}

void torch_old_close(struct torch_old *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    pickle_free(&f->pickle);
    free(f->places);
    free(f->storage);
    free(f->path);
    free(f);
}

size_t torch_old_count(const struct torch_old *f)
{
    return f->pickle.n;
}

const struct ckpt_tensor *torch_old_at(const struct torch_old *f, size_t i)
{
    return &f->pickle.t[i].t;
}

const struct pickle *torch_old_pickle(const struct torch_old *f)
{
    return &f->pickle;
}

static int load_storage(struct torch_old *f, const struct pickled_tensor *p, struct err *e)
{
    const struct place key = {.key = p->storage};
    const struct place *of = bsearch(&key, f->places, f->pickle.n_storages, sizeof *f->places, by_key);
    if (!of)
        return err_set(e, ERR_CORRUPT, "%s: storage '%s' of tensor '%s' is not in the file", f->path, p->storage,
                       p->t.name);
    if (f->of == of)
        return 0;
    free(f->storage);
    f->of = NULL;
    f->storage = malloc((size_t)of->bytes + 1);
    if (!f->storage)
        return err_errno(e, ENOMEM, "%" PRId64 " bytes of %s", of->bytes, f->path);
    TRY(read_at(f, f->storage, (size_t)of->bytes, of->at, e));
    f->of = of;
    return 0;
}

int torch_old_read(struct torch_old *f, size_t i, void *dst, struct err *e)
{
    const struct pickled_tensor *p = &f->pickle.t[i];
    TRY(load_storage(f, p, e));
    return pickled_copy(p, f->storage, (size_t)f->of->bytes, dst, f->path, e);
}
