/* Reading goes through the text twice: once to find the `end` of each `block` and `repeat`, and the `set` lines; then
 * line by line, into blocks where they are used and around repetitions. A block can only be used below its definition,
 * so no block uses itself; one that is called as an operation hides it, so that words of later versions break no text.
 * Steps, operations, values and depth are bounded: a hostile text ends soon. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "worker/model/model.h"
#include "worker/model/net_reader.h"

/* --- lines */

static int run(struct reader *r, int first, int end);

static int deeper(struct reader *r)
{
    return ++r->depth > DEPTH_MAX ? net_fail(r, "more than %d blocks and repetitions within one another", DEPTH_MAX)
                                  : 0;
}

static int repeat(struct reader *r, const struct arguments *a)
{
    const int line = r->line, end = r->lines[line].end, mark = r->nvalues;
    int times, start;
    char text[16];
    if (!net_is_word(a->name, (int)strlen(a->name)))
        return net_fail(r, "'repeat' needs a name for its number: repeat i times=3");
    TRY(net_check_keys(r, a, "times", "start"));
    TRY(net_read_whole(r, a, "times", -1, TIMES_MAX, &times));
    TRY(net_read_whole(r, a, "start", 0, TIMES_MAX, &start));
    TRY(deeper(r));
    for (int i = 0; i < times; i++) {
        r->line = line;
        r->steps++;
        snprintf(text, sizeof text, "%d", start + i);
        TRY(net_define(r, a->name, text));
        TRY(run(r, line + 1, end));
        r->nvalues = mark;
    }
    r->depth--;
    return 0;
}

static int one_param(struct reader *r, struct block *b, struct token t)
{
    const char *equals = net_equals(t);
    const int n = equals ? (int)(equals - t.at) : t.n;
    if (b->nparams == PARAMS_MAX)
        return net_fail(r, "a block has at most %d values", PARAMS_MAX);
    if (!net_is_word(t.at, n))
        return net_fail(r, "'%.*s' is no name of a value: letters, digits and '_'", n > 40 ? 40 : n, t.at);
    struct value *p = &b->params[b->nparams];
    b->needed[b->nparams++] = !equals;
    snprintf(p->name, sizeof p->name, "%.*s", n, t.at);
    return equals ? net_expand(r, (struct token){equals + 1, t.n - n - 1}, p->text) : 0;
}

static const struct net_word *find_word(struct token t)
{
    for (int i = 0; i < net_words_n; i++)
        if (net_is(t, net_word_text(&net_words[i])))
            return &net_words[i];
    return NULL;
}

/* Defined above: not one whose line this is. */
static const struct block *find_block(const struct reader *r, struct token t)
{
    for (int i = 0; i < r->nblocks; i++)
        if (r->lines[r->blocks[i].line].end < r->line && net_is(t, r->blocks[i].name))
            return &r->blocks[i];
    return NULL;
}

static bool is_statement(struct token t)
{
    return net_is(t, "let") || net_is(t, "set") || net_is(t, "block") || net_is(t, "repeat") || net_is(t, "end");
}

static int define_block(struct reader *r, const struct token *t, int n)
{
    if (n < 2 || !net_is_word(t[1].at, t[1].n))
        return net_fail(r, "'block' needs a name of letters, digits and '_'");
    if (is_statement(t[1]) || find_block(r, t[1]))
        return net_fail(r, "'%.*s' is a word already", t[1].n, t[1].at);
    if (r->nblocks == BLOCKS_MAX)
        return net_fail(r, "more than %d blocks", BLOCKS_MAX);
    struct block *b = &r->blocks[r->nblocks];
    *b = (struct block){.line = r->line};
    snprintf(b->name, sizeof b->name, "%.*s", t[1].n, t[1].at);
    for (int i = 2; i < n; i++)
        TRY(one_param(r, b, t[i]));
    r->nblocks++;
    return 0;
}

/* The values of a block that is used: those given, else its defaults. They are a frame of their own. */
static int enter_frame(struct reader *r, const struct block *b, const struct arguments *a)
{
    for (int i = 0; i < a->n; i++) {
        int k = 0;
        while (k < b->nparams && strcmp(b->params[k].name, a->pairs[i].name) != 0)
            k++;
        if (k == b->nparams)
            return net_fail(r, "block '%s' has no value '%s'", b->name, a->pairs[i].name);
    }
    r->base = r->nvalues;
    for (int k = 0; k < b->nparams; k++) {
        const char *text = b->needed[k] ? NULL : b->params[k].text;
        for (int i = 0; i < a->n; i++)
            if (strcmp(b->params[k].name, a->pairs[i].name) == 0)
                text = a->pairs[i].text;
        if (!text)
            return net_fail(r, "block '%s' needs %s=", b->name, b->params[k].name);
        TRY(net_define(r, b->params[k].name, text));
    }
    return 0;
}

