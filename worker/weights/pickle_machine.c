/* The stack machine of a pickle, protocols 0 to 5; what is called in it: pickle_calls.c.
 *
 * Values are made once and freed together, so what the memo, the stack and containers share needs no counting. Every
 * opcode makes at most one value and takes at least one byte; values, memo slots and members are bounded besides.
 * Nothing here recurses. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "worker/weights/pickle_impl.h"

#define VALUES_MAX ((size_t)1 << 20) /* also on the stack and in the memo */
#define MEMBERS_MAX (4 * VALUES_MAX) /* of all containers: one value may be in many */
#define CHUNK 1024

struct chunk {
    struct chunk *next;
    struct value v[CHUNK];
};

struct machine {
    const unsigned char *p, *end;
    struct chunk *chunks;
    size_t values, members;
    struct value **stack;
    size_t depth, stack_cap;
    struct value **memo;
    size_t memo_n, memo_used;
    bool stopped;
    struct value mark, none, truth[2]; /* one of each is enough */
};

static int no_memory(struct err *e)
{
    err_errno(e, ENOMEM, "pickle");
    return -ENOMEM;
}

/* --- memory */

int machine_make(struct machine *m, enum value_kind kind, struct value **ret, struct err *e)
{
    if (m->values == VALUES_MAX)
        return machine_bad(e, "it holds too many values for a model");
    if (m->values % CHUNK == 0) {
        struct chunk *c = calloc(1, sizeof *c);
        if (!c)
            return no_memory(e);
        c->next = m->chunks;
        m->chunks = c;
    }
    *ret = &m->chunks->v[m->values++ % CHUNK];
    (*ret)->kind = kind;
    return 0;
}

void machine_free(struct machine *m)
{
    if (!m)
        return;
    for (struct chunk *c = m->chunks, *next; c; c = next) {
        next = c->next;
        for (size_t i = 0; i < CHUNK; i++)
            if (c->v[i].kind >= V_TUPLE && c->v[i].kind <= V_DICT)
                free(c->v[i].seq.v);
        free(c);
    }
    free(m->stack);
    free(m->memo);
    free(m);
}

/* --- input and stack */

static int take_bytes(struct machine *m, size_t n, const unsigned char **ret, struct err *e)
{
    if ((size_t)(m->end - m->p) < n)
        return machine_bad(e, "it ends early");
    *ret = m->p;
    m->p += n;
    return 0;
}

static int take_uint(struct machine *m, int bytes, uint64_t *ret, struct err *e)
{
    const unsigned char *b;
    TRY(take_bytes(m, (size_t)bytes, &b, e));
    *ret = 0;
    for (int i = 0; i < bytes; i++)
        *ret |= (uint64_t)b[i] << (8 * i);
    return 0;
}

int machine_push(struct machine *m, struct value *v, struct err *e)
{
    if (m->depth == VALUES_MAX)
        return machine_bad(e, "it holds too many values for a model");
    TRY(ARRAY_GROW(m->stack, m->stack_cap, m->depth + 1, "pickled values", e));
    m->stack[m->depth++] = v;
    return 0;
}

int machine_push_new(struct machine *m, enum value_kind kind, int64_t i, struct err *e)
{
    struct value *v;
    TRY(machine_make(m, kind, &v, e));
    v->i = i;
    if (kind >= V_TUPLE && kind <= V_DICT)
        memset(&v->seq, 0, sizeof v->seq);
    return machine_push(m, v, e);
}

static int push_bool(struct machine *m, int i, struct err *e)
{
    return machine_push(m, &m->truth[i], e);
}

int machine_push_other(struct machine *m, const char *module, size_t nm, const char *name, size_t nn, struct err *e)
{
    struct value *v;
    TRY(machine_make(m, V_OTHER, &v, e));
    v->other.module = module;
    v->other.nm = nm;
    v->other.name = name;
    v->other.nn = nn;
    return machine_push(m, v, e);
}

