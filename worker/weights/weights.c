#include "worker/weights/weights.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/json/json.h"
#include "worker/ckpt/ckpt.h"
#include "worker/ckpt/pointer.h"
#include "worker/weights/foreign.h"
#include "worker/weights/llmc_read.h"
#include "worker/weights/torch_zip.h"

struct weights { /* one of them is open */
    struct ckpt *ckpt;
    struct safetensors *file; /* of ckpt, if that is open */
    struct torch_zip *torch;
    struct llmc *llmc;
    bool averages;         /* of ckpt, where it has any */
    struct packed *packed; /* with numbers behind those of the file */
    size_t npacked, cap_packed;
    bool *found; /* (weights_count()) */
};

/* What is one tensor here and several in the file, or (out, in) here and (in, out) there. */
struct packed {
    struct ckpt_tensor *t;
    size_t part[FOREIGN_PARTS];
    int n;
    bool transposed;
};

static int open_checkpoint(struct weights *w, const char *path, struct err *e)
{
    char dir[PATH_MAX];
    int64_t step;
    TRY(ckpt_locate(path, dir, &step, e));
    if (step < 0)
        TRY(ckpt_latest(dir, &step, e));
    TRY(ckpt_open(&w->ckpt, dir, step, e));
    w->file = ckpt_file(w->ckpt, "model");
    return 0;
}

/* What it begins with: "89 50 4e 47" of a picture, for example. */
static int is_none(const char *path, const unsigned char *head, size_t n, struct err *e)
{
    char bytes[4 * 3 + 1] = "";
    for (size_t i = 0; i < n && i < 4; i++)
        snprintf(bytes + 3 * i, sizeof bytes - 3 * i, " %02x", head[i]);
    return err_set(e, ERR_CORRUPT,
                   "%s is no file of weights: expected .safetensors, a .pth or .pt that torch.save() wrote, or llm.c's "
                   ".bin; it %s%s",
                   path, n == 0 ? "is empty" : "begins with the bytes", bytes);
}

static int open_file(struct weights *w, const char *path, struct err *e)
{
    static const unsigned char old_torch[] = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46};
    unsigned char head[9] = {0};
    FILE *f = NULL;
    TRY(file_stream_regular(&f, path, ERR_CORRUPT, e));
    size_t n = fread(head, 1, sizeof head, f);
    const int failed = ferror(f) ? errno : 0;
    fclose(f);
    if (failed)
        return err_errno(e, failed, "read %s", path);
    if (n >= 4 && memcmp(head, "PK\3\4", 4) == 0)
        return torch_zip_open(&w->torch, path, e);
    if (n >= sizeof old_torch && memcmp(head, old_torch, sizeof old_torch) == 0)
        return err_set(e, -ENOTSUP,
                       "%s has the format of torch before 1.6: load it in Python and save it again (torch.save)", path);
    if (llmc_is(head, n))
        return llmc_open(&w->llmc, path, e);
    if (n < sizeof head || head[8] != '{') /* 8 bytes of length, then JSON */
        return is_none(path, head, n, e);
    return safetensors_open(&w->file, path, e);
}

/* A folder of Hugging Face's: its one file of weights. */
static bool has_bare_file(const char *dir, char file[PATH_MAX])
{
    static const char *const names[] = {"manifest.json", "config.json", "model.safetensors"};
    for (int i = 0; i < 3; i++)
        if (snprintf(file, PATH_MAX, "%s/%s", dir, names[i]) >= PATH_MAX || (access(file, F_OK) == 0) == (i == 0))
            return false;
    return true;
}

int weights_open(struct weights **ret, const char *path, struct err *e)
{
    struct stat st;
    char file[PATH_MAX];
    if (stat(path, &st) < 0)
        return err_set(e, ERR_USAGE, "no weights found at '%s': %s", path, strerror(errno));
    struct weights *w = calloc(1, sizeof *w);
    if (!w)
        return err_errno(e, ENOMEM, "%s", path);
    int rc;
    if (S_ISDIR(st.st_mode) && has_bare_file(path, file))
        rc = open_file(w, file, e);
    else
        rc = S_ISDIR(st.st_mode) || pointer_read(path) >= 0 ? open_checkpoint(w, path, e) : open_file(w, path, e);
    if (rc < 0) {
        weights_close(w);
        return rc;
    }
    *ret = w;
    return 0;
}

void weights_close(struct weights *w)
{
    if (!w)
        return;
    if (w->ckpt)
        ckpt_close(w->ckpt);
    else
        safetensors_close(w->file);
    torch_zip_close(w->torch);
    llmc_close(w->llmc);
    for (size_t i = 0; i < w->npacked; i++)
        free(w->packed[i].t);
    free(w->packed);
    free(w->found);
    free(w);
}

const cJSON *weights_meta(const struct weights *w)
{
    return w->ckpt ? ckpt_meta(w->ckpt) : NULL;
}

size_t weights_count(const struct weights *w)
{
    return w->torch ? torch_zip_count(w->torch) : w->llmc ? llmc_count(w->llmc) : safetensors_count(w->file);
}

const struct ckpt_tensor *weights_at(const struct weights *w, size_t i)
{
    return w->torch ? torch_zip_at(w->torch, i) : w->llmc ? llmc_at(w->llmc, i) : safetensors_at(w->file, i);
}

static bool find_exact(const struct weights *w, const char *name, size_t *ret_i)
{
    for (size_t i = 0; i < weights_count(w); i++)
        if (strcmp(weights_at(w, i)->name, name) == 0) {
            *ret_i = i;
            return true;
        }
    return false;
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
    if (w->torch)
        return torch_zip_read(w->torch, i, dst, e);
    if (w->llmc)
        return llmc_read(w->llmc, i, dst, e);
    if (!w->ckpt)
        return safetensors_read(w->file, i, dst, NULL, e);
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
