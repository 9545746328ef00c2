/* Opens weights of any kind, and finds their tensors by name. */
#include "worker/weights/weights.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/json/json.h"
#include "worker/ckpt/ckpt.h"
#include "worker/weights/pickle_read.h"
#include "worker/weights/prefix.h"
#include "worker/weights/weights_impl.h"

/* --- names */

static int by_name(const void *a, const void *b, void *w)
{
    return strcmp(weights_at(w, *(const size_t *)a)->name, weights_at(w, *(const size_t *)b)->name);
}

static int sort_names(struct weights *w, struct err *e)
{
    free(w->by_name);
    w->by_name = malloc((w->n + 1) * sizeof *w->by_name);
    if (!w->by_name)
        return err_errno(e, ENOMEM, "list of %zu tensors", w->n);
    for (size_t i = 0; i < w->n; i++)
        w->by_name[i] = i;
    qsort_r(w->by_name, w->n, sizeof *w->by_name, by_name, w);
    return 0;
}

/* Tensor i loses the first `skip` bytes of its name; SIZE_MAX: it is no longer there. */
static int rename_all(struct weights *w, const size_t *skip, struct err *e)
{
    struct view *v = calloc(w->n + 1, sizeof *v);
    size_t n = 0;
    if (!v)
        return err_errno(e, ENOMEM, "list of %zu tensors", w->n);
    for (size_t i = 0; i < w->n; i++)
        if (skip[i] != SIZE_MAX) {
            v[n] = (struct view){*weights_at(w, i), w->view ? w->view[i].i : i};
            memmove(v[n].t.name, v[n].t.name + skip[i], strlen(v[n].t.name + skip[i]) + 1);
            n++;
        }
    free(w->view);
    w->view = v;
    w->n = n;
    TRY(sort_names(w, e));
    for (size_t i = 1; i < n; i++)
        if (by_name(&w->by_name[i - 1], &w->by_name[i], w) == 0)
            return err_set(e, ERR_MISMATCH, "two tensors would be called '%s' without what stands before their names",
                           weights_at(w, w->by_name[i])->name);
    return 0;
}

static int no_part(const struct weights *w, const char *part, struct err *e)
{
    const char *first = w->n ? weights_at(w, 0)->name : "";
    if (w->pickle && w->pickle->another[0])
        return err_set(e, ERR_USAGE,
                       "no member of its dict is called '%.60s' (without a part, %.300s), and no name of a tensor "
                       "begins so; the first is '%s'",
                       part, w->pickle->another, first);
    if (w->pickle)
        return err_set(e, ERR_USAGE,
                       "no member of its dict is called '%.60s', and no name of a tensor begins so; the first is '%s'",
                       part, first);
    return err_set(e, ERR_USAGE, "no name of a tensor begins with '%.60s'; the first is '%s'", part, first);
}

/* Names that do not begin with the part, and a dot, are left out. */
static int keep_part(struct weights *w, const char *part, struct err *e)
{
    const size_t n = strlen(part), dot = n > 0 && part[n - 1] != '.';
    size_t kept = 0, *skip = calloc(w->n + 1, sizeof *skip);
    if (!skip)
        return err_errno(e, ENOMEM, "list of %zu tensors", w->n);
    for (size_t i = 0; i < w->n; i++) {
        const char *name = weights_at(w, i)->name;
        const bool in = strncmp(name, part, n) == 0 && (!dot || name[n] == '.') && name[n + dot];
        skip[i] = in ? n + dot : SIZE_MAX;
        kept += in;
    }
    const int rc = kept ? rename_all(w, skip, e) : no_part(w, part, e);
    free(skip);
    return rc;
}

int weights_open(struct weights **ret, const char *path, const char *part, struct err *e)
{
    struct weights *w = calloc(1, sizeof *w);
    if (!w)
        return err_errno(e, ENOMEM, "%s", path);
    w->asked = part != NULL;
    int rc = weights_open_path(w, path, part, e);
    if (rc == 0 && part && w->ckpt)
        rc = err_set(e, ERR_USAGE, "%s is a checkpoint of trainer's, which has no part '%.60s'", path, part);
    else if (rc == 0 && part && (!w->pickle || !w->pickle->part_taken) && (rc = keep_part(w, part, e)) < 0)
        err_wrap(e, "%s", path);
    if (rc == 0 && !w->by_name)
        rc = sort_names(w, e);
    if (rc < 0) {
        weights_close(w);
        return rc;
    }
    *ret = w;
    return 0;
}

