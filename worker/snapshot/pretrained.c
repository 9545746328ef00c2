/* Loads weights from elsewhere into a state. */
#include "worker/snapshot/pretrained.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/json/json.h"
#include "worker/comm/comm.h"
#include "worker/model/model.h"
#include "worker/program/program.h"
#include "worker/snapshot/deal.h"
#include "worker/snapshot/positions.h"
#include "worker/snapshot/slices.h"
#include "worker/snapshot/stored.h"
#include "worker/state/state.h"
#include "worker/weights/foreign.h"
#include "worker/weights/pickle_read.h"
#include "worker/weights/weights.h"

#define HEAD "lm_head.weight" /* Hugging Face's name */

/* Is this tensor one of the layer that has an output a class? */
static bool is_last_layer(const struct program *p, const char *name)
{
    for (int i = p->nfwd - 1; i >= 0 && p->ops[i].kind != OP_HEAD; i--)
        if (p->ops[i].kind == OP_LINEAR)
            return strcmp(p->params[p->ops[i].param[0]].name, name) == 0 ||
                   (p->ops[i].param[1] >= 0 && strcmp(p->params[p->ops[i].param[1]].name, name) == 0);
    return false;
}

static bool same_shape(const struct ckpt_tensor *a, const struct ckpt_tensor *b, int first)
{
    bool same = a->ndim == b->ndim;
    for (int i = first; same && i < a->ndim; i++)
        same = a->shape[i] == b->shape[i];
    return same;
}

/* Of the model's tensors, but for counters and, if without_last, the last layer: how many there are, and how many of
 * them the file has. */
static size_t count_found(const struct slices *s, struct weights *w, bool without_last, size_t *ret_all)
{
    size_t found = 0, i;
    *ret_all = 0;
    for (size_t k = 0; k < s->n_model; k++) {
        const char *name = s->tensors[k].name;
        if (s->kinds[k] == SLICES_COUNTER || (without_last && is_last_layer(s->state->whole, name)))
            continue;
        ++*ret_all;
        found += weights_find(w, name, &i) != NULL;
    }
    return found;
}

/* Goes on from what *e says of one tensor: weights of another model lack many, and the first alone says little. */
static int does_not_fit(const struct slices *s, struct weights *w, struct err *e)
{
    const struct err first = *e;
    const char *arch = s->state->whole->arch, *holds = NULL, *name = NULL, *passed, *what = weights_made_of(w, &name);
    size_t all;
    const size_t found = count_found(s, w, false, &all), members = weights_passed_over(w, &passed);
    if (what)
        err_set(e, first.code, "%.300s; its '%s' is a tensor %s", first.text, name, what);
    else if (weights_meta(w) && json_str(weights_meta(w), "arch", &holds, NULL) == 0 && strcmp(holds, arch) != 0)
        err_set(e, first.code, "%.300s; it is of %s, this model is %s (--arch)", first.text, holds, arch);
    else if (found < all && members)
        err_set(e, first.code, "%.300s; it has %zu of the %zu tensors of %s, and %zu that cannot be taken: %s",
                first.text, found, all, arch, members, passed);
    else if (found == 0 && weights_count(w) > 0)
        err_set(e, first.code,
                "%.200s; it has none of the %zu tensors of %s, its first is '%s': is it of another --arch? A file of "
                "weights does not say which; a config.json that came with it does",
                first.text, all, arch, weights_at(w, 0)->name);
    else if (found < all)
        err_set(e, first.code, "%.300s; it has %zu of the %zu tensors of %s: is it of another --arch?", first.text,
                found, all, arch);
    return first.code;
}

/* The last layer is not there, or not as it is here, and none is wanted that says nothing. */
static int lacks_last(const struct ckpt_tensor *have, const struct ckpt_tensor *want, struct err *e)
{
    char has[48] = "it has no last layer";
    if (have)
        snprintf(has, sizeof has, "it is of %lld classes", (long long)have->shape[0]);
    return err_set(e, ERR_MISMATCH,
                   "%s ('%s'), and %lld classes are asked for here: a random layer would answer; train it first "
                   "(--pretrained without --evaluate), or say how many classes there are (--num-labels)",
                   has, want->name, (long long)want->shape[0]);
}

