/* Allocates, initialises and checks the arenas of the state. */
#include "worker/state/state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/err.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/parallel/pages.h"
#include "worker/program/program.h"

size_t state_bytes(const struct state *s, size_t elements)
{
    return elements * dtype_size(s->real);
}

static void store_real(enum dtype t, void *to, const double *v, size_t n)
{
    assert(t == DT_F64 || t == DT_F32);
    if (t == DT_F64) {
        memcpy(to, v, n * sizeof *v);
        return;
    }
    for (size_t i = 0; i < n; i++)
        ((float *)to)[i] = (float)v[i];
}

enum { CHUNK = 1 << 16 }; /* elements of initial values that are on the host at once */

struct chunk {
    double value[CHUNK], real[CHUNK];
};

/* Elements [first, end) of a parameter. */
static int fill_range(struct state *s, void *arena, const struct param *p, size_t first, size_t end, uint64_t seed,
                      struct chunk *c, struct err *e)
{
    for (size_t at = first, n; at < end; at += n) {
        const size_t place =
            p->role == PARAM_STAT ? p->offset + at : ownership_place(s->own, OWNERSHIP_PARAMS, p->offset + at);
        n = end - at < CHUNK ? end - at : CHUNK;
        param_initial_fill(p, seed, at, n, c->value);
        store_real(s->real, c->real, c->value, n);
        TRY(s->device->ops->upload(s->device, (char *)arena + state_bytes(s, place), c->real, state_bytes(s, n), e));
    }
    return 0;
}

/* What this rank keeps of it. */
static int fill_param(struct state *s, void *arena, const struct param *p, uint64_t seed, struct chunk *c,
                      struct err *e)
{
    if (p->role == PARAM_STAT || !ownership_is_cut(s->own, OWNERSHIP_PARAMS))
        return fill_range(s, arena, p, 0, p->count, seed, c, e);
    for (int k = 0; k < s->own->nowned; k++) {
        const struct ownership_range r = ownership_clip(s->own, k, p->offset, p->offset + p->count);
        if (r.first < r.end)
            TRY(fill_range(s, arena, p, r.first - p->offset, r.end - p->offset, seed, c, e));
    }
    return 0;
}

/* Fill the arena of one role, which is zero, with initial values. */
static int fill_initial(struct state *s, void *arena, enum param_role role, uint64_t seed, struct err *e)
{
    struct chunk *c = malloc(sizeof *c);
    int rc = c ? 0 : err_errno(e, ENOMEM, "initial values");
    for (int i = 0; i < s->program->nparams && rc == 0; i++)
        if (s->program->params[i].role == role)
            rc = fill_param(s, arena, &s->program->params[i], seed, c, e);
    free(c);
    return rc;
}

/* Are parameters address space, as they are cut and stay where they are? */
static bool come_and_go(const struct state *s)
{
    return ownership_is_cut(s->own, OWNERSHIP_PARAMS) && !s->own->compact;
}

/* Of parameters, or averages of them. */
static int alloc_params(struct state *s, void **ret, struct err *e)
{
    return come_and_go(s)
               ? pages_open(ret, state_bytes(s, program_params(s->program)), e)
               : s->device->ops->alloc(s->device, state_bytes(s, ownership_elements(s->own, OWNERSHIP_PARAMS)), ret, e);
}

static void release_params(const struct state *s, void *arena)
{
    if (arena && come_and_go(s))
        pages_close(arena, state_bytes(s, program_params(s->program)));
    else if (arena)
        s->device->ops->release(s->device, arena);
}

/* A stage of which nothing is trained has none. */
static int alloc_moments(struct state *s, void **ret, struct err *e)
{
    return s->device->ops->alloc(s->device, state_bytes(s, s->n_moments ? s->n_moments : 1), ret, e);
}

static int alloc_optional(struct state *s, const struct state_options *o, struct err *e)
{
    const struct device_ops *ops = s->device->ops;
    if (o->second)
        TRY(alloc_moments(s, &s->second, e));
    if (!o->ema)
        return 0;
    TRY(alloc_params(s, &s->ema_params, e));
    TRY(ops->alloc(s->device, state_bytes(s, program_statistics(s->program) + 1), &s->ema_stats, e));
    TRY(fill_initial(s, s->ema_params, PARAM_TRAIN, o->seed, e));
    return fill_initial(s, s->ema_stats, PARAM_STAT, o->seed, e);
}

