/* Classes and functions that a pickle may name, and what calling them comes to: nothing of Python's is executed. */
#include <string.h>

#include "common/base/err.h"
#include "worker/weights/pickle_impl.h"

static const struct {
    const char *module, *name;
    enum dtype dtype;
} globals[GLOBAL_COUNT] = {
#define X(id, module, name, dtype) [id] = {module, name, dtype},
    GLOBALS(X)
#undef X
};

static int refuse_global(const char *module, size_t nm, const char *name, size_t nn, struct err *e)
{
    err_set(e, ERR_REFUSED,
            "it names %.*s.%.*s, which only Python could make: only tensors are taken; save the "
            "state_dict alone",
            (int)(nm < 100 ? nm : 100), module, (int)(nn < 100 ? nn : 100), name);
    return ERR_REFUSED;
}

static int push_global(struct machine *m, const char *module, size_t nm, const char *name, size_t nn, struct err *e)
{
    for (int i = 0; i < GLOBAL_COUNT; i++)
        if (strlen(globals[i].module) == nm && memcmp(globals[i].module, module, nm) == 0 &&
            strlen(globals[i].name) == nn && memcmp(globals[i].name, name, nn) == 0)
            return machine_push_new(m, V_GLOBAL, i, e);
    return refuse_global(module, nm, name, nn, e);
}

int machine_global(struct machine *m, struct err *e)
{
    const char *module = "", *name = "";
    size_t nm = 0, nn = 0;
    TRY(machine_take_line(m, &module, &nm, e));
    TRY(machine_take_line(m, &name, &nn, e));
    return push_global(m, module, nm, name, nn, e);
}

int machine_stack_global(struct machine *m, struct err *e)
{
    struct value *name, *module;
    TRY(machine_pop(m, &name, e));
    TRY(machine_pop(m, &module, e));
    if (name->kind != V_STR || module->kind != V_STR)
        return machine_bad(e, "a class has no name");
    return push_global(m, module->str.s, module->str.n, name->str.s, name->str.n, e);
}

static bool is_int(const struct value *v)
{
    return v->kind == V_INT;
}

/* ('storage', torch.FloatStorage, '0', 'cpu', 64) */
int machine_persistent(struct machine *m, struct err *e)
{
    struct value *id, *v;
    TRY(machine_pop(m, &id, e));
    struct value *const *a = id->kind == V_TUPLE ? id->seq.v : NULL;
    if (!a || id->seq.n != 5 || a[0]->kind != V_STR || a[0]->str.n != 7 || memcmp(a[0]->str.s, "storage", 7) != 0 ||
        a[1]->kind != V_GLOBAL || a[1]->i < G_FIRST_STORAGE || a[2]->kind != V_STR || !is_int(a[4]) || a[4]->i < 0)
        return machine_bad(e, "a persistent id is no storage");
    TRY(machine_make(m, V_STORAGE, &v, e));
    v->storage.dtype = globals[a[1]->i].dtype;
    v->storage.key = a[2];
    v->storage.count = a[4]->i;
    return machine_push(m, v, e);
}

static int rebuild_tensor(struct machine *m, const struct value *args, struct err *e)
{
    struct value *const *a = args->seq.v, *t;
    if (args->seq.n < 6 || a[0]->kind != V_STORAGE || !is_int(a[1]) || a[1]->i < 0 || a[2]->kind != V_TUPLE ||
        a[3]->kind != V_TUPLE)
        return machine_bad(e, "a tensor's arguments are not those of _rebuild_tensor_v2");
    TRY(machine_make(m, V_TENSOR, &t, e));
    t->tensor.storage = a[0];
    t->tensor.offset = a[1]->i;
    t->tensor.size = a[2];
    t->tensor.stride = a[3];
    return machine_push(m, t, e);
}

int machine_reduce(struct machine *m, struct err *e)
{
    struct value *args, *f;
    TRY(machine_pop(m, &args, e));
    TRY(machine_pop(m, &f, e));
    if (f->kind != V_GLOBAL || args->kind != V_TUPLE)
        return machine_bad(e, "it calls what is no function");
    if (f->i == G_TENSOR)
        return rebuild_tensor(m, args, e);
    if (f->i == G_PARAMETER && args->seq.n >= 1 && args->seq.v[0]->kind == V_TENSOR)
        return machine_push(m, args->seq.v[0], e);
    if (f->i == G_ORDERED_DICT && args->seq.n == 0)
        return machine_push_new(m, V_DICT, 0, e);
    if (f->i == G_COUNTER && args->seq.n == 1 && args->seq.v[0]->kind == V_DICT)
        return machine_push(m, args->seq.v[0], e);
    return refuse_global(globals[f->i].module, strlen(globals[f->i].module), globals[f->i].name,
                         strlen(globals[f->i].name), e);
}

/* Attributes of a dict (state_dict's _metadata) are passed over. */
int machine_build(struct machine *m, struct err *e)
{
    struct value *attributes, *object;
    TRY(machine_pop(m, &attributes, e));
    TRY(machine_top(m, &object, e));
    return object->kind == V_DICT ? 0
                                  : err_set(e, ERR_REFUSED, "it sets attributes of %s", value_kind_name(object->kind));
}
