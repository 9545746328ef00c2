/* A word of the language is a row here: its kind in ops.def, its keys, and a function that appends it. */
#include "worker/model/net_words.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/model/model.h"
#include "worker/model/net_number.h"
#include "worker/model/net_read.h"

const struct net_key_facts net_keys[NET_KEYS_N] = {
#define X(id, word, type, min, max) [id] = {word, type, min, max},
    NET_KEYS(X)
#undef X
};

static int whole(const struct net_op *op, enum net_key k)
{
    return (int)op->v[k];
}

static bool yes(const struct net_op *op, enum net_key k)
{
    return op->v[k] != 0;
}

static int input(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)op, (void)in, (void)o;
    return program_input(p);
}

static int tokens(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)op, (void)in, (void)o;
    return program_tokens(p);
}

static int embed(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    return program_embedding(p, op->name, in[0], whole(op, KEY_OUT), &o->split);
}

static int conv(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)o;
    return program_conv_groups(p, op->name, in[0], whole(op, KEY_OUT), whole(op, KEY_KERNEL), whole(op, KEY_STRIDE),
                               whole(op, KEY_PAD), whole(op, KEY_GROUPS), yes(op, KEY_BIAS));
}

static int bn(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)o;
    return program_bn(p, op->name, in[0], (float)op->v[KEY_EPS], false);
}

static int relu(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)o;
    return program_relu(p, op->name, in[0]);
}

static int add(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)o;
    return program_add(p, op->name, in[0], in[1]);
}

static int mul(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)o;
    return program_mul(p, op->name, in[0], in[1]);
}

static int maxpool(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)o;
    return program_maxpool(p, op->name, in[0], whole(op, KEY_KERNEL), whole(op, KEY_STRIDE), whole(op, KEY_PAD));
}

static int avgpool(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)o;
    return program_avgpool(p, op->name, in[0]);
}

static int linear(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    const struct net_cut *c = &op->cut;
    if (c->role == NET_COLUMNS)
        return program_columns(p, op->name, in[0], c->channels, c->heads, c->kv_heads, yes(op, KEY_BIAS), &o->split);
    if (c->role == NET_ROWS)
        return program_rows(p, op->name, in[0], whole(op, KEY_OUT), c->channels, c->heads ? c->kv_heads : c->channels,
                            yes(op, KEY_BIAS), &o->split);
    return program_linear_as(p, op->name, in[0], whole(op, KEY_OUT), yes(op, KEY_EACH), yes(op, KEY_BIAS));
}

static int norm(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)o;
    return program_norm(p, op->name, in[0], (float)op->v[KEY_EPS], yes(op, KEY_RMS), yes(op, KEY_BIAS));
}

#define X(id, word)                                                                                                    \
    static int word_of_##id(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)  \
    {                                                                                                                  \
        (void)o;                                                                                                       \
        return program_act(p, op->name, in[0], id);                                                                    \
    }
OP_ACTS(X)
#undef X

static int scale(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)o;
    return program_scale(p, op->name, in[0], 1, yes(op, KEY_MAP));
}

static int drop(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    if (op->cut.role == NET_INSIDE) {
        const struct split_part part = split_part((size_t)op->cut.channels, o->split.ranks, o->split.index);
        return program_drop_part(p, op->name, in[0], op->v[KEY_RATE], false, (int)part.first, op->cut.channels);
    }
    return program_drop(p, op->name, in[0], op->v[KEY_RATE], yes(op, KEY_SAMPLES));
}

/* Of an operation's heads of keys and values, or of as many groups of queries, this rank's. */
static int heads_here(const struct net_op *op, enum net_key k, const struct model_options *o)
{
    const int all = whole(op, KEY_KV_HEADS);
    return op->cut.role == NET_UNCUT
               ? whole(op, k)
               : whole(op, k) / all * (int)split_part((size_t)all, o->split.ranks, o->split.index).n;
}

static int attention(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    return program_attention(p, op->name, in[0], heads_here(op, KEY_HEADS, o), heads_here(op, KEY_KV_HEADS, o),
                             yes(op, KEY_CAUSAL));
}

static int rope(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    return program_rope(p, op->name, in[0], heads_here(op, KEY_HEADS, o), heads_here(op, KEY_KV_HEADS, o),
                        op->v[KEY_BASE]);
}

static int prepend(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)o;
    return program_prepend(p, op->name, in[0]);
}

static int position(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    return program_position_as(p, op->name, in[0], o->positions, !yes(op, KEY_MAP));
}

static int pick(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    (void)o;
    return program_pick(p, op->name, in[0], whole(op, KEY_AT));
}

static int classifier(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    program_classifier(p, op->name, in[0], o->classes, &o->split);
    return p->logits;
}

