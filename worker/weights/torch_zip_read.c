/* Reads the tensors of a .pth file, which is a zip archive. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zip.h>

#include "common/base/err.h"
#include "worker/weights/pickle_read.h"
#include "worker/weights/torch_zip.h"

#define PICKLE_NAME "/data.pkl"

struct torch_zip {
    zip_t *zip;
    char *path, *prefix; /* "archive/" */
    uint64_t file_bytes;
    struct pickle pickle;
    char *storage; /* the one read last: tensors may share it */
    size_t storage_bytes;
    char storage_key[PICKLE_KEY_MAX + 1];
};

/* Entry i must be stored, not compressed: what it holds is then as large as the file says. */
static int read_entry(struct torch_zip *z, zip_uint64_t i, char *dst, size_t n, struct err *e)
{
    zip_file_t *f = zip_fopen_index(z->zip, i, 0);
    if (!f)
        return err_set(e, ERR_CORRUPT, "%s: entry '%s': %s", z->path, zip_get_name(z->zip, i, 0), zip_strerror(z->zip));
    size_t got = 0;
    zip_int64_t r = 1;
    while (got < n && (r = zip_fread(f, dst + got, n - got)) > 0)
        got += (size_t)r;
    char more;
    if (r > 0)
        r = zip_fread(f, &more, 1); /* at its end the sum is checked */
    int rc = r < 0 || got < n ? err_set(e, ERR_CORRUPT, "%s: entry '%s': %s", z->path, zip_get_name(z->zip, i, 0),
                                        r < 0 ? zip_file_strerror(f) : "it ends early")
                              : 0;
    zip_fclose(f);
    return rc;
}

/* An entry of the archive whole, malloc'ed; at most `most` bytes. */
static int load_entry(struct torch_zip *z, const char *name, uint64_t most, char **ret, size_t *ret_n, struct err *e)
{
    zip_stat_t st;
    zip_int64_t i = zip_name_locate(z->zip, name, 0);
    if (i < 0)
        return err_set(e, ERR_CORRUPT, "%s has no entry '%s'", z->path, name);
    if (zip_stat_index(z->zip, (zip_uint64_t)i, 0, &st) < 0 || !(st.valid & ZIP_STAT_SIZE))
        return err_set(e, ERR_CORRUPT, "%s: entry '%s' has no size", z->path, name);
    if (st.size > most)
        return err_set(e, ERR_CORRUPT, "%s: entry '%s' has %llu bytes (expected at most %llu)", z->path, name,
                       (unsigned long long)st.size, (unsigned long long)most);
    if (st.comp_method != ZIP_CM_STORE)
        return err_set(e, ERR_CORRUPT, "%s: entry '%s' is compressed, which torch does not do", z->path, name);
    if (st.size > z->file_bytes) /* before memory is taken */
        return err_set(e, ERR_CORRUPT, "%s: entry '%s' claims %llu bytes, more than the file has, %llu; get it again",
                       z->path, name, (unsigned long long)st.size, (unsigned long long)z->file_bytes);
    char *data = malloc(st.size ? (size_t)st.size : 1);
    if (!data)
        return err_errno(e, ENOMEM, "%llu bytes of %s", (unsigned long long)st.size, z->path);
    int rc = read_entry(z, (zip_uint64_t)i, data, (size_t)st.size, e);
    if (rc < 0) {
        free(data);
        return rc;
    }
    *ret = data;
    *ret_n = (size_t)st.size;
    return 0;
}

static int find_prefix(struct torch_zip *z, struct err *e)
{
    const size_t tail = strlen(PICKLE_NAME);
    for (zip_int64_t i = 0; i < zip_get_num_entries(z->zip, 0); i++) {
        const char *name = zip_get_name(z->zip, (zip_uint64_t)i, 0);
        size_t n = name ? strlen(name) : 0;
        if (n > tail && strcmp(name + n - tail, PICKLE_NAME) == 0) {
            z->prefix = strndup(name, n - tail + 1);
            return z->prefix ? 0 : err_errno(e, ENOMEM, "%s", z->path);
        }
    }
    return err_set(e, ERR_CORRUPT, "%s is a zip, but none of torch.save(): it has no data.pkl", z->path);
}

