/* Reads weights that lie in several files with an index. */
#include "worker/weights/shards.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/utf8.h"
#include "worker/ckpt/cursor.h"
#include "worker/weights/weights_impl.h"

#define INDEX_MAX ((size_t)32 << 20) /* bytes */
#define TEXT_MAX 1024                /* of a name in it */
#define FILES_MAX 1024
#define TENSORS_MAX 262144

struct shard {
    char *name;
    struct weights file; /* no more than weights_open_file() sets */
    size_t *order;       /* of its tensors by their names */
    size_t n;
};

struct entry {
    size_t shard, i; /* i-th of that file */
};

struct shards {
    const char *path; /* of the index, while it is opened */
    struct shard *shards;
    size_t n_shards, cap_shards;
    struct entry *entries;
    size_t n, cap;
};

static bool ends(const char *name, const char *suffix)
{
    const size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

static bool is_plain(const char *name)
{
    for (const char *c = name; *c; c++)
        if (printable_byte(*c) != *c || *c == '/')
            return false;
    return strlen(name) <= NAME_MAX && name[0] != '.' && (ends(name, ".safetensors") || ends(name, ".bin"));
}

static const struct ckpt_tensor *tensor_of(const struct shard *s, size_t i)
{
    return s->file.source->at(s->file.of, i);
}

static int by_name_in(const void *a, const void *b, void *of)
{
    return strcmp(tensor_of(of, *(const size_t *)a)->name, tensor_of(of, *(const size_t *)b)->name);
}

/* The number of the tensor of that name; -1: there is none. */
static int64_t find_in(const struct shard *s, const char *name)
{
    size_t low = 0, high = s->n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (strcmp(tensor_of(s, s->order[mid])->name, name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low < s->n && strcmp(tensor_of(s, s->order[low])->name, name) == 0 ? (int64_t)s->order[low] : -1;
}

static int open_beside(const char *index, const char *name, struct shard *ret, struct err *e)
{
    char path[PATH_MAX];
    const char *slash = strrchr(index, '/');
    const int dir = slash ? (int)(slash - index) + 1 : 0;
    if (snprintf(path, sizeof path, "%.*s%s", dir, index, name) >= PATH_MAX)
        return err_set(e, ERR_CORRUPT, "the path of '%s' is too long", name);
    if (access(path, F_OK) < 0)
        return err_set(e, ERR_CORRUPT, "%s names the file '%s', which is not there: %s", index, name, strerror(errno));
    TRY(weights_open_file(&ret->file, path, NULL, e));
    ret->n = ret->file.source->count(ret->file.of);
    if (!(ret->order = malloc((ret->n + 1) * sizeof *ret->order)))
        return err_errno(e, ENOMEM, "%s", path);
    for (size_t i = 0; i < ret->n; i++)
        ret->order[i] = i;
    qsort_r(ret->order, ret->n, sizeof *ret->order, by_name_in, ret);
    return 0;
}

/* *ret: which one it is. */
static int find_shard(struct shards *s, const char *name, size_t *ret, struct err *e)
{
    for (*ret = 0; *ret < s->n_shards; ++*ret)
        if (strcmp(s->shards[*ret].name, name) == 0)
            return 0;
    if (!is_plain(name))
        return err_set(e, ERR_CORRUPT,
                       "%s names '%.100s', which is no plain name of a .safetensors or .bin file beside it", s->path,
                       name);
    if (s->n_shards == FILES_MAX)
        return err_set(e, ERR_CORRUPT, "%s names more than %d files", s->path, FILES_MAX);
    TRY(ARRAY_GROW(s->shards, s->cap_shards, s->n_shards + 1, "files of weights", e));
    struct shard *new = &s->shards[s->n_shards];
    *new = (struct shard){.name = strdup(name)};
    if (!new->name)
        return err_errno(e, ENOMEM, "%s", s->path);
    s->n_shards++;
    return open_beside(s->path, name, new, e);
}

static int add_entry(struct shards *s, const char *tensor, const char *file, struct err *e)
{
    size_t shard = 0;
    TRY(find_shard(s, file, &shard, e));
    const int64_t i = find_in(&s->shards[shard], tensor);
    if (i < 0)
        return err_set(e, ERR_CORRUPT, "%s says that '%.100s' is in '%.100s', which has no such tensor", s->path,
                       tensor, file);
    if (s->n == TENSORS_MAX)
        return err_set(e, ERR_CORRUPT, "%s names more than %d tensors", s->path, TENSORS_MAX);
    TRY(ARRAY_GROW(s->entries, s->cap, s->n + 1, "tensors", e));
    s->entries[s->n++] = (struct entry){shard, (size_t)i};
    return 0;
}

static int no_index(const struct shards *s, struct err *e)
{
    return err_set(e, ERR_CORRUPT, "%s is no index of weights: expected {\"weight_map\": {tensor: file, ...}}",
                   s->path);
}

static int read_pair(struct shards *s, struct cursor *c, struct err *e)
{
    struct cursor key, value;
    if (!cursor_string(c, &key) || !cursor_char(c, ':') || !cursor_string(c, &value) || key.end - key.p > TEXT_MAX ||
        value.end - value.p > TEXT_MAX)
        return no_index(s, e);
    cJSON *tensor = cursor_parse(&key), *file = cursor_parse(&value);
    const int rc = cJSON_IsString(tensor) && cJSON_IsString(file)
                       ? add_entry(s, tensor->valuestring, file->valuestring, e)
                       : no_index(s, e);
    cJSON_Delete(tensor);
    cJSON_Delete(file);
    return rc;
}

static int read_map(struct shards *s, struct cursor c, struct err *e)
{
    if (!cursor_char(&c, '{') || s->n > 0)
        return no_index(s, e);
    if (cursor_char(&c, '}'))
        return 0;
    do
        TRY(read_pair(s, &c, e));
    while (cursor_char(&c, ','));
    return cursor_char(&c, '}') ? 0 : no_index(s, e);
}

static int read_index(struct shards *s, struct cursor c, struct err *e)
{
    struct cursor key, value;
    if (!cursor_char(&c, '{'))
        return no_index(s, e);
    do {
        if (!cursor_string(&c, &key) || !cursor_char(&c, ':') || !cursor_value(&c, &value))
            return no_index(s, e);
        const size_t n = (size_t)(key.end - key.p);
        if (n == strlen("\"weight_map\"") && memcmp(key.p, "\"weight_map\"", n) == 0)
            TRY(read_map(s, value, e));
    } while (cursor_char(&c, ','));
    if (!cursor_char(&c, '}') || s->n == 0)
        return no_index(s, e);
    cursor_blanks(&c);
    return c.p == c.end ? 0 : no_index(s, e);
}

static int by_name(const void *a, const void *b, void *of)
{
    return strcmp(shards_at(of, *(const size_t *)a)->name, shards_at(of, *(const size_t *)b)->name);
}

/* No tensor is there twice, be it of one file or of two. */
static int check_claims(struct shards *s, struct err *e)
{
    size_t *order = calloc(s->n, sizeof *order);
    int rc = order ? 0 : err_errno(e, ENOMEM, "list of %zu tensors", s->n);
    for (size_t i = 0; rc == 0 && i < s->n; i++)
        order[i] = i;
    if (rc == 0)
        qsort_r(order, s->n, sizeof *order, by_name, s);
    for (size_t i = 1; rc == 0 && i < s->n; i++)
        if (by_name(&order[i - 1], &order[i], s) == 0)
            rc = err_set(e, ERR_CORRUPT, "%s names the tensor '%s' twice, in '%.100s' and '%.100s'", s->path,
                         shards_at(s, order[i])->name, s->shards[s->entries[order[i - 1]].shard].name,
                         s->shards[s->entries[order[i]].shard].name);
    free(order);
    return rc;
}

static int read_text(const char *path, struct buf *ret, struct err *e)
{
    const int fd = file_open_regular(path, ERR_CORRUPT, e);
    TRY(fd);
    const int rc = file_read_all(fd, ret);
    close(fd);
    if (rc == -E2BIG)
        return err_set(e, ERR_CORRUPT, "%s has more than %zu bytes, too many for an index of weights", path, INDEX_MAX);
    return rc < 0 ? err_errno(e, -rc, "read %s", path) : 0;
}

int shards_open(struct shards **ret, const char *path, struct err *e)
{
    struct buf text = {.max = INDEX_MAX};
    struct shards *s = calloc(1, sizeof *s);
    int rc = s ? read_text(path, &text, e) : err_errno(e, ENOMEM, "%s", path);
    if (rc == 0) {
        s->path = path;
        rc = read_index(s, (struct cursor){(const char *)text.data, (const char *)text.data + text.len}, e);
    }
    if (rc == 0)
        rc = check_claims(s, e);
    buf_free(&text);
    if (rc < 0) {
        shards_close(s);
        return rc;
    }
    s->path = NULL;
    *ret = s;
    return 0;
}

void shards_close(struct shards *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_shards; i++) {
        if (s->shards[i].file.of)
            s->shards[i].file.source->close(s->shards[i].file.of);
        free(s->shards[i].order);
        free(s->shards[i].name);
    }
    free(s->shards);
    free(s->entries);
    free(s);
}

size_t shards_count(const struct shards *s)
{
    return s->n;
}

const struct ckpt_tensor *shards_at(const struct shards *s, size_t i)
{
    return tensor_of(&s->shards[s->entries[i].shard], s->entries[i].i);
}

int shards_read(struct shards *s, size_t i, void *dst, struct err *e)
{
    struct weights *file = &s->shards[s->entries[i].shard].file;
    return file->source->read(file->of, s->entries[i].i, dst, e);
}
