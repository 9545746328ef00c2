/* An operation of a model's text: its name, what it reads, its keys. */
#include "worker/model/net_reader.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/model/net_number.h"

static bool allows(const struct net_word *w, enum net_key k)
{
    char ignored[32];
    const struct op_facts *facts = op_facts(w->kind);
    switch (k) {
    case KEY_FROM:
        return facts->inputs > 0;
    case KEY_WITH:
        return facts->inputs > 1;
    case KEY_TIED:
        return w->kind == OP_HEAD;
    case KEY_INIT:
    case KEY_DECAY:
    case KEY_TRAIN:
    case KEY_NAMES:
        return facts->params[0] != '\0';
    case KEY_BIAS_INIT:
        return facts->params[0] != '\0' && facts->params[1] == 'r';
    default:
        return net_word_key(w, k, ignored) != NULL;
    }
}

static int unknown_key(const struct reader *r, const struct net_word *w, const char *key)
{
    char list[256] = "none";
    size_t used = 0;
    for (int k = 0; k < NET_KEYS_N; k++)
        if (allows(w, (enum net_key)k))
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", net_keys[k].word);
    return net_fail(r, "'%s' has no key '%s' (expected %s)", net_word_text(w), key, list);
}

static int find_op(const struct net *n, const char *name)
{
    for (int i = n->n - 1; i >= 0; i--)
        if (strcmp(n->ops[i].name, name) == 0)
            return i;
    return -1;
}

/* The operation that a name means here: of this scope, or of one around it. */
static int resolve(const struct reader *r, const char *name, int *ret)
{
    char prefix[sizeof r->scope], whole[sizeof prefix + VALUE_MAX];
    if (strcmp(name, "in") == 0) {
        *ret = r->in;
        return r->in >= 0 ? 0 : net_fail(r, "'in' is what a block reads, and this is within none");
    }
    strcpy(prefix, r->scope);
    for (;;) {
        snprintf(whole, sizeof whole, "%s%s", prefix, name);
        if ((*ret = find_op(r->net, whole)) >= 0)
            return 0;
        if (!prefix[0])
            return net_fail(r, "no operation above is called '%.60s'", name);
        prefix[strlen(prefix) - 1] = '\0';
        char *dot = strrchr(prefix, '.');
        dot ? (void)(dot[1] = '\0') : (void)(prefix[0] = '\0');
    }
}

/* "SCOPE.a,SCOPE.b" */
static int read_names(const struct reader *r, const char *text, char **ret)
{
    struct buf whole = {0};
    int rc = 0;
    for (const char *at = text; rc == 0 && at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char one[VALUE_MAX + 1];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(at, ","), at);
        if (!net_is_name(one))
            rc = net_fail(r, "names=%.60s (expected names of parameters, with commas between them)", text);
        else if (buf_printf(&whole, "%s%s%s", whole.len ? "," : "", r->scope, one) < 0)
            rc = err_errno(r->e, ENOMEM, "names of parameters");
    }
    *ret = rc == 0 ? whole.data : NULL;
    if (rc < 0)
        buf_free(&whole);
    return rc;
}

static int read_number(const struct reader *r, enum net_key k, const char *text, double *ret)
{
    const struct net_key_facts *f = &net_keys[k];
    const bool ok = net_number(text, strlen(text), NULL, ret, NULL) == 0 && *ret >= f->min && *ret <= f->max;
    if (f->type == NET_WHOLE && (!ok || *ret != floor(*ret)))
        return net_fail(r, "%s=%.60s (expected a whole number from %.0f to %.0f)", f->word, text, f->min, f->max);
    if (!ok)
        return net_fail(r, "%s=%.60s (expected a number from %g to %g)", f->word, text, f->min, f->max);
    return 0;
}

static int read_value(struct reader *r, struct net_op *op, enum net_key k, const char *text)
{
    struct param ignored;
    switch (net_keys[k].type) {
    case NET_WHOLE:
    case NET_REAL:
        return read_number(r, k, text, &op->v[k]);
    case NET_YES_NO:
        if (strcmp(text, "yes") != 0 && strcmp(text, "no") != 0)
            return net_fail(r, "%s=%.60s (expected yes or no)", net_keys[k].word, text);
        op->v[k] = text[0] == 'y';
        return 0;
    case NET_TENSOR:
        return resolve(r, text, &op->in[k != KEY_FROM]);
    case NET_NAMES:
        return read_names(r, text, &op->text[k]);
    case NET_DRAW:
        if (net_draw(text, 1, 1, &ignored, r->e) < 0)
            return net_fail_at(r);
        op->text[k] = strdup(text);
        return op->text[k] ? 0 : err_errno(r->e, ENOMEM, "initial values");
    }
    return 0;
}

static int find_key(const char *word)
{
    int k = 0;
    while (k < NET_KEYS_N && strcmp(net_keys[k].word, word) != 0)
        k++;
    return k;
}

