/* Classes and functions that a pickle may name, and what calling them comes to: nothing of Python's is executed, and
 * what is neither a tensor nor a dict is not made: a value that knows its name stands for it. */
#include <string.h>

#include "common/base/err.h"
#include "worker/weights/pickle_impl.h"

const struct global_info globals[GLOBAL_COUNT] = {
#define X(id, module, name, dtype, bytes) [id] = {module, name, dtype, bytes},
    GLOBALS(X)
#undef X
};

static int push_global(struct machine *m, const char *module, size_t nm, const char *name, size_t nn, struct err *e)
{
    for (int i = 0; i < GLOBAL_COUNT; i++)
        if (strlen(globals[i].module) == nm && memcmp(globals[i].module, module, nm) == 0 &&
            strlen(globals[i].name) == nn && memcmp(globals[i].name, name, nn) == 0)
            return machine_push_new(m, V_GLOBAL, i, e);
    return machine_push_other(m, module, nm, name, nn, e);
}

static int push_known_other(struct machine *m, int global, struct err *e)
{
    const struct global_info *g = &globals[global];
    return machine_push_other(m, g->module, strlen(g->module), g->name, strlen(g->name), e);
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

static bool is_text(const struct value *v, const char *text)
{
    return v->kind == V_STR && v->str.n == strlen(text) && memcmp(v->str.s, text, v->str.n) == 0;
}

/* ('storage', torch.FloatStorage, '0', 'cpu', 64), before torch 1.6 with the view that it is of: None.
 * ('module', class, file, source), before torch 1.6: a module's class. */
int machine_persistent(struct machine *m, struct err *e)
{
    struct value *id, *v;
    TRY(machine_pop(m, &id, e));
    struct value *const *a = id->kind == V_TUPLE ? id->seq.v : NULL;
    const size_t n = a ? id->seq.n : 0;
    if (n == 4 && is_text(a[0], "module"))
        return machine_push(m, a[1], e);
    if (n < 5 || n > 6 || !is_text(a[0], "storage") || a[2]->kind != V_STR || !is_int(a[4]) || a[4]->i < 0)
        return machine_bad(e, "a persistent id is no storage");
    if (a[1]->kind == V_OTHER)
        return machine_push(m, a[1], e);
    if (a[1]->kind != V_GLOBAL || a[1]->i < G_FIRST_STORAGE)
        return machine_bad(e, "a persistent id is no storage");
    if (n == 6 && a[5]->kind != V_NONE)
        return err_set(e, ERR_REFUSED, "it has a storage that is a part of another: save it again in Python");
    TRY(machine_make(m, V_STORAGE, &v, e));
    v->storage.type = (int)a[1]->i;
    v->storage.key = a[2];
    v->storage.count = a[4]->i;
    return machine_push(m, v, e);
}

static int rebuild_tensor(struct machine *m, const struct value *args, struct err *e)
{
    struct value *const *a = args->seq.v, *t;
    if (args->seq.n >= 4 && a[0]->kind == V_OTHER) /* a storage of a type that is not known */
        return machine_push(m, a[0], e);
    if (args->seq.n < 4 || a[0]->kind != V_STORAGE || !is_int(a[1]) || a[1]->i < 0 || a[2]->kind != V_TUPLE ||
        a[3]->kind != V_TUPLE)
        return machine_bad(e, "a tensor's arguments are not those of _rebuild_tensor_v2");
    TRY(machine_make(m, V_TENSOR, &t, e));
    t->tensor.storage = a[0];
    t->tensor.offset = a[1]->i;
    t->tensor.size = a[2];
    t->tensor.stride = a[3];
    return machine_push(m, t, e);
}

static bool is_tensor_maker(const struct value *v)
{
    return v->kind == V_GLOBAL && (v->i == G_TENSOR || v->i == G_OLD_TENSOR);
}

/* OrderedDict([[key, value], ...]), as Python 2 has it. */
static int push_dict_of_pairs(struct machine *m, const struct value *pairs, struct err *e)
{
    TRY(machine_push_new(m, V_DICT, 0, e));
    for (size_t i = 0; i < pairs->seq.n; i++) {
        const struct value *pair = pairs->seq.v[i];
        if ((pair->kind != V_LIST && pair->kind != V_TUPLE) || pair->seq.n != 2)
            return machine_bad(e, "an OrderedDict is made of what are no pairs");
        TRY(machine_add(m, V_DICT, pair->seq.v, 2, e));
    }
    return 0;
}

int machine_reduce(struct machine *m, struct err *e)
{
    struct value *args, *f;
    TRY(machine_pop(m, &args, e));
    TRY(machine_pop(m, &f, e));
    if (args->kind != V_TUPLE || (f->kind != V_GLOBAL && f->kind != V_OTHER))
        return machine_bad(e, "it calls what is no function");
    struct value *const *a = args->seq.v;
    const size_t n = args->seq.n;
    if (f->kind == V_OTHER)
        return machine_push(m, f, e);
    if (is_tensor_maker(f))
        return rebuild_tensor(m, args, e);
    if ((f->i == G_PARAMETER || f->i == G_PARAMETER_STATE) && n >= 1 && a[0]->kind == V_TENSOR)
        return machine_push(m, a[0], e);
    if (f->i == G_FROM_TYPE && n >= 3 && is_tensor_maker(a[0]) && a[2]->kind == V_TUPLE)
        return rebuild_tensor(m, a[2], e);
    if (f->i == G_ORDERED_DICT && n == 0)
        return machine_push_new(m, V_DICT, 0, e);
    if (f->i == G_ORDERED_DICT && n == 1 && a[0]->kind == V_LIST)
        return push_dict_of_pairs(m, a[0], e);
    return push_known_other(m, (int)f->i, e);
}

static int push_instance(struct machine *m, struct value *class, struct err *e)
{
    if (class->kind == V_GLOBAL)
        return push_known_other(m, (int)class->i, e);
    return class->kind == V_OTHER ? machine_push(m, class, e)
                                  : machine_bad(e, "it makes an object of what is no class");
}

int machine_new_object(struct machine *m, bool keywords, struct err *e)
{
    struct value *args, *class;
    if (keywords)
        TRY(machine_pop(m, &args, e));
    TRY(machine_pop(m, &args, e));
    TRY(machine_pop(m, &class, e));
    return push_instance(m, class, e);
}

int machine_inst(struct machine *m, struct err *e)
{
    struct value **args, *class;
    size_t n;
    TRY(machine_global(m, e));
    TRY(machine_pop(m, &class, e));
    TRY(machine_pop_mark(m, &args, &n, e));
    return push_instance(m, class, e);
}

int machine_obj(struct machine *m, struct err *e)
{
    struct value **args;
    size_t n;
    TRY(machine_pop_mark(m, &args, &n, e));
    return n == 0 ? machine_bad(e, "it makes an object of what is no class") : push_instance(m, args[0], e);
}
