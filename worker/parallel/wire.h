/* Gradients as they travel: halves. */
#ifndef CRUN_WORKER_PARALLEL_WIRE_H
#define CRUN_WORKER_PARALLEL_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "worker/precision/dtype.h"

/* out[i] = arena[first + i] * mul, rounded to wire (DT_F16 or DT_BF16); real: DT_F32 or DT_F64. */
void wire_pack(uint16_t *out, const void *arena, size_t first, size_t n, enum dtype real, enum dtype wire, float mul);
/* arena[first + i] = in[i] * mul */
void wire_unpack(void *arena, const uint16_t *in, size_t first, size_t n, enum dtype real, enum dtype wire, float mul);

#endif
