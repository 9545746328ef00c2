/* What a benchmark's model reads: pictures, as m says; of a model of tokens samples of as many as pictures are high. */
#ifndef CRUN_TESTS_BENCH_MODEL_INPUT_H
#define CRUN_TESTS_BENCH_MODEL_INPUT_H

#include <stdlib.h>

#include "common/base/err.h"
#include "worker/model/model.h"

static inline int model_input(struct model_options *m, struct err *e)
{
    struct model_facts facts;
    char *text;
    TRY(model_text(&text, m->arch, NET_TORCH, false, e));
    const int rc = model_facts(m->arch, text, &facts, e);
    free(text);
    if (rc == 0 && facts.tokens)
        m->input = (struct input){.rows = INPUT_TOKENS, .length = m->input.height};
    return rc;
}

#endif
