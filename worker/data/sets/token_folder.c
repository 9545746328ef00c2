/* Lists a folder's files of tokens. What people leave among them is told: sub-folders, NumPy's files, and .bin files
 * that are of neither part. A file of tokens that cannot be found is an error, as the set would lack it. */
#include "worker/data/sets/token_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/array.h"
#include "common/base/err.h"

enum entry_kind { SHARD, FOLDER, NUMPY, OF_NO_PART, KINDS }; /* KINDS: none that is told */

struct listing {
    const char *dir;
    struct dirent **entries;
    int n;
    const char *part; /* names of shards have it in them; "": all are taken */
    size_t found[KINDS];
    const char *first[KINDS]; /* name of the first of each kind */
};

static bool ends(const char *name, const char *suffix)
{
    const size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

static int is_shown(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static const char *part_of(const struct listing *l, bool testing)
{
    bool train = false, val = false;
    for (int i = 0; i < l->n; i++) {
        const char *name = l->entries[i]->d_name;
        train |= ends(name, ".bin") && strstr(name, "train");
        val |= ends(name, ".bin") && strstr(name, "val");
    }
    return !train || !val ? "" : testing ? "val" : "train";
}

static int add_path(struct token_folder *f, char *path, struct err *e)
{
    int rc = path ? ARRAY_GROW(f->paths, f->cap, f->n + 1, "files of tokens", e) : err_errno(e, ENOMEM, "files' names");
    if (rc < 0)
        free(path);
    else
        f->paths[f->n++] = path;
    return rc;
}

static int leads_nowhere(const char *path, struct err *e)
{
    return err_set(e, ERR_DATA, "'%s' is a link that leads nowhere: remove it, or bring back the file that it names",
                   path);
}

static enum entry_kind kind_of(const struct listing *l, const char *name, bool is_folder)
{
    if (is_folder)
        return FOLDER;
    if (ends(name, ".npy"))
        return NUMPY;
    if (!ends(name, ".bin"))
        return KINDS;
    if (strstr(name, l->part))
        return SHARD;
    return strstr(name, l->part[0] == 't' ? "val" : "train") ? KINDS : OF_NO_PART;
}

/* One entry: a path of the list, or counted. */
static int look_at(struct listing *l, const char *name, struct token_folder *f, struct err *e)
{
    struct stat st;
    char *path;
    if (asprintf(&path, "%s/%s", l->dir, name) < 0)
        return err_errno(e, ENOMEM, "files' names");
    const int code = stat(path, &st) == 0 ? 0 : errno;
    const enum entry_kind kind = kind_of(l, name, code == 0 && S_ISDIR(st.st_mode));
    if (kind != KINDS && l->found[kind]++ == 0)
        l->first[kind] = name;
    if (kind == SHARD && code != ENOENT && code != ELOOP)
        return add_path(f, path, e);
    const int rc = kind == SHARD ? leads_nowhere(path, e) : 0;
    free(path);
    return rc;
}

#define FROM_NUMPY "numpy.load(FILE).tofile(NAME.bin) writes its tokens, which --token-bytes 2 or 4 reads"

static int no_shard(const struct listing *l, struct err *e)
{
    if (l->found[NUMPY])
        return err_set(e, ERR_DATA,
                       "'%s' holds no file of tokens (expected some with names NAME.bin); of '%.100s', a NumPy "
                       "file, " FROM_NUMPY,
                       l->dir, l->first[NUMPY]);
    if (l->found[FOLDER])
        return err_set(e, ERR_DATA,
                       "'%s' holds no file of tokens (expected some with names NAME.bin); it holds the folder "
                       "'%.100s': give that one if they are there",
                       l->dir, l->first[FOLDER]);
    return err_set(e, ERR_DATA, "'%s' holds no file of tokens (expected some with names NAME.bin)", l->dir);
}

/* "'a' and 2 more: passed over, ..." of each kind that is there. */
static int tell_others(const struct listing *l, struct buf *out, struct err *e)
{
    static const char *const why[KINDS] = {
        [FOLDER] = "a folder, and only files in the folder itself are read",
        [NUMPY] = "a NumPy file; " FROM_NUMPY,
        [OF_NO_PART] = "as others have train or val in their names, and it has neither",
    };
    int rc = 0;
    for (int k = 0; rc == 0 && k < KINDS; k++) {
        char more[40] = "";
        if (l->found[k] > 1)
            snprintf(more, sizeof more, " and %zu more", l->found[k] - 1);
        if (why[k] && l->found[k])
            rc = buf_printf(out, "%s'%s'%s: passed over, %s", out->len ? "; " : "", l->first[k], more, why[k]);
    }
    return rc < 0 ? err_errno(e, -rc, "a sentence on '%s'", l->dir) : 0;
}

int token_folder_list(struct token_folder *ret, const char *dir, bool testing, struct err *e)
{
    struct listing l = {.dir = dir};
    *ret = (struct token_folder){0};
    l.n = scandir(dir, &l.entries, is_shown, by_bytes);
    if (l.n < 0)
        return err_errno(e, errno, "cannot read '%s'", dir);
    l.part = part_of(&l, testing);
    int rc = 0;
    for (int i = 0; rc == 0 && i < l.n; i++)
        rc = look_at(&l, l.entries[i]->d_name, ret, e);
    if (rc == 0)
        rc = ret->n ? tell_others(&l, &ret->passed_over, e) : no_shard(&l, e);
    for (int i = 0; i < l.n; i++)
        free(l.entries[i]);
    free(l.entries);
    if (rc < 0)
        token_folder_free(ret);
    return rc;
}

void token_folder_free(struct token_folder *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->paths[i]);
    free(f->paths);
    buf_free(&f->passed_over);
    *f = (struct token_folder){0};
}
