/* Values on the stack of the unpickler (pickle_machine.c) and what is made of them (pickle_read.c). */
#ifndef CRUN_WORKER_WEIGHTS_PICKLE_IMPL_H
#define CRUN_WORKER_WEIGHTS_PICKLE_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "worker/precision/dtype.h"

#define VALUE_KINDS(X)                                                                                                 \
    X(V_MARK, "a mark")                                                                                                \
    X(V_NONE, "None")                                                                                                  \
    X(V_BOOL, "a bool")                                                                                                \
    X(V_INT, "an int")                                                                                                 \
    X(V_FLOAT, "a float")                                                                                              \
    X(V_STR, "a string")                                                                                               \
    X(V_TUPLE, "a tuple")                                                                                              \
    X(V_LIST, "a list")                                                                                                \
    X(V_DICT, "a dict")                                                                                                \
    X(V_GLOBAL, "a class or function")                                                                                 \
    X(V_STORAGE, "a storage")                                                                                          \
    X(V_TENSOR, "a tensor")

enum value_kind {
#define X(name, text) name,
    VALUE_KINDS(X)
#undef X
};

#define GLOBALS(X) /* what may be named in a pickle */                                                                 \
    X(G_ORDERED_DICT, "collections", "OrderedDict", DT_U8)                                                             \
    X(G_COUNTER, "collections", "Counter", DT_U8)                                                                      \
    X(G_TENSOR, "torch._utils", "_rebuild_tensor_v2", DT_U8)                                                           \
    X(G_PARAMETER, "torch._utils", "_rebuild_parameter", DT_U8)                                                        \
    X(G_F64, "torch", "DoubleStorage", DT_F64)                                                                         \
    X(G_F32, "torch", "FloatStorage", DT_F32)                                                                          \
    X(G_BF16, "torch", "BFloat16Storage", DT_BF16)                                                                     \
    X(G_F16, "torch", "HalfStorage", DT_F16)                                                                           \
    X(G_I64, "torch", "LongStorage", DT_I64)                                                                           \
    X(G_I32, "torch", "IntStorage", DT_I32)                                                                            \
    X(G_U8, "torch", "ByteStorage", DT_U8)

enum global {
#define X(id, module, name, dtype) id,
    GLOBALS(X)
#undef X
        GLOBAL_COUNT
};
#define G_FIRST_STORAGE G_F64

struct value {
    enum value_kind kind;
    union {
        int64_t i; /* V_BOOL, V_INT, V_GLOBAL */
        double f;
        struct { /* V_STR: borrowed from the pickle */
            const char *s;
            size_t n;
        } str;
        struct { /* V_TUPLE, V_LIST; V_DICT: key, value, key, value, ... */
            struct value **v;
            size_t n, cap;
        } seq;
        struct { /* V_STORAGE */
            enum dtype dtype;
            const struct value *key; /* V_STR */
            int64_t count;
        } storage;
        struct { /* V_TENSOR */
            const struct value *storage, *size, *stride;
            int64_t offset;
        } tensor;
    };
};

const char *value_kind_name(enum value_kind k);

struct machine;

/* Between pickle_machine.c and pickle_calls.c. What is taken off the stack lives until machine_free(). */
static inline int machine_bad(struct err *e, const char *what)
{
    err_set(e, ERR_CORRUPT, "the pickle is not sound: %s", what);
    return ERR_CORRUPT;
}
int machine_make(struct machine *m, enum value_kind kind, struct value **ret, struct err *e);
int machine_push(struct machine *m, struct value *v, struct err *e);
int machine_push_new(struct machine *m, enum value_kind kind, int64_t i, struct err *e);
int machine_pop(struct machine *m, struct value **ret, struct err *e);
int machine_top(struct machine *m, struct value **ret, struct err *e);
int machine_take_line(struct machine *m, const char **ret, size_t *n, struct err *e); /* without its end */

/* Opcodes that name or call something: ERR_REFUSED says what. */
int machine_global(struct machine *m, struct err *e);
int machine_stack_global(struct machine *m, struct err *e);
int machine_persistent(struct machine *m, struct err *e);
int machine_reduce(struct machine *m, struct err *e);
int machine_build(struct machine *m, struct err *e);

/* Run a pickle to its end. *ret_top lives until machine_free(). */
int machine_run(struct machine **ret, const void *data, size_t n, const struct value **ret_top, struct err *e);
void machine_free(struct machine *m); /* NULL allowed */

#endif