int machine_push_plain(struct machine *m, const char *what, struct err *e)
{
    return machine_push_other(m, NULL, 0, what, strlen(what), e);
}

int machine_pop(struct machine *m, struct value **ret, struct err *e)
{
    if (m->depth == 0 || m->stack[m->depth - 1]->kind == V_MARK)
        return machine_bad(e, "its stack is empty");
    *ret = m->stack[--m->depth];
    return 0;
}

int machine_top(struct machine *m, struct value **ret, struct err *e)
{
    TRY(machine_pop(m, ret, e));
    m->depth++;
    return 0;
}

int machine_pop_mark(struct machine *m, struct value ***ret, size_t *n, struct err *e)
{
    size_t at = m->depth;
    while (at > 0 && m->stack[at - 1]->kind != V_MARK)
        at--;
    if (at == 0)
        return machine_bad(e, "a mark is missing");
    *ret = m->stack + at;
    *n = m->depth - at;
    m->depth = at - 1;
    return 0;
}

static int extend(struct machine *m, struct value *to, struct value *const *v, size_t n, struct err *e)
{
    if (n == 0)
        return 0;
    if ((m->members += n) > MEMBERS_MAX)
        return machine_bad(e, "it holds too many values for a model");
    TRY(ARRAY_GROW(to->seq.v, to->seq.cap, to->seq.n + n, "pickled values", e));
    memcpy(to->seq.v + to->seq.n, v, n * sizeof *v);
    to->seq.n += n;
    return 0;
}

/* --- opcodes */

static int string(struct machine *m, int length_bytes, struct err *e)
{
    uint64_t n;
    const unsigned char *s;
    struct value *v;
    TRY(take_uint(m, length_bytes, &n, e));
    TRY(take_bytes(m, (size_t)n, &s, e));
    TRY(machine_make(m, V_STR, &v, e));
    v->str.s = (const char *)s;
    v->str.n = (size_t)n;
    return machine_push(m, v, e);
}

static int integer(struct machine *m, int bytes, bool is_signed, struct err *e)
{
    uint64_t u = 0;
    TRY(take_uint(m, bytes, &u, e));
    if (is_signed && bytes < 8 && bytes > 0 && (u >> (8 * bytes - 1)))
        u |= ~(uint64_t)0 << (8 * bytes);
    return machine_push_new(m, V_INT, (int64_t)u, e);
}

/* LONG1, LONG4 */
static int long_integer(struct machine *m, int length_bytes, struct err *e)
{
    uint64_t n;
    const unsigned char *ignored;
    TRY(take_uint(m, length_bytes, &n, e));
    if (n <= 8)
        return integer(m, (int)n, true, e);
    TRY(take_bytes(m, (size_t)n, &ignored, e));
    return machine_push_plain(m, "an int of more than 64 bits", e);
}

static int skip(struct machine *m, size_t n, struct err *e)
{
    const unsigned char *ignored;
    return take_bytes(m, n, &ignored, e);
}

static int binfloat(struct machine *m, struct err *e)
{
    TRY(skip(m, 8, e));
    return machine_push_new(m, V_FLOAT, 0, e);
}

static int binbytes(struct machine *m, int length_bytes, struct err *e)
{
    uint64_t n;
    TRY(take_uint(m, length_bytes, &n, e));
    TRY(skip(m, (size_t)n, e));
    return machine_push_plain(m, "bytes", e);
}

int machine_take_line(struct machine *m, const char **ret, size_t *n, struct err *e)
{
    const unsigned char *end = memchr(m->p, '\n', (size_t)(m->end - m->p));
    if (!end)
        return machine_bad(e, "it ends early");
    *ret = (const char *)m->p;
    *n = (size_t)(end - m->p);
    m->p = end + 1;
    return 0;
}