int weights_drop_wrappers(struct weights *w, struct err *e)
{
    static const char *const wrappers[] = {"module.", "_orig_mod."};
    size_t n = 0, *skip = calloc(w->n + 1, sizeof *skip);
    if (!skip)
        return err_errno(e, ENOMEM, "list of %zu tensors", w->n);
    for (size_t i = 0; !w->ckpt && i < w->n; i++) {
        const char *name = weights_at(w, i)->name;
        for (int k = 0; k < 2; k++)
            if (strncmp(name + skip[i], wrappers[k], strlen(wrappers[k])) == 0 && name[skip[i] + strlen(wrappers[k])]) {
                skip[i] += strlen(wrappers[k]);
                k = -1;
            }
        n += skip[i] > 0;
    }
    const int rc = n ? rename_all(w, skip, e) : 0;
    free(skip);
    return rc;
}

void weights_close(struct weights *w)
{
    if (!w)
        return;
    if (w->ckpt)
        ckpt_close(w->ckpt);
    else if (w->of)
        w->source->close(w->of);
    for (size_t i = 0; i < w->npacked; i++)
        free(w->packed[i].t);
    free(w->packed);
    free(w->found);
    free(w->by_name);
    free(w->view);
    free(w);
}

const cJSON *weights_meta(const struct weights *w)
{
    return w->ckpt ? ckpt_meta(w->ckpt) : NULL;
}

size_t weights_passed_over(const struct weights *w, const char **ret_first)
{
    *ret_first = w->passed ? w->passed : "";
    return w->passed_over;
}

const char *weights_another(const struct weights *w)
{
    return w->pickle && !w->asked ? w->pickle->another : "";
}

const char *weights_made_of(const struct weights *w, const char **ret_name)
{
    const char *what = NULL;
    for (size_t i = 0; !what && i < weights_count(w); i++) {
        *ret_name = weights_at(w, i)->name;
        what = foreign_is_made_of(*ret_name);
    }
    return what;
}

size_t weights_count(const struct weights *w)
{
    return w->n;
}

const struct ckpt_tensor *weights_at(const struct weights *w, size_t i)
{
    return w->view ? &w->view[i].t : w->source->at(w->of, i);
}

/* Behind the prefix. */
static bool find_exact(const struct weights *w, const char *name, size_t *ret_i)
{
    const size_t skip = strlen(w->prefix);
    size_t low = 0, high = w->n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const char *has = weights_at(w, w->by_name[mid])->name;
        int order = strncmp(has, w->prefix, skip);
        order = order ? order : strcmp(has + skip, name);
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == w->n)
        return false;
    *ret_i = w->by_name[low];
    const char *has = weights_at(w, *ret_i)->name;
    return strncmp(has, w->prefix, skip) == 0 && strcmp(has + skip, name) == 0;
}

/* Parts one behind the other, which are alike but for their first dimension. */
static bool put_together(const struct weights *w, const struct packed *p, struct ckpt_tensor *ret)
{
    *ret = *weights_at(w, p->part[0]);
    for (int k = 1; k < p->n; k++) {
        const struct ckpt_tensor *t = weights_at(w, p->part[k]);
        bool alike = t->ndim == ret->ndim && t->ndim > 0 && t->dtype == ret->dtype;
        for (int d = 1; alike && d < t->ndim; d++)
            alike = t->shape[d] == ret->shape[d];
        if (!alike || __builtin_add_overflow(ret->shape[0], t->shape[0], &ret->shape[0]))
            return false;
    }
    if (p->transposed) {
        ret->shape[0] = weights_at(w, p->part[0])->shape[1];
        ret->shape[1] = weights_at(w, p->part[0])->shape[0];
    }
    return true;
}

/* Does the file have a tensor of this name as (in, out)? */
static bool is_transposed(const struct weights *w, const char *name)
{
    for (size_t i = 0; foreign_is_conv1d(name) && i < weights_count(w); i++) {
        const struct ckpt_tensor *t = weights_at(w, i);
        if (t->ndim == 2 && foreign_is_first_conv1d(t->name))
            return t->shape[0] < t->shape[1];
    }
    return false;
}

/* NULL: its parts do not fit together, or there is no memory. */
static const struct ckpt_tensor *pack(struct weights *w, struct packed p, size_t *ret_i)
{
    struct ckpt_tensor t;
    for (size_t i = 0; i < w->npacked; i++)
        if (w->packed[i].part[0] == p.part[0]) {
            *ret_i = weights_count(w) + i;
            return w->packed[i].t;
        }
    if (!put_together(w, &p, &t) || ARRAY_GROW(w->packed, w->cap_packed, w->npacked + 1, "tensors", NULL) < 0 ||
        !(p.t = malloc(sizeof *p.t)))
        return NULL;
    *p.t = t;
    *ret_i = weights_count(w) + w->npacked;
    w->packed[w->npacked++] = p;
    return p.t;
}

