/* Hostile models: whatever the text is, reading and building it end, with a sentence or with a program that holds
 * together. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/fuzz/driver.h"
#include "worker/model/model.h"
#include "worker/model/net_read.h"
#include "worker/program/program.h"

#define INPUT_BYTES 4096

static uint64_t whole; /* how many became programs */

static void check_net(const struct net *n)
{
    assert(n->n >= 2 && n->n <= NET_OPS_MAX);
    for (int i = 0; i < n->n; i++) {
        assert(strlen(n->ops[i].name) > 0 && n->ops[i].in[0] < i && n->ops[i].in[1] < i);
        assert(n->ops[i].readers > 0 || i == n->n - 1);
    }
}

static void check_program(const struct program *p)
{
    assert(p->logits >= 0 && p->classes == 10);
    for (int i = 0; i < p->nparams; i++)
        for (int k = 0; k < i; k++)
            assert(strcmp(p->params[i].name, p->params[k].name) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char text[FUZZ_INPUT_MAX + 1];
    struct net net;
    struct program *p = NULL;
    struct err e = {0};
    n = n < FUZZ_INPUT_MAX ? n : FUZZ_INPUT_MAX;
    memcpy(text, data, n);
    text[n] = '\0';
    const struct model_options o = {
        .arch = "fuzz", .text = text, .classes = 10, .input = input_pictures(3, 32, 32, NULL, NULL)};
    const int rc = net_read(&net, "fuzz", text, &e);
    assert(rc == 0 || e.text[0]);
    if (rc == 0) {
        check_net(&net);
        assert(model_compare(text, text, &e) == 0);
    }
    net_free(&net);
    if (model_build(&p, &o, &e) == 0) {
        assert(rc == 0);
        check_program(p);
        whole++;
    } else {
        assert(e.text[0]);
    }
    program_destroy(p);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
static void change_once(struct fuzz_input *in)
{
    static const char *const pieces[] = {
        "\n",          " ",       "{",      "}",         "=",       "\nend\n",
        "\nrelu\n",    "{i}",     "9",      "-1",        "/0",      "\nrepeat i times=40\n",
        "\nblock b\n", "\nb x\n", " out=8", " from=in",  " with=a", "\nset a=1\n",
        "\nlet a=2\n", "sqrt(",   "1e300",  "names=a,b", "\377",    "#"};
    const size_t at = in->n ? fuzz_draw(in->n) : 0;
    const char *piece = pieces[fuzz_draw(sizeof pieces / sizeof *pieces)];
    const uint64_t what = fuzz_draw(4);
    if (what == 0 && in->n)
        in->bytes[at] = (uint8_t)fuzz_draw(128);
    else if (what == 1)
        fuzz_insert(in, at, piece, strlen(piece), INPUT_BYTES);
    else
        for (uint64_t k = 1 + fuzz_draw(4); k > 0 && in->n > at; k--)
            fuzz_remove(in, at);
}

static void change(struct fuzz_input *in)
{
    assert(whole > 0); /* the corpus has been run: else it is no good */
    for (uint64_t k = 1 + fuzz_draw(3); k > 0; k--)
        change_once(in);
}

int main(void)
{
    return fuzz_main(&(struct fuzz_plan){.runs = 20000, .change = change, .kept = "leave the reader whole"});
}
#endif
