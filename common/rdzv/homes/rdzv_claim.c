/* Claims as text, and how epochs compare. See rdzv_claim.h. */
#include "common/rdzv/homes/rdzv_claim.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_record.h"

static const struct rdzv_field fields[] = {
    RDZV_TEXT(RDZV_ALL, struct rdzv_claim, "epoch", epoch),
    RDZV_NUMBER(RDZV_ALL, struct rdzv_claim, "n", n, 0, INT64_MAX, LLONG_MIN),
    RDZV_NUMBER(RDZV_ALL, struct rdzv_claim, "hold", hold_ms, 0, INT64_MAX, 0),
    RDZV_NUMBER(RDZV_ALL, struct rdzv_claim, "released", released, 0, 1, 0),
    RDZV_NUMBER(RDZV_ALL, struct rdzv_claim, "held", held, 0, 1, 0),
    RDZV_NUMBER(RDZV_ALL, struct rdzv_claim, "away", away_ms, 0, 3600000, 0),
    RDZV_NUMBER(RDZV_ALL, struct rdzv_claim, "port", port, 0, 65535, 0),
    RDZV_TEXT(RDZV_ALL, struct rdzv_claim, "addrs", addrs),
    RDZV_TEXT(RDZV_ALL, struct rdzv_claim, "node", node),
};

int rdzv_claim_encode(const struct rdzv_claim *c, struct buf *out)
{
    return rdzv_record_write(out, fields, sizeof fields / sizeof *fields, RDZV_ALL, c);
}

int rdzv_claim_decode(const char *p, size_t n, struct rdzv_claim *ret, struct err *e)
{
    *ret = (struct rdzv_claim){0};
    return rdzv_record_read(p, n, fields, sizeof fields / sizeof *fields, ret, e);
}

bool rdzv_claim_is(const struct rdzv_claim *a, const struct rdzv_claim *b)
{
    return strcmp(a->epoch, b->epoch) == 0 && a->n == b->n && a->released == b->released;
}

uint64_t rdzv_epoch_number(const char *epoch)
{
    return strtoull(epoch, NULL, 10);
}

bool rdzv_epoch_is_foreign(const char *epoch, const char *than)
{
    const uint64_t a = rdzv_epoch_number(epoch), b = rdzv_epoch_number(than);
    return a > b || (a == b && a > 0 && strcmp(epoch, than) != 0);
}
