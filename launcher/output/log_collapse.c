#include "launcher/output/log_collapse.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/numbers.h"

struct waiting {
    char *line;
    size_t n;
    uint64_t hash, *ranks;
    int first, count;
    int64_t since_ms;
};

struct log_collapse {
    log_collapse_emit_fn *emit;
    void *ctx;
    int workers, words, expected;
    uint64_t head, tail; /* numbers of lines; slot = number % LOG_COLLAPSE_LINES */
    size_t bytes;
    uint64_t *passed; /* by rank: lines below this number are behind it */
    struct waiting queue[LOG_COLLAPSE_LINES];
};

static uint64_t hash_of(const char *p, size_t n)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)p[i]) * 1099511628211u;
    return h;
}

struct log_collapse *log_collapse_create(int workers, log_collapse_emit_fn *emit, void *ctx)
{
    struct log_collapse *c = calloc(1, sizeof *c);
    if (!c || !(c->passed = calloc((size_t)workers, sizeof *c->passed))) {
        free(c);
        return NULL;
    }
    c->emit = emit;
    c->ctx = ctx;
    c->workers = c->expected = workers;
    c->words = (workers + 63) / 64;
    return c;
}

void log_collapse_expect(struct log_collapse *c, int ranks)
{
    c->expected = ranks;
}

static struct waiting *slot(struct log_collapse *c, uint64_t number)
{
    return &c->queue[number % LOG_COLLAPSE_LINES];
}

static void leave(struct log_collapse *c)
{
    struct waiting *w = slot(c, c->head++);
    c->emit(c->ctx, &(struct log_same){w->line, w->n, w->ranks, w->first, w->count});
    c->bytes -= w->n;
    free(w->ranks); /* and the line behind it */
    *w = (struct waiting){0};
}

void log_collapse_flush(struct log_collapse *c)
{
    while (c->head != c->tail)
        leave(c);
}

static void add_rank(struct log_collapse *c, uint64_t number, int local)
{
    struct waiting *w = slot(c, number);
    w->ranks[local / 64] |= (uint64_t)1 << local % 64;
    w->count++;
    w->first = local < w->first ? local : w->first;
    c->passed[local] = number + 1;
}

/* Was it the last line of each rank that wrote it, and not of this one? */
static bool may_move(const struct log_collapse *c, const struct waiting *w, uint64_t number, int local, int64_t now_ms)
{
    if (now_ms - w->since_ms >= LOG_COLLAPSE_MS || w->ranks[local / 64] >> local % 64 & 1)
        return false;
    for (int i = 0; i < c->workers; i++)
        if (w->ranks[i / 64] >> i % 64 & 1 && c->passed[i] != number + 1)
            return false;
    return true;
}

static void move_to_end(struct log_collapse *c, uint64_t number)
{
    const struct waiting moved = *slot(c, number);
    for (uint64_t i = number; i + 1 < c->tail; i++)
        *slot(c, i) = *slot(c, i + 1);
    *slot(c, c->tail - 1) = moved;
    for (int i = 0; i < c->workers; i++) {
        if (moved.ranks[i / 64] >> i % 64 & 1)
            c->passed[i] = c->tail;
        else if (c->passed[i] > number)
            c->passed[i]--;
    }
}

/* Is there a line that `local` may join? Then it has. */
static bool join(struct log_collapse *c, int local, const char *line, size_t n, uint64_t hash, int64_t now_ms)
{
    uint64_t behind = c->tail;
    for (uint64_t i = c->head; i < c->tail; i++) {
        struct waiting *w = slot(c, i);
        if (w->hash != hash || w->n != n || memcmp(w->line, line, n) != 0)
            continue;
        if (i >= c->passed[local]) {
            add_rank(c, i, local);
            return true;
        }
        if (may_move(c, w, i, local, now_ms))
            behind = i;
    }
    if (behind == c->tail)
        return false;
    move_to_end(c, behind);
    add_rank(c, c->tail - 1, local);
    return true;
}

static void append(struct log_collapse *c, int local, const char *line, size_t n, uint64_t hash, int64_t now_ms)
{
    const size_t bits = (size_t)c->words * sizeof(uint64_t);
    uint64_t *ranks = calloc(1, bits + n);
    if (!ranks) { /* shown at once, behind what waits */
        log_collapse_flush(c);
        c->emit(c->ctx, &(struct log_same){line, n, NULL, local, 1});
        return;
    }
    ranks[local / 64] = (uint64_t)1 << local % 64;
    char *copy = (char *)(ranks + c->words);
    if (n > 0)
        memcpy(copy, line, n);
    *slot(c, c->tail) = (struct waiting){copy, n, hash, ranks, local, 1, now_ms};
    c->passed[local] = ++c->tail;
    c->bytes += n;
}

static void leave_complete(struct log_collapse *c)
{
    while (c->head != c->tail && slot(c, c->head)->count >= c->expected)
        leave(c);
}

void log_collapse_add(struct log_collapse *c, int local, const char *line, size_t n, int64_t now_ms)
{
    const uint64_t hash = hash_of(line, n);
    if (!join(c, local, line, n, hash, now_ms)) {
        while (c->head != c->tail && (c->tail - c->head == LOG_COLLAPSE_LINES || c->bytes + n > LOG_COLLAPSE_BYTES))
            leave(c);
        append(c, local, line, n, hash, now_ms);
    }
    leave_complete(c);
}

int64_t log_collapse_tick(struct log_collapse *c, int64_t now_ms)
{
    leave_complete(c);
    while (c->head != c->tail && now_ms - slot(c, c->head)->since_ms >= LOG_COLLAPSE_MS)
        leave(c);
    return c->head == c->tail ? -1 : slot(c, c->head)->since_ms + LOG_COLLAPSE_MS - now_ms;
}

void log_collapse_free(struct log_collapse *c)
{
    if (!c)
        return;
    for (; c->head != c->tail; c->head++)
        free(slot(c, c->head)->ranks);
    free(c->passed);
    free(c);
}

int log_collapse_ranks(const uint64_t *bits, int workers, int base, struct buf *out)
{
    const size_t most = (size_t)workers * sizeof "-2147483648,";
    TRY(buf_reserve(out, most));
    struct ranges r = {.out = out->data + out->len, .cap = most};
    for (int i = 0; i < workers; i++)
        if (bits[i / 64] >> i % 64 & 1)
            ranges_add(&r, base + i);
    out->len += r.len;
    return 0;
}
