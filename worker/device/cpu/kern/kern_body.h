/* Kernels over one storage type and one vector width, included by kern_each.h: those of the file FAMILY, with
 *   T      element type in memory
 *   ROUND  1, 2: round to bf16, fp16 at every store
 *   L      lanes of a vector: 8 or 16
 *   NAME(x) gives each function its own name.
 * Vectors lie along channels, in plain NCHW along pixels. Where all lanes are there `lanes` is a constant; ends (odd
 * channel counts, the last pixels of a row) take as many as there are. */
#include "worker/device/cpu/kern/kern_vec.h"

#include FAMILY

#undef VF
#undef VU
#undef VI
#undef VH
#undef VB
#undef EACH_WALK
#undef EACH_ROW
#undef EACH_GROUP
#undef EACH_WIDTH
