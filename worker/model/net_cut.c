/* Which operations of a model the ranks of a tensor group share.
 *
 *   linear each=yes -> ... -> linear each=yes     the first has the channels of a rank, the second sums over the ranks;
 *                                                 what is between works on each channel by itself, or is attention,
 *                                                 which does so with each head
 *
 * That is the attention and the MLP of a transformer. What nothing between the two lets out is cut; everything else
 * stays whole, on a rank's own samples. */
#include <string.h>

#include "worker/model/net_read.h"

enum { INSIDE_MAX = 16 }; /* operations that end in one linear layer */

struct region {
    const struct net *n;
    int ops[INSIDE_MAX], nops; /* all but the last layer */
    int first, attention;      /* of them: a linear layer; -1: none */
    bool is;
};

static bool is_linear(const struct net_op *op)
{
    return op->word->kind == OP_LINEAR && !net_word_ends(op->word) && op->v[KEY_EACH] != 0 && op->cut.role == NET_UNCUT;
}

static bool is_inside(const struct net_op *op)
{
    const enum op_kind k = op->word->kind;
    return k == OP_ACT || k == OP_MUL || k == OP_ATTENTION || k == OP_ROPE || (k == OP_DROP && op->v[KEY_SAMPLES] == 0);
}

/* Everything that operation i is made of, up to linear layers. */
static void walk(struct region *r, int i)
{
    const struct net_op *op = i < 0 ? NULL : &r->n->ops[i];
    for (int k = 0; k < r->nops; k++)
        if (r->ops[k] == i)
            return;
    r->is = r->is && op && r->nops < INSIDE_MAX && (is_linear(op) || is_inside(op));
    if (!r->is)
        return;
    r->ops[r->nops++] = i;
    if (is_linear(op)) {
        r->is = r->first < 0 || op->v[KEY_OUT] == r->n->ops[r->first].v[KEY_OUT];
        r->first = i;
        return;
    }
    if (op->word->kind == OP_ATTENTION)
        r->attention = i;
    for (int k = 0; k < op_facts(op->word->kind)->inputs; k++)
        walk(r, op->in[k]);
}

/* How often the region and its last layer read operation i. */
static int reads(const struct region *r, int last, int i)
{
    int n = r->n->ops[last].in[0] == i;
    for (int k = 0; k < r->nops; k++)
        for (int j = 0; j < 2 && r->n->ops[r->ops[k]].word->kind != OP_LINEAR; j++)
            n += r->n->ops[r->ops[k]].in[j] == i;
    return n;
}

static bool has_heads_of(const struct net_op *op, const struct net_op *attention)
{
    const enum op_kind k = op->word->kind;
    return k == OP_LINEAR || ((k == OP_ROPE || k == OP_ATTENTION) && op->v[KEY_HEADS] == attention->v[KEY_HEADS] &&
                              op->v[KEY_KV_HEADS] == attention->v[KEY_KV_HEADS]);
}

static bool can_be_cut(const struct region *r, int last, int ranks)
{
    const struct net_op *a = r->attention < 0 ? NULL : &r->n->ops[r->attention];
    if (!r->is || r->first < 0)
        return false;
    for (int k = 0; k < r->nops; k++) {
        const struct net_op *op = &r->n->ops[r->ops[k]];
        if (reads(r, last, r->ops[k]) != op->readers || (a ? !has_heads_of(op, a) : op->word->kind == OP_ROPE))
            return false;
    }
    const int out = (int)r->n->ops[r->first].v[KEY_OUT], heads = a ? (int)a->v[KEY_HEADS] : 0,
              kv_heads = a ? (int)a->v[KEY_KV_HEADS] : 0;
    return a ? ranks <= kv_heads && heads % kv_heads == 0 && out % (heads + 2 * kv_heads) == 0 : ranks <= out;
}

static void cut(struct net *n, const struct region *r, int last)
{
    const struct net_op *a = r->attention < 0 ? NULL : &n->ops[r->attention];
    struct net_cut c = {.role = NET_INSIDE, .channels = (int)n->ops[r->first].v[KEY_OUT]};
    if (a) {
        c.heads = (int)a->v[KEY_HEADS];
        c.kv_heads = (int)a->v[KEY_KV_HEADS];
    }
    for (int k = 0; k < r->nops; k++) {
        n->ops[r->ops[k]].cut = c;
        if (n->ops[r->ops[k]].word->kind == OP_LINEAR)
            n->ops[r->ops[k]].cut.role = NET_COLUMNS;
    }
    if (a)
        c.channels = c.channels / (c.heads + 2 * c.kv_heads) * c.heads;
    c.role = NET_ROWS;
    n->ops[last].cut = c;
}

int net_cut(struct net *n, int ranks)
{
    int found = 0;
    for (int i = 0; i < n->n; i++) {
        struct region r = {.n = n, .first = -1, .attention = -1, .is = true};
        if (!is_linear(&n->ops[i]))
            continue;
        walk(&r, n->ops[i].in[0]);
        if (!can_be_cut(&r, i, ranks))
            continue;
        cut(n, &r, i);
        found++;
    }
    return found;
}
