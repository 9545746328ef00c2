/* The language of models: what a text comes to, and what is wrong with wrong ones. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/model/model.h"
#include "worker/model/net_read.h"
#include "worker/program/program.h"

/* --- what a text comes to */

static char *listing(const char *text)
{
    struct net n;
    struct err e = {0};
    struct buf out = {0};
    if (net_read(&n, "t", text, &e) < 0)
        fail_msg("%s", e.text);
    for (int i = 0; i < n.n; i++) {
        assert_int_equal(net_print(&n, i, &out), 0);
        assert_int_equal(buf_addstr(&out, "\n"), 0);
    }
    net_free(&n);
    return out.data;
}

static void assert_comes_to(const char *text, const char *want)
{
    char *got = listing(text);
    assert_string_equal(got, want);
    free(got);
}

static void an_operation_reads_the_one_before_it_unless_it_says_otherwise(void **state)
{
    (void)state;
    assert_comes_to("input\n"
                    "conv a out=8 kernel=3 pad=1\n"
                    "relu\n"
                    "conv out=8 # the second one\n"
                    "add sum with=a\n"
                    "relu from=a\n"
                    "add last from=relu2 with=sum\n"
                    "classifier head\n",
                    "input input size=0 channels=0\n"
                    "conv a from=input out=8 kernel=3 stride=1 pad=1 groups=1 bias=1\n"
                    "relu relu1 from=a\n"
                    "conv conv2 from=relu1 out=8 kernel=1 stride=1 pad=0 groups=1 bias=1\n"
                    "add sum from=conv2 with=a\n"
                    "relu relu2 from=a\n"
                    "add last from=relu2 with=sum\n"
                    "classifier head from=last\n");
}

static void keys_have_their_defaults(void **state)
{
    (void)state;
    assert_comes_to("input\n"
                    "conv a out=6 groups=3 init=zeros\n"
                    "norm\n"
                    "norm rms=yes bias=no eps=0\n"
                    "gelu\n"
                    "gelu_tanh\n"
                    "silu\n"
                    "linear b out=12 each=yes bias=no\n"
                    "attention heads=2\n"
                    "attention c heads=2 kv_heads=1 causal=yes\n"
                    "scale gamma map=yes init=constant:-1e-6\n"
                    "drop rate=0.5\n"
                    "drop rate={1 / 8} samples=yes\n"
                    "prepend token\n"
                    "position table\n"
                    "pick at=3\n"
                    "classifier d\n",
                    "input input size=0 channels=0\n"
                    "conv a from=input out=6 kernel=1 stride=1 pad=0 groups=3 bias=1\n"
                    "norm norm1 from=a bias=1 eps=1.0000000000000001e-05 rms=0\n"
                    "norm norm2 from=norm1 bias=0 eps=0 rms=1\n"
                    "gelu gelu1 from=norm2\n"
                    "gelu_tanh gelu_tanh1 from=gelu1\n"
                    "silu silu1 from=gelu_tanh1\n"
                    "linear b from=silu1 out=12 each=1 bias=0\n"
                    "attention attention1 from=b heads=2 kv_heads=2 causal=0\n"
                    "attention c from=attention1 heads=2 kv_heads=1 causal=1\n"
                    "scale gamma from=c map=1\n"
                    "drop drop1 from=gamma rate=0.5 samples=0\n"
                    "drop drop2 from=drop1 rate=0.125 samples=1\n"
                    "prepend token from=drop2\n"
                    "position table from=token map=1\n"
                    "pick pick1 from=table at=3\n"
                    "classifier d from=pick1\n");
}

static void blocks_repetitions_and_values_are_written_out(void **state)
{
    (void)state;
    assert_comes_to("let width=4 deep=2\n"
                    "block unit out=8 kernel\n"
                    "    let twice={2 * kernel - 1}\n"
                    "    linear out={out * twice} from=in\n"
                    "    relu act\n"
                    "end\n"
                    "block pair width\n"
                    "    unit a out={width} kernel=1\n"
                    "    unit kernel=2\n"
                    "    add with=in\n"
                    "end\n"
                    "input\n"
                    "repeat i times={deep} start=3\n"
                    "    pair l{i}.x width={width * (i - 2)}\n"
                    "end\n"
                    "classifier head\n"
                    "set deep=1\n",
                    "input input size=0 channels=0\n"
                    "linear l3.x.a.linear1 from=input out=4 each=0 bias=1\n"
                    "relu l3.x.a.act from=l3.x.a.linear1\n"
                    "linear l3.x.linear1 from=l3.x.a.act out=24 each=0 bias=1\n"
                    "relu l3.x.act from=l3.x.linear1\n"
                    "add l3.x.add1 from=l3.x.act with=input\n"
                    "classifier head from=l3.x.add1\n");
}

