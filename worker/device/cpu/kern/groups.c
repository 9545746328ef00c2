/* Sizes of what convolutions in groups of channels need beside their tensors: the most that any width of vectors
 * takes. */
#include "worker/device/cpu/kern/groups.h"

size_t groups_weights(const struct groups_job *j)
{
    return (size_t)groups_vectors(j, LANES_MAX) * (size_t)(j->kh * j->kw * j->read) * LANES_MAX;
}

size_t groups_scratch(const struct groups_job *j, int threads)
{
    return (size_t)threads * (groups_ring(j, LANES_MAX) + groups_sums(j, LANES_MAX) + groups_line(j, LANES_MAX));
}

/* Narrow vectors may be cut into more parts. */
size_t groups_partial(const struct groups_job *j, int threads)
{
    size_t most = 0;
    for (int lanes = LANES_MAX / 2; lanes <= LANES_MAX; lanes *= 2) {
        const size_t n = (size_t)(groups_parts(j, lanes, threads) * groups_vectors(j, lanes)) * groups_sums(j, lanes);
        most = n > most ? n : most;
    }
    return most;
}
