#include "worker/weights/pickle_read.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/weights/pickle_impl.h"

#define PREFIX "module."
#define TENSORS_MAX 262144

static bool is_text(const struct value *v, const char *text)
{
    return v->kind == V_STR && v->str.n == strlen(text) && memcmp(v->str.s, text, v->str.n) == 0;
}

static const struct value *member(const struct value *dict, const char *name)
{
    for (size_t i = 0; i + 1 < dict->seq.n; i += 2)
        if (is_text(dict->seq.v[i], name))
            return dict->seq.v[i + 1];
    return NULL;
}

/* torch.save(model.state_dict()), or a training script's {"epoch": ..., "state_dict": ...}. */
static const struct value *state_dict(const struct value *top)
{
    const struct value *inner = member(top, "state_dict");
    if (!inner)
        inner = member(top, "model");
    return inner && inner->kind == V_DICT ? inner : top;
}

static int take_name(struct pickled_tensor *t, const struct value *key, struct err *e)
{
    if (key->kind != V_STR)
        return err_set(e, ERR_REFUSED, "a tensor is named by %s instead of a string", value_kind_name(key->kind));
    const char *s = key->str.s;
    size_t n = key->str.n, skip = strlen(PREFIX);
    if (n > skip && memcmp(s, PREFIX, skip) == 0) {
        s += skip;
        n -= skip;
    }
    if (n == 0 || n > CKPT_NAME_MAX || memchr(s, '\0', n))
        return err_set(e, -ENOTSUP, "a tensor's name has %zu bytes instead of 1 to %d", n, CKPT_NAME_MAX);
    memcpy(t->t.name, s, n);
    return 0;
}

static int take_storage(struct pickled_tensor *t, const struct value *s, struct err *e)
{
    const struct value *key = s->storage.key;
    if (key->str.n == 0 || key->str.n > PICKLE_KEY_MAX || memchr(key->str.s, '\0', key->str.n))
        return err_set(e, ERR_CORRUPT, "the storage of '%s' has a name of %zu bytes", t->t.name, key->str.n);
    memcpy(t->storage, key->str.s, key->str.n);
    t->t.dtype = s->storage.dtype;
    t->storage_count = s->storage.count;
    return 0;
}

/* The last element that the tensor reaches must lie in its storage. */
static int check_reach(const struct pickled_tensor *t, struct err *e)
{
    int64_t last = t->offset, bytes;
    bool empty = false, over = ckpt_tensor_bytes(&t->t, &bytes) < 0;
    for (int i = 0; i < t->t.ndim; i++) {
        int64_t span;
        empty = empty || t->t.shape[i] == 0;
        over = over || t->stride[i] < 0 || t->t.shape[i] < 0 ||
               __builtin_mul_overflow(t->t.shape[i] - 1, t->stride[i], &span) ||
               __builtin_add_overflow(last, span, &last);
    }
    if (over || t->offset < 0 || (!empty && last >= t->storage_count))
        return err_set(e, ERR_CORRUPT, "tensor '%s' reaches beyond its storage of %lld elements", t->t.name,
                       (long long)t->storage_count);
    return 0;
}

static int take_tensor(struct pickled_tensor *t, const struct value *key, const struct value *v, struct err *e)
{
    TRY(take_name(t, key, e));
    if (v->kind != V_TENSOR)
        return err_set(e, ERR_REFUSED, "'%s' is %s, not a tensor", t->t.name, value_kind_name(v->kind));
    const struct value *size = v->tensor.size, *stride = v->tensor.stride;
    if (size->seq.n != stride->seq.n)
        return err_set(e, ERR_CORRUPT, "tensor '%s' has %zu dimensions and %zu strides", t->t.name, size->seq.n,
                       stride->seq.n);
    if (size->seq.n > CKPT_DIMS_MAX)
        return err_set(e, -ENOTSUP, "tensor '%s' has %zu dimensions, at most %d are taken", t->t.name, size->seq.n,
                       CKPT_DIMS_MAX);
    t->t.ndim = (int)size->seq.n;
    for (int i = 0; i < t->t.ndim; i++) {
        if (size->seq.v[i]->kind != V_INT || stride->seq.v[i]->kind != V_INT)
            return err_set(e, ERR_CORRUPT, "tensor '%s' has a shape that is not made of ints", t->t.name);
        t->t.shape[i] = size->seq.v[i]->i;
        t->stride[i] = stride->seq.v[i]->i;
    }
    t->offset = v->tensor.offset;
    TRY(take_storage(t, v->tensor.storage, e));
    return check_reach(t, e);
}

static int collect(struct pickle *ret, const struct value *top, struct err *e)
{
    if (top->kind != V_DICT)
        return err_set(e, ERR_REFUSED, "it holds %s instead of a dict of tensors", value_kind_name(top->kind));
    const struct value *dict = state_dict(top);
    ret->n = dict->seq.n / 2;
    if (ret->n == 0)
        return err_set(e, ERR_REFUSED, "it holds no tensors");
    if (ret->n > TENSORS_MAX) /* a pair of them takes four bytes of pickle */
        return err_set(e, -ENOTSUP, "it holds more than %d tensors", TENSORS_MAX);
    ret->t = calloc(ret->n, sizeof *ret->t);
    if (!ret->t)
        return err_errno(e, ENOMEM, "list of %zu tensors", ret->n);
    for (size_t i = 0; i < ret->n; i++)
        TRY(take_tensor(&ret->t[i], dict->seq.v[2 * i], dict->seq.v[2 * i + 1], e));
    return 0;
}

int pickle_read(struct pickle *ret, const void *data, size_t n, struct err *e)
{
    struct machine *m;
    const struct value *top;
    struct pickle p = {0};
    TRY(machine_run(&m, data, n, &top, e));
    int rc = collect(&p, top, e);
    machine_free(m);
    if (rc < 0) {
        pickle_free(&p);
        return rc;
    }
    *ret = p;
    return 0;
}

void pickle_free(struct pickle *p)
{
    free(p->t);
    *p = (struct pickle){0};
}
