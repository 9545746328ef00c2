/* Names that a stranger has chosen to fall into one bucket of an ordinary table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/seeded_hash.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 1000, BUCKETS = 4096 };

struct item {
    char name[16];
    UT_hash_handle hh;
};

/* As uthash hashes by itself. */
static unsigned plain_hash(const char *name)
{
    unsigned hash;
    HASH_JEN(name, strlen(name), hash);
    return hash;
}

static unsigned longest_chain(const struct item *table)
{
    unsigned longest = 0;
    for (unsigned i = 0; i < table->hh.tbl->num_buckets; i++)
        if (table->hh.tbl->buckets[i].count > longest)
            longest = table->hh.tbl->buckets[i].count;
    return longest;
}

static void chosen_names_share_no_bucket(void **s)
{
    static struct item items[NAMES];
    struct item *table = NULL;
    (void)s;
    for (unsigned n = 0, i = 0; n < NAMES; i++) {
        snprintf(items[n].name, sizeof items[n].name, "node%u", i);
        if (plain_hash(items[n].name) % BUCKETS != 0)
            continue;
        HASH_ADD_STR(table, name, &items[n]);
        n++;
    }
    printf("# %u names in %u buckets, at most %u in one\n", HASH_COUNT(table), table->hh.tbl->num_buckets,
           longest_chain(table));
    assert_true(longest_chain(table) < 30);
    for (unsigned i = 0; i < NAMES; i++) {
        struct item *found;
        HASH_FIND_STR(table, items[i].name, found);
        assert_ptr_equal(found, &items[i]);
    }
    HASH_CLEAR(hh, table);
}

static void every_byte_counts(void **s)
{
    char text[40];
    (void)s;
    for (size_t n = 0; n <= sizeof text; n++) {
        memset(text, 'a', sizeof text);
        unsigned before = seeded_hash(text, n);
        assert_int_equal(seeded_hash(text, n), before);
        for (size_t i = 0; i < n; i++) {
            text[i] ^= 1;
            assert_int_not_equal(seeded_hash(text, n), before);
            text[i] ^= 1;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen_names_share_no_bucket),
        cmocka_unit_test(every_byte_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
