/* Token sets: one file, or a folder of shards, each mapped into memory.
 *
 *   PATH, or PATH/<name>.bin in byte order -> the tokens of all of them, one behind the other
 *   window i: tokens i T .. (i + 1) T; the first T of them are the row, the last T its labels
 *
 * A file is llm.c's (1 KiB of int32: magic, version, number of tokens; then the tokens) or has no header (nanoGPT's).
 * What goes wrong:
 *   - a file's size does not fit its header, its width, or what it was when it was mapped: an error. A page behind the
 *     end of a mapped file would end the process, so the size is looked at again before each window;
 *   - a token is no number of the vocabulary: the window's error, with file and byte. It is never used. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/image/first_bytes.h"
#include "worker/data/sets/dataset_impl.h"
#include "worker/data/sets/token_folder.h"
#include "worker/data/sets/token_set.h"

struct shard {
    char *path;
    const uint8_t *map;
    size_t bytes, head; /* of the file; of its header */
    int width;          /* bytes of a token */
    uint64_t first;     /* number of its first token in the set */
};

struct token_set {
    struct dataset base; /* first */
    char *path;
    struct shard *shards; /* none without tokens */
    size_t n_shards, cap;
    uint64_t tokens;
    struct buf left_out; /* what base.left_out is */
};

static uint64_t tokens_of(const struct shard *s)
{
    return (s->bytes - s->head) / (size_t)s->width;
}

/* --- opening */

static const struct token_format {
    int32_t magic, version;
    int width;
} formats[] = {{TOKEN_MAGIC_U16, 1, 2}, {TOKEN_MAGIC_U32, 7, 4}};

static int check_header(struct shard *s, const struct token_format *f, const int32_t head[3], int width, struct err *e)
{
    if (head[1] != f->version)
        return err_set(e, ERR_DATA, "'%s' has version %d of llm.c's %d (expected %d)", s->path, head[1], f->magic,
                       f->version);
    if (width && width != f->width)
        return err_set(e, ERR_DATA, "'%s' has llm.c's header, of tokens of %d bytes (expected %d, --token-bytes)",
                       s->path, f->width, width);
    s->head = TOKEN_HEADER;
    s->width = f->width;
    if (head[2] < 0 || s->bytes != TOKEN_HEADER + (size_t)head[2] * (size_t)f->width)
        return err_set(e, ERR_DATA, "'%s' has %zu bytes, and its header tells of %d tokens of %d (expected %lld bytes)",
                       s->path, s->bytes, head[2], f->width, TOKEN_HEADER + (long long)head[2] * f->width);
    return 0;
}

/* A file of another kind would be read as tokens without a header. Only what no such file begins with by chance. */
static int check_other(const struct shard *s, struct err *e)
{
    static const struct {
        const char *bytes, *remedy;
    } others[] = {
        {"\x93NUMPY", "numpy.load(FILE).tofile(NAME.bin) writes its tokens, which --token-bytes 2 or 4 reads"},
        {"PK\3\4", "torch.save() writes such files; move it to another folder"},
    };
    char what[FIRST_BYTES_TEXT];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (s->bytes >= strlen(others[i].bytes) && memcmp(s->map, others[i].bytes, strlen(others[i].bytes)) == 0)
            return err_set(e, ERR_DATA, "'%s' is %s and no file of tokens: %s", s->path,
                           first_bytes_text(s->map, s->bytes, what), others[i].remedy);
    return 0;
}

/* width: of tokens without a header; 0: it was not said. */
static int find_format(struct shard *s, int width, struct err *e)
{
    int32_t head[3];
    for (size_t i = 0; s->bytes >= TOKEN_HEADER && i < sizeof formats / sizeof *formats; i++) {
        memcpy(head, s->map, sizeof head);
        if (head[0] == formats[i].magic)
            return check_header(s, &formats[i], head, width, e);
    }
    TRY(check_other(s, e));
    if (!width)
        return err_set(e, ERR_DATA,
                       "'%s' has no header of llm.c's (%d or %d): of tokens without one --token-bytes is 2 or 4",
                       s->path, TOKEN_MAGIC_U16, TOKEN_MAGIC_U32);
    s->width = width;
    if (s->bytes % (size_t)width)
        return err_set(e, ERR_DATA, "'%s' has %zu bytes (expected a multiple of %d, --token-bytes)", s->path, s->bytes,
                       width);
    return 0;
}

