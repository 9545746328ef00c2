/* Converts gradients to the halves in which they travel, and back. */
#include "worker/parallel/wire.h"

void wire_pack(uint16_t *out, const void *arena, size_t first, size_t n, enum dtype real, enum dtype wire, float mul)
{
    for (size_t i = 0; i < n; i++) {
        const float v =
            (real == DT_F64 ? (float)((const double *)arena)[first + i] : ((const float *)arena)[first + i]) * mul;
        out[i] = wire == DT_F16 ? f16_from_f32(v) : bf16_from_f32(v);
    }
}

void wire_unpack(void *arena, const uint16_t *in, size_t first, size_t n, enum dtype real, enum dtype wire, float mul)
{
    for (size_t i = 0; i < n; i++) {
        const float v = (wire == DT_F16 ? f32_from_f16(in[i]) : f32_from_bf16(in[i])) * mul;
        if (real == DT_F64)
            ((double *)arena)[first + i] = (double)v;
        else
            ((float *)arena)[first + i] = v;
    }
}
