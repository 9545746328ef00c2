/* Reads llm.c's files of a GPT-2's weights. */
#include "worker/weights/llmc_read.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/err.h"
#include "common/base/file.h"

enum { MAGIC = 20240326, HEADER = 1024, LAYERS_MOST = 1 << 12 };
enum { FP32 = 3, BF16 = 5 };

/* What the header says, from its second number on. */
struct header {
    int32_t magic, version, positions, vocabulary, layers, heads, width, rows;
};

struct llmc {
    FILE *f;
    char *path;
    struct ckpt_tensor *t;
    int64_t *at; /* bytes from the beginning of the file */
    size_t n;
};

/* In the order of the file; each dimension is `times` widths, 0: there is none. */
static const struct part {
    const char *name; /* behind "transformer.h.N." */
    int rows, columns;
} parts[] = {{"ln_1.weight", 1, 0},      {"ln_1.bias", 1, 0},          {"attn.c_attn.weight", 3, 1},
             {"attn.c_attn.bias", 3, 0}, {"attn.c_proj.weight", 1, 1}, {"attn.c_proj.bias", 1, 0},
             {"ln_2.weight", 1, 0},      {"ln_2.bias", 1, 0},          {"mlp.c_fc.weight", 4, 1},
             {"mlp.c_fc.bias", 4, 0},    {"mlp.c_proj.weight", 1, 4},  {"mlp.c_proj.bias", 1, 0}};
enum { PARTS = sizeof parts / sizeof *parts };

bool llmc_is(const unsigned char *head, size_t n)
{
    int32_t magic;
    memcpy(&magic, head, sizeof magic);
    return n >= sizeof magic && magic == MAGIC;
}

/* The next tensor, which takes `stored` rows of the file. */
static void add(struct llmc *f, const char *name, enum dtype t, int64_t rows, int64_t columns, int64_t stored,
                int64_t *at)
{
    struct ckpt_tensor *x = &f->t[f->n];
    *x = (struct ckpt_tensor){.dtype = t, .ndim = columns ? 2 : 1, .shape = {rows, columns}};
    snprintf(x->name, sizeof x->name, "transformer.%s", name);
    f->at[f->n++] = *at;
    *at += stored * (columns ? columns : 1) * (int64_t)dtype_size(t);
}

static int check(const struct llmc *f, const struct header *h, struct err *e)
{
    if (h->version != FP32 && h->version != BF16)
        return err_set(e, ERR_CORRUPT, "%s has version %d of llm.c's weights (expected 3, fp32, or 5, bf16)", f->path,
                       h->version);
    if (h->positions < 1 || h->vocabulary < 2 || h->layers < 1 || h->layers > LAYERS_MOST || h->width < 1 ||
        h->width > 1 << 20 || h->positions > 1 << 24 || h->rows < h->vocabulary || h->rows > 1 << 24)
        return err_set(e, ERR_CORRUPT, "%s tells of %d layers of %d, %d positions and a vocabulary of %d in %d rows",
                       f->path, h->layers, h->width, h->positions, h->vocabulary, h->rows);
    return 0;
}

static int list_tensors(struct llmc *f, const struct header *h, int64_t bytes, struct err *e)
{
    const enum dtype t = h->version == FP32 ? DT_F32 : DT_BF16;
    const int64_t width = h->width;
    int64_t at = HEADER;
    char name[64];
    f->t = calloc((size_t)h->layers * PARTS + 4, sizeof *f->t);
    f->at = calloc((size_t)h->layers * PARTS + 4, sizeof *f->at);
    if (!f->t || !f->at)
        return err_errno(e, ENOMEM, "%s", f->path);
    add(f, "wte.weight", t, h->vocabulary, width, h->rows, &at);
    add(f, "wpe.weight", t, h->positions, width, h->positions, &at);
    for (size_t p = 0; p < PARTS; p++)
        for (int i = 0; i < h->layers; i++) {
            snprintf(name, sizeof name, "h.%d.%s", i, parts[p].name);
            add(f, name, t, parts[p].rows * width, parts[p].columns * width, parts[p].rows * width, &at);
        }
    add(f, "ln_f.weight", t, width, 0, width, &at);
    add(f, "ln_f.bias", t, width, 0, width, &at);
    return at == bytes ? 0
                       : err_set(e, ERR_CORRUPT, "%s has %" PRId64 " bytes (expected %" PRId64 " of what it tells of)",
                                 f->path, bytes, at);
}

static int read_header(struct llmc *f, struct err *e)
{
    struct header h;
    struct stat st;
    if (fstat(fileno(f->f), &st) < 0 || fread(&h, sizeof h, 1, f->f) != 1)
        return err_set(e, ERR_CORRUPT, "%s is cut short", f->path);
    TRY(check(f, &h, e));
    return list_tensors(f, &h, (int64_t)st.st_size, e);
}

int llmc_open(struct llmc **ret, const char *path, struct err *e)
{
    struct llmc *f = calloc(1, sizeof *f);
    int rc = f && (f->path = strdup(path)) ? 0 : err_errno(e, ENOMEM, "%s", path);
    if (rc == 0)
        rc = file_stream_regular(&f->f, path, ERR_CORRUPT, e);
    if (rc == 0)
        rc = read_header(f, e);
    if (rc < 0)
        llmc_close(f);
    else
        *ret = f;
    return rc;
}

void llmc_close(struct llmc *f)
{
    if (!f)
        return;
    if (f->f)
        fclose(f->f);
    free(f->path);
    free(f->t);
    free(f->at);
    free(f);
}

size_t llmc_count(const struct llmc *f)
{
    return f->n;
}

const struct ckpt_tensor *llmc_at(const struct llmc *f, size_t i)
{
    return &f->t[i];
}

int llmc_read(struct llmc *f, size_t i, void *dst, struct err *e)
{
    int64_t bytes;
    TRY(ckpt_tensor_bytes(&f->t[i], &bytes));
    if (fseeko(f->f, f->at[i], SEEK_SET) < 0 || fread(dst, 1, (size_t)bytes, f->f) != (size_t)bytes)
        return err_set(e, ERR_CORRUPT, "%s is cut short in tensor '%s'", f->path, f->t[i].name);
    return 0;
}
