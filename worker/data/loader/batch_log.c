/* Writes a line of JSON about each batch that a rank trained on. */
#include "worker/data/loader/batch_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/net/ssl_lib.h"
#include "worker/data/loader/loader.h"

struct batch_log {
    int fd, rank, world;
    const struct crypto_lib *crypto;
    EVP_MD_CTX *sha;
    struct buf line;
};

int batch_log_open(struct batch_log **ret, const char *path, int rank, int world, struct err *e)
{
    const struct crypto_lib *crypto = crypto_lib(e);
    if (!crypto)
        return err_wrap(e, "--debug-batch-sha");
    struct batch_log *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, -ENOMEM, "no memory for a log of batches");
    *l = (struct batch_log){.rank = rank, .world = world, .crypto = crypto, .sha = crypto->EVP_MD_CTX_new()};
    l->fd = strcmp(path, "-") == 0 ? dup(STDOUT_FILENO) : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    int rc = 0;
    if (l->fd < 0)
        rc = err_set(e, ERR_OUTPUT, "--debug-batch-sha: cannot write %s: %s", path, strerror(errno));
    else if (!l->sha)
        rc = err_set(e, -ENOMEM, "no memory for a hash");
    if (rc < 0)
        batch_log_close(l);
    else
        *ret = l;
    return rc;
}

void batch_log_close(struct batch_log *l)
{
    if (!l)
        return;
    if (l->fd >= 0)
        close(l->fd);
    if (l->sha)
        l->crypto->EVP_MD_CTX_free(l->sha);
    buf_free(&l->line);
    free(l);
}

/* The rows that are samples. */
static bool hash_rows(struct batch_log *l, const struct loader_batch *b, const void *all, size_t bytes)
{
    bool good = true;
    for (size_t i = 0; i < b->rows && good; i++)
        if (b->b.samples[i] != BATCH_PADDING)
            good = l->crypto->EVP_DigestUpdate(l->sha, (const char *)all + i * bytes, bytes);
    return good;
}

/* What rows are mixed with, and how. */
static bool hash_mixes(struct batch_log *l, const struct loader_batch *b, size_t bytes)
{
    bool good = true;
    for (size_t i = 0; i < b->rows && good && b->b.mix; i++) {
        struct batch_mix m = b->b.mix[i];
        const char *partner = (const char *)b->b.rows + ((int64_t)i + m.partner) * (int64_t)bytes;
        const bool mixed = m.partner != 0;
        m.partner = 0; /* where its row lies is the rank's own matter */
        if (b->b.samples[i] != BATCH_PADDING)
            good = l->crypto->EVP_DigestUpdate(l->sha, &m, sizeof m) &&
                   (!mixed || l->crypto->EVP_DigestUpdate(l->sha, partner, bytes));
    }
    return good;
}

static int hash(struct batch_log *l, const struct loader_batch *b, const struct input_options *in, char *hex,
                struct err *e)
{
    const struct crypto_lib *c = l->crypto;
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned int n = 0;
    if (!c->EVP_DigestInit_ex(l->sha, c->EVP_sha256(), NULL) || !hash_rows(l, b, b->b.rows, input_bytes(in)) ||
        !hash_rows(l, b, b->b.labels, input_labels(in) * sizeof *b->b.labels) ||
        !hash_rows(l, b, b->b.weights, sizeof *b->b.weights) || !hash_mixes(l, b, input_bytes(in)) ||
        !c->EVP_DigestFinal_ex(l->sha, sum, &n))
        return err_set(e, -EIO, "SHA-256 failed");
    for (unsigned int i = 0; i < n; i++) {
        hex[2 * i] = "0123456789abcdef"[sum[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[sum[i] & 15];
    }
    hex[2 * n] = 0;
    return 0;
}

/* Of each sample what it keeps, of how much of which label, and the boxes. */
static int print_mixes(struct batch_log *l, const struct loader_batch *b)
{
    const char *before = "], \"mix\": [";
    for (size_t i = 0; i < b->rows && b->b.mix; i++) {
        const struct batch_mix *m = &b->b.mix[i];
        const struct batch_box *x = &m->box, *z = &m->erase;
        if (b->b.samples[i] == BATCH_PADDING)
            continue;
        if (buf_printf(&l->line, "%s[%.9g, %.9g, %d, %d, [%d, %d, %d, %d], [%d, %d, %d, %d]]", before,
                       m->partner ? (double)m->keep : 1, (double)m->share, b->b.labels[i], m->second, x->x0, x->y0,
                       x->x1, x->y1, z->x0, z->y0, z->x1, z->y1) < 0)
            return -ENOMEM;
        before = ", ";
    }
    return 0;
}

int batch_log_write(struct batch_log *l, const struct loader_batch *b, const struct input_options *in, struct err *e)
{
    char hex[2 * EVP_MAX_MD_SIZE + 1];
    TRY(hash(l, b, in, hex, e));
    buf_clear(&l->line);
    int rc = buf_printf(
        &l->line,
        "{\"rank\": %d, \"world\": %d, \"epoch\": %lld, \"step\": %lld, \"sha256\": \"%s\", \"bad\": %zu, \"ids\": [",
        l->rank, l->world, (long long)b->epoch, (long long)b->step, hex, b->bad);
    const char *before = "";
    for (size_t i = 0; i < b->rows && rc >= 0; i++)
        if (b->b.samples[i] != BATCH_PADDING) {
            rc = buf_printf(&l->line, "%s%u", before, b->b.samples[i]);
            before = ", ";
        }
    if (rc < 0 || print_mixes(l, b) < 0 || buf_printf(&l->line, "]}\n") < 0)
        return err_set(e, -ENOMEM, "no memory for a line of %zu samples", b->count);
    const ssize_t n = write(l->fd, l->line.data, l->line.len);
    return n == (ssize_t)l->line.len
               ? 0
               : err_set(e, ERR_OUTPUT, "--debug-batch-sha: %s", n < 0 ? strerror(errno) : "a line was cut short");
}