static int map_shard(struct shard *s, int fd, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_errno(e, errno, "cannot read '%s'", s->path);
    if (st.st_size == 0)
        return err_set(e, ERR_DATA, "'%s' is empty", s->path);
    void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return err_errno(e, errno, "cannot map '%s'", s->path);
    s->map = at;
    s->bytes = (size_t)st.st_size;
    return 0;
}

static void close_shard(struct shard *s)
{
    if (s->map)
        munmap((void *)(uintptr_t)s->map, s->bytes);
    free(s->path);
}

static int open_shard(struct shard *s, int width, struct err *e)
{
    const int fd = file_open_regular(s->path, ERR_DATA, e);
    if (fd < 0)
        return fd;
    int rc = map_shard(s, fd, e);
    close(fd);
    return rc < 0 ? rc : find_format(s, width, e);
}

/* Takes path over. */
static int add_shard(struct token_set *t, char *path, int width, struct err *e)
{
    struct shard s = {.path = path, .first = t->tokens};
    int rc = path ? open_shard(&s, width, e) : err_errno(e, ENOMEM, "a list of files");
    if (rc == 0 && tokens_of(&s) > 0) {
        rc = ARRAY_GROW(t->shards, t->cap, t->n_shards + 1, "files of tokens", e);
        if (rc == 0) {
            t->shards[t->n_shards++] = s;
            t->tokens += tokens_of(&s);
            return 0;
        }
    }
    close_shard(&s);
    return rc;
}

/* Files with llm.c's header among others without one are a mistake. Two widths are read, and told. */
static int check_alike(struct token_set *t, struct err *e)
{
    for (size_t i = 1; i < t->n_shards; i++) {
        const struct shard *a = &t->shards[0], *b = &t->shards[i];
        if (a->head != b->head)
            return err_set(e, ERR_DATA,
                           "'%s' has llm.c's header, and '%s' has none (expected files of one kind): move the one that "
                           "is no file of tokens, or is of another set, to another folder",
                           a->head ? a->path : b->path, a->head ? b->path : a->path);
        if (a->width != b->width)
            return buf_printf(&t->left_out, "%s'%s' has tokens of %d bytes, '%s' of %d; both are read",
                              t->left_out.len ? "; " : "", b->path, b->width, a->path, a->width) < 0
                       ? err_errno(e, ENOMEM, "a sentence on '%s'", t->path)
                       : 0;
    }
    return 0;
}

static int open_folder(struct token_set *t, const struct dataset_options *o, struct err *e)
{
    struct token_folder f;
    int rc = token_folder_list(&f, t->path, o->testing, e);
    TRY(rc);
    for (size_t i = 0; rc == 0 && i < f.n; i++) {
        rc = add_shard(t, f.paths[i], o->token_bytes, e);
        f.paths[i] = NULL;
    }
    t->left_out = f.passed_over;
    f.passed_over = (struct buf){0};
    token_folder_free(&f);
    return rc < 0 ? rc : check_alike(t, e);
}

/* How many windows there are, and what is left over. */
static int count_windows(struct token_set *t, struct err *e)
{
    const uint64_t length = (uint64_t)t->base.length;
    if (t->tokens <= length)
        return err_set(e, ERR_DATA, "'%s' holds %llu tokens (expected at least %llu: a sample is %llu and one behind)",
                       t->path, (unsigned long long)t->tokens, (unsigned long long)length + 1,
                       (unsigned long long)length);
    t->base.n = (size_t)((t->tokens - 1) / length);
    const uint64_t rest = t->tokens - 1 - t->base.n * length;
    if (rest && buf_printf(&t->left_out, "%sthe last %llu of %llu tokens are left out: a sample has %llu",
                           t->left_out.len ? "; " : "", (unsigned long long)rest, (unsigned long long)t->tokens,
                           (unsigned long long)length) < 0)
        return err_errno(e, ENOMEM, "a sentence on '%s'", t->path);
    t->base.left_out = t->left_out.len ? t->left_out.data : NULL;
    return 0;
}

