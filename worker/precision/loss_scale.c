/* Raises and lowers the factor of the loss of an fp16 run. */
#include "worker/precision/loss_scale.h"

struct loss_scale loss_scale_fixed(double scale)
{
    return (struct loss_scale){.scale = scale};
}

struct loss_scale loss_scale_dynamic(void)
{
    return (struct loss_scale){.scale = LOSS_SCALE_START, .dynamic = true};
}

enum loss_scale_verdict loss_scale_after(struct loss_scale *s, bool finite)
{
    if (!finite && (!s->dynamic || s->scale <= LOSS_SCALE_MIN))
        return LOSS_SCALE_HOPELESS;
    if (!finite) {
        s->scale /= 2;
        s->clean = 0;
        s->skipped++;
        return LOSS_SCALE_SKIP;
    }
    if (s->dynamic && ++s->clean == LOSS_SCALE_WINDOW) {
        s->scale = s->scale * 2 < LOSS_SCALE_MAX ? s->scale * 2 : LOSS_SCALE_MAX;
        s->clean = 0;
    }
    return LOSS_SCALE_UPDATE;
}
