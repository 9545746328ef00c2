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
    X(V_TENSOR, "a tensor")                                                                                            \
    X(V_OTHER, "an object")

enum value_kind {
#define X(name, text) name,
    VALUE_KINDS(X)
#undef X
};

#define NOT_TAKEN (-1) /* a type of elements that no struct ckpt_tensor has */

/* What is called by these names is known; all else is V_OTHER. Of storages: the type of their elements, and its bytes.
 */
#define GLOBALS(X)                                                                                                     \
    X(G_ORDERED_DICT, "collections", "OrderedDict", NOT_TAKEN, 0)                                                      \
    X(G_TENSOR, "torch._utils", "_rebuild_tensor_v2", NOT_TAKEN, 0)                                                    \
    X(G_OLD_TENSOR, "torch._utils", "_rebuild_tensor", NOT_TAKEN, 0)                                                   \
    X(G_PARAMETER, "torch._utils", "_rebuild_parameter", NOT_TAKEN, 0)                                                 \
    X(G_PARAMETER_STATE, "torch._utils", "_rebuild_parameter_with_state", NOT_TAKEN, 0)                                \
    X(G_FROM_TYPE, "torch._tensor", "_rebuild_from_type_v2", NOT_TAKEN, 0)                                             \
    X(G_F64, "torch", "DoubleStorage", DT_F64, 8)                                                                      \
    X(G_F32, "torch", "FloatStorage", DT_F32, 4)                                                                       \
    X(G_BF16, "torch", "BFloat16Storage", DT_BF16, 2)                                                                  \
    X(G_F16, "torch", "HalfStorage", DT_F16, 2)                                                                        \
    X(G_I64, "torch", "LongStorage", DT_I64, 8)                                                                        \
    X(G_I32, "torch", "IntStorage", DT_I32, 4)                                                                         \
    X(G_U8, "torch", "ByteStorage", DT_U8, 1)                                                                          \
    X(G_I16, "torch", "ShortStorage", NOT_TAKEN, 2)                                                                    \
    X(G_I8, "torch", "CharStorage", NOT_TAKEN, 1)                                                                      \
    X(G_BOOL, "torch", "BoolStorage", NOT_TAKEN, 1)                                                                    \
    X(G_C64, "torch", "ComplexFloatStorage", NOT_TAKEN, 8)                                                             \
    X(G_C128, "torch", "ComplexDoubleStorage", NOT_TAKEN, 16)

enum global {
#define X(id, module, name, dtype, bytes) id,
    GLOBALS(X)
#undef X
        GLOBAL_COUNT
};
#define G_FIRST_STORAGE G_F64

struct global_info {
    const char *module, *name;
    int dtype, bytes;
};
extern const struct global_info globals[GLOBAL_COUNT];

struct value {
    enum value_kind kind;
    union {
        int64_t i; /* V_BOOL, V_INT, V_GLOBAL */
        struct {   /* V_STR: borrowed from the pickle */
            const char *s;
            size_t n;
        } str;
        struct { /* V_TUPLE, V_LIST; V_DICT: key, value, key, value, ... */
            struct value **v;
            size_t n, cap;
        } seq;
        struct {                     /* V_STORAGE */
            int type;                /* enum global */
            const struct value *key; /* V_STR */
            int64_t count;
        } storage;
        struct { /* V_TENSOR */
            const struct value *storage, *size, *stride;
            int64_t offset;
        } tensor;
        struct { /* V_OTHER: what it is, or the class or function that would make it; module NULL: it has none */
            const char *module, *name;
            size_t nm, nn;
        } other;
    };
};

#define VALUE_TEXT 160
/* "a list", "what numpy.ndarray makes", "a tensor of torch.BoolStorage": without control bytes. Returns out. */
char *value_text(const struct value *v, char out[VALUE_TEXT]);
/* A string's first bytes, without control bytes. Returns out. */
char *value_name(const struct value *v, char out[VALUE_TEXT]);

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
int machine_push_other(struct machine *m, const char *module, size_t nm, const char *name, size_t nn, struct err *e);
int machine_push_plain(struct machine *m, const char *what, struct err *e); /* a V_OTHER; what: static */
int machine_pop(struct machine *m, struct value **ret, struct err *e);
/* Everything above the last mark leaves the stack, the mark too: *ret[*n], until the next push. */
int machine_pop_mark(struct machine *m, struct value ***ret, size_t *n, struct err *e);
int machine_top(struct machine *m, struct value **ret, struct err *e);
/* To the list or dict on top; what is added to an object is passed over. */
int machine_add(struct machine *m, enum value_kind kind, struct value *const *v, size_t n, struct err *e);
int machine_take_line(struct machine *m, const char **ret, size_t *n, struct err *e); /* without its end */

/* Opcodes that name, call or make something. Nothing is called: what is no tensor and no dict becomes a V_OTHER. */
int machine_global(struct machine *m, struct err *e);
int machine_stack_global(struct machine *m, struct err *e);
int machine_persistent(struct machine *m, struct err *e);
int machine_reduce(struct machine *m, struct err *e);
int machine_new_object(struct machine *m, bool keywords, struct err *e);
int machine_inst(struct machine *m, struct err *e);
int machine_obj(struct machine *m, struct err *e);

/* Opcodes with a line of text. */
int machine_text_integer(struct machine *m, struct err *e);
int machine_text_float(struct machine *m, struct err *e);
int machine_text_string(struct machine *m, bool quoted, struct err *e);
int machine_put_memo_line(struct machine *m, struct err *e);
int machine_get_memo_line(struct machine *m, struct err *e);
int machine_put_memo(struct machine *m, uint64_t at, struct err *e);
int machine_get_memo(struct machine *m, uint64_t at, struct err *e);

/* Run a pickle to its end. *ret_top lives until machine_free(), and borrows from data. *ret_used: its bytes. */
int machine_run(struct machine **ret, const void *data, size_t n, const struct value **ret_top, size_t *ret_used,
                struct err *e);
void machine_free(struct machine *m); /* NULL allowed */
/* All V_STORAGE values by their keys: *ret[*n], from malloc. */
int machine_storages(const struct machine *m, const struct value ***ret, size_t *n, struct err *e);
int machine_order_keys(const struct value *a, const struct value *b); /* of two V_STR */

#endif