void *state_metric(const struct state *s, int metric)
{
    return (char *)s->reduce + state_bytes(s, s->program->n_train + s->program->n_stats + (size_t)metric);
}

bool state_sheds(const struct state *s)
{
    return ownership_is_cut(s->own, OWNERSHIP_GRADIENTS) && !s->device->ops->async;
}

/* Where gradients are cut the arena is address space: a page is there from when backward writes it until ddp has
 * reduced it, but for those of what this rank owns. */
static int alloc_reduce(struct state *s, struct err *e)
{
    const size_t bytes = state_bytes(s, s->program->n_reduce);
    return state_sheds(s) ? pages_open(&s->reduce, bytes, e) : s->device->ops->alloc(s->device, bytes, &s->reduce, e);
}

void state_measure(struct state *s, struct device *d, const struct program *p, const struct ownership *own,
                   const struct state_options *o)
{
    *s = (struct state){.device = d,
                        .program = p,
                        .whole = o->whole ? o->whole : p,
                        .own = own,
                        .real = d->ops->real,
                        .n_moments = ownership_elements(own, OWNERSHIP_MOMENTS),
                        .version = 1,
                        .loss_scale = loss_scale_fixed(1)};
}

int state_forecast(struct state *s, struct device *d, const struct program *p, const struct ownership *own,
                   const struct state_options *o, struct err *e)
{
    state_measure(s, d, p, own, o);
    const size_t most = p->n_reduce > program_params(p) ? p->n_reduce : program_params(p), bytes = state_bytes(s, most);
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return err_errno(e, errno, "%zu bytes of address space", bytes);
    s->reserved = bytes;
    s->params = s->momentum = s->stats = s->reduce = at;
    s->second = o->second ? at : NULL;
    s->ema_params = s->ema_stats = o->ema ? at : NULL;
    return 0;
}

int state_init(struct state *s, struct device *d, const struct program *p, const struct ownership *own,
               const struct state_options *o, struct err *e)
{
    state_measure(s, d, p, own, o);
    const uint64_t seed = o->seed;
    int rc;
    TRY_GOTO(rc, alloc_params(s, &s->params, e), fail);
    TRY_GOTO(rc, alloc_moments(s, &s->momentum, e), fail);
    TRY_GOTO(rc, d->ops->alloc(d, state_bytes(s, program_statistics(p) + 1), &s->stats, e), fail);
    TRY_GOTO(rc, alloc_reduce(s, e), fail);
    s->norm = state_metric(s, METRIC_NORM);
    TRY_GOTO(rc, fill_initial(s, s->params, PARAM_TRAIN, seed, e), fail);
    TRY_GOTO(rc, fill_initial(s, s->stats, PARAM_STAT, seed, e), fail);
    TRY_GOTO(rc, alloc_optional(s, o, e), fail);
    return 0;
fail:
    state_finish(s);
    return rc;
}

static int fill_zero(struct state *s, void *arena, struct err *e)
{
    const size_t piece = state_bytes(s, CHUNK);
    char *zero = calloc(1, piece);
    int rc = zero ? 0 : err_errno(e, ENOMEM, "initial values");
    for (size_t at = 0, left = arena ? state_bytes(s, s->n_moments) : 0, n; left > 0 && rc == 0; at += n, left -= n) {
        n = left < piece ? left : piece;
        rc = s->device->ops->upload(s->device, (char *)arena + at, zero, n, e);
    }
    free(zero);
    return rc;
}

int state_reset(struct state *s, uint64_t seed, struct err *e)
{
    s->version++;
    TRY(fill_zero(s, s->momentum, e));
    TRY(fill_zero(s, s->second, e));
    TRY(fill_initial(s, s->params, PARAM_TRAIN, seed, e));
    TRY(fill_initial(s, s->stats, PARAM_STAT, seed, e));
    if (!s->ema_params)
        return 0;
    TRY(fill_initial(s, s->ema_params, PARAM_TRAIN, seed, e));
    return fill_initial(s, s->ema_stats, PARAM_STAT, seed, e);
}

