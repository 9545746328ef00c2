/* Reads the tensors named in a pickle, and executes nothing. */
#include "worker/weights/pickle_read.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/weights/pickle_impl.h"

#define TENSORS_MAX 262144
#define LOOKED_MAX ((size_t)1 << 26) /* members of members: all of them may be the same dict */
#define OLD_VERSION 1001

static bool is_text(const struct value *v, const char *text)
{
    return v->kind == V_STR && v->str.n == strlen(text) && memcmp(v->str.s, text, v->str.n) == 0;
}

/* The last of that name, as in Python; NULL: there is none. */
static const struct value *member(const struct value *dict, const char *name)
{
    for (size_t i = dict->seq.n; i >= 2; i -= 2)
        if (is_text(dict->seq.v[i - 2], name))
            return dict->seq.v[i - 1];
    return NULL;
}

static bool is_taken(const struct value *v)
{
    return v->kind == V_TENSOR && globals[v->tensor.storage->storage.type].dtype != NOT_TAKEN;
}

/* Of a dict; 0 of anything else. */
static size_t count_tensors(const struct value *v)
{
    size_t n = 0;
    for (size_t i = 1; v->kind == V_DICT && i < v->seq.n; i += 2)
        n += is_taken(v->seq.v[i]);
    return n;
}

/* --- which dict */

#define NESTED_MAX 3 /* dicts in dicts until the tensors come */

/* The most tensors of v, if it is a dict, or of a dict among its members. *looked: members that were looked at. */
static size_t count_within(const struct value *v, size_t *looked)
{
    size_t most = count_tensors(v);
    *looked += v->kind == V_DICT ? v->seq.n : 0;
    for (size_t i = 1; most == 0 && v->kind == V_DICT && i < v->seq.n && *looked <= LOOKED_MAX; i += 2) {
        const struct value *inner = v->seq.v[i];
        const size_t n = count_tensors(inner);
        *looked += inner->kind == V_DICT ? inner->seq.n : 0;
        most = n > most ? n : most;
    }
    return most;
}

static int too_many(struct err *e)
{
    return err_set(e, ERR_REFUSED, "its dicts have too many members for a model");
}

struct choice {
    const struct value *dict; /* NULL: none */
    char name[VALUE_TEXT];
};

/* The only member that is, or if nested has, a dict with more tensors than `own`. */
static int only_dict(const struct value *dict, size_t own, bool nested, struct choice *ret, struct err *e)
{
    char other[VALUE_TEXT];
    size_t looked = 0;
    for (size_t i = 0; i + 1 < dict->seq.n; i += 2) {
        const struct value *key = dict->seq.v[i], *v = dict->seq.v[i + 1];
        if (key->kind != V_STR || v->kind != V_DICT || v == ret->dict)
            continue;
        looked += v->seq.n;
        const size_t n = nested ? count_within(v, &looked) : count_tensors(v);
        if (looked > LOOKED_MAX)
            return too_many(e);
        if (n <= own)
            continue;
        if (ret->dict)
            return err_set(e, ERR_REFUSED,
                           "both '%s' and '%s' in it are dicts of tensors: say which to take (" PICKLE_PART_OPTIONS ")",
                           ret->name, value_name(key, other));
        ret->dict = v;
        value_name(key, ret->name);
    }
    return 0;
}

/* One step towards the tensors. */
static int step_in(const struct value *dict, struct choice *ret, struct err *e)
{
    static const char *const usual[] = {"state_dict", "model"};
    const size_t own = count_tensors(dict);
    size_t looked = 0;
    *ret = (struct choice){0};
    for (int k = 0; k < 2; k++) {
        const struct value *v = member(dict, usual[k]);
        if (v && v != dict && count_within(v, &looked) > 0) {
            ret->dict = v;
            strcpy(ret->name, usual[k]);
            return 0;
        }
    }
    TRY(only_dict(dict, own, false, ret, e));
    return ret->dict || own ? 0 : only_dict(dict, own, true, ret, e);
}