static int use_block(struct reader *r, const struct block *b, const struct arguments *a)
{
    const int mark = r->nvalues, base = r->base, in = r->in, line = r->line;
    const size_t scope = strlen(r->scope);
    int counts[WORDS_MAX];
    if (r->x < 0)
        return net_fail(r, "block '%s' has nothing to read: the first operation is input or tokens", b->name);
    if (scope + strlen(a->name) + 1 > NET_NAME_MAX)
        return net_fail(r, "names within '%s%.60s' are longer than %d bytes", r->scope, a->name, NET_NAME_MAX);
    TRY(deeper(r));
    TRY(enter_frame(r, b, a));
    memcpy(counts, r->counts, sizeof counts);
    if (a->name[0]) {
        snprintf(r->scope + scope, sizeof r->scope - scope, "%.*s.", NET_NAME_MAX, a->name);
        memset(r->counts, 0, sizeof r->counts);
    }
    r->in = r->x;
    TRY(run(r, b->line + 1, r->lines[b->line].end));
    if (a->name[0])
        memcpy(r->counts, counts, sizeof counts);
    r->scope[scope] = '\0';
    r->in = in;
    r->base = base;
    r->nvalues = mark;
    r->line = line;
    r->depth--;
    return 0;
}

static int let(struct reader *r, const struct arguments *a)
{
    const bool global = r->depth == 0;
    if (a->name[0] || a->n == 0)
        return net_fail(r, "'let' needs NAME=VALUE");
    for (int i = 0; i < a->n; i++) {
        const char *text = a->pairs[i].text;
        for (int k = 0; global && k < r->nsets; k++)
            if (strcmp(r->sets[k].name, a->pairs[i].name) == 0) {
                text = r->sets[k].text;
                r->set_used[k] = true;
            }
        TRY(net_define(r, a->pairs[i].name, text));
    }
    if (global)
        r->nglobal = r->nvalues;
    return 0;
}