static int check_byte_order(struct torch_zip *z, struct err *e)
{
    char name[PATH_MAX], *text;
    size_t n;
    snprintf(name, sizeof name, "%sbyteorder", z->prefix);
    if (zip_name_locate(z->zip, name, 0) < 0) /* torch before 2.1 */
        return 0;
    TRY(load_entry(z, name, 64, &text, &n, e));
    bool little = n == 6 && memcmp(text, "little", 6) == 0;
    free(text);
    return little ? 0 : err_set(e, -ENOTSUP, "%s was written on a big-endian machine", z->path);
}

static int read_list(struct torch_zip *z, const char *part, struct err *e)
{
    char name[PATH_MAX], *data;
    struct stat st;
    size_t n;
    if (stat(z->path, &st) < 0)
        return err_errno(e, errno, "look at %s", z->path);
    z->file_bytes = (uint64_t)st.st_size;
    TRY(find_prefix(z, e));
    TRY(check_byte_order(z, e));
    snprintf(name, sizeof name, "%sdata.pkl", z->prefix);
    TRY(load_entry(z, name, PICKLE_BYTES_MAX, &data, &n, e));
    int rc = pickle_read(&z->pickle, data, n, part, e);
    free(data);
    return rc < 0 ? err_wrap(e, "%s", z->path) : pickle_check_sizes(&z->pickle, (int64_t)z->file_bytes, z->path, e);
}

int torch_zip_open(struct torch_zip **ret, const char *path, const char *part, struct err *e)
{
    int code = 0;
    struct torch_zip *z = calloc(1, sizeof *z);
    if (!z || !(z->path = strdup(path))) {
        free(z);
        return err_errno(e, ENOMEM, "%s", path);
    }
    z->zip = zip_open(path, ZIP_RDONLY, &code);
    int rc;
    if (z->zip) {
        rc = read_list(z, part, e);
    } else if (code == ZIP_ER_NOZIP) { /* its list of entries, which stands at its end, is not there */
        rc = err_set(e, ERR_CORRUPT, "%s is cut short: it begins as a zip and lacks its end; get it again", path);
    } else {
        zip_error_t why;
        zip_error_init_with_code(&why, code);
        rc = err_set(e, ERR_CORRUPT, "%s is no sound zip: %s", path, zip_error_strerror(&why));
        zip_error_fini(&why);
    }
    if (rc < 0) {
        torch_zip_close(z);
        return rc;
    }
    *ret = z;
    return 0;
}

void torch_zip_close(struct torch_zip *z)
{
    if (!z)
        return;
    if (z->zip)
        zip_discard(z->zip);
    pickle_free(&z->pickle);
    free(z->storage);
    free(z->prefix);
    free(z->path);
    free(z);
}

size_t torch_zip_count(const struct torch_zip *z)
{
    return z->pickle.n;
}

const struct ckpt_tensor *torch_zip_at(const struct torch_zip *z, size_t i)
{
    return &z->pickle.t[i].t;
}

const struct pickle *torch_zip_pickle(const struct torch_zip *z)
{
    return &z->pickle;
}

static int load_storage(struct torch_zip *z, const struct pickled_tensor *p, struct err *e)
{
    char name[PATH_MAX];
    if (z->storage && strcmp(z->storage_key, p->storage) == 0)
        return 0;
    free(z->storage);
    z->storage = NULL;
    snprintf(name, sizeof name, "%sdata/%s", z->prefix, p->storage);
    TRY(load_entry(z, name, INT64_MAX, &z->storage, &z->storage_bytes, e));
    snprintf(z->storage_key, sizeof z->storage_key, "%s", p->storage);
    return 0;
}

int torch_zip_read(struct torch_zip *z, size_t i, void *dst, struct err *e)
{
    const struct pickled_tensor *p = &z->pickle.t[i];
    TRY(load_storage(z, p, e));
    return pickled_copy(p, z->storage, z->storage_bytes, dst, z->path, e);
}
