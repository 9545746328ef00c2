/* Says which rows of a batch are erased or mixed, and where their partners come from. */
#include "worker/data/loader/mixing.h"

#include <string.h>

static struct batch_box box_of(const int16_t v[4])
{
    return (struct batch_box){v[0], v[1], v[2], v[3]};
}

static void erase(const struct mixing *m, struct showing at, struct batch_mix *out)
{
    int16_t box[4];
    *out = (struct batch_mix){0};
    if (input_erased(m->input, at, box))
        out->erase = box_of(box);
}

static size_t mix_rows(const struct mixing *m, int part, size_t n, struct showing *showing, mixing_ask *ask, void *ctx,
                       struct batch_mix *out)
{
    const struct sampler *s = m->sampler;
    const size_t length = sampler_length(s, m->step), first = sampler_position(s, m->epoch, m->step, part, 0);
    size_t others = 0, drawn = SIZE_MAX;
    struct mix how = {0};
    for (size_t i = 0; i < n; i++) {
        const size_t position = first + i, group = position / s->mix_group,
                     partner = mix_partner(s->mix_group, (size_t)s->repetitions, position, length);
        const bool ours = partner >= first && partner - first < n;
        const struct showing at = ours ? showing[partner - first] : ask(ctx, sampler_at(s, m->epoch, m->step, partner));
        const size_t row = ours ? partner - first : sampler_part_rows(s) + others;
        if (at.id == showing[i].id) /* also its own position */
            continue;
        if (!ours) {
            showing[row] = at;
            others++;
        }
        if (group != drawn)
            how = mix_draw(m->mix, s->seed, m->epoch, m->step, group, m->input->size);
        drawn = group;
        out[i].partner = (int32_t)row - (int32_t)i;
        out[i].keep = (float)how.keep;
        out[i].share = (float)how.share;
        out[i].box = box_of(how.box);
    }
    return others;
}

size_t mixing_begin(const struct mixing *m, int part, size_t n, struct showing *showing, mixing_ask *ask, void *ctx,
                    struct batch_mix *out)
{
    const size_t behind = sampler_part_rows(m->sampler), rows = behind + sampler_part_others(m->sampler);
    memset(out, 0, rows * sizeof *out);
    for (size_t i = 0; i < n; i++)
        erase(m, showing[i], &out[i]);
    const size_t others = mix_is_on(m->mix) ? mix_rows(m, part, n, showing, ask, ctx, out) : 0;
    for (size_t i = behind; i < behind + others; i++)
        erase(m, showing[i], &out[i]);
    return others;
}

static void forget_partner(struct batch_mix *m)
{
    *m = (struct batch_mix){.erase = m->erase};
}

void mixing_end(struct batch_mix *mix, const int32_t *found, size_t rows, double least, int32_t *labels)
{
    for (size_t i = 0; i < rows; i++) {
        struct batch_mix *m = &mix[i];
        const int32_t mine = found[i], other = found[(int64_t)i + m->partner];
        if (m->partner == 0)
            continue;
        if (mine < 0 || other < 0) {
            forget_partner(m);
            continue;
        }
        const bool most = m->share > 0.5F;
        labels[i] = most ? other : mine;
        m->second = most ? mine : other;
        m->share = most ? 1 - m->share : m->share;
        if (mine == other || m->share <= (float)least)
            m->share = 0;
    }
}