/* --- reading */

/* The last one that begins at or before the token. */
static const struct shard *shard_of(const struct token_set *t, uint64_t token)
{
    size_t low = 0, high = t->n_shards;
    while (high - low > 1) {
        const size_t mid = (low + high) / 2;
        *(t->shards[mid].first <= token ? &low : &high) = mid;
    }
    return &t->shards[low];
}

static int check_size(const struct shard *s, struct err *e)
{
    struct stat st;
    if (stat(s->path, &st) < 0)
        return err_set(e, ERR_DATA, "cannot look at '%s': %s", s->path, strerror(errno));
    return (size_t)st.st_size == s->bytes
               ? 0
               : err_set(e, ERR_DATA, "'%s' has %lld bytes now, and had %zu when it was opened", s->path,
                         (long long)st.st_size, s->bytes);
}

static uint32_t token_at(const struct shard *s, uint64_t i)
{
    uint16_t two;
    uint32_t four;
    const uint8_t *p = s->map + s->head + i * (size_t)s->width;
    if (s->width == 2) {
        memcpy(&two, p, sizeof two);
        return two;
    }
    memcpy(&four, p, sizeof four);
    return four;
}

/* Tokens [at, at + n) of the set into out, from as many shards as it takes. */
static int copy_tokens(const struct token_set *t, uint64_t at, size_t n, int32_t *out, struct err *e)
{
    for (size_t k = 0; k < n;) {
        const struct shard *s = shard_of(t, at + k);
        const uint64_t from = at + k - s->first, left = tokens_of(s) - from, end = left < n - k ? left : n - k;
        TRY(check_size(s, e));
        for (uint64_t i = 0; i < end; i++, k++) {
            const uint32_t token = token_at(s, from + i);
            if (token >= (uint32_t)t->base.classes)
                return err_set(e, ERR_DATA, "token %u at byte %llu of '%s' (expected less than the vocabulary, %d)",
                               token, (unsigned long long)(s->head + (from + i) * (uint64_t)s->width), s->path,
                               t->base.classes);
            out[k] = (int32_t)token;
        }
    }
    return 0;
}

static int read_tokens(struct dataset *d, size_t i, int32_t *row, int32_t *labels, struct err *e)
{
    const struct token_set *t = (const struct token_set *)d;
    const size_t n = (size_t)d->length;
    TRY(copy_tokens(t, (uint64_t)i * n, n, row, e));
    memcpy(labels, row + 1, (n - 1) * sizeof *labels);
    return copy_tokens(t, (uint64_t)(i + 1) * n, 1, labels + n - 1, e);
}

static const char *sample_name(struct dataset *d, size_t i)
{
    static _Thread_local char name[SAMPLE_NAME_MAX];
    snprintf(name, sizeof name, "window %zu of %.200s", i, ((const struct token_set *)d)->path);
    return name;
}

static void close_set(struct dataset *d)
{
    struct token_set *t = (struct token_set *)d;
    for (size_t i = 0; i < t->n_shards; i++)
        close_shard(&t->shards[i]);
    free(t->shards);
    buf_free(&t->left_out);
    free(t->path);
    free(t);
}

static const struct dataset_ops token_ops = {
    .name = "tokens",
    .read_tokens = read_tokens,
    .sample_name = sample_name,
    .close = close_set,
};

int dataset_open_tokens(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e)
{
    struct stat st;
    if (o->length < 1 || o->vocabulary < 2)
        return err_set(e, ERR_USAGE, "'%s' as tokens: such a set is for a model that reads tokens", path);
    struct token_set *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, -ENOMEM, "no memory for a data set");
    t->base = (struct dataset){.ops = &token_ops, .classes = o->vocabulary, .length = o->length};
    t->path = strdup(path);
    int rc = t->path ? 0 : err_set(e, -ENOMEM, "no memory for a data set");
    if (rc == 0)
        rc = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? open_folder(t, o, e)
                                                         : add_shard(t, strdup(path), o->token_bytes, e);
    if (rc == 0)
        rc = count_windows(t, e);
    if (rc < 0)
        close_set(&t->base);
    else
        *ret = &t->base;
    return rc;
}
