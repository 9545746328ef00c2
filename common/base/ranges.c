#include "common/base/ranges.h"

#include <stdbool.h>
#include <stdio.h>

void ranges_add(struct ranges *r, int number)
{
    const bool follows = r->len > 0 && number == r->last + 1;
    const size_t at = follows ? r->at : r->len, left = r->cap - at;
    const char *comma = at > 0 ? "," : "";
    r->first = follows ? r->first : number;
    r->last = number;
    r->at = at;
    const int n = follows ? snprintf(r->out + at, left, "%s%d-%d", comma, r->first, number)
                          : snprintf(r->out + at, left, "%s%d", comma, number);
    r->len = at + ((size_t)n < left ? (size_t)n : left - 1);
}