static void names_mean_the_nearest_scope(void **state)
{
    (void)state;
    assert_comes_to("block b\n"
                    "    relu a\n"
                    "    add one with=a\n"
                    "    add two with=outer\n"
                    "end\n"
                    "input\n"
                    "relu a\n"
                    "relu outer\n"
                    "b l.0\n"
                    "add three with=a\n"
                    "classifier c\n",
                    "input input size=0 channels=0\n"
                    "relu a from=input\n"
                    "relu outer from=a\n"
                    "relu l.0.a from=outer\n"
                    "add l.0.one from=l.0.a with=l.0.a\n"
                    "add l.0.two from=l.0.one with=outer\n"
                    "add three from=l.0.two with=a\n"
                    "classifier c from=three\n");
}

/* A word that a later version may bring. */
static void a_block_hides_an_operation_of_its_name(void **state)
{
    (void)state;
    assert_comes_to("block relu\n"
                    "    relu one\n"
                    "    relu two\n"
                    "end\n"
                    "input\n"
                    "relu b\n"
                    "classifier c\n",
                    "input input size=0 channels=0\n"
                    "relu b.one from=input\n"
                    "relu b.two from=b.one\n"
                    "classifier c from=b.two\n");
}

static void numbers_are_counted(void **state)
{
    static const struct {
        const char *text, *out;
    } known[] = {{"{1 + 2 * 3}", "7"},       {"{(1 + 2) * 3}", "9"}, {"{7 - 2 - 1}", "4"}, {"{48 / 6 / 2}", "4"},
                 {"{sqrt(2 * 8)}", "4"},     {"{-3 + a}", "9"},      {"3e1", "30"},        {"{a}{a}", "1212"},
                 {"{ a * (a - 11) }", "12"}, {"{1.5 * 4}", "6"}};
    char text[128], want[128];
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        snprintf(text, sizeof text, "let a=12\ninput\nlinear l out=%s\nclassifier c\n", known[i].text);
        snprintf(want, sizeof want,
                 "input input size=0 channels=0\nlinear l from=input out=%s each=0 bias=1\nclassifier c from=l\n",
                 known[i].out);
        assert_comes_to(text, want);
    }
}

static void only_values_of_the_text_itself_can_be_set(void **state)
{
    const char *text =
        "let a=1 b=2\nblock x\nlet c=1\nend\ninput\nrepeat i times=1\nlet d=1\nend\nclassifier y\nlet e=1";
    (void)state;
    assert_true(net_has_value(text, "a") && net_has_value(text, "b") && net_has_value(text, "e"));
    assert_false(net_has_value(text, "c") || net_has_value(text, "d") || net_has_value(text, "times"));
}

/* --- programs */

static int build(struct program **ret, const char *text, int side, struct err *e)
{
    const struct model_options o = {
        .arch = "t", .text = text, .classes = 10, .input = input_pictures(3, side, side, NULL, NULL)};
    return model_build(ret, &o, e);
}

static const struct param *param_of(const struct program *p, const char *name)
{
    const int i = program_find_param(p, name);
    if (i < 0)
        fail_msg("no parameter '%s'", name);
    return &p->params[i];
}

static void assert_begins(const struct program *p, const char *name, enum param_init init, double scale, bool decay)
{
    const struct param *q = param_of(p, name);
    assert_int_equal(q->init, init);
    if (fabs(q->init_scale - scale) > 1e-15)
        fail_msg("%s: scale %.17g, expected %.17g", name, q->init_scale, scale);
    assert_int_equal(q->decay, decay);
}

static void parameters_begin_and_are_called_as_the_text_says(void **state)
{
    const char *text = "let layers=8\n"
                       "input\n"
                       "conv c out=6 kernel=3 init=normal:0.02/sqrt(2*{layers}) bias_init=zeros decay=no\n"
                       "bn b init=zeros names=gamma,beta\n"
                       "linear l out=5 init=truncated:sqrt(1/fan_in) bias_init=normal:1e-6 names=l_weight\n"
                       "linear m out=7 init=uniform:sqrt(6/(fan_in+fan_out)) bias_init=ones\n"
                       "classifier d init=default bias_init=zeros\n";
    struct program *p;
    struct err e = {0};
    (void)state;
    if (build(&p, text, 8, &e) < 0)
        fail_msg("%s", e.text);
    assert_begins(p, "c.weight", INIT_NORMAL, 0.02 / 4, false);
    assert_begins(p, "c.bias", INIT_ZEROS, 0, false);
    assert_begins(p, "gamma", INIT_ZEROS, 0, true);
    assert_begins(p, "beta", INIT_ZEROS, 0, true);
    assert_begins(p, "b.running_var", INIT_ONES, 0, false);
    assert_begins(p, "l_weight", INIT_TRUNCATED, sqrt(1.0 / (6 * 6 * 6)), true);
    assert_begins(p, "l.bias", INIT_NORMAL, 1e-6, true);
    assert_begins(p, "m.weight", INIT_UNIFORM, sqrt(6.0 / (5 + 7)), true);
    assert_begins(p, "m.bias", INIT_ONES, 0, true);
    assert_begins(p, "d.weight", INIT_UNIFORM, 1 / sqrt(7.0), true);
    assert_begins(p, "d.bias", INIT_ZEROS, 0, true);
    program_destroy(p);
}