static int head(struct program *p, const struct net_op *op, const int *in, const struct model_options *o)
{
    const bool made = o->whole_logits ? program_head(p, op->name, in[0], in[1], true)
                                      : program_vocabulary(p, op->name, in[0], in[1], &o->split);
    return made ? in[0] : -1;
}

const struct net_word net_words[] = {
    {NULL, OP_INPUT, "size=0 channels=0", input},
    {NULL, OP_TOKENS, "length=0 vocabulary=0", tokens},
    {NULL, OP_EMBED, "out", embed},
    {NULL, OP_CONV, "out kernel=1 stride=1 pad=0 groups=1 bias=yes", conv},
    {NULL, OP_BN, "eps=1e-5", bn},
    {NULL, OP_RELU, "", relu},
    {NULL, OP_ADD, "", add},
    {NULL, OP_MUL, "", mul},
    {NULL, OP_MAXPOOL, "kernel stride=1 pad=0", maxpool},
    {NULL, OP_AVGPOOL, "", avgpool},
    {NULL, OP_LINEAR, "out each=no bias=yes", linear},
    {NULL, OP_NORM, "eps=1e-5 rms=no bias=yes", norm},
#define X(id, word) {word, OP_ACT, "", word_of_##id},
    OP_ACTS(X) /* a row for each function of act.h */
#undef X
    {NULL, OP_SCALE, "map=no", scale},
    {NULL, OP_DROP, "rate samples=no", drop},
    {NULL, OP_ATTENTION, "heads kv_heads=heads causal=no", attention},
    {NULL, OP_ROPE, "heads kv_heads=heads base=10000", rope},
    {NULL, OP_PREPEND, "", prepend},
    {NULL, OP_POSITION, "map=yes", position},
    {NULL, OP_PICK, "at=0", pick},
    {"classifier", OP_LINEAR, "", classifier},
    {NULL, OP_HEAD, "", head},
};
const int net_words_n = sizeof net_words / sizeof *net_words;

const char *net_word_text(const struct net_word *w)
{
    return w->word ? w->word : op_name(w->kind);
}

bool net_word_ends(const struct net_word *w)
{
    return w->build == classifier || w->build == head;
}

bool net_word_begins(const struct net_word *w)
{
    return w->kind == OP_INPUT || w->kind == OP_TOKENS;
}

const char *net_word_key(const struct net_word *w, enum net_key k, char out[32])
{
    const size_t length = strlen(net_keys[k].word);
    for (const char *at = w->keys; *at;) {
        const size_t n = strcspn(at, " "), name = strcspn(at, "= ");
        if (name == length && memcmp(at, net_keys[k].word, length) == 0) {
            snprintf(out, 32, "%.*s", name == n ? 0 : (int)(n - name - 1), at + name + (name < n));
            return out;
        }
        at += n + (at[n] == ' ');
    }
    return NULL;
}

/* --- initial values */

struct fans {
    double in, out;
};

static int fan(void *ctx, const char *name, size_t n, double *ret, struct err *e)
{
    const struct fans *f = ctx;
    if (n == 6 && memcmp(name, "fan_in", n) == 0)
        *ret = f->in;
    else if (n == 7 && memcmp(name, "fan_out", n) == 0)
        *ret = f->out;
    else
        return err_set(e, -EINVAL, "'%.*s' means nothing in initial values (expected fan_in or fan_out)", (int)n, name);
    return 0;
}

int net_draw(const char *text, double fan_in, double fan_out, struct param *ret, struct err *e)
{
    static const struct {
        const char *word;
        enum param_init init;
        bool scaled;
    } kinds[] = {{"zeros", INIT_ZEROS, false},      {"ones", INIT_ONES, false},
                 {"normal", INIT_NORMAL, true},     {"truncated", INIT_TRUNCATED, true},
                 {"uniform", INIT_UNIFORM, true},   {"constant", INIT_CONSTANT, true},
                 {"sincos2d", INIT_SINCOS2D, false}};
    if (!text || strcmp(text, "default") == 0)
        return 0;
    const size_t n = strcspn(text, ":");
    struct fans f = {fan_in, fan_out};
    const struct net_names names = {fan, &f};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        double scale = 0;
        if (strlen(kinds[i].word) != n || memcmp(kinds[i].word, text, n) != 0 || kinds[i].scaled != (text[n] == ':'))
            continue;
        if (kinds[i].scaled)
            TRY(net_number(text + n + 1, strlen(text + n + 1), &names, &scale, e));
        if (scale < 0 && kinds[i].init != INIT_CONSTANT)
            return err_set(e, -EINVAL, "'%s' is %g (expected 0 or more)", text, scale);
        ret->init = kinds[i].init;
        ret->init_scale = scale;
        return 0;
    }
    return err_set(e, -EINVAL,
                   "'%s' are no initial values (expected default, zeros, ones, normal:S, truncated:S, uniform:B, "
                   "constant:X or sincos2d)",
                   text);
}
