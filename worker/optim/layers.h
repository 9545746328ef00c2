/* Which layer of a model a parameter belongs to, from its name: for rates that fall from the last layer to the first.
 *
 * Names with a number, as a component or at its end, are of blocks: "layer1.0.conv1.weight" of "layer1.0",
 * "encoder.layers.encoder_layer_3.ln_1.bias" of "encoder.layers.encoder_layer_3", "h.3.attn.c_attn.weight" of "h.3".
 * Blocks are counted from 1 in the order of the model; what comes before the first is layer 0 (the stem, embeddings),
 * what comes behind the last is the last layer (norms, heads). Pure. */
#ifndef CRUN_WORKER_OPTIM_LAYERS_H
#define CRUN_WORKER_OPTIM_LAYERS_H

#include <stddef.h>

struct program;

enum { LAYER_NAME_MAX = 64 };

/* The block that `name` is in; "": none. Returns out. */
const char *layers_block(const char *name, char out[LAYER_NAME_MAX]);

/* decay^(layers behind that of the parameter `name` in the whole model p): 1 for the last layer. */
double layers_factor(const struct program *p, double decay, const char *name);

#endif