static const struct op *op_of(const struct program *p, const char *name)
{
    const int x = program_find_tensor(p, name);
    for (int i = 0; i < p->nfwd; i++)
        if (x >= 0 && p->ops[i].out == x)
            return &p->ops[i];
    fail_msg("no operation '%s'", name);
    return NULL;
}

static void assert_shape(const struct program *p, const char *name, int ndim, const int64_t *shape)
{
    const struct param *q = param_of(p, name);
    assert_int_equal(q->ndim, ndim);
    assert_memory_equal(q->shape, shape, (size_t)ndim * sizeof *shape);
}

/* Every word and key reaches the operation. */
static void operations_of_positions_are_what_the_text_says(void **state)
{
    const char *text = "input\n"
                       "conv c out=12 kernel=2 stride=2 groups=3\n"
                       "scale gamma map=yes init=constant:-1e-6\n"
                       "norm n eps=0.25 rms=yes bias=no\n"
                       "prepend token init=normal:1\n"
                       "position table decay=no init=sincos2d train=no\n"
                       "linear l out=16 each=yes bias=no\n"
                       "attention a heads=2 kv_heads=1 causal=yes\n"
                       "gelu_tanh g\n"
                       "drop d rate=0.25 samples=yes\n"
                       "drop none rate=0\n"
                       "scale flat\n"
                       "pick p at=16\n"
                       "silu s\n"
                       "linear k out=3 bias=no\n"
                       "gelu h\n"
                       "classifier e\n";
    struct program *p;
    struct err e = {0};
    (void)state;
    if (build(&p, text, 8, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(op_of(p, "c")->groups, 3);
    assert_shape(p, "c.weight", 4, (int64_t[]){12, 1, 2, 2});
    assert_shape(p, "gamma", 3, (int64_t[]){12, 1, 1});
    assert_begins(p, "gamma", INIT_CONSTANT, -1e-6, true);
    assert_begins(p, "table", INIT_SINCOS2D, 0, false);
    assert_true(param_of(p, "table")->frozen && !param_of(p, "gamma")->frozen);
    const struct program_grid grid = param_of(p, "table")->grid;
    assert_true(grid.extra == 1 && grid.h == 4 && grid.w == 4);
    assert_true(op_of(p, "n")->rms && op_of(p, "n")->eps == 0.25F && op_of(p, "n")->param[1] < 0);
    assert_shape(p, "token", 3, (int64_t[]){1, 1, 12});
    assert_begins(p, "token", INIT_NORMAL, 1, true);
    assert_shape(p, "table", 3, (int64_t[]){1, 17, 12});
    assert_true(op_of(p, "l")->each && op_of(p, "l")->param[1] < 0);
    assert_shape(p, "l.weight", 2, (int64_t[]){16, 12});
    const struct op *a = op_of(p, "a"), *d = op_of(p, "d");
    assert_true(a->heads == 2 && a->kv_heads == 1 && a->causal);
    assert_true(d->rate == 0.25F && d->samples);
    assert_int_equal(program_find_tensor(p, "none"), -1);
    assert_shape(p, "flat", 1, (int64_t[]){8});
    assert_begins(p, "flat", INIT_CONSTANT, 1, true);
    assert_int_equal(op_of(p, "p")->first, 16);
    assert_true(!op_of(p, "k")->each && op_of(p, "k")->param[1] < 0);
    assert_int_equal(op_of(p, "g")->act, ACT_GELU_TANH);
    assert_int_equal(op_of(p, "s")->act, ACT_SILU);
    assert_int_equal(op_of(p, "h")->act, ACT_GELU);
    program_destroy(p);
}

static void a_model_says_which_pictures_it_takes(void **state)
{
    struct model_facts f;
    struct program *p;
    struct err e = {0};
    const char *text = "input size=28 channels=1\nclassifier last.layer\n";
    (void)state;
    assert_int_equal(model_facts("t", text, &f, &e), 0);
    assert_int_equal(f.size, 28);
    assert_int_equal(f.channels, 1);
    assert_string_equal(f.last, "last.layer");
    assert_int_equal(build(&p, text, 28, &e), -EINVAL);
    assert_string_equal(e.text, "images of 3 channels (expected 1, as many as t takes)");
}

/* --- wrong texts */

#define REST "\nclassifier c\n"
#define WORDS                                                                                                          \
    "input, tokens, embed, conv, bn, relu, add, mul, maxpool, avgpool, linear, norm, gelu, gelu_tanh, silu, scale, "   \
    "drop, attention, rope, prepend, position, pick, classifier, head, let, set, block, repeat, or a block that is "   \
    "defined above"
static const struct wrong {
    const char *text, *sentence;
} wrong[] = {
    {"input\ncnov a out=8" REST, "t, line 2: unknown word 'cnov' (expected " WORDS ")"},
    {"input\nconv a kernel=3" REST, "t, line 2: 'conv' needs out="},
    {"input\nconv a out=0" REST, "t, line 2: out=0 (expected a whole number from 1 to 16777216)"},
    {"input\nconv a out=2.5" REST, "t, line 2: out=2.5 (expected a whole number from 1 to 16777216)"},
    {"input\nconv a out=8 size=3" REST, "t, line 2: 'conv' has no key 'size' (expected from, out, kernel, stride, pad, "
                                        "groups, bias, init, bias_init, decay, train, names)"},
    {"input\nconv a out=8 bias=maybe" REST, "t, line 2: bias=maybe (expected yes or no)"},
    {"input\nconv a out=8 out=9" REST, "t, line 2: 'out' is given twice"},
    {"input\nconv a b out=8" REST, "t, line 2: 'b': KEY=VALUE is expected behind the name"},
    {"input\nconv a! out=8" REST, "t, line 2: 'a!' is no name: letters, digits, '_', '-', and '.' within"},
    {"input\nconv a out={width}" REST, "t, line 2: there is no value 'width' here"},
    {"let w=big\ninput\nconv a out={2 * w}" REST, "t, line 3: 'w' is 'big', no number to count with"},
    {"input\nconv a out={2 *}" REST, "t, line 2: '2 *' is no number: it goes wrong at ''"},
    {"input\nconv a out={1 / 0}" REST, "t, line 2: '1 / 0' is no finite number"},
    {"input\nconv a out={8" REST, "t, line 2: 'out={8': braces do not match"},
    {"input\nrelu a\nrelu a" REST, "t, line 3: 'a' is the name of an operation in line 2, too"},
    {"input\nrelu a from=b" REST, "t, line 2: no operation above is called 'b'"},
    {"input\nrelu a\nrelu b from=input" REST, "t, line 2: nothing reads 'a'"},
    {"input\nrelu a\nadd b" REST, "t, line 3: 'add' needs with=, the other operation that it reads"},
    {"input\nrelu a from=in" REST, "t, line 2: 'in' is what a block reads, and this is within none"},
    {"relu a" REST, "t, line 1: the first operation is 'relu' (expected input or tokens)"},
    {"input\ninput" REST, "t, line 2: 'input' is the first operation, and only that"},
    {"input\nrelu a\n", "t, line 2: the model ends here, without a classifier or a head"},
    {"input" REST "relu a\n", "t, line 3: 'relu' stands behind the classifier, which ends a model"},
    {"tokens\ninput" REST, "t, line 2: 'input' is the first operation, and only that"},
    {"tokens\nembed a out=8\nhead b tied=a init=zeros\n",
     "t, line 3: 'head' with tied= has no parameters of its own, for which init, decay, train or names could be"},
    {"tokens\nembed a out=8\nhead b with=a\n",
     "t, line 3: 'head' has no key 'with' (expected from, tied, init, decay, train, names)"},
    {"tokens\nembed a out=8" REST, "t, line 3: 'classifier' ends a model of pictures (expected head)"},
    {"input\nhead a\n", "t, line 2: 'head' ends a model of tokens (expected classifier)"},
    {"tokens t" REST, "t, line 1: 'tokens t': its name is 'tokens'"},
    {"# nothing\n", "t, line 1: the model ends without an operation"},
    {"", "t is empty: a model is text"},
    {"repeat i times=3\nrelu a\n", "t, line 1: no 'end' follows"},
    {"input\nend" REST, "t, line 2: 'end' without a 'block' or 'repeat'"},
    {"input\nrepeat i times=2\nblock b\nend\nend" REST, "t, line 3: 'block' stands within what begins in line 2"},
    {"input\nrepeat i\nrelu\nend" REST, "t, line 2: 'times=' is missing"},
    {"block b w\nrelu\nend\ninput\nb x" REST, "t, line 5: block 'b' needs w="},
    {"block b\nrelu\nend\ninput\nb x w=1" REST, "t, line 5: block 'b' has no value 'w'"},
    {"block b\nb x\nend\ninput\nb y" REST, "t, line 2: unknown word 'b' (expected " WORDS ")"},
    {"let a=1\nlet a=2\ninput" REST, "t, line 2: 'a' has a value already, 1"},
    {"input" REST "set w=2\n", "t, line 3: there is no 'let w=' that it could set"},
    {"input\nconv a out=8 init=gauss" REST, "t, line 2: 'gauss' are no initial values (expected default, zeros, ones, "
                                            "normal:S, truncated:S, uniform:B, constant:X or sincos2d)"},
    {"input\ndrop a" REST, "t, line 2: 'drop' needs rate="},
    {"input\ndrop a rate=1" REST, "t, line 2: rate=1 (expected a number from 0 to 0.999999)"},
    {"input\nattention a" REST, "t, line 2: 'attention' needs heads="},
    {"input\nscale a bias_init=ones" REST,
     "t, line 2: 'scale' has no key 'bias_init' (expected from, map, init, decay, train, names)"},
    {"input\nconv a out=8 init=normal:1/fan" REST,
     "t, line 2: 'fan' means nothing in initial values (expected fan_in or "
     "fan_out)"},
    {"input\nrelu \303\274" REST, "t, line 2: byte 0xc3 is no printable character of ASCII"},
};

static void assert_wrong(const char *text, const char *sentence)
{
    struct net n;
    struct err e = {0};
    const int rc = net_read(&n, "t", text, &e);
    net_free(&n);
    if (rc != -EINVAL || strcmp(e.text, sentence) != 0)
        fail_msg("%s\nis refused with %d: '%s', expected '%s'", text, rc, e.text, sentence);
}

static void wrong_texts_get_one_sentence_with_the_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_wrong(wrong[i].text, wrong[i].sentence);
}

static void shapes_that_do_not_fit_are_told_with_the_line(void **state)
{
    static const struct wrong shapes[] = {
        {"input\nconv a out=8 kernel=9" REST,
         "model t of 8 x 8 images, line 2: 'a': a 9 x 9 window does not fit into 8 x 8 with padding 0"},
        {"input\nconv a out=8\nadd b with=input" REST,
         "model t of 8 x 8 images, line 3: 'b' adds 8 x 8 x 8 and 3 x 8 x 8"},
        {"input\nconv a out=8 groups=3" REST,
         "model t of 8 x 8 images, line 2: 'a' has 3 groups of 3 input and 8 output channels (expected a divisor of "
         "both)"},
        {"input\nattention a heads=2" REST,
         "model t of 8 x 8 images, line 2: 'a' reads 3 channels (expected a multiple of its 6 heads: of queries, keys, "
         "values)"},
        {"input\nposition a init=sincos2d" REST,
         "model t of 8 x 8 images, line 2: sincos2d of 3 channels (expected a multiple of 4)"},
        {"input\nscale a init=sincos2d" REST,
         "model t of 8 x 8 images, line 2: sincos2d are initial values of 'a' (expected of a 'position' of pictures alone)"},
        {"input\npick a at=64" REST, "model t of 8 x 8 images, line 2: 'a' takes position 64 of 64"},
        {"input\nconv a out=8 names=w\nconv b out=8 names=w" REST,
         "model t of 8 x 8 images, line 3: two parameters are called 'w'"},
        {"input\nconv a out=8 init=normal:2-fan_in" REST,
         "model t of 8 x 8 images, line 2: 'normal:2-fan_in' is -1 (expected 0 or more)"},
    };
    struct program *p;
    struct err e = {0};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        assert_int_equal(build(&p, shapes[i].text, 8, &e), -EINVAL);
        assert_string_equal(e.text, shapes[i].sentence);
    }
}

