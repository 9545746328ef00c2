/* Which elements OP_DROP keeps: a function of seed, step, layer, sample and element, so equal on every device, in every
 * layout and on every repetition of a forward pass.
 *
 * Philox4x32-10 twice (Random123; Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 * From the seed as key and (step, layer) as counter: the key of the layer in this step. From that and the counter
 * (block, sample): four words of 32 bits. An element is number position * channels + channel of its sample and has word
 * (element / 16) % 4 of block element / 64 * 16 + element % 16: 16 elements side by side take the same word of 16
 * blocks. Where samples are kept or left out as wholes, the word of a sample is that of its element 0. */
#ifndef CRUN_WORKER_DEVICE_DROP_H
#define CRUN_WORKER_DEVICE_DROP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct drop_key {
    uint32_t v[2];
};

enum { DROP_RUN = 64, DROP_LANES = 16 }; /* elements of 16 blocks; side by side */

struct drop_key drop_key(uint64_t seed, uint64_t step, uint64_t layer);
uint32_t drop_word(struct drop_key k, uint32_t sample, uint64_t element);
/* An element is kept if its word is not below this. rate: op.rate. */
uint32_t drop_bound(float rate);

#endif
