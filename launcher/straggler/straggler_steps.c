/* Reads ten steps from a worker's page, and converts steps to text and back (straggler_steps.h). */
#include "launcher/straggler/straggler_steps.h"

#include <ctype.h>
#include <stdlib.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/crun/crun_page.h"
#include "common/include/crun.h"

/* The sum of the computing parts, limited to UINT32_MAX: steps may last hours. */
static uint32_t computed(const uint32_t us[CRUN_PAGE_PARTS])
{
    const uint64_t all = (uint64_t)us[CRUN_PART_FORWARD] + us[CRUN_PART_BACKWARD] + us[CRUN_PART_UPDATE];
    return all < UINT32_MAX ? (uint32_t)all : UINT32_MAX;
}

bool straggler_steps_read(struct crun_page *p, uint64_t last, struct straggler_rank *ret)
{
    uint32_t us[CRUN_PAGE_PARTS];
    *ret = (struct straggler_rank){0};
    if (last < STRAGGLER_STEPS || atomic_load_explicit(&p->parts, memory_order_relaxed) == 0)
        return false;
    for (int k = 0; k < STRAGGLER_STEPS; k++) {
        if (!crun_page_read_row(p, last - STRAGGLER_STEPS + 1 + (uint64_t)k, us))
            return false;
        ret->data_us[k] = us[CRUN_PART_DATA];
        ret->compute_us[k] = computed(us);
        ret->wait_us[k] = us[CRUN_PART_WAIT];
    }
    ret->best_us = atomic_load_explicit(&p->link_us[0], memory_order_relaxed);
    ret->worst_us = atomic_load_explicit(&p->link_us[1], memory_order_relaxed);
    ret->known = true;
    return true;
}

/* --- as text */

int straggler_steps_write(struct buf *out, uint64_t last, int base, const struct straggler_rank *v, int n)
{
    TRY(buf_printf(out, "%llu %d %d", (unsigned long long)last, base, n));
    for (int i = 0; i < n; i++) {
        TRY(buf_printf(out, " %u %u", v[i].best_us, v[i].worst_us));
        for (int k = 0; k < STRAGGLER_STEPS; k++)
            TRY(buf_printf(out, " %u %u %u", v[i].data_us[k], v[i].compute_us[k], v[i].wait_us[k]));
    }
    return 0;
}

struct numbers { /* of a text that is not ended */
    const char *at, *end;
    bool bad;
};

static uint64_t next_number(struct numbers *t, uint64_t most)
{
    uint64_t v = 0;
    const char *from;
    if (t->at < t->end && *t->at == ' ')
        t->at++;
    for (from = t->at; t->at < t->end && isdigit((unsigned char)*t->at) && v <= most / 10; t->at++)
        v = 10 * v + (uint64_t)(*t->at - '0');
    t->bad = t->bad || t->at == from || v > most || (t->at < t->end && *t->at != ' ');
    return v;
}

static void parse_rank(struct numbers *t, struct straggler_rank *r)
{
    r->best_us = (uint32_t)next_number(t, UINT32_MAX);
    r->worst_us = (uint32_t)next_number(t, UINT32_MAX);
    for (int k = 0; k < STRAGGLER_STEPS; k++) {
        r->data_us[k] = (uint32_t)next_number(t, UINT32_MAX);
        r->compute_us[k] = (uint32_t)next_number(t, UINT32_MAX);
        r->wait_us[k] = (uint32_t)next_number(t, UINT32_MAX);
    }
    r->known = !t->bad;
}

bool straggler_steps_parse(const char *text, size_t n, struct straggler_rank *v, int world, uint64_t *ret_last)
{
    struct numbers t = {.at = text, .end = text + n};
    const uint64_t last = next_number(&t, INT64_MAX), base = next_number(&t, INT32_MAX),
                   count = next_number(&t, INT32_MAX);
    if (t.bad || base + count > (uint64_t)world)
        return false;
    for (uint64_t i = 0; i < count && !t.bad; i++) {
        parse_rank(&t, &v[base + i]);
        v[base + i].node = (int)base;
    }
    *ret_last = last;
    return !t.bad && t.at == t.end;
}