/* Another member of the dict that could be meant as well as the one that is taken: weights' averages, most likely. */
static void note_another(struct pickle *p, const struct value *dict, const struct choice *taken)
{
    char name[VALUE_TEXT];
    size_t looked = 0;
    const size_t n = count_within(taken->dict, &looked);
    for (size_t i = 0; i + 1 < dict->seq.n && looked <= LOOKED_MAX && !p->another[0]; i += 2) {
        const struct value *key = dict->seq.v[i], *v = dict->seq.v[i + 1];
        if (key->kind == V_STR && v->kind == V_DICT && v != taken->dict && 2 * count_within(v, &looked) >= n)
            snprintf(p->another, sizeof p->another, "'%s' is taken, and not '%s'", taken->name, value_name(key, name));
    }
}

/* The dict with the tensors: this one, or one in it. */
static int descend(struct pickle *p, const struct value *dict, const struct value **ret, struct err *e)
{
    struct choice in;
    for (int i = 0; i < NESTED_MAX; i++) {
        TRY(step_in(dict, &in, e));
        if (!in.dict)
            break;
        note_another(p, dict, &in);
        dict = in.dict;
        if (count_tensors(dict))
            break;
    }
    *ret = dict;
    return 0;
}

/* What makes a tensor that is taken of a value that is none. */
static const char *remedy(const struct value *v)
{
    static const struct {
        const char *part, *remedy;
    } remedies[] = {
        {"multiarray._reconstruct",
         "make a tensor of each array (torch.from_numpy) and torch.save() the dict of these"},
        {"_rebuild_qtensor", "it is quantized: save the model of floating-point numbers"},
        {"_rebuild_sparse", "it is sparse: save its .to_dense()"},
        {"_rebuild_meta", "it has no values (device meta): load the weights before the model is saved"},
    };
    char text[VALUE_TEXT];
    if (v->kind == V_TENSOR)
        return "save it as floating-point numbers (.float())";
    value_text(v, text);
    for (size_t i = 0; v->kind == V_OTHER && i < sizeof remedies / sizeof *remedies; i++)
        if (strstr(text, remedies[i].part))
            return remedies[i].remedy;
    return "save the state_dict alone";
}

static int no_tensors(const struct value *dict, struct err *e)
{
    char name[VALUE_TEXT], text[VALUE_TEXT];
    for (size_t i = 0; i + 1 < dict->seq.n; i += 2) {
        const struct value *key = dict->seq.v[i], *v = dict->seq.v[i + 1];
        if (key->kind == V_STR && (v->kind == V_OTHER || v->kind == V_TENSOR))
            return err_set(e, ERR_REFUSED, "it holds no tensors that can be taken: '%s' in it is %s; %s",
                           value_name(key, name), value_text(v, text), remedy(v));
    }
    return err_set(e, ERR_REFUSED, "it holds no tensors");
}

static int choose(struct pickle *p, const struct value *top, const char *part, const struct value **ret, struct err *e)
{
    char text[VALUE_TEXT];
    if (top->kind != V_DICT)
        return err_set(e, ERR_REFUSED, "it holds %s instead of a dict of tensors: save the model's state_dict()",
                       value_text(top, text));
    const struct value *dict = part ? member(top, part) : NULL;
    p->part_taken = dict && dict->kind == V_DICT; /* else it may be a beginning of names */
    if (descend(p, p->part_taken ? dict : top, ret, e) < 0)
        return part && !p->part_taken ? err_wrap(e, "it has no member '%.60s'", part) : e->code;
    return count_tensors(*ret) ? 0 : no_tensors(*ret, e);
}

/* --- its tensors */

