/* How other libraries name the tensors of torchvision's ResNets and vision transformers, of GPT-2 and Llama. Pure. */
#ifndef CRUN_WORKER_WEIGHTS_FOREIGN_H
#define CRUN_WORKER_WEIGHTS_FOREIGN_H

enum { FOREIGN_LIBRARIES = 3, FOREIGN_PARTS = 3, FOREIGN_NAME = 256 };

/* The names that library `which` (Hugging Face's with a head; its bare model; timm) gives to what is called `name`
 * here: how many, 0 if it has none. Of three, queries, keys and values, the tensor here is one behind the other. */
int foreign_names(const char *name, int which, char out[FOREIGN_PARTS][FOREIGN_NAME]);

/* The matrices of a layer of GPT-2, which Hugging Face has as (in, out). Of the first of them, (C, 3 C) there and (3 C,
 * C) here, the shape says which a file has. */
int foreign_is_conv1d(const char *name);
int foreign_is_first_conv1d(const char *name);

/* Not weights: masks and frequencies that older files of Hugging Face's have, and counters of batches. */
int foreign_is_buffer(const char *name);

/* A sentence on tensors of this name that stand for others, as pruning, reparametrizations, adapters and quantization
 * leave them: what they are, and what is to be done in Python. NULL: it is none of those. */
const char *foreign_is_made_of(const char *name);

#endif