static void mark(struct weights *w, size_t i)
{
    if (!w->found)
        w->found = calloc(weights_count(w) + 1, sizeof *w->found);
    if (w->found)
        w->found[i] = true;
}

const struct ckpt_tensor *weights_find(struct weights *w, const char *name, size_t *ret_i)
{
    char names[FOREIGN_PARTS][FOREIGN_NAME];
    struct packed p = {.n = 1};
    bool found = find_exact(w, name, &p.part[0]);
    for (int which = 0; !found && which < FOREIGN_LIBRARIES; which++) {
        p.n = foreign_names(name, which, names);
        found = p.n > 0;
        for (int k = 0; found && k < p.n; k++)
            found = find_exact(w, names[k], &p.part[k]);
    }
    for (int k = 0; found && k < p.n; k++)
        mark(w, p.part[k]);
    *ret_i = p.part[0];
    if (!found)
        return NULL;
    p.transposed = weights_at(w, p.part[0])->ndim == 2 && is_transposed(w, name);
    return p.n == 1 && !p.transposed ? weights_at(w, p.part[0]) : pack(w, p, ret_i);
}

bool weights_was_found(const struct weights *w, size_t i)
{
    return w->found && w->found[i];
}

/* The name with its numbers as 0. */
static void without_numbers(const char *name, char out[CKPT_NAME_MAX + 1])
{
    size_t n = 0;
    while (*name && n < CKPT_NAME_MAX) {
        const size_t digits = strspn(name, "0123456789");
        out[n++] = digits ? '0' : *name;
        name += digits ? digits : 1;
    }
    out[n] = '\0';
}

static int by_form(const void *a, const void *b)
{
    return strcmp(a, b);
}

int weights_is_larger(const struct weights *w, size_t *ret_i, struct err *e)
{
    typedef char form[CKPT_NAME_MAX + 1];
    const size_t skip = strlen(w->prefix);
    size_t n = 0;
    bool larger = false;
    form *found = calloc(w->n + 1, sizeof *found), one;
    if (!found)
        return err_errno(e, ENOMEM, "names of %zu tensors", w->n);
    for (size_t i = 0; i < w->n; i++)
        if (weights_was_found(w, i) && strpbrk(weights_at(w, i)->name + skip, "0123456789"))
            without_numbers(weights_at(w, i)->name + skip, found[n++]);
    if (n)
        qsort(found, n, sizeof *found, by_form);
    for (size_t i = 0; !larger && n && i < w->n; i++) {
        const char *name = weights_at(w, i)->name;
        if (weights_was_found(w, i) || strncmp(name, w->prefix, skip) != 0 || foreign_is_buffer(name + skip))
            continue;
        without_numbers(name + skip, one);
        larger = strstr(one, ".0.") && bsearch(one, found, n, sizeof *found, by_form);
        *ret_i = i;
    }
    free(found);
    return larger;
}

/* --- the model's names */

