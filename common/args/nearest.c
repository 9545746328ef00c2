/* Finds the known word that is nearest to a mistyped one (nearest.h). */
#include "common/args/nearest.h"

#include <string.h>

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* Levenshtein distance; a name longer than the row counts as infinitely far. */
static size_t edit_distance(const char *a, size_t n, const char *b)
{
    enum { ROW = 64 };
    size_t m = strlen(b), row[ROW + 1];
    if (m > ROW || n > ROW)
        return ROW;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[m];
}

void nearest_begin(struct nearest *s, const char *typed, size_t n)
{
    *s = (struct nearest){.typed = typed, .n = n, .limit = n < 6 ? 3 : n / 3 + 2};
}

/* A word is near if at most every second letter is wrong. */
void nearest_try(struct nearest *s, const char *word)
{
    const size_t d = edit_distance(s->typed, s->n, word);
    if (d >= s->limit || 2 * d > s->n + 1)
        return;
    s->limit = d;
    s->word = word;
}