int machine_put_memo(struct machine *m, uint64_t at, struct err *e)
{
    struct value *v;
    TRY(machine_top(m, &v, e));
    if (at >= VALUES_MAX)
        return machine_bad(e, "it remembers too much for a model");
    const size_t had = m->memo_n;
    TRY(ARRAY_GROW(m->memo, m->memo_n, (size_t)at + 1, "pickled values", e));
    if (m->memo_n > had)
        memset(m->memo + had, 0, (m->memo_n - had) * sizeof *m->memo);
    m->memo[at] = v;
    if (at >= m->memo_used)
        m->memo_used = (size_t)at + 1;
    return 0;
}

static int put_memo_at(struct machine *m, int bytes, struct err *e)
{
    uint64_t at;
    TRY(take_uint(m, bytes, &at, e));
    return machine_put_memo(m, at, e);
}

int machine_get_memo(struct machine *m, uint64_t at, struct err *e)
{
    if (at >= m->memo_n || !m->memo[at])
        return machine_bad(e, "it recalls what it never remembered");
    return machine_push(m, m->memo[at], e);
}

static int get_memo_at(struct machine *m, int bytes, struct err *e)
{
    uint64_t at;
    TRY(take_uint(m, bytes, &at, e));
    return machine_get_memo(m, at, e);
}

static int collect(struct machine *m, enum value_kind kind, struct err *e)
{
    struct value **v, *made;
    size_t n;
    TRY(machine_pop_mark(m, &v, &n, e));
    if (kind == V_DICT && n % 2)
        return machine_bad(e, "a key has no value");
    TRY(machine_make(m, kind, &made, e));
    TRY(extend(m, made, v, n, e));
    return machine_push(m, made, e);
}

static int tuple_of(struct machine *m, size_t n, struct err *e)
{
    struct value *made, *v[3];
    for (size_t i = n; i > 0; i--)
        TRY(machine_pop(m, &v[i - 1], e));
    TRY(machine_make(m, V_TUPLE, &made, e));
    TRY(extend(m, made, v, n, e));
    return machine_push(m, made, e);
}

int machine_add(struct machine *m, enum value_kind kind, struct value *const *v, size_t n, struct err *e)
{
    struct value *to;
    TRY(machine_top(m, &to, e));
    if (to->kind == V_OTHER)
        return 0;
    if (to->kind != kind || (kind == V_DICT && n % 2))
        return machine_bad(e, "something is added to what is no list or dict");
    return extend(m, to, v, n, e);
}

static int add_marked(struct machine *m, enum value_kind kind, struct err *e)
{
    struct value **v;
    size_t n;
    TRY(machine_pop_mark(m, &v, &n, e));
    return machine_add(m, kind, v, n, e);
}

static int add_top(struct machine *m, enum value_kind kind, size_t n, struct err *e)
{
    struct value *v[2];
    for (size_t i = n; i > 0; i--)
        TRY(machine_pop(m, &v[i - 1], e));
    return machine_add(m, kind, v, n, e);
}

/* POP; a mark, too. */
static int drop(struct machine *m, struct err *e)
{
    if (m->depth == 0)
        return machine_bad(e, "its stack is empty");
    m->depth--;
    return 0;
}

static int drop_marked(struct machine *m, struct err *e)
{
    struct value **v;
    size_t n;
    return machine_pop_mark(m, &v, &n, e);
}

static int set_of_marked(struct machine *m, struct err *e)
{
    TRY(drop_marked(m, e));
    return machine_push_plain(m, "a set", e);
}

static int duplicate(struct machine *m, struct err *e)
{
    struct value *v;
    TRY(machine_top(m, &v, e));
    return machine_push(m, v, e);
}

/* BUILD: an object's attributes, those of a dict, too (state_dict's _metadata), are passed over. */
static int drop_attributes(struct machine *m, struct err *e)
{
    struct value *attributes, *object;
    TRY(machine_pop(m, &attributes, e));
    return machine_top(m, &object, e);
}

static int stop(struct machine *m)
{
    m->stopped = true;
    return 0;
}