static int unknown_word(const struct reader *r, struct token t)
{
    char list[384];
    size_t used = 0;
    for (int i = 0; i < net_words_n && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s, ", net_word_text(&net_words[i]));
    return net_fail(r, "unknown word '%.*s' (expected %slet, set, block, repeat, or a block that is defined above)",
                    t.n > 40 ? 40 : t.n, t.at, list);
}

/* The line where we are; *next: the one that follows. */
static int read_line(struct reader *r, int *next)
{
    struct token t[TOKENS_MAX];
    struct arguments a;
    int n;
    TRY(net_split(r, t, &n));
    if (n == 0)
        return 0;
    if (++r->steps > NET_STEPS_MAX)
        return net_fail(r, "the model is longer than %d lines with its repetitions", NET_STEPS_MAX);
    if (r->lines[r->line].end >= 0)
        *next = r->lines[r->line].end + 1;
    if (net_is(t[0], "block"))
        return define_block(r, t, n);
    if (net_is(t[0], "set"))
        return 0;
    const struct net_word *w = find_word(t[0]);
    const struct block *b = find_block(r, t[0]);
    if (!w && !b && !is_statement(t[0]))
        return unknown_word(r, t[0]);
    TRY(net_read_arguments(r, t, n, &a));
    return b ? use_block(r, b, &a) : w ? net_add_op(r, w, &a) : net_is(t[0], "let") ? let(r, &a) : repeat(r, &a);
}

/* Lines [first, end). */
static int run(struct reader *r, int first, int end)
{
    for (int next, line = first; line < end; line = next) {
        r->line = line;
        next = line + 1;
        TRY(read_line(r, &next));
    }
    return 0;
}

/* --- the text */

static int cut_into_lines(struct reader *r, const char *text)
{
    size_t cap = 0;
    if (strlen(text) > MODEL_TEXT_MAX)
        return err_set(r->e, -EINVAL, "%s has %zu bytes (expected at most %d)", r->what, strlen(text), MODEL_TEXT_MAX);
    for (const char *at = text; *at;) {
        const size_t n = strcspn(at, "\n");
        TRY(ARRAY_GROW(r->lines, cap, (size_t)r->nlines + 1, "lines of a model", r->e));
        r->line = r->nlines;
        if (n > LINE_LENGTH_MAX)
            return net_fail(r, "longer than %d bytes", LINE_LENGTH_MAX);
        r->lines[r->nlines++] = (struct line){.text = {at, (int)n}, .end = -1};
        at += n + (at[n] == '\n');
    }
    return r->nlines > 0 ? 0 : err_set(r->e, -EINVAL, "%s is empty: a model is text", r->what);
}

static int note_set(struct reader *r, const struct token *t, int n)
{
    struct arguments a;
    TRY(net_read_arguments(r, t, n, &a));
    if (a.name[0] || a.n == 0)
        return net_fail(r, "'set' needs NAME=VALUE");
    for (int i = 0; i < a.n; i++) {
        if (r->nsets == VALUES_MAX)
            return net_fail(r, "more than %d values at a time", VALUES_MAX);
        for (int k = 0; k < r->nsets; k++)
            if (strcmp(r->sets[k].name, a.pairs[i].name) == 0)
                return net_fail(r, "'%s' is set in line %d, too", a.pairs[i].name, r->set_line[k] + 1);
        r->set_line[r->nsets] = r->line;
        r->sets[r->nsets++] = a.pairs[i];
    }
    return 0;
}

/* Ends of blocks and repetitions, and what is set. */
static int survey(struct reader *r)
{
    int open[DEPTH_MAX], depth = 0;
    struct token t[TOKENS_MAX];
    r->line = 0;
    for (int n; r->line < r->nlines; r->line++) {
        TRY(net_split(r, t, &n));
        if (n == 0)
            continue;
        const bool block = net_is(t[0], "block");
        if ((block || net_is(t[0], "set")) && depth > 0)
            return net_fail(r, "'%.*s' stands within what begins in line %d", t[0].n, t[0].at, open[0] + 1);
        if (net_is(t[0], "set"))
            TRY(note_set(r, t, n));
        if (block || net_is(t[0], "repeat")) {
            if (depth == DEPTH_MAX)
                return net_fail(r, "more than %d blocks and repetitions within one another", DEPTH_MAX);
            open[depth++] = r->line;
        }
        if (net_is(t[0], "end")) {
            if (depth == 0)
                return net_fail(r, "'end' without a 'block' or 'repeat'");
            if (n > 1)
                return net_fail(r, "'end' stands alone");
            r->lines[open[--depth]].end = r->line;
        }
    }
    r->line = depth > 0 ? open[depth - 1] : 0;
    return depth > 0 ? net_fail(r, "no 'end' follows") : 0;
}

static int check_end(struct reader *r)
{
    const struct net *n = r->net;
    for (int i = 0; i < r->nsets; i++)
        if (!r->set_used[i]) {
            r->line = r->set_line[i];
            return net_fail(r, "there is no 'let %s=' that it could set", r->sets[i].name);
        }
    for (int i = 0; i < n->n; i++)
        if (n->ops[i].readers == 0 && !net_word_ends(n->ops[i].word)) {
            r->line = n->ops[i].line - 1;
            return i + 1 < n->n ? net_fail(r, "nothing reads '%s'", n->ops[i].name)
                                : net_fail(r, "the model ends here, without a classifier or a head");
        }
    r->line = r->nlines - 1;
    return n->n > 0 ? 0 : net_fail(r, "the model ends without an operation");
}

static struct reader *open_reader(const char *what, struct net *net, struct err *e)
{
    struct reader *r = calloc(1, sizeof *r);
    if (!r) {
        err_errno(e, ENOMEM, "%s", what);
        return NULL;
    }
    r->what = what;
    r->net = net;
    r->e = e;
    r->x = r->in = -1;
    return r;
}

static void close_reader(struct reader *r)
{
    free(r->lines);
    free(r);
}

int net_read(struct net *ret, const char *what, const char *text, struct err *e)
{
    struct err own;
    *ret = (struct net){0};
    struct reader *r = open_reader(what, ret, e ? e : &own);
    if (!r)
        return -ENOMEM;
    int rc = net_words_n <= WORDS_MAX ? cut_into_lines(r, text) : -EINVAL;
    if (rc == 0)
        rc = survey(r);
    if (rc == 0)
        rc = run(r, 0, r->nlines);
    if (rc == 0)
        rc = check_end(r);
    close_reader(r);
    return rc;
}

bool net_has_value(const char *text, const char *name)
{
    struct err e;
    struct net none = {0};
    struct reader *r = open_reader("", &none, &e);
    struct token t[TOKENS_MAX];
    bool has = false;
    if (!r)
        return false;
    const bool sound = cut_into_lines(r, text) == 0 && survey(r) == 0;
    for (int n, line = 0; sound && line < r->nlines; line = r->lines[line].end < 0 ? line + 1 : r->lines[line].end) {
        r->line = line;
        if (net_split(r, t, &n) < 0 || n == 0 || !net_is(t[0], "let"))
            continue;
        for (int i = 1; i < n; i++) {
            const char *equals = net_equals(t[i]);
            has |= equals && net_is((struct token){t[i].at, (int)(equals - t[i].at)}, name);
        }
    }
    close_reader(r);
    return has;
}