static int take_name(struct pickled_tensor *t, const struct value *key, struct err *e)
{
    if (key->kind != V_STR) {
        char text[VALUE_TEXT];
        return err_set(e, ERR_REFUSED, "a tensor is named by %s instead of a string", value_text(key, text));
    }
    if (key->str.n == 0 || key->str.n > CKPT_NAME_MAX)
        return err_set(e, -ENOTSUP, "a tensor's name has %zu bytes instead of 1 to %d", key->str.n, CKPT_NAME_MAX);
    for (size_t i = 0; i < key->str.n; i++)
        if ((unsigned char)key->str.s[i] < ' ' || key->str.s[i] == 0x7f)
            return err_set(e, ERR_REFUSED, "a tensor's name has a control byte");
    memcpy(t->t.name, key->str.s, key->str.n);
    return 0;
}

static int take_key(char out[PICKLE_KEY_MAX + 1], const struct value *key, struct err *e)
{
    const size_t n = key->str.n;
    bool sound = n > 0 && n <= PICKLE_KEY_MAX;
    for (size_t i = 0; sound && i < n; i++)
        sound = (unsigned char)key->str.s[i] > ' ' && key->str.s[i] != 0x7f;
    if (!sound)
        return err_set(e, ERR_CORRUPT, "a storage has a name that torch gives none, of %zu bytes", n);
    memcpy(out, key->str.s, n);
    out[n] = '\0';
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
    const struct value *size = v->tensor.size, *stride = v->tensor.stride, *storage = v->tensor.storage;
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
    TRY(take_key(t->storage, storage->storage.key, e));
    t->t.dtype = (enum dtype)globals[storage->storage.type].dtype;
    t->storage_count = storage->storage.count;
    return check_reach(t, e);
}

static int pass_over(struct pickle *p, const struct value *key, const struct value *v, struct err *e)
{
    char name[VALUE_TEXT] = "", text[VALUE_TEXT];
    if (key->kind == V_STR)
        value_name(key, name);
    value_text(v, text);
    if (v->kind == V_OTHER && v->other.module)
        return err_set(e, ERR_REFUSED, "'%s' is %s, not a tensor: %s", name, text, remedy(v));
    if (p->passed_over++ == 0)
        snprintf(p->passed, sizeof p->passed, "'%s', %s", name, text);
    return 0;
}