/* All spellings of a model's names: *ret[*n_ret], texts from malloc. */
static int spell(const char *const *wanted, size_t n, char ***ret, size_t *n_ret, struct err *e)
{
    char names[FOREIGN_PARTS][FOREIGN_NAME];
    char **all = calloc(n * (1 + FOREIGN_LIBRARIES * FOREIGN_PARTS) + 1, sizeof *all);
    *ret = all;
    *n_ret = 0;
    bool whole = all != NULL;
    for (size_t i = 0; whole && i < n; i++) {
        whole = (all[(*n_ret)++] = strdup(wanted[i]));
        for (int which = 0; which < FOREIGN_LIBRARIES; which++)
            for (int k = foreign_names(wanted[i], which, names); whole && k > 0; k--)
                whole = (all[(*n_ret)++] = strdup(names[k - 1]));
    }
    return whole ? 0 : err_errno(e, ENOMEM, "names of %zu tensors", n);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int find_prefix(struct weights *w, char **spelled, size_t n, size_t least, struct err *e)
{
    const char **names = calloc(w->n + 1, sizeof *names), *name = "";
    size_t length = 0, found = 0;
    if (!names)
        return err_errno(e, ENOMEM, "list of %zu tensors", w->n);
    for (size_t i = 0; i < w->n; i++)
        names[i] = weights_at(w, i)->name;
    qsort(spelled, n, sizeof *spelled, by_text);
    int rc = prefix_find(names, w->n, (const char *const *)spelled, n, &name, &length, &found, e);
    if (rc != -ENOMEM && found < least) {
        rc = 0;
        length = 0;
    }
    free(names);
    memcpy(w->prefix, name, length); /* of a name that is longer */
    w->prefix[length] = '\0';
    return rc;
}

int weights_choose_prefix(struct weights *w, const char *const *wanted, size_t n, size_t least, const char **ret_prefix,
                          struct err *e)
{
    char **spelled;
    size_t n_spelled;
    int rc = spell(wanted, n, &spelled, &n_spelled, e);
    if (rc == 0)
        rc = find_prefix(w, spelled, n_spelled, least, e);
    for (size_t i = 0; spelled && i < n_spelled; i++)
        free(spelled[i]);
    free(spelled);
    *ret_prefix = w->prefix;
    return rc;
}

/* --- values */

void weights_take_averages(struct weights *w)
{
    w->averages = w->ckpt != NULL;
}

bool weights_has_averages(const struct weights *w)
{
    double ema = 0;
    const cJSON *meta = weights_meta(w);
    return meta && json_f64(cJSON_GetObjectItemCaseSensitive(meta, "options"), "ema", &ema, NULL) == 0 && ema > 0;
}

/* -ENOENT: a checkpoint without averages, or a tensor that has none. */
static int read_average(struct weights *w, size_t i, void *dst, struct err *e)
{
    struct ckpt_tensor t = *weights_at(w, i);
    if (snprintf(t.name, sizeof t.name, "ema.%s", weights_at(w, i)->name) >= (int)sizeof t.name)
        return -ENOENT;
    return ckpt_read(w->ckpt, "train", &t, dst, e);
}

int weights_read(struct weights *w, size_t i, void *dst, struct err *e)
{
    if (!w->ckpt)
        return w->source->read(w->of, w->view ? w->view[i].i : i, dst, e);
    const int rc = w->averages ? read_average(w, i, dst, e) : -ENOENT;
    return rc == -ENOENT ? ckpt_read(w->ckpt, "model", weights_at(w, i), dst, e) : rc;
}

static double element(enum dtype t, const void *p, size_t i)
{
    switch (t) {
    case DT_F64:
        return ((const double *)p)[i];
    case DT_BF16:
        return (double)f32_from_bf16(((const uint16_t *)p)[i]);
    case DT_F16:
        return (double)f32_from_f16(((const uint16_t *)p)[i]);
    default:
        return (double)((const float *)p)[i];
    }
}

static int read_one(struct weights *w, size_t i, enum dtype real, void *dst, struct err *e)
{
    const struct ckpt_tensor *t = weights_at(w, i);
    int64_t bytes;
    char text[CKPT_SHAPE_LEN];
    if (t->dtype != DT_F64 && t->dtype != DT_F32 && t->dtype != DT_BF16 && t->dtype != DT_F16)
        return err_set(e, ERR_MISMATCH, "tensor '%s' is %s instead of floating-point numbers", t->name,
                       ckpt_tensor_shape(t, text, sizeof text));
    TRY(ckpt_tensor_bytes(t, &bytes));
    void *raw = malloc(bytes ? (size_t)bytes : 1);
    if (!raw)
        return err_errno(e, ENOMEM, "tensor '%s'", t->name);
    int rc = weights_read(w, i, raw, e);
    for (size_t k = 0; rc == 0 && k < (size_t)bytes / dtype_size(t->dtype); k++) {
        if (real == DT_F64)
            ((double *)dst)[k] = element(t->dtype, raw, k);
        else
            ((float *)dst)[k] = (float)element(t->dtype, raw, k);
    }
    free(raw);
    return rc;
}

static int read_transposed(struct weights *w, size_t i, enum dtype real, void *dst, struct err *e)
{
    const struct ckpt_tensor *t = weights_at(w, i);
    const size_t rows = (size_t)t->shape[0], columns = (size_t)t->shape[1], size = dtype_size(real);
    char *raw = malloc(rows * columns * size + 1), *to = dst;
    int rc = raw ? read_one(w, i, real, raw, e) : err_errno(e, ENOMEM, "tensor '%s'", t->name);
    for (size_t r = 0; rc == 0 && r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            memcpy(to + (c * rows + r) * size, raw + (r * columns + c) * size, size);
    free(raw);
    return rc;
}

int weights_read_real(struct weights *w, size_t i, enum dtype real, void *dst, struct err *e)
{
    const struct packed *p = i < weights_count(w) ? NULL : &w->packed[i - weights_count(w)];
    char *to = dst;
    if (p && p->transposed)
        return read_transposed(w, p->part[0], real, dst, e);
    for (int k = 0; p && k < p->n; k++) {
        const struct ckpt_tensor *t = weights_at(w, p->part[k]);
        int64_t bytes;
        TRY(ckpt_tensor_bytes(t, &bytes));
        TRY(read_one(w, p->part[k], real, to, e));
        to += (size_t)bytes / dtype_size(t->dtype) * dtype_size(real);
    }
    return p ? 0 : read_one(w, i, real, dst, e);
}
