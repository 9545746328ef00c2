/* The stack machine of a pickle, protocols 2 to 5; what is called in it: pickle_calls.c.
 *
 * Values are made once and freed together, so what the memo, the stack and containers share needs no counting. Every
 * opcode makes at most one value and takes at least one byte; values and memo slots are bounded besides. Nothing here
 * recurses. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "worker/weights/pickle_impl.h"

#define VALUES_MAX ((size_t)1 << 20)
#define CHUNK 1024

struct chunk {
    struct chunk *next;
    struct value v[CHUNK];
};

struct machine {
    const unsigned char *p, *end;
    struct chunk *chunks;
    size_t values;
    struct value **stack;
    size_t depth, stack_cap;
    struct value **memo;
    size_t memo_n, memo_used;
    bool stopped;
};

static const char *const kind_names[] = {
#define X(name, text) [name] = text,
    VALUE_KINDS(X)
#undef X
};

const char *value_kind_name(enum value_kind k)
{
    return kind_names[k];
}

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

/* Everything above the last mark leaves the stack, the mark too. */
static int pop_mark(struct machine *m, struct value ***ret, size_t *n, struct err *e)
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

static int extend(struct value *to, struct value *const *v, size_t n, struct err *e)
{
    if (n == 0)
        return 0;
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
    TRY(take_bytes(m, n > SIZE_MAX ? SIZE_MAX : (size_t)n, &s, e));
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

static int long1(struct machine *m, struct err *e)
{
    uint64_t n;
    TRY(take_uint(m, 1, &n, e));
    return n > 8 ? machine_bad(e, "an integer has more than 64 bits") : integer(m, (int)n, true, e);
}

static int binfloat(struct machine *m, struct err *e)
{
    const unsigned char *b = NULL;
    uint64_t u = 0;
    struct value *v;
    TRY(take_bytes(m, 8, &b, e));
    for (int i = 0; i < 8; i++)
        u = u << 8 | b[i];
    TRY(machine_make(m, V_FLOAT, &v, e));
    memcpy(&v->f, &u, sizeof u);
    return machine_push(m, v, e);
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

static int put_memo(struct machine *m, uint64_t at, struct err *e)
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
    return put_memo(m, at, e);
}

static int get_memo_at(struct machine *m, int bytes, struct err *e)
{
    uint64_t at;
    TRY(take_uint(m, bytes, &at, e));
    if (at >= m->memo_n || !m->memo[at])
        return machine_bad(e, "it recalls what it never remembered");
    return machine_push(m, m->memo[at], e);
}

static int collect(struct machine *m, enum value_kind kind, struct err *e)
{
    struct value **v, *made;
    size_t n;
    TRY(pop_mark(m, &v, &n, e));
    if (kind == V_DICT && n % 2)
        return machine_bad(e, "a key has no value");
    TRY(machine_make(m, kind, &made, e));
    TRY(extend(made, v, n, e));
    return machine_push(m, made, e);
}

static int tuple_of(struct machine *m, size_t n, struct err *e)
{
    struct value *made, *v[3];
    for (size_t i = n; i > 0; i--)
        TRY(machine_pop(m, &v[i - 1], e));
    TRY(machine_make(m, V_TUPLE, &made, e));
    TRY(extend(made, v, n, e));
    return machine_push(m, made, e);
}

static int add_to(struct machine *m, enum value_kind kind, struct value *const *v, size_t n, struct err *e)
{
    struct value *to;
    TRY(machine_top(m, &to, e));
    if (to->kind != kind || (kind == V_DICT && n % 2))
        return machine_bad(e, "something is added to what is no list or dict");
    return extend(to, v, n, e);
}

static int add_marked(struct machine *m, enum value_kind kind, struct err *e)
{
    struct value **v;
    size_t n;
    TRY(pop_mark(m, &v, &n, e));
    return add_to(m, kind, v, n, e);
}

static int add_top(struct machine *m, enum value_kind kind, size_t n, struct err *e)
{
    struct value *v[2];
    for (size_t i = n; i > 0; i--)
        TRY(machine_pop(m, &v[i - 1], e));
    return add_to(m, kind, v, n, e);
}

static int skip(struct machine *m, int bytes, struct err *e)
{
    const unsigned char *ignored;
    return take_bytes(m, (size_t)bytes, &ignored, e);
}

static int drop(struct machine *m, struct err *e)
{
    struct value *ignored;
    return machine_pop(m, &ignored, e);
}

static int stop(struct machine *m)
{
    m->stopped = true;
    return 0;
}

#define OPCODES(X)                                                                                                     \
    X(0x80, skip(m, 1, e))                     /* PROTO */                                                             \
    X(0x95, skip(m, 8, e))                     /* FRAME */                                                             \
    X('.', stop(m))                            /* STOP */                                                              \
    X('(', machine_push_new(m, V_MARK, 0, e))  /* MARK */                                                              \
    X('0', drop(m, e))                         /* POP */                                                               \
    X('N', machine_push_new(m, V_NONE, 0, e))  /* NONE */                                                              \
    X(0x88, machine_push_new(m, V_BOOL, 1, e)) /* NEWTRUE */                                                           \
    X(0x89, machine_push_new(m, V_BOOL, 0, e)) /* NEWFALSE */                                                          \
    X('J', integer(m, 4, true, e))             /* BININT */                                                            \
    X('K', integer(m, 1, false, e))            /* BININT1 */                                                           \
    X('M', integer(m, 2, false, e))            /* BININT2 */                                                           \
    X(0x8a, long1(m, e))                       /* LONG1 */                                                             \
    X('G', binfloat(m, e))                     /* BINFLOAT */                                                          \
    X('X', string(m, 4, e))                    /* BINUNICODE */                                                        \
    X(0x8c, string(m, 1, e))                   /* SHORT_BINUNICODE */                                                  \
    X(']', machine_push_new(m, V_LIST, 0, e))  /* EMPTY_LIST */                                                        \
    X('}', machine_push_new(m, V_DICT, 0, e))  /* EMPTY_DICT */                                                        \
    X(')', machine_push_new(m, V_TUPLE, 0, e)) /* EMPTY_TUPLE */                                                       \
    X('l', collect(m, V_LIST, e))              /* LIST */                                                              \
    X('d', collect(m, V_DICT, e))              /* DICT */                                                              \
    X('t', collect(m, V_TUPLE, e))             /* TUPLE */                                                             \
    X(0x85, tuple_of(m, 1, e))                 /* TUPLE1 */                                                            \
    X(0x86, tuple_of(m, 2, e))                 /* TUPLE2 */                                                            \
    X(0x87, tuple_of(m, 3, e))                 /* TUPLE3 */                                                            \
    X('a', add_top(m, V_LIST, 1, e))           /* APPEND */                                                            \
    X('e', add_marked(m, V_LIST, e))           /* APPENDS */                                                           \
    X('s', add_top(m, V_DICT, 2, e))           /* SETITEM */                                                           \
    X('u', add_marked(m, V_DICT, e))           /* SETITEMS */                                                          \
    X('q', put_memo_at(m, 1, e))               /* BINPUT */                                                            \
    X('r', put_memo_at(m, 4, e))               /* LONG_BINPUT */                                                       \
    X(0x94, put_memo(m, m->memo_used, e))      /* MEMOIZE */                                                           \
    X('h', get_memo_at(m, 1, e))               /* BINGET */                                                            \
    X('j', get_memo_at(m, 4, e))               /* LONG_BINGET */                                                       \
    X('c', machine_global(m, e))               /* GLOBAL */                                                            \
    X(0x93, machine_stack_global(m, e))        /* STACK_GLOBAL */                                                      \
    X('Q', machine_persistent(m, e))           /* BINPERSID */                                                         \
    X('R', machine_reduce(m, e))               /* REDUCE */                                                            \
    X('b', machine_build(m, e))                /* BUILD */

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

int machine_run(struct machine **ret, const void *data, size_t n, const struct value **ret_top, struct err *e)
{
    struct machine *m = calloc(1, sizeof *m);
    struct value *v = NULL;
    if (!m)
        return no_memory(e);
    m->p = data;
    m->end = m->p + n;
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
    return 0;
}
