/* Finds what stands before the names of a model in a file of weights. */
#include "worker/weights/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "worker/weights/pickle_read.h"

struct hit { /* a name whose end is wanted */
    const char *name;
    size_t length; /* of what stands before that end */
};

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_beginning(const void *a, const void *b)
{
    const struct hit *x = a, *y = b;
    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    return x->length ? memcmp(x->name, y->name, x->length) : 0;
}

/* A hit for every end of the name, behind a dot or whole, that is wanted. */
static int add_hits(const char *name, const char *const *wanted, size_t n_wanted, struct hit **hits, size_t *n,
                    size_t *cap, struct err *e)
{
    for (const char *end = name; end; end = strchr(end, '.') ? strchr(end, '.') + 1 : NULL)
        if (bsearch(&end, wanted, n_wanted, sizeof *wanted, by_text)) {
            TRY(ARRAY_GROW(*hits, *cap, *n + 1, "names", e));
            (*hits)[(*n)++] = (struct hit){name, (size_t)(end - name)};
        }
    return 0;
}

/* Of sorted hits. */
static int choose(const struct hit *hits, size_t n, struct hit *ret, size_t *ret_found, struct err *e)
{
    const struct hit *other = NULL;
    *ret_found = 0;
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && by_beginning(&hits[i], &hits[end]) == 0;)
            end++;
        if (end - i > *ret_found) {
            *ret = hits[i];
            *ret_found = end - i;
            other = NULL;
        } else if (end - i == *ret_found && memcmp(hits[i].name, ret->name, ret->length) != 0) {
            other = &hits[i];
        }
    }
    return !other ? 0
                  : err_set(e, ERR_MISMATCH,
                            "names behind '%.*s' and names behind '%.*s' fit this model equally: say which to take "
                            "(" PICKLE_PART_OPTIONS ")",
                            (int)ret->length, ret->name, (int)other->length, other->name);
}

int prefix_find(const char *const *names, size_t n, const char *const *wanted, size_t n_wanted, const char **ret_name,
                size_t *ret_length, size_t *ret_found, struct err *e)
{
    struct hit *hits = NULL, best = {"", 0};
    size_t n_hits = 0, cap = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = add_hits(names[i], wanted, n_wanted, &hits, &n_hits, &cap, e);
    if (rc == 0 && n_hits)
        qsort(hits, n_hits, sizeof *hits, by_beginning);
    if (rc == 0)
        rc = choose(hits, n_hits, &best, ret_found, e);
    free(hits);
    *ret_name = best.name;
    *ret_length = best.length;
    return rc;
}