void state_finish(struct state *s)
{
    if (!s->device)
        return;
    if (s->reserved) {
        munmap(s->reduce, s->reserved);
        *s = (struct state){0};
        return;
    }
    if (s->reduce && state_sheds(s)) {
        pages_close(s->reduce, state_bytes(s, s->program->n_reduce));
        s->reduce = NULL;
    }
    release_params(s, s->params);
    release_params(s, s->ema_params);
    void *arenas[] = {s->momentum, s->stats, s->reduce, s->second, s->ema_stats};
    for (size_t i = 0; i < sizeof arenas / sizeof *arenas; i++)
        if (arenas[i])
            s->device->ops->release(s->device, arenas[i]);
    *s = (struct state){0};
}

/* Parameters that are whole lie alike in both. */
static int divide_params(struct state *n, struct err *e)
{
    if (!ownership_is_cut(n->own, OWNERSHIP_PARAMS))
        return 0;
    n->params = n->reduce = NULL;
    TRY(alloc_params(n, &n->params, e));
    TRY(alloc_reduce(n, e));
    n->norm = state_metric(n, METRIC_NORM);
    if (!n->ema_params)
        return 0;
    n->ema_params = NULL;
    return alloc_params(n, &n->ema_params, e);
}

int state_divide(struct state *ret, const struct state *s, const struct program *p, const struct ownership *own,
                 struct err *e)
{
    struct state n = *s;
    n.program = p;
    n.own = own;
    n.n_moments = ownership_elements(own, OWNERSHIP_MOMENTS);
    n.momentum = n.second = NULL;
    n.version++;
    int rc = divide_params(&n, e);
    if (rc == 0)
        rc = alloc_moments(&n, &n.momentum, e);
    if (rc == 0 && s->second)
        rc = alloc_moments(&n, &n.second, e);
    if (rc < 0) {
        state_finish_but(&n, s);
        return rc;
    }
    *ret = n;
    return 0;
}

void state_finish_but(struct state *s, const struct state *other)
{
    void **mine[] = {&s->params, &s->momentum, &s->second, &s->stats, &s->ema_params, &s->ema_stats, &s->reduce};
    void *const its[] = {other->params,     other->momentum,  other->second, other->stats,
                         other->ema_params, other->ema_stats, other->reduce};
    for (size_t i = 0; i < sizeof its / sizeof *its; i++)
        if (*mine[i] == its[i])
            *mine[i] = NULL;
    state_finish(s);
}

void state_arenas(const struct state *s, struct state_arena ret[STATE_ARENAS])
{
    const size_t n_params = program_params(s->program), n_stats = program_statistics(s->program);
    ret[0] = (struct state_arena){s->params, n_params};
    ret[1] = (struct state_arena){s->momentum, s->n_moments};
    ret[2] = (struct state_arena){s->second, s->n_moments};
    ret[3] = (struct state_arena){s->stats, n_stats};
    ret[4] = (struct state_arena){s->ema_params, n_params};
    ret[5] = (struct state_arena){s->ema_stats, n_stats};
}

int state_get_metrics(struct state *s, double *out, struct err *e)
{
    char raw[METRIC_N * sizeof(double)];
    TRY(s->device->ops->download(s->device, raw, state_metric(s, 0), state_bytes(s, METRIC_N), e));
    for (int i = 0; i < METRIC_N; i++) {
        float f;
        memcpy(&f, raw + i * sizeof f, sizeof f);
        if (s->real == DT_F64)
            memcpy(&out[i], raw + i * sizeof *out, sizeof *out);
        else
            out[i] = f;
    }
    return 0;
}

int state_set_metric(struct state *s, int metric, double value, struct err *e)
{
    double v[1];
    store_real(s->real, v, &value, 1);
    return s->device->ops->upload(s->device, state_metric(s, metric), v, state_bytes(s, 1), e);
}

int state_set_metrics(struct state *s, const double *v, struct err *e)
{
    double real[METRIC_N];
    store_real(s->real, real, v, METRIC_N);
    return s->device->ops->upload(s->device, state_metric(s, 0), real, state_bytes(s, METRIC_N), e);
}
