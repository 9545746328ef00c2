#include "tests/worker/run/exact_net.h"

#include <stdio.h>

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

static struct program *build_positions(const struct split *s, bool rows)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("positions", input_pictures(3, SIDE, SIDE, mean, std));
    int x = program_conv(p, "stem", program_input(p), WIDTH, 4, 4, 0, true);
    x = program_norm(p, "stem.norm", x, 1e-6f, false, true);
    int y =
        program_norm(p, "a.norm", program_conv_groups(p, "a.dw", x, WIDTH, 3, 1, 1, WIDTH, true), 1e-6f, false, true);
    y = program_act(p, "a.gelu", program_linear_each(p, "a.1", y, 2 * WIDTH, true), ACT_GELU);
    y = program_scale(p, "a.scale", program_linear_each(p, "a.2", y, WIDTH, true), 0.5, true);
    x = program_add(p, "a", program_drop(p, "a.depth", y, 0.2, true), x);
    x = program_conv_groups(p, "wide", x, 2 * WIDTH, 3, 1, 1, 2, true);
    x = program_position(p, "table", program_prepend(p, "token", x));
    y = program_linear_each(p, "b.qkv", program_norm(p, "b.norm", x, 1e-6f, true, false), 4 * WIDTH, true);
    y = program_linear_each(p, "b.out", program_attention(p, "b.heads", y, 4, 2, false), 2 * WIDTH, true);
    x = program_add(p, "b", program_drop(p, "b.drop", y, 0.1, false), x);
    x = program_act(p, "silu", program_norm(p, "norm", program_pick(p, "pick", x, 0), 1e-6f, false, true), ACT_SILU);
    if (s->ranks > 1 && rows) {
        program_set_group(p, s->ranks);
        x = program_gather(p, "rows", x);
    }
    x = program_drop(p, "c.depth", program_drop(p, "c.drop", x, 0.2, false), 0.1, true);
    program_classifier(p, "fc", x, CLASSES, s);
    return p;
}

static struct program *build_text(bool tied)
{
    enum { LENGTH = 8, CONTEXT = 10 };
    struct program *p =
        program_create("text", (struct input){.rows = INPUT_TOKENS, .length = LENGTH, .vocabulary = CLASSES});
    const int table = program_embed(p, "wte", program_tokens(p), 2 * WIDTH);
    int x = program_drop(p, "drop", program_position_as(p, "wpe", table, CONTEXT, true), 0.1, false);
    int y = program_linear_each(p, "a.qkv", program_norm(p, "a.ln", x, 1e-5f, false, true), 6 * WIDTH, true);
    y = program_linear_each(p, "a.proj", program_attention(p, "a.heads", y, 2, 2, true), 2 * WIDTH, true);
    x = program_add(p, "a", y, x);
    y = program_linear_each(p, "b.qkv", program_norm(p, "b.ln", x, 1e-5f, true, false), 4 * WIDTH, false);
    y = program_attention(p, "b.heads", program_rope(p, "b.rope", y, 4, 2, 100), 4, 2, true);
    x = program_add(p, "b", program_linear_each(p, "b.out", y, 2 * WIDTH, false), x);
    y = program_norm(p, "c.ln", x, 1e-5f, true, false);
    const int up = program_linear_each(p, "c.up", y, 5 * WIDTH, false);
    y = program_mul(p, "c.mul",
                    program_act(p, "c.act", program_linear_each(p, "c.gate", y, 5 * WIDTH, false), ACT_SILU), up);
    x = program_add(p, "c", program_linear_each(p, "c.down", y, 2 * WIDTH, false), x);
    program_head(p, "head", program_norm(p, "norm", x, 1e-5f, false, true), tied ? table : -1, false);
    return p;
}

int exact_text(struct program **ret, bool tied, const char *factors, struct err *e)
{
    *ret = build_text(tied);
    program_freeze(*ret, factors);
    return program_differentiate(*ret, e);
}

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

int exact_net_aligned(struct program **ret, const struct split *s, size_t elements, struct err *e)
{
    *ret = build_net(s);
    if (elements)
        program_align(*ret, elements);
    return program_differentiate(*ret, e);
}

int exact_frozen(struct program **ret, const struct split *s, const char *factors, struct err *e)
{
    *ret = build_net(s);
    program_freeze(*ret, factors);
    return program_differentiate(*ret, e);
}

int exact_positions(struct program **ret, const struct split *s, bool rows, const char *factors, struct err *e)
{
    *ret = build_positions(s, rows);
    program_freeze(*ret, factors);
    return program_differentiate(*ret, e);
}