/* --- tokens */

static int build_text(struct program **ret, const char *text, int length, int vocabulary, struct err *e)
{
    const struct model_options o = {
        .arch = "t", .text = text, .input = {.rows = INPUT_TOKENS, .length = length, .vocabulary = vocabulary}};
    return model_build(ret, &o, e);
}

#define TEXT "tokens length=8 vocabulary=11\nembed e out=6\nposition p map=no names=p.weight\n"

static void a_tied_head_adds_to_the_gradient_of_the_embedding(void **state)
{
    struct program *p;
    struct err e = {0};
    int writers = 0;
    (void)state;
    assert_int_equal(build_text(&p, TEXT "linear l out=6 each=yes\nhead h tied=e\n", 5, 0, &e), 0);
    const struct param *table = param_of(p, "e.weight"), *positions = param_of(p, "p.weight");
    assert_int_equal(p->classes, 11);
    assert_int_equal(p->logits, -1);
    assert_int_equal(p->nparams, 4);
    assert_true(table->shape[0] == 11 && table->shape[1] == 6);
    assert_true(positions->ndim == 2 && positions->shape[0] == 8 && positions->shape[1] == 6);
    assert_true(table->offset > positions->offset); /* where the op that adds last has it */
    for (int i = p->nfwd; i < p->nops; i++) {
        const struct op *op = &p->ops[i];
        struct plan_range r;
        if (op->param[0] < 0 || &p->params[op->param[0]] != table)
            continue;
        writers++;
        assert_int_equal(op->kind, writers == 1 ? OP_HEAD_BWD : OP_EMBED_BWD);
        assert_true(op->adds == (writers == 2) && op->more == (writers == 1));
        assert_int_equal(program_gradients(p, op, &r), writers == 2);
    }
    assert_int_equal(writers, 2);
    program_destroy(p);
}