static int read_values(struct reader *r, struct net_op *op, const struct arguments *a)
{
    char text[32];
    bool given[NET_KEYS_N] = {false};
    for (int i = 0; i < a->n; i++) {
        const int k = find_key(a->pairs[i].name);
        if (k == NET_KEYS_N || !allows(op->word, (enum net_key)k))
            return unknown_key(r, op->word, a->pairs[i].name);
        given[k] = true;
        TRY(read_value(r, op, (enum net_key)k, a->pairs[i].text));
    }
    for (int k = 0; k < NET_KEYS_N; k++) {
        if (given[k] || !net_word_key(op->word, (enum net_key)k, text))
            continue;
        if (!text[0])
            return net_fail(r, "'%s' needs %s=", net_word_text(op->word), net_keys[k].word);
        const int other = find_key(text);
        if (other < k)
            op->v[k] = op->v[other];
        else
            TRY(read_value(r, op, (enum net_key)k, text));
    }
    if (given[KEY_TIED] && (given[KEY_INIT] || given[KEY_DECAY] || given[KEY_TRAIN] || given[KEY_NAMES]))
        return net_fail(r,
                        "'%s' with tied= has no parameters of its own, for which init, decay, train or names could "
                        "be",
                        net_word_text(op->word));
    if (!given[KEY_DECAY])
        op->v[KEY_DECAY] = 1;
    if (!given[KEY_TRAIN])
        op->v[KEY_TRAIN] = 1;
    if (!given[KEY_FROM] && allows(op->word, KEY_FROM))
        op->in[0] = r->x;
    if (!given[KEY_WITH] && allows(op->word, KEY_WITH))
        return net_fail(r, "'%s' needs with=, the other operation that it reads", net_word_text(op->word));
    return 0;
}

/* Whole, and nobody else's. */
static int name_op(struct reader *r, struct net_op *op, const char *given)
{
    char number[48], whole[sizeof r->scope + VALUE_MAX + 1];
    const int count = ++r->counts[op->word - net_words];
    if (net_word_begins(op->word)) {
        strcpy(op->name, net_word_text(op->word));
        return *given ? net_fail(r, "'%s %.40s': its name is '%s'", op->name, given, op->name) : 0;
    }
    snprintf(number, sizeof number, "%.31s%d", net_word_text(op->word), count);
    snprintf(whole, sizeof whole, "%s%s", r->scope, *given ? given : number);
    if (strlen(whole) > NET_NAME_MAX)
        return net_fail(r, "the name '%.80s' is longer than %d bytes", whole, NET_NAME_MAX);
    if (strcmp(given, "in") == 0)
        return net_fail(r, "'in' is the name of what a block reads");
    const int other = find_op(r->net, whole);
    if (other >= 0)
        return net_fail(r, "'%s' is the name of an operation in line %d, too", whole, r->net->ops[other].line);
    strcpy(op->name, whole);
    return 0;
}

static int check_place(const struct reader *r, const struct net_word *w)
{
    const struct net *n = r->net;
    if ((n->n == 0) != net_word_begins(w))
        return n->n == 0 ? net_fail(r, "the first operation is '%s' (expected input or tokens)", net_word_text(w))
                         : net_fail(r, "'%s' is the first operation, and only that", net_word_text(w));
    if (n->n > 0 && net_word_ends(n->ops[n->n - 1].word))
        return net_fail(r, "'%s' stands behind the %s, which ends a model", net_word_text(w),
                        net_word_text(n->ops[n->n - 1].word));
    if (net_word_ends(w) && (w->kind == OP_HEAD) != (n->ops[0].word->kind == OP_TOKENS))
        return net_fail(r, "'%s' ends a model of %s (expected %s)", net_word_text(w),
                        w->kind == OP_HEAD ? "tokens" : "pictures", w->kind == OP_HEAD ? "classifier" : "head");
    if (n->n == NET_OPS_MAX)
        return net_fail(r, "more than %d operations", NET_OPS_MAX);
    return 0;
}

int net_add_op(struct reader *r, const struct net_word *w, const struct arguments *a)
{
    struct net *n = r->net;
    TRY(check_place(r, w));
    TRY(ARRAY_GROW(n->ops, n->cap, (size_t)n->n + 1, "operations of a model", r->e));
    struct net_op *op = &n->ops[n->n++];
    *op = (struct net_op){.word = w, .line = r->line + 1, .in = {-1, -1}};
    n->n--; /* not yet among those that names mean */
    int rc = name_op(r, op, a->name);
    if (rc == 0)
        rc = read_values(r, op, a);
    n->n++;
    for (int i = 0; rc == 0 && i < 2; i++)
        if (op->in[i] >= 0)
            n->ops[op->in[i]].readers++;
    r->x = n->n - 1;
    return rc;
}

void net_free(struct net *n)
{
    for (int i = 0; i < n->n; i++)
        for (int k = 0; k < NET_KEYS_N; k++)
            free(n->ops[i].text[k]);
    free(n->ops);
    *n = (struct net){0};
}

int net_print(const struct net *n, int i, struct buf *out)
{
    const struct net_op *op = &n->ops[i];
    char ignored[32];
    TRY(buf_printf(out, "%s %s", net_word_text(op->word), op->name));
    for (int k = 0; k < 2; k++)
        if (op->in[k] >= 0)
            TRY(buf_printf(out, " %s=%s",
                           net_keys[!k                          ? KEY_FROM
                                    : op->word->kind == OP_HEAD ? KEY_TIED
                                                                : KEY_WITH]
                               .word,
                           n->ops[op->in[k]].name));
    for (int k = 0; k < NET_KEYS_N; k++)
        if (net_word_key(op->word, (enum net_key)k, ignored))
            TRY(buf_printf(out, " %s=%.17g", net_keys[k].word, op->v[k]));
    if (op->text[KEY_NAMES])
        TRY(buf_printf(out, " %s=%s", net_keys[KEY_NAMES].word, op->text[KEY_NAMES]));
    return 0;
}