/* Is it there after all, in a type that is not read? passed: "'fc.weight', of type BOOL", the first such. */
static bool is_unread(const char *passed, const char *name)
{
    const char *end = passed[0] == '\'' ? strchr(passed + 1, '\'') : NULL;
    const size_t n = strlen(name), all = end ? (size_t)(end - passed - 1) : 0;
    return all >= n && memcmp(end - n, name, n) == 0 && (all == n || end[-(ptrdiff_t)n - 1] == '.');
}

/* Is this tensor of ours taken from w? */
static int take_one(struct weights *w, const struct slices *s, size_t tensor, bool other_classes, bool *ret,
                    struct err *e)
{
    const struct ckpt_tensor *want = &s->tensors[tensor];
    struct positions g;
    char a[CKPT_SHAPE_LEN], b[CKPT_SHAPE_LEN];
    size_t i = 0, all;
    const char *first;
    const struct ckpt_tensor *have = weights_find(w, want->name, &i);
    const bool last = is_last_layer(s->state->whole, want->name);
    if (!have && weights_passed_over(w, &first) && is_unread(first, want->name))
        return err_set(e, ERR_MISMATCH, "its %s, is of a type that is not read: save it as floating-point numbers",
                       first);
    if (!have && other_classes && last && !weights_made_of(w, &first)) {
        log_warn("pretrained", "'%s' is not there and stays at its initial value", want->name);
        return 0;
    }
    if (!have && last && !other_classes && count_found(s, w, true, &all) == all)
        return lacks_last(NULL, want, e);
    if (!have) {
        err_set(e, ERR_MISMATCH, "it has no tensor '%s'", want->name);
        return does_not_fit(s, w, e);
    }
    const bool resampled = stored_is_resampled(s, tensor, have, &g);
    if (resampled)
        log_warn("pretrained", "'%s' is resampled from %d x %d to %d x %d positions", want->name, g.from_h, g.from_w,
                 g.to_h, g.to_w);
    *ret = resampled || same_shape(have, want, 0);
    if (*ret)
        return 0;
    ckpt_tensor_shape(have, a, sizeof a);
    ckpt_tensor_shape(want, b, sizeof b);
    if (!last || !same_shape(have, want, 1)) {
        err_set(e, ERR_MISMATCH, "its tensor '%s' is %s instead of %s", want->name, a, b);
        return does_not_fit(s, w, e);
    }
    if (!other_classes)
        return lacks_last(have, want, e);
    log_warn("pretrained", "'%s' is %s for another number of classes and stays at its initial value, %s", want->name, a,
             b);
    return 0;
}

static bool is_wanted(const struct slices *s, const char *name)
{
    for (size_t i = 0; i < s->n_model; i++)
        if (strcmp(s->tensors[i].name, name) == 0)
            return true;
    return false;
}

/* A head that is tied to the embedding here may stand in the file for itself: then with the same numbers. */
static int check_head(const struct slices *s, struct weights *w, struct err *e)
{
    const struct program *p = s->state->whole;
    const struct op *head = &p->ops[p->nfwd - 1];
    size_t i, k;
    if (head->kind != OP_HEAD || is_wanted(s, HEAD))
        return 0;
    const char *table = p->params[head->param[0]].name;
    const struct ckpt_tensor *a = weights_find(w, HEAD, &i), *b = weights_find(w, table, &k);
    if (!a || !b)
        return 0;
    const size_t bytes = (size_t)ckpt_tensor_reals(a) * sizeof(float);
    float *of[2] = {malloc(bytes + 1), malloc(bytes + 1)};
    int rc = of[0] && of[1] ? 0 : err_errno(e, ENOMEM, "tensor '%s'", a->name);
    bool same = same_shape(a, b, 0);
    if (rc == 0 && same && (rc = weights_read_real(w, i, DT_F32, of[0], e)) == 0)
        rc = weights_read_real(w, k, DT_F32, of[1], e);
    same = same && rc == 0 && memcmp(of[0], of[1], bytes) == 0;
    free(of[0]);
    free(of[1]);
    if (rc == 0 && !same)
        rc = err_set(e, ERR_MISMATCH, "its '%s' is another than its '%s', to which the head of %s is tied", a->name,
                     b->name, p->arch);
    return rc;
}

