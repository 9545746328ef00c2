/* Adds up what a rank's memory goes into. */
#include "worker/session/memory.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "worker/config/config.h"
#include "worker/parallel/residency.h"
#include "worker/pipeline/stage.h"
#include "worker/program/program.h"
#include "worker/session/session_build.h"

static void add_plan(const struct plan *pl, const struct stage *g, struct memory_report *r)
{
    struct plan_memory m = {0};
    if (g)
        stage_memory(g, &m);
    else if (pl && pl->ops->plan_memory)
        pl->ops->plan_memory(pl, &m);
    r->activations += (int64_t)m.activations;
    r->weights += (int64_t)m.weights;
    r->workspace += (int64_t)m.workspace;
}

/* Elements of the largest trained parameter: its gradient is made in one go. */
static size_t largest_parameter(const struct program *p)
{
    size_t most = 0;
    for (int i = 0; i < p->nparams; i++) {
        const struct param *q = &p->params[i];
        most = q->role == PARAM_TRAIN && !q->frozen && q->count > most ? q->count : most;
    }
    return most;
}

/* Where they are cut: what is owned, the sums that travel along, and what others own of buckets that wait and of what
 * is being made (ddp.h). */
static int64_t gradient_bytes(const struct session *s)
{
    const struct state *st = &s->state;
    const size_t all = s->program->n_reduce, tail = all - s->program->n_train, part = ownership_largest_part(&s->own),
                 piece = ownership_largest_piece(&s->own), one = largest_parameter(s->program),
                 kept = part * (s->layout.seconds ? 2 : 1);
    const size_t on_the_way = ownership_window(&s->own) + (one > piece ? one : piece);
    const size_t some = ownership_elements(&s->own, OWNERSHIP_GRADIENTS) + tail +
                        (size_t)((double)on_the_way * (double)(piece - kept) / (double)piece);
    return (int64_t)state_bytes(st, state_sheds(st) && some < all ? some : all);
}

static int64_t batch_bytes(const struct session *s, bool training)
{
    const struct loader_options o = session_loader(s, training);
    return (int64_t)loader_bytes(&o);
}

static size_t gathered(const struct residency *r, const struct stage *g)
{
    return g ? stage_gathered(g) : r ? residency_peak(r) : 0;
}

/* Training and evaluation take turns. */
static int64_t gathered_bytes(const struct session *s)
{
    const size_t train = gathered(s->train_needs, s->train_stage), test = gathered(s->test_needs, s->test_stage);
    return (int64_t)state_bytes(&s->state, train > test ? train : test);
}

static struct memory_report parts_of_state(const struct session *s, bool second, bool averages)
{
    const struct state *st = &s->state;
    const int64_t params = (int64_t)state_bytes(st, ownership_elements(&s->own, OWNERSHIP_PARAMS));
    const int64_t stats = (int64_t)state_bytes(st, program_statistics(s->program));
    return (struct memory_report){.parameters = params + stats,
                                  .gradients = gradient_bytes(s),
                                  .optimizer = (int64_t)state_bytes(st, st->n_moments) * (second ? 2 : 1),
                                  .averages = averages ? params + stats : 0};
}

int64_t memory_of_state(const struct session *s)
{
    const struct state_options o = session_state(s);
    const struct memory_report r = parts_of_state(s, o.second, o.ema);
    return memory_planned(&r);
}

void memory_report(const struct session *s, struct memory_report *ret)
{
    struct rusage u;
    *ret = parts_of_state(s, s->state.second, s->state.ema_params);
    ret->gathered = gathered_bytes(s);
    ret->kept = s->kept;
    add_plan(s->train_plan, s->train_stage, ret);
    add_plan(s->test_plan, s->test_stage, ret);
    if (session_loads(s))
        ret->batches = (s->cfg->evaluate ? 0 : batch_bytes(s, true)) + (s->test_set ? batch_bytes(s, false) : 0);
    if (s->device->ops->memory) {
        size_t now, peak;
        s->device->ops->memory(s->device, &now, &peak);
        ret->device_peak = (int64_t)peak;
    }
    if (getrusage(RUSAGE_SELF, &u) == 0)
        ret->resident_peak = (int64_t)u.ru_maxrss * 1024;
}

static size_t append_item(char *out, size_t cap, size_t at, const char *what, int64_t bytes)
{
    if (bytes == 0 || at >= cap)
        return at;
    return at + (size_t)snprintf(out + at, cap - at, "%s%s %.1f MiB", at ? ", " : "", what, (double)bytes / (1 << 20));
}

char *memory_text(const struct memory_report *r, int with_peak, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
#define X(field, text) at = append_item(out, cap, at, text, r->field);
    MEMORY_PARTS(X)
#undef X
    if (with_peak) {
        at = append_item(out, cap, at, "peak of the device", r->device_peak);
        append_item(out, cap, at, "peak of the process", r->resident_peak);
    }
    return out;
}

int64_t memory_planned(const struct memory_report *r)
{
    int64_t sum = 0;
#define X(field, text) sum += r->field;
    MEMORY_PARTS(X)
#undef X
    return sum;
}

/* Memory of the process' own, without the pages of files: libraries, data bases. */
static int64_t anonymous(void)
{
    long resident = 0, files = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*d %ld %ld", &resident, &files) != 2)
        resident = files = 0;
    if (f)
        fclose(f);
    return (resident - files) * sysconf(_SC_PAGESIZE);
}

void memory_mark(struct session *s, enum mem_point p)
{
    size_t now = 0, peak;
    if (!s->cfg->mem_report)
        return;
    if (s->device && s->device->ops->memory) {
        s->device->ops->memory(s->device, &now, &peak);
        s->mem.held[p] = (int64_t)now;
    } else {
        s->mem.held[p] = anonymous() + s->kept; /* shared memory, all of it taken */
    }
}
