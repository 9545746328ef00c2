/* Tensors of GPT-2 and Llama as Hugging Face's transformers has them. Pure. */
#ifndef CRUN_WORKER_HF_LAYOUT_H
#define CRUN_WORKER_HF_LAYOUT_H

#include <stddef.h>

struct ckpt_tensor;
struct err;

/* *list (*n), from malloc, as its tensors' data: matrices of GPT-2's layers become (in, out), and queries, keys and
 * values of Llama's three tensors. What is so already, and others, stay as they are. -ENOMEM; ERR_MISMATCH: a shape
 * that is none of theirs. */
int hf_layout(struct ckpt_tensor **list, size_t *n, struct err *e);

#endif
