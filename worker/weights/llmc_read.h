/* llm.c's file of a GPT-2's weights: 1 KiB of int32 (magic, version 3: fp32, 5: bf16; positions, vocabulary, layers,
 * heads, width, rows of the embedding, padding included), then the tensors, each of all layers at once. Here they are
 * one a layer, under Hugging Face's names, and without the padding. */
#ifndef CRUN_WORKER_LLMC_READ_H
#define CRUN_WORKER_LLMC_READ_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/ckpt/safetensors.h"

struct err;
struct llmc;

bool llmc_is(const unsigned char *head, size_t n); /* the first bytes of a file */

/* ERR_CORRUPT: another version, a number that no model has, or a size that does not fit. */
int llmc_open(struct llmc **ret, const char *path, struct err *e);
void llmc_close(struct llmc *f); /* NULL allowed */
size_t llmc_count(const struct llmc *f);
const struct ckpt_tensor *llmc_at(const struct llmc *f, size_t i); /* data is NULL; valid until close */
int llmc_read(struct llmc *f, size_t i, void *dst, struct err *e);

#endif