static int collect(struct pickle *ret, const struct value *dict, struct err *e)
{
    const size_t n = count_tensors(dict);
    if (n > TENSORS_MAX) /* a pair of them takes four bytes of pickle */
        return err_set(e, -ENOTSUP, "it holds more than %d tensors", TENSORS_MAX);
    ret->t = calloc(n, sizeof *ret->t);
    if (!ret->t)
        return err_errno(e, ENOMEM, "list of %zu tensors", n);
    for (size_t i = 0; i < dict->seq.n; i += 2) {
        const struct value *key = dict->seq.v[i], *v = dict->seq.v[i + 1];
        if (is_taken(v))
            TRY(take_tensor(&ret->t[ret->n++], key, v, e));
        else
            TRY(pass_over(ret, key, v, e));
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A dict that sets a key twice is none that torch writes. */
static int check_names(const struct pickle *p, struct err *e)
{
    const char **names = malloc(p->n * sizeof *names);
    int rc = names ? 0 : err_errno(e, ENOMEM, "list of %zu tensors", p->n);
    for (size_t i = 0; rc == 0 && i < p->n; i++)
        names[i] = p->t[i].t.name;
    if (rc == 0)
        qsort(names, p->n, sizeof *names, by_name);
    for (size_t i = 1; rc == 0 && i < p->n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            rc = err_set(e, ERR_CORRUPT, "it holds two tensors named '%s'", names[i]);
    free(names);
    return rc;
}

static int read_object(struct pickle *ret, const struct value *top, const char *part, struct err *e)
{
    const struct value *dict = NULL;
    TRY(choose(ret, top, part, &dict, e));
    TRY(collect(ret, dict, e));
    return check_names(ret, e);
}

int pickle_read(struct pickle *ret, const void *data, size_t n, const char *part, struct err *e)
{
    struct machine *m;
    const struct value *top;
    struct pickle p = {0};
    TRY(machine_run(&m, data, n, &top, &p.used, e));
    int rc = read_object(&p, top, part, e);
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
    free(p->storages);
    *p = (struct pickle){0};
}

/* --- files of torch before 1.6 */

bool pickle_is_old(const void *head, size_t n)
{
    static const unsigned char magic[] = {0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
    const unsigned char *h = head;
    for (size_t i = 2; n >= 2 && h[0] == 0x80 && i < PICKLE_OLD_HEAD && i + sizeof magic <= n; i++)
        if (memcmp(h + i, magic, sizeof magic) == 0)
            return true;
    return false;
}

struct reading {
    const char *at;
    size_t left;
};

static int run_next(struct reading *r, struct machine **ret, const struct value **top, struct err *e)
{
    size_t used;
    TRY(machine_run(ret, r->at, r->left, top, &used, e));
    r->at += used;
    r->left -= used;
    return 0;
}

/* The number, the version and the machine that it was written on. */
static int check_head(struct reading *r, struct err *e)
{
    struct machine *m;
    const struct value *v;
    TRY(run_next(r, &m, &v, e));
    machine_free(m);
    TRY(run_next(r, &m, &v, e));
    const bool known = v->kind == V_INT && v->i == OLD_VERSION;
    machine_free(m);
    if (!known)
        return err_set(e, -ENOTSUP, "it has another version than %d of torch's older format", OLD_VERSION);
    TRY(run_next(r, &m, &v, e));
    const struct value *little = v->kind == V_DICT ? member(v, "little_endian") : NULL;
    const bool big = little && little->kind == V_BOOL && !little->i;
    machine_free(m);
    return big ? err_set(e, -ENOTSUP, "it was written on a big-endian machine") : 0;
}

/* The storage of that name among all[n], which are sorted; NULL: there is none. */
static const struct value *find_storage(const struct value **all, size_t n, const struct value *key)
{
    size_t low = 0, high = n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (machine_order_keys(all[mid]->storage.key, key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && machine_order_keys(all[low]->storage.key, key) == 0 ? all[low] : NULL;
}

static int list_storages(struct pickle *p, const struct value *keys, const struct value **all, size_t n, struct err *e)
{
    if (keys->kind != V_LIST)
        return err_set(e, ERR_CORRUPT, "it has no list of its storages");
    p->storages = calloc(keys->seq.n + 1, sizeof *p->storages);
    if (!p->storages)
        return err_errno(e, ENOMEM, "list of %zu storages", keys->seq.n);
    for (; p->n_storages < keys->seq.n; p->n_storages++) {
        struct pickled_storage *s = &p->storages[p->n_storages];
        const struct value *key = keys->seq.v[p->n_storages];
        if (key->kind != V_STR)
            return err_set(e, ERR_CORRUPT, "a storage's name is no string");
        TRY(take_key(s->key, key, e));
        const struct value *v = find_storage(all, n, key);
        if (!v)
            return err_set(e, -ENOTSUP,
                           "storage '%s' has elements of a type that is not known: save it again in Python", s->key);
        s->count = v->storage.count;
        s->element_bytes = globals[v->storage.type].bytes;
    }
    return 0;
}

static int read_keys(struct pickle *p, struct reading *r, const struct machine *object, struct err *e)
{
    struct machine *m;
    const struct value *keys, **all;
    size_t n;
    TRY(run_next(r, &m, &keys, e));
    int rc = machine_storages(object, &all, &n, e);
    if (rc == 0) {
        rc = list_storages(p, keys, all, n, e);
        free(all);
    }
    machine_free(m);
    return rc;
}

int pickle_read_old(struct pickle *ret, const void *data, size_t n, const char *part, struct err *e)
{
    struct reading r = {data, n};
    struct machine *m;
    const struct value *top;
    struct pickle p = {0};
    TRY(check_head(&r, e));
    TRY(run_next(&r, &m, &top, e));
    int rc = read_keys(&p, &r, m, e);
    if (rc == 0)
        rc = read_object(&p, top, part, e);
    machine_free(m);
    p.used = n - r.left;
    if (rc < 0) {
        pickle_free(&p);
        return rc;
    }
    *ret = p;
    return 0;
}