#define OPCODES(X)                                                                                                     \
    X(0x80, skip(m, 1, e))                        /* PROTO */                                                          \
    X(0x95, skip(m, 8, e))                        /* FRAME */                                                          \
    X('.', stop(m))                               /* STOP */                                                           \
    X('(', machine_push(m, &m->mark, e))          /* MARK */                                                           \
    X('0', drop(m, e))                            /* POP */                                                            \
    X('1', drop_marked(m, e))                     /* POP_MARK */                                                       \
    X('2', duplicate(m, e))                       /* DUP */                                                            \
    X('N', machine_push(m, &m->none, e))          /* NONE */                                                           \
    X(0x88, push_bool(m, 1, e))                   /* NEWTRUE */                                                        \
    X(0x89, push_bool(m, 0, e))                   /* NEWFALSE */                                                       \
    X('J', integer(m, 4, true, e))                /* BININT */                                                         \
    X('K', integer(m, 1, false, e))               /* BININT1 */                                                        \
    X('M', integer(m, 2, false, e))               /* BININT2 */                                                        \
    X(0x8a, long_integer(m, 1, e))                /* LONG1 */                                                          \
    X(0x8b, long_integer(m, 4, e))                /* LONG4 */                                                          \
    X('I', machine_text_integer(m, e))            /* INT */                                                            \
    X('L', machine_text_integer(m, e))            /* LONG */                                                           \
    X('F', machine_text_float(m, e))              /* FLOAT */                                                          \
    X('S', machine_text_string(m, true, e))       /* STRING */                                                         \
    X('V', machine_text_string(m, false, e))      /* UNICODE */                                                        \
    X('T', string(m, 4, e))                       /* BINSTRING */                                                      \
    X('U', string(m, 1, e))                       /* SHORT_BINSTRING */                                                \
    X('B', binbytes(m, 4, e))                     /* BINBYTES */                                                       \
    X('C', binbytes(m, 1, e))                     /* SHORT_BINBYTES */                                                 \
    X(0x8e, binbytes(m, 8, e))                    /* BINBYTES8 */                                                      \
    X(0x96, binbytes(m, 8, e))                    /* BYTEARRAY8 */                                                     \
    X(0x8f, machine_push_plain(m, "a set", e))    /* EMPTY_SET */                                                      \
    X(0x90, drop_marked(m, e))                    /* ADDITEMS */                                                       \
    X(0x91, set_of_marked(m, e))                  /* FROZENSET */                                                      \
    X(0x8d, string(m, 8, e))                      /* BINUNICODE8 */                                                    \
    X('G', binfloat(m, e))                        /* BINFLOAT */                                                       \
    X('X', string(m, 4, e))                       /* BINUNICODE */                                                     \
    X(0x8c, string(m, 1, e))                      /* SHORT_BINUNICODE */                                               \
    X(']', machine_push_new(m, V_LIST, 0, e))     /* EMPTY_LIST */                                                     \
    X('}', machine_push_new(m, V_DICT, 0, e))     /* EMPTY_DICT */                                                     \
    X(')', machine_push_new(m, V_TUPLE, 0, e))    /* EMPTY_TUPLE */                                                    \
    X('l', collect(m, V_LIST, e))                 /* LIST */                                                           \
    X('d', collect(m, V_DICT, e))                 /* DICT */                                                           \
    X('t', collect(m, V_TUPLE, e))                /* TUPLE */                                                          \
    X(0x85, tuple_of(m, 1, e))                    /* TUPLE1 */                                                         \
    X(0x86, tuple_of(m, 2, e))                    /* TUPLE2 */                                                         \
    X(0x87, tuple_of(m, 3, e))                    /* TUPLE3 */                                                         \
    X('a', add_top(m, V_LIST, 1, e))              /* APPEND */                                                         \
    X('e', add_marked(m, V_LIST, e))              /* APPENDS */                                                        \
    X('s', add_top(m, V_DICT, 2, e))              /* SETITEM */                                                        \
    X('u', add_marked(m, V_DICT, e))              /* SETITEMS */                                                       \
    X('q', put_memo_at(m, 1, e))                  /* BINPUT */                                                         \
    X('r', put_memo_at(m, 4, e))                  /* LONG_BINPUT */                                                    \
    X(0x94, machine_put_memo(m, m->memo_used, e)) /* MEMOIZE */                                                        \
    X('p', machine_put_memo_line(m, e))           /* PUT */                                                            \
    X('g', machine_get_memo_line(m, e))           /* GET */                                                            \
    X('h', get_memo_at(m, 1, e))                  /* BINGET */                                                         \
    X('j', get_memo_at(m, 4, e))                  /* LONG_BINGET */                                                    \
    X('c', machine_global(m, e))                  /* GLOBAL */                                                         \
    X(0x93, machine_stack_global(m, e))           /* STACK_GLOBAL */                                                   \
    X('Q', machine_persistent(m, e))              /* BINPERSID */                                                      \
    X('R', machine_reduce(m, e))                  /* REDUCE */                                                         \
    X(0x81, machine_new_object(m, false, e))      /* NEWOBJ */                                                         \
    X(0x92, machine_new_object(m, true, e))       /* NEWOBJ_EX */                                                      \
    X('i', machine_inst(m, e))                    /* INST */                                                           \
    X('o', machine_obj(m, e))                     /* OBJ */                                                            \
    X('b', drop_attributes(m, e))                 /* BUILD */

