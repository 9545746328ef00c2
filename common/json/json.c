/* Reads JSON documents with limits, and gets their members (json.h). */
#include "common/json/json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/utf8.h"

static int read_all(int fd, const char *path, struct buf *b, struct err *e)
{
    const int rc = file_read_all(fd, b);
    if (rc == -E2BIG)
        return err_set(e, rc, "'%s' is larger than %zu bytes", path, b->max);
    return rc < 0 ? err_errno(e, -rc, "read '%s'", path) : 0;
}

#define FEW_VALUES 65536u
#define VALUE_BYTES 6u /* average bytes of text per value, in everything that crun writes */

/* Guard against a text made to fill memory: a value takes about 100 bytes in a tree, but only two in a text like
 * [[],[],[],... */
static bool has_too_many_values(const struct buf *b)
{
    size_t values = 1;
    bool in_text = false;
    for (const char *p = b->data, *end = b->data + b->len; p < end; p++) {
        if (*p == '"')
            in_text = !in_text;
        else if (in_text && *p == '\\' && p + 1 < end)
            p++;
        else if (!in_text)
            values += *p == ',' || *p == '[' || *p == '{';
    }
    return values > FEW_VALUES && values > b->len / VALUE_BYTES;
}

int json_read_text(const struct buf *b, const char *path, cJSON **ret, struct err *e)
{
    /* A NUL inside would end the text early, and the rest would not be parsed. */
    if (b->len == 0 || memchr(b->data, 0, b->len))
        return err_set(e, ERR_CORRUPT, "'%s' is not JSON: %s", path,
                       b->len ? "it contains a zero byte" : "it is empty");
    if (has_too_many_values(b))
        return err_set(e, ERR_CORRUPT, "'%s' is not JSON of crun's: too many values for its %zu bytes", path, b->len);
    const char *end = b->data;
    cJSON *tree = cJSON_ParseWithLengthOpts(b->data, b->len + 1, &end, true);
    if (!tree)
        return err_set(e, ERR_CORRUPT, "'%s' is not JSON: error at byte %td", path, end - b->data);
    *ret = tree;
    return 0;
}

static int read_file(int fd, const char *path, size_t max_bytes, cJSON **ret, struct err *e)
{
    if (fd < 0)
        return fd;
    struct buf b;
    buf_init(&b, max_bytes);
    int rc = read_all(fd, path, &b, e);
    close(fd);
    if (rc == 0)
        rc = json_read_text(&b, path, ret, e);
    buf_free(&b);
    return rc;
}

int json_read_file(const char *path, size_t max_bytes, cJSON **ret, struct err *e)
{
    return read_file(file_open_regular(path, ERR_CORRUPT, e), path, max_bytes, ret, e);
}

int json_read_in(int at, const char *name, const char *path, size_t max_bytes, cJSON **ret, struct err *e)
{
    return read_file(file_open_regular_at(at, name, O_NOFOLLOW, path, ERR_CORRUPT, e), path, max_bytes, ret, e);
}

static int find_member(const cJSON *o, const char *name, cJSON_bool (*is)(const cJSON *), const char *type,
                       const cJSON **ret, struct err *e)
{
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(o, name);
    if (!m)
        return err_set(e, ERR_CORRUPT, "member '%s' is missing", name);
    if (!is(m))
        return err_set(e, ERR_CORRUPT, "member '%s' is not %s", name, type);
    *ret = m;
    return 0;
}

int json_str(const cJSON *o, const char *name, const char **ret, struct err *e)
{
    const cJSON *m = NULL;
    TRY(find_member(o, name, cJSON_IsString, "a string", &m, e));
    *ret = m->valuestring;
    return 0;
}

int json_i64(const cJSON *o, const char *name, int64_t *ret, struct err *e)
{
    const cJSON *m = NULL;
    TRY(find_member(o, name, cJSON_IsNumber, "a number", &m, e));
    /* cJSON stores a double: beyond 2^53 it may differ from the number that was written. */
    if (m->valuedouble != floor(m->valuedouble) || fabs(m->valuedouble) > 0x1p53)
        return err_set(e, ERR_CORRUPT, "member '%s' is not a whole number up to 2^53: %g", name, m->valuedouble);
    *ret = (int64_t)m->valuedouble;
    return 0;
}

int json_f64(const cJSON *o, const char *name, double *ret, struct err *e)
{
    const cJSON *m = NULL;
    TRY(find_member(o, name, cJSON_IsNumber, "a number", &m, e));
    *ret = m->valuedouble;
    return 0;
}

const char *json_str_or(const cJSON *o, const char *name, const char *otherwise)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, name));
    return text ? text : otherwise;
}

double json_f64_or(const cJSON *o, const char *name, double otherwise)
{
    const double v = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(o, name));
    return isfinite(v) ? v : otherwise;
}

int json_int_or(const cJSON *o, const char *name, int otherwise)
{
    const double v = json_f64_or(o, name, otherwise);
    return v > INT_MIN - 1.0 && v < INT_MAX + 1.0 ? (int)v : otherwise;
}

static int clean_text(cJSON *item, struct err *e)
{
    char *text = utf8_replaced(item->valuestring);
    const int rc = text && (strcmp(text, item->valuestring) == 0 || cJSON_SetValuestring(item, text))
                       ? 0
                       : err_set(e, -ENOMEM, "no memory for JSON");
    free(text);
    return rc;
}

int json_clean(cJSON *tree, struct err *e)
{
    if (cJSON_IsString(tree))
        return clean_text(tree, e);
    for (cJSON *i = tree ? tree->child : NULL; i; i = i->next)
        TRY(json_clean(i, e));
    return 0;
}
