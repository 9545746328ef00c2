/* Reading one safetensors file, made by us or by anybody.
 *
 * Open: length (bounded by the format's 100 MB and by the file) -> JSON, entry by entry -> each one checked by itself
 * (type, shape, size without overflow, offsets equal to the size) -> sorted by offset -> no hole, no overlap, last byte
 * = end of file -> index by name. Reads are pread(2), so threads may share one. */
#include "worker/ckpt/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "worker/ckpt/cursor.h"

#define HEADER_MAX ((uint64_t)100 << 20)

struct item {
    struct ckpt_tensor t;
    int64_t begin, end; /* from the first byte after the header */
    bool other;         /* of a type that is not taken; t.dtype has as many bytes */
};

struct safetensors {
    int fd;
    char *path;
    int64_t bytes, data_at;
    size_t n;
    struct item *items; /* by offset */
    size_t *by_name;    /* indices into items, sorted by name */
    size_t passed_over; /* tensors of types that are not taken, */
    char passed[200];   /* and the first of them */
};

static int corrupt(const struct safetensors *s, struct err *e, const char *what)
{
    return err_set(e, ERR_CORRUPT, "%s is not a sound safetensors file: %s", s->path, what);
}

static int read_at(const struct safetensors *s, void *dst, size_t n, int64_t at, struct err *e)
{
    char *p = dst;
    while (n > 0) {
        ssize_t r = pread(s->fd, p, n, at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_errno(e, errno, "read %s", s->path);
        if (r == 0)
            return err_set(e, ERR_CORRUPT, "%s ends at byte %" PRId64 ", before its data does", s->path, at);
        p += r;
        at += r;
        n -= (size_t)r;
    }
    return 0;
}

/* JSON numbers are doubles: whole ones up to 2^53 are exact. */
static bool whole(const cJSON *j, int64_t *ret)
{
    if (!cJSON_IsNumber(j) || !(j->valuedouble >= 0 && j->valuedouble <= 9007199254740992.0) ||
        j->valuedouble != (double)(int64_t)j->valuedouble)
        return false;
    *ret = (int64_t)j->valuedouble;
    return true;
}

static int parse_dtype(const char *text)
{
    static const char *const names[] = {
#define X(name, bytes, text) [name] = text,
        DTYPES(X)
#undef X
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], text) == 0)
            return (int)i;
    return -1;
}

/* Types that no weights are of, by their bytes: masks, counters. */
static int parse_other(const char *text)
{
    static const struct {
        const char *name;
        int like;
    } others[] = {{"BOOL", DT_U8}, {"I8", DT_U8},   {"I16", DT_F16}, {"U16", DT_F16},
                  {"U32", DT_F32}, {"U64", DT_F64}, {"C64", DT_F64}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i].name, text) == 0)
            return others[i].like;
    return -1;
}

static int take_type(struct safetensors *s, const char *text, struct item *it, struct err *e)
{
    int type = parse_dtype(text);
    if (type < 0) {
        it->other = (type = parse_other(text)) >= 0;
        if (it->other && s->passed_over++ == 0)
            snprintf(s->passed, sizeof s->passed, "'%s', of type %s", it->t.name, text);
    }
    if (type < 0)
        return err_set(e, ERR_REFUSED,
                       "%s: tensor '%s' is of type '%.20s', which is not read: save it as F32, F16 or BF16", s->path,
                       it->t.name, text);
    it->t.dtype = (enum dtype)type;
    return 0;
}

static int parse_shape(const struct safetensors *s, const cJSON *entry, struct ckpt_tensor *t, struct err *e)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape"), *d;
    if (!cJSON_IsArray(shape))
        return err_set(e, ERR_CORRUPT, "%s: tensor '%s' has no shape", s->path, t->name);
    cJSON_ArrayForEach(d, shape)
    {
        if (t->ndim == CKPT_DIMS_MAX)
            return err_set(e, ERR_CORRUPT, "%s: tensor '%s' has more than %d dimensions", s->path, t->name,
                           CKPT_DIMS_MAX);
        if (!whole(d, &t->shape[t->ndim++]))
            return err_set(e, ERR_CORRUPT, "%s: the shape of tensor '%s' holds something other than whole numbers",
                           s->path, t->name);
    }
    return 0;
}