static int run_one(struct machine *m, struct err *e)
{
    const unsigned char *op;
    TRY(take_bytes(m, 1, &op, e));
    switch (*op) {
#define X(code, does)                                                                                                  \
    case code:                                                                                                         \
        return does;
        OPCODES(X)
#undef X
    default:
        return err_set(e, ERR_REFUSED, "it uses pickle's opcode 0x%02x, which tensors do not need", *op);
    }
}

int machine_run(struct machine **ret, const void *data, size_t n, const struct value **ret_top, size_t *ret_used,
                struct err *e)
{
    struct machine *m = calloc(1, sizeof *m);
    struct value *v = NULL;
    if (!m)
        return no_memory(e);
    *m = (struct machine){.p = data,
                          .end = (const unsigned char *)data + n,
                          .mark = {.kind = V_MARK},
                          .none = {.kind = V_NONE},
                          .truth = {{.kind = V_BOOL, .i = 0}, {.kind = V_BOOL, .i = 1}}};
    int rc = 0;
    while (rc == 0 && !m->stopped)
        rc = run_one(m, e);
    if (rc == 0)
        rc = machine_pop(m, &v, e);
    if (rc < 0) {
        machine_free(m);
        return rc;
    }
    *ret = m;
    *ret_top = v;
    *ret_used = (size_t)(m->p - (const unsigned char *)data);
    return 0;
}

int machine_order_keys(const struct value *a, const struct value *b)
{
    const size_t n = a->str.n < b->str.n ? a->str.n : b->str.n;
    const int order = n ? memcmp(a->str.s, b->str.s, n) : 0;
    return order ? order : a->str.n < b->str.n ? -1 : a->str.n > b->str.n;
}

static int by_key(const void *a, const void *b)
{
    const struct value *x = *(const struct value *const *)a, *y = *(const struct value *const *)b;
    return machine_order_keys(x->storage.key, y->storage.key);
}

int machine_storages(const struct machine *m, const struct value ***ret, size_t *n, struct err *e)
{
    const struct value **v = NULL;
    size_t cap = 0;
    *n = 0;
    for (const struct chunk *c = m->chunks; c; c = c->next)
        for (size_t i = 0; i < CHUNK; i++)
            if (c->v[i].kind == V_STORAGE) {
                const int rc = ARRAY_GROW(v, cap, *n + 1, "storages", e);
                if (rc < 0) {
                    free(v);
                    return rc;
                }
                v[(*n)++] = &c->v[i];
            }
    if (*n)
        qsort(v, *n, sizeof *v, by_key);
    *ret = v;
    return 0;
}