static struct program *split(const char *text, enum split_kind kind, int ranks, int index, struct err *e)
{
    struct program *p = NULL;
    const struct model_options o = {
        .arch = "t", .text = text, .input = input_tokens(8, 11), .split = {kind, ranks, index}};
    *e = (struct err){0};
    return model_build(&p, &o, e) < 0 ? NULL : p;
}

static struct program *shared(const char *text, int ranks, int index, struct err *e)
{
    return split(text, SPLIT_NONE, ranks, index, e);
}

/* Of queries, keys and values whole groups, of the channels of an MLP as many as come: each element of the whole layer
 * has one rank, wherever it lies in its part. */
static void ranks_share_the_layers_of_a_block(void **state)
{
    static const char text[] = TEXT "linear qkv out=30 each=yes\nrope r heads=9 kv_heads=3 base=10\n"
                                    "attention a heads=9 kv_heads=3\nlinear o out=6 each=yes\n"
                                    "linear up out=7 each=yes bias=no\nlinear gate from=o out=7 each=yes bias=no\n"
                                    "silu s\nmul m with=up\nlinear down out=6 each=yes\nhead h\n";
    static const struct {
        const char *name;
        int dim;
        int64_t whole;
    } layers[] = {{"qkv.weight", 0, 30}, {"qkv.bias", 0, 30},   {"o.weight", 1, 18},
                  {"up.weight", 0, 7},   {"gate.weight", 0, 7}, {"down.weight", 1, 7}};
    struct err e;
    (void)state;
    for (size_t k = 0; k < sizeof layers / sizeof *layers; k++) {
        int seen[30 * 18] = {0}, n = 0;
        for (int t = 0; t < 2; t++) {
            struct program *p = shared(text, 2, t, &e);
            assert_non_null(p);
            const struct param *q = param_of(p, layers[k].name);
            assert_true(q->sharded && q->shard_dim == layers[k].dim);
            assert_int_equal(param_whole_size(q, layers[k].dim), layers[k].whole);
            for (size_t i = 0; i < q->count; i++, n++)
                seen[param_run_at(q, i).whole]++;
            assert_false(param_of(p, "o.bias")->sharded);
            program_destroy(p);
        }
        for (int i = 0; i < n; i++)
            assert_int_equal(seen[i], 1);
    }
}