static int parse_entry(struct safetensors *s, const char *name, const cJSON *entry, struct item *it, struct err *e)
{
    struct ckpt_tensor *t = &it->t;
    if (!name[0] || strlen(name) > CKPT_NAME_MAX)
        return err_set(e, ERR_CORRUPT, "%s: a tensor's name has %zu bytes instead of 1 to %d: '%.60s'", s->path,
                       strlen(name), CKPT_NAME_MAX, name);
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return err_set(e, ERR_CORRUPT, "%s: a tensor's name has a control byte", s->path);
    strcpy(t->name, name);
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    if (!cJSON_IsObject(entry) || !cJSON_IsString(dtype))
        return err_set(e, ERR_CORRUPT, "%s: tensor '%s' has no dtype", s->path, t->name);
    TRY(take_type(s, dtype->valuestring, it, e));
    TRY(parse_shape(s, entry, t, e));
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !whole(cJSON_GetArrayItem(offsets, 0), &it->begin) || !whole(cJSON_GetArrayItem(offsets, 1), &it->end))
        return err_set(e, ERR_CORRUPT, "%s: tensor '%s' has no data_offsets", s->path, t->name);
    int64_t size;
    char text[CKPT_SHAPE_LEN];
    ckpt_tensor_shape(t, text, sizeof text);
    if (ckpt_tensor_bytes(t, &size) < 0)
        return err_set(e, ERR_CORRUPT, "%s: the size of tensor '%s', %s, overflows", s->path, t->name, text);
    if (it->end < it->begin || it->end - it->begin != size)
        return err_set(e, ERR_CORRUPT, "%s: tensor '%s', %s, needs %" PRId64 " bytes, its offsets give %" PRId64,
                       s->path, t->name, text, size, it->end - it->begin);
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->t.name, y->t.name); /* empty tensors share an offset */
}

static int by_name(const void *a, const void *b, void *items)
{
    const struct item *v = items;
    return strcmp(v[*(const size_t *)a].t.name, v[*(const size_t *)b].t.name);
}

/* Entries lie one behind the other and end where the file ends; names are unique. */
static int check_layout(struct safetensors *s, struct err *e)
{
    int64_t at = 0;
    if (s->n > 0)
        qsort(s->items, s->n, sizeof *s->items, by_offset);
    for (size_t i = 0; i < s->n; at = s->items[i++].end)
        if (s->items[i].begin != at)
            return err_set(e, ERR_CORRUPT, "%s: tensor '%s' begins at byte %" PRId64 " of the data instead of %" PRId64,
                           s->path, s->items[i].t.name, s->items[i].begin, at);
    if (at != s->bytes - s->data_at)
        return err_set(e, ERR_CORRUPT, "%s holds %" PRId64 " bytes of data, its header describes %" PRId64, s->path,
                       s->bytes - s->data_at, at);
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++)
        if (!s->items[i].other)
            s->items[kept++] = s->items[i];
    s->n = kept;
    for (size_t i = 0; i < s->n; i++)
        s->by_name[i] = i;
    qsort_r(s->by_name, s->n, sizeof *s->by_name, by_name, s->items);
    for (size_t i = 1; i < s->n; i++)
        if (strcmp(s->items[s->by_name[i - 1]].t.name, s->items[s->by_name[i]].t.name) == 0)
            return err_set(e, ERR_CORRUPT, "%s has two tensors named '%s'", s->path, s->items[s->by_name[i]].t.name);
    return 0;
}

/* --- the header: one object, whose members are parsed one by one: only one entry is a tree at a time, and no longer
 * than a tensor's can be */

#define ENTRY_MAX 4096     /* bytes of a tensor's entry */
#define TENSORS_MAX 262144 /* of a file */

static int add_tensor(struct safetensors *s, size_t *cap, const char *name, const struct cursor *value, struct err *e)
{
    if (value->end - value->p > ENTRY_MAX)
        return err_set(e, ERR_CORRUPT, "%s: the entry of tensor '%.60s' has %td bytes, at most %d are taken", s->path,
                       name, value->end - value->p, ENTRY_MAX);
    if (s->n == TENSORS_MAX)
        return err_set(e, ERR_CORRUPT, "%s holds more than %d tensors", s->path, TENSORS_MAX);
    TRY(ARRAY_GROW(s->items, *cap, s->n + 1, "tensors", e));
    s->items[s->n] = (struct item){0};
    cJSON *entry = cursor_parse(value);
    const int rc =
        entry ? parse_entry(s, name, entry, &s->items[s->n], e) : corrupt(s, e, "its header is not a JSON object");
    cJSON_Delete(entry);
    s->n += rc == 0;
    return rc;
}

static int parse_member(struct safetensors *s, struct cursor *c, size_t *cap, struct err *e)
{
    struct cursor key, value;
    if (!cursor_string(c, &key) || !cursor_char(c, ':'))
        return corrupt(s, e, "its header is not a JSON object");
    cJSON *name = key.end - key.p <= ENTRY_MAX ? cursor_parse(&key) : NULL;
    int rc;
    cursor_blanks(c);
    if (cJSON_IsString(name) && c->p < c->end && *c->p != '{')
        rc = err_set(e, ERR_CORRUPT, "%s: tensor '%.60s' has no dtype", s->path, name->valuestring);
    else if (!cJSON_IsString(name) || !cursor_value(c, &value))
        rc = corrupt(s, e, "its header is not a JSON object");
    else
        rc = strcmp(name->valuestring, "__metadata__") == 0 ? 0 : add_tensor(s, cap, name->valuestring, &value, e);
    cJSON_Delete(name);
    return rc;
}

