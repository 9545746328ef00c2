/* config.json of Hugging Face's transformers, of GPT-2 and of Llama: a text of a shipped model with other values, and
 * back. What such a model would do otherwise than the text is refused. */
#ifndef CRUN_WORKER_HF_CONFIG_H
#define CRUN_WORKER_HF_CONFIG_H

#include <cjson/cJSON.h>
#include <stdbool.h>

struct buf;
struct err;

bool hf_config_is_path(const char *arch); /* ends in ".json" */

/* The text of the model that the file describes, appended to *ret. -EINVAL: another kind of model, or a value that is
 * not read; one sentence. Blocks on the file. */
int hf_config_text(struct buf *ret, const char *path, struct err *e);

/* The rate of dropout of attention probabilities that the file tells and that is not done here; 0: none, or it is no
 * such file. Blocks on the file. */
double hf_config_attention_dropout(const char *path);

/* The config.json of a model's text, the caller's. -ENOTSUP: it is neither a GPT-2 nor a Llama. */
int hf_config_make(cJSON **ret, const char *text, struct err *e);

#endif