/* A layer stays whole that has fewer heads than there are ranks, or whose channels somebody else reads; a model of
 * which nothing can be cut is refused. */
static void what_cannot_be_shared_stays_whole(void **state)
{
    static const char *const texts[] = {
        TEXT "linear qkv out=12 each=yes\nattention a heads=2\nlinear o out=6 each=yes\nhead h\n",
        TEXT "linear a out=6 each=yes\ngelu g\nlinear b out=6 each=yes\nadd s with=a\nhead h\n",
        TEXT "linear a out=6 each=yes\nnorm g\nlinear b out=6 each=yes\nhead h\n",
        TEXT "linear a out=6 each=yes\ndrop g rate=0.1 samples=yes\nlinear b out=6 each=yes\nhead h\n"};
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_null(shared(texts[i], 3, 0, &e));
        assert_string_equal(e.text, "t has no blocks that 3 ranks could share");
    }
    struct program *p = shared(TEXT "linear a out=7 each=yes\ngelu g\nlinear b out=6 each=yes\nhead h\n", 3, 0, &e);
    assert_non_null(p);
    program_destroy(p);
}

/* Of 11 tokens over 3 ranks the first two have 4. A tied head reads the part that the embedding has; blocks need not be
 * there. */
static void ranks_share_a_vocabulary(void **state)
{
    static const char *const texts[] = {TEXT "head h\n", TEXT "head h tied=e\n"};
    static const int64_t first[] = {0, 4, 8}, size[] = {4, 4, 3};
    struct err e;
    (void)state;
    for (int k = 0; k < 6; k++) {
        const int t = k % 3, tied = k / 3;
        struct program *p = split(texts[tied], t == 2 ? SPLIT_FEATURES : SPLIT_CLASSES, 3, t, &e);
        assert_non_null(p);
        for (int i = 0; i <= !tied; i++) {
            const struct param *q = param_of(p, i ? "h.weight" : "e.weight");
            assert_true(q->sharded && q->shard_dim == 0 && q->shape[0] == size[t]);
            assert_true(q->shard_first == first[t] && q->shard_whole == 11);
        }
        assert_int_equal(p->classes, 11);
        program_destroy(p);
    }
    assert_null(split(texts[0], SPLIT_CLASSES, 12, 0, &e));
    assert_non_null(strstr(e.text, "11 tokens of a vocabulary cannot be split over 12 ranks"));
}