/* The model's names, num_batches_tracked not among them: *ret[*n], from malloc. */
static int list_names(const struct slices *s, const char ***ret, size_t *n, struct err *e)
{
    *n = 0;
    *ret = calloc(s->n_model + 1, sizeof **ret);
    if (!*ret)
        return err_errno(e, ENOMEM, "names of %zu tensors", s->n_model);
    for (size_t i = 0; i < s->n_model; i++)
        if (s->kinds[i] != SLICES_COUNTER)
            (*ret)[(*n)++] = s->tensors[i].name;
    return 0;
}

/* What stands before most of the model's names in the file. */
static int choose_prefix(const struct slices *s, struct weights *w, const char **ret, struct err *e)
{
    const char **names;
    size_t n;
    *ret = "";
    if (weights_meta(w))
        return 0;
    TRY(list_names(s, &names, &n, e));
    const int rc = weights_choose_prefix(w, names, n, n / 2, ret, e);
    free(names);
    return rc;
}

/* One line for all that the file has and the model has not. */
static void tell_left_out(const struct slices *s, const struct weights *w, const char *prefix)
{
    const char *first = NULL, *member;
    size_t n = 0, members = weights_passed_over(w, &member);
    for (size_t i = 0; i < weights_count(w); i++) {
        const char *name = weights_at(w, i)->name, *behind = name + strlen(prefix);
        const bool under = strncmp(name, prefix, strlen(prefix)) == 0;
        if (weights_was_found(w, i) || (under && (is_wanted(s, behind) || foreign_is_buffer(behind))))
            continue;
        first = n++ ? first : name;
    }
    if (prefix[0] && n == 0)
        log_info("pretrained", "the tensors under '%s' are taken", prefix);
    else if (prefix[0])
        log_warn("pretrained",
                 "the tensors under '%s' are taken; no part of this model and left out: %zu, the first is '%s'", prefix,
                 n, first);
    else if (n == 1)
        log_warn("pretrained", "'%s' is no part of this model and is left out", first);
    else if (n > 1)
        log_warn("pretrained", "no part of this model and left out: %zu, the first is '%s'", n, first);
    if (members)
        log_warn("pretrained", "%zu members of the file are no tensors that can be taken: %s", members, member);
    if (weights_another(w)[0])
        log_warn("pretrained", "the file has several models: %s (the other: " PICKLE_PART_OPTIONS ")",
                 weights_another(w));
}

/* Has the file all of the model's parameters, in their shapes but for the last layer's? Of how many elements: 0, no. */
static size_t count_fitting(const struct program *p, struct weights *w)
{
    size_t all = 0, i;
    for (int k = 0; k < p->nparams; k++) {
        const struct ckpt_tensor *have = weights_find(w, p->params[k].name, &i);
        if (!have || have->ndim != p->params[k].ndim)
            return 0;
        for (int d = 0; d < have->ndim && !is_last_layer(p, p->params[k].name); d++)
            if (have->shape[d] != p->params[k].shape[d])
                return 0;
        all += (size_t)ckpt_tensor_reals(have);
    }
    return all;
}

/* The largest of the shipped models that the file has whole; "": none. */
static void guess_arch(const struct program *like, struct weights *w, char out[MODEL_NAME_MAX + 1])
{
    size_t most = 0;
    out[0] = '\0';
    for (const char *at = model_names(); *at; at += strspn(at, ", ")) {
        char name[MODEL_NAME_MAX + 1];
        const size_t n = strcspn(at, ",");
        struct program *p = NULL;
        struct model_options o = {.arch = name, .classes = like->classes, .input = like->input};
        struct err none;
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        at += n;
        o.input.vocabulary = 0;
        if (model_build(&p, &o, &none) < 0)
            continue;
        const size_t fitting = strcmp(name, like->arch) == 0 ? 0 : count_fitting(p, w);
        if (fitting > most)
            strcpy(out, name);
        most = fitting > most ? fitting : most;
        program_destroy(p);
    }
}