static int parse_header(struct safetensors *s, const char *text, size_t length, struct err *e)
{
    struct cursor c = {text, text + length};
    size_t cap = 0;
    if (!cursor_char(&c, '{'))
        return corrupt(s, e, "its header is not a JSON object");
    if (!cursor_char(&c, '}')) {
        do
            TRY(parse_member(s, &c, &cap, e));
        while (cursor_char(&c, ','));
        if (!cursor_char(&c, '}'))
            return corrupt(s, e, "its header is not a JSON object");
    }
    for (; c.p < c.end; c.p++)
        if (*c.p != ' ')
            return corrupt(s, e, "its header goes on after the JSON object");
    s->by_name = calloc(s->n ? s->n : 1, sizeof *s->by_name);
    if (!s->by_name)
        return err_set(e, -ENOMEM, "no memory for the %zu tensors of %s", s->n, s->path);
    return check_layout(s, e);
}

static int read_header(struct safetensors *s, struct err *e)
{
    uint64_t length;
    if (s->bytes < (int64_t)sizeof length)
        return corrupt(s, e, "it is shorter than 8 bytes");
    TRY(read_at(s, &length, sizeof length, 0, e));
    if (length > HEADER_MAX)
        return err_set(e, ERR_CORRUPT,
                       "%s is not a sound safetensors file: a header of %" PRIu64 " bytes exceeds 100 MB", s->path,
                       length);
    if (length > (uint64_t)s->bytes - sizeof length)
        return err_set(e, ERR_CORRUPT,
                       "%s is not a sound safetensors file: a header of %" PRIu64
                       " bytes does not fit into its %" PRId64 " bytes",
                       s->path, length, s->bytes);
    char *text = malloc(length + 1);
    if (!text)
        return err_set(e, -ENOMEM, "no memory for the header of %s", s->path);
    text[length] = 0;
    s->data_at = (int64_t)(sizeof length + length);
    int rc = read_at(s, text, length, sizeof length, e);
    if (rc == 0)
        rc = parse_header(s, text, length, e);
    free(text);
    return rc;
}

int safetensors_open(struct safetensors **ret, const char *path, struct err *e)
{
    struct safetensors *s = calloc(1, sizeof *s);
    struct stat st;
    int rc;
    if (!s || !(s->path = strdup(path))) {
        free(s);
        return err_set(e, -ENOMEM, "no memory to open %s", path);
    }
    s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO of that name must not hang us */
    if (s->fd < 0 || fstat(s->fd, &st) < 0) {
        rc = err_errno(e, errno, "open %s", path);
    } else if (!S_ISREG(st.st_mode)) {
        rc = err_set(e, ERR_CORRUPT, "%s is not a regular file", path);
    } else {
        s->bytes = st.st_size;
        rc = read_header(s, e);
    }
    if (rc < 0) {
        safetensors_close(s);
        return rc;
    }
    *ret = s;
    return 0;
}

void safetensors_close(struct safetensors *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    free(s->items);
    free(s->by_name);
    free(s->path);
    free(s);
}

size_t safetensors_passed_over(const struct safetensors *s, const char **ret_first)
{
    *ret_first = s->passed;
    return s->passed_over;
}

size_t safetensors_count(const struct safetensors *s)
{
    return s->n;
}

const char *safetensors_path(const struct safetensors *s)
{
    return s->path;
}

int64_t safetensors_bytes(const struct safetensors *s)
{
    return s->bytes;
}

const struct ckpt_tensor *safetensors_at(const struct safetensors *s, size_t i)
{
    return &s->items[i].t;
}

int safetensors_find(const struct safetensors *s, const char *name)
{
    size_t low = 0, high = s->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(name, s->items[s->by_name[mid]].t.name);
        if (order == 0)
            return (int)s->by_name[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return -1;
}

int safetensors_read_part(struct safetensors *s, size_t i, int64_t at, size_t n, void *dst, struct err *e)
{
    const struct item *it = &s->items[i];
    if (at < 0 || (int64_t)n > it->end - it->begin - at)
        return err_set(e, ERR_CORRUPT, "%s: tensor '%s' has %" PRId64 " bytes, fewer than are asked for", s->path,
                       it->t.name, it->end - it->begin);
    const int rc = read_at(s, dst, n, s->data_at + it->begin + at, e);
    return rc < 0 ? err_wrap(e, "tensor '%s'", it->t.name) : 0;
}

int safetensors_read(struct safetensors *s, size_t i, void *dst, uint32_t *crc, struct err *e)
{
    const int64_t bytes = s->items[i].end - s->items[i].begin;
    uint32_t sum = 0;
    for (int64_t at = 0; at < bytes; at += CKPT_PIECE) {
        const size_t n = (size_t)(bytes - at) < CKPT_PIECE ? (size_t)(bytes - at) : CKPT_PIECE;
        TRY(safetensors_read_part(s, i, at, n, (char *)dst + at, e));
        if (crc)
            sum = crc32c(sum, (char *)dst + at, n);
    }
    if (crc)
        *crc = sum;
    return 0;
}