static void a_text_of_tokens_takes_what_the_data_have(void **state)
{
    static const struct {
        const char *text;
        int length, vocabulary;
        const char *sentence;
    } wrong_ones[] = {
        {TEXT "head h\n", 9, 11, "sequences of 9 tokens (expected at most 8, which t takes)"},
        {TEXT "head h\n", 8, 12, "a vocabulary of 12 (expected 11, that of t)"},
        {"input" REST, 8, 11, "t reads pictures, and the data are tokens"},
        {"tokens length=8 vocabulary=11\nmul a with=tokens\nembed b out=4\nhead h", 8, 0,
         "model t of 8 tokens, line 3: 'b' reads 'a' (expected what 'tokens' makes: numbers below the vocabulary)"},
        {TEXT "pick\nhead h\n", 8, 0,
         "model t of 8 tokens, line 5: 'h' reads 1 positions (expected the 8 of the tokens)"},
        {TEXT "linear l out=5 each=yes\nhead h tied=e\n", 8, 0,
         "model t of 8 tokens, line 5: 'h' reads 5 channels, and the embedding that it is tied to has 6"},
        {TEXT "linear l out=6 each=yes\nhead h tied=l\n", 8, 0,
         "model t of 8 tokens, line 5: 'h' is tied to 'l' (expected an embedding)"},
        {TEXT "rope r heads=2\nhead h\n", 8, 0,
         "model t of 8 tokens, line 4: 'r' turns heads of 1 channels (expected an even number)"},
    };
    struct program *p;
    struct err e = {0};
    (void)state;
    assert_int_equal(build_text(&p, "tokens\nembed e out=6\nhead h\n", 40, 99, &e), 0);
    assert_int_equal(param_of(p, "h.weight")->shape[0], 99);
    program_destroy(p);
    for (size_t i = 0; i < sizeof wrong_ones / sizeof *wrong_ones; i++) {
        assert_int_equal(build_text(&p, wrong_ones[i].text, wrong_ones[i].length, wrong_ones[i].vocabulary, &e),
                         -EINVAL);
        assert_string_equal(e.text, wrong_ones[i].sentence);
    }
    assert_int_equal(build(&p, TEXT "head h\n", 8, &e), -EINVAL);
    assert_string_equal(e.text, "t reads tokens, and the data are pictures");
}

static void shipped_models_of_tokens_have_their_parameters(void **state)
{
    static const struct {
        const char *arch;
        size_t parameters;
    } all[] = {{"gpt2", 124439808},
               {"gpt2_medium", 354823168},
               {"gpt2_large", 774030080},
               {"gpt2_xl", 1557611200},
               {"tinyllama", 1100048384}};
    struct err e = {0};
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct model_options o = {.arch = all[i].arch, .input = {.rows = INPUT_TOKENS, .length = 256}};
        struct program *p;
        assert_int_equal(model_build(&p, &o, &e), 0);
        assert_int_equal(program_trainable(p), all[i].parameters);
        program_destroy(p);
    }
}

/* --- hostile ones */

static char *repeated(const char *before, const char *line, int n, const char *after)
{
    struct buf b = {0};
    int rc = buf_addstr(&b, before);
    for (int i = 0; rc == 0 && i < n; i++)
        rc = buf_addstr(&b, line);
    if (rc == 0)
        rc = buf_addstr(&b, after);
    assert_int_equal(rc, 0);
    return b.data;
}