/* Layers that this model has not, of a kind that it has: a part of another model would answer, or be trained. */
static int check_larger(const struct slices *s, struct weights *w, struct err *e)
{
    const struct program *p = s->state->whole;
    const char *arch = NULL;
    char likely[MODEL_NAME_MAX + 1];
    size_t i;
    const int rc = weights_is_larger(w, &i, e);
    if (rc <= 0)
        return rc;
    if (!weights_meta(w) || json_str(weights_meta(w), "arch", &arch, NULL) < 0)
        guess_arch(p, w, likely);
    arch = arch ? arch : likely;
    const bool known = arch[0] && strcmp(arch, p->arch) != 0;
    return err_set(
        e, ERR_MISMATCH, "its tensor '%s' is of a layer that %s has not: the weights are of a larger model%s%s",
        weights_at(w, i)->name, p->arch, known ? "; most likely --arch " : ", of another --arch", known ? arch : "");
}

/* taken[s->n_model]: which tensors; num_batches_tracked is not among them. */
static int choose(const struct slices *s, struct weights *w, bool other_classes, bool *taken, struct err *e)
{
    const char *prefix;
    TRY(choose_prefix(s, w, &prefix, e));
    for (size_t i = 0; i < s->n_model; i++)
        if (s->kinds[i] != SLICES_COUNTER)
            TRY(take_one(w, s, i, other_classes, &taken[i], e));
    TRY(check_head(s, w, e));
    TRY(check_larger(s, w, e));
    tell_left_out(s, w, prefix);
    return 0;
}

/* The rank that reads: w is open; the others: NULL. rc: how it went so far. */
static int deal_out(struct slices *s, struct comm *c, struct weights *w, const char *path, bool other_classes, int rc,
                    struct err *e)
{
    struct deal *d = NULL;
    int reading;
    bool *taken = calloc(s->n + 1, sizeof *taken);
    struct stored from = stored_weights(w, s, path);
    if (rc == 0 && !taken)
        rc = err_errno(e, ENOMEM, "tensors of %s", path);
    if (rc == 0 && w)
        rc = choose(s, w, other_classes, taken, e);
    if (rc == ERR_MISMATCH) /* other errors name the file themselves */
        err_wrap(e, "%s", path);
    if (c)
        rc = comm_share(c, 0, rc, path, NULL, e);
    if (rc == 0 && c)
        rc = c->ops->broadcast(c, COMM_CONTROL, taken, s->n, 0, NULL, e);
    if (rc == 0)
        rc = deal_open(&d, c, s, e);
    const struct deal_load l = {.from = w ? &from : NULL, .wanted = taken, .averages = true, .what = path};
    if (rc == 0)
        rc = deal_load(d, &l, &reading, e);
    deal_close(d);
    stored_finish(&from);
    free(taken);
    return rc;
}

int pretrained_apply(struct state *state, struct weights *w, const char *path, bool other_classes, struct err *e)
{
    struct slices s;
    TRY(slices_init(&s, state, e));
    int rc = deal_out(&s, NULL, w, path, other_classes, 0, e);
    slices_finish(&s);
    return rc;
}

int pretrained_load(struct state *state, struct comm *c, const char *path, const char *part, bool other_classes,
                    struct err *e)
{
    struct slices s;
    struct weights *w = NULL;
    TRY(slices_init(&s, state, e));
    int rc = c->rank == 0 ? weights_open(&w, path, part, e) : 0;
    if (rc == 0 && w && weights_has_averages(w))
        log_warn("pretrained", "the checkpoint keeps an average of its weights, which is not what is taken: a file of "
                               "it is made by 'trainer convert --ema'");
    rc = deal_out(&s, c, w, path, other_classes, rc, e);
    if (rc < 0 && rc != -ECANCELED)
        err_wrap(e, "--pretrained");
    weights_close(w);
    slices_finish(&s);
    return rc;
}
