#include "tests/worker/run/exact_net.h"

#include <stdio.h>

#include "worker/model/model.h"
#include "worker/program/program.h"

enum { CLASSES = 37, SIDE = 16, WIDTH = 8 };

static int block(struct program *p, const char *name, int x, int width, int stride)
{
    char n[8][32];
    static const char *const parts[] = {"c1", "b1", "r1", "c2", "b2", "cd", "bd", "add"};
    for (int i = 0; i < 8; i++)
        snprintf(n[i], sizeof n[i], "%s.%s", name, parts[i]);
    int y = program_bn(p, n[1], program_conv(p, n[0], x, width, 3, stride, 1, false), 1e-5f, false);
    y = program_conv(p, n[3], program_relu(p, n[2], y), width, 3, 1, 1, false);
    y = program_bn(p, n[4], y, 1e-5f, false);
    if (stride > 1)
        x = program_bn(p, n[6], program_conv(p, n[5], x, width, 1, stride, 0, false), 1e-5f, false);
    return program_relu(p, name, program_add(p, n[7], y, x));
}

/* Heads and channels that no number of ranks divides. */
static const char positions[] = "input\n"
                                "conv stem out=8 kernel=4 stride=4\n"
                                "norm stem.norm eps=1e-6\n"
                                "conv a.dw out=8 kernel=3 pad=1 groups=8\n"
                                "norm a.norm eps=1e-6\n"
                                "linear a.1 out=17 each=yes\n"
                                "gelu a.gelu\n"
                                "drop a.drop rate=0.1\n"
                                "linear a.2 out=8 each=yes\n"
                                "scale a.scale map=yes init=constant:0.5\n"
                                "drop a.depth rate=0.2 samples=yes\n"
                                "add a with=stem.norm\n"
                                "conv wide out=16 kernel=3 pad=1 groups=2\n"
                                "prepend token\n"
                                "position table\n"
                                "norm b.norm rms=yes bias=no eps=1e-6\n"
                                "linear b.qkv out=60 each=yes\n"
                                "attention b.heads heads=5\n"
                                "linear b.out out=16 each=yes\n"
                                "drop b.drop rate=0.1\n"
                                "add b with=table\n"
                                "pick pick\n"
                                "norm norm eps=1e-6\n"
                                "silu silu\n"
                                "drop c.drop rate=0.2\n"
                                "drop c.depth rate=0.1 samples=yes\n"
                                "classifier fc\n";

static const char text[] = "tokens length=10 vocabulary=37\n"
                           "embed wte out=16 init=normal:0.2\n"
                           "position wpe map=no\n"
                           "drop drop rate=0.1\n"
                           "norm a.ln\n"
                           "linear a.qkv out=60 each=yes\n"
                           "attention a.heads heads=5 causal=yes\n"
                           "linear a.proj out=16 each=yes\n"
                           "add a with=drop\n"
                           "norm b.ln rms=yes bias=no\n"
                           "linear b.qkv out=48 each=yes bias=no\n"
                           "rope b.rope heads=6 kv_heads=3 base=100\n"
                           "attention b.heads heads=6 kv_heads=3 causal=yes\n"
                           "linear b.out out=16 each=yes bias=no\n"
                           "add b with=a\n"
                           "norm c.ln rms=yes bias=no\n"
                           "linear c.up out=41 each=yes bias=no\n"
                           "linear c.gate from=c.ln out=41 each=yes bias=no\n"
                           "silu c.act\n"
                           "mul c.mul with=c.up\n"
                           "drop c.drop rate=0.1\n"
                           "linear c.down out=16 each=yes bias=no\n"
                           "add c with=b\n"
                           "norm norm\n"
                           "head head";

static struct program *build_net(const struct split *s)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("exact", input_pictures(3, SIDE, SIDE, mean, std));
    int x = program_conv(p, "stem", program_input(p), WIDTH, 3, 2, 1, true);
    x = block(p, "one", program_relu(p, "stem.relu", x), WIDTH, 1);
    x = program_avgpool(p, "pool", block(p, "two", x, 2 * WIDTH, 2));
    program_classifier(p, "fc", x, CLASSES, s);
    return p;
}

int exact_net(struct program **ret, const struct split *s, struct err *e)
{
    *ret = build_net(s);
    return program_differentiate(*ret, e);
}

int exact_frozen(struct program **ret, const struct split *s, const char *factors, struct err *e)
{
    *ret = build_net(s);
    program_freeze(*ret, factors);
    return program_differentiate(*ret, e);
}

static int build_positions(struct program **ret, const struct split *s, const char *factors, size_t align,
                           struct err *e)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    const struct model_options o = {.arch = "positions",
                                    .text = positions,
                                    .classes = CLASSES,
                                    .input = input_pictures(3, SIDE, SIDE, mean, std),
                                    .split = *s,
                                    .align = align,
                                    .factors = factors};
    return model_build(ret, &o, e);
}

static int build_text(struct program **ret, const struct split *s, bool tied, const char *factors, size_t align,
                      struct err *e)
{
    char with_head[sizeof text + 16];
    snprintf(with_head, sizeof with_head, "%s%s\n", text, tied ? " tied=wte" : "");
    const struct model_options o = {.arch = "text",
                                    .text = with_head,
                                    .input = input_tokens(8, CLASSES),
                                    .split = *s,
                                    .align = align,
                                    .factors = factors};
    return model_build(ret, &o, e);
}

int exact_positions(struct program **ret, const struct split *s, const char *factors, struct err *e)
{
    return build_positions(ret, s, factors, 0, e);
}

int exact_text(struct program **ret, const struct split *s, bool tied, const char *factors, struct err *e)
{
    return build_text(ret, s, tied, factors, 0, e);
}

int exact_aligned(struct program **ret, enum exact_kind kind, const struct split *s, size_t elements, struct err *e)
{
    if (kind == EXACT_POSITIONS)
        return build_positions(ret, s, NULL, elements, e);
    if (kind != EXACT_RESIDUAL)
        return build_text(ret, s, kind == EXACT_TIED, NULL, elements, e);
    *ret = build_net(s);
    if (elements)
        program_align(*ret, elements);
    return program_differentiate(*ret, e);
}