static void what_would_never_end_is_refused(void **state)
{
    char *text;
    (void)state;
    assert_wrong("input\nrepeat i times=1000000000\nrelu\nend" REST,
                 "t, line 2: times=1000000000 (expected a whole number from 0 to 10000)");
    assert_wrong("input\nrepeat i times=10000\nrelu\nend" REST, "t, line 3: more than 2048 operations");
    assert_wrong("input\nrepeat i times=10000\nrepeat j times=10000\nrepeat k times=10000\nend\nend\nend" REST,
                 "t, line 4: the model is longer than 8192 lines with its repetitions");
    assert_wrong("block a\nrepeat i times=100\nlet x={i}\nend\nend\n"
                 "block b\nrepeat i times=100\na\nend\nend\ninput\nrepeat i times=100\nb\nend" REST,
                 "t, line 3: the model is longer than 8192 lines with its repetitions");
    text = repeated("input\n", "repeat i times=1\n", 20, "relu\n");
    assert_wrong(text, "t, line 18: more than 16 blocks and repetitions within one another");
    free(text);
    text = repeated("input\nconv a out={", "(", 100, "1}" REST);
    assert_wrong(text,
                 "t, line 2: '((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((' is no number: it goes "
                 "wrong at '(((((((((((((((((((('");
    free(text);
    text = repeated("input\n#", "x", 600, REST);
    assert_wrong(text, "t, line 2: longer than 512 bytes");
    free(text);
    text = repeated("input\n", "# a comment\n", 6000, REST);
    assert_wrong(text, "t has 72020 bytes (expected at most 65536)");
    free(text);
}

static void sizes_beyond_any_machine_are_refused(void **state)
{
    static const struct wrong sizes[] = {
        {"input\nconv a out=16777216 kernel=8 pad=7\nconv b out=16777216 kernel=1024 pad=1023" REST,
         "model t of 8 x 8 images, line 3: parameter 'b.weight' is too large"},
        {"input\nlinear a out=16777216\nlinear b out=16777216" REST,
         "model t of 8 x 8 images, line 3: 2.81e+14 parameters so far (expected at most 1.1e+12)"},
        {"input\nconv a out=16777216 kernel=1 pad=0\nmaxpool b kernel=1\nmaxpool d kernel=1\nconv e out=1 kernel=64 pad=63"
         "\nconv f out=16777216 bias=no" REST,
         "model t of 8 x 8 images, line 6: 8.78e+10 numbers for one sample so far (expected at most 6.87e+10)"},
    };
    struct program *p;
    struct err e = {0};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(build(&p, sizes[i].text, 8, &e), -EINVAL);
        assert_string_equal(e.text, sizes[i].sentence);
    }
}

/* --- files */

static void a_file_is_told_by_its_path(void **state)
{
    char *text, name[MODEL_NAME_MAX + 1];
    struct err e = {0};
    (void)state;
    model_name("a/b/tiny.net", name);
    assert_string_equal(name, "tiny");
    model_name("resnet50", name);
    assert_string_equal(name, "resnet50");
    assert_int_equal(model_text(&text, "/nowhere/at.net", NET_TORCH, false, &e), -ENOENT);
    assert_non_null(strstr(e.text, "open /nowhere/at.net"));
    assert_int_equal(model_text(&text, "/", NET_TORCH, false, &e), -EINVAL);
    assert_string_equal(e.text, "/ is no regular file: a model is text");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_operation_reads_the_one_before_it_unless_it_says_otherwise),
        cmocka_unit_test(keys_have_their_defaults),
        cmocka_unit_test(blocks_repetitions_and_values_are_written_out),
        cmocka_unit_test(names_mean_the_nearest_scope),
        cmocka_unit_test(a_block_hides_an_operation_of_its_name),
        cmocka_unit_test(numbers_are_counted),
        cmocka_unit_test(only_values_of_the_text_itself_can_be_set),
        cmocka_unit_test(parameters_begin_and_are_called_as_the_text_says),
        cmocka_unit_test(operations_of_positions_are_what_the_text_says),
        cmocka_unit_test(a_model_says_which_pictures_it_takes),
        cmocka_unit_test(wrong_texts_get_one_sentence_with_the_line),
        cmocka_unit_test(shapes_that_do_not_fit_are_told_with_the_line),
        cmocka_unit_test(a_tied_head_adds_to_the_gradient_of_the_embedding),
        cmocka_unit_test(ranks_share_the_layers_of_a_block),
        cmocka_unit_test(what_cannot_be_shared_stays_whole),
        cmocka_unit_test(ranks_share_a_vocabulary),
        cmocka_unit_test(a_text_of_tokens_takes_what_the_data_have),
        cmocka_unit_test(shipped_models_of_tokens_have_their_parameters),
        cmocka_unit_test(what_would_never_end_is_refused),
        cmocka_unit_test(sizes_beyond_any_machine_are_refused),
        cmocka_unit_test(a_file_is_told_by_its_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
