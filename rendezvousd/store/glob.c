/* Matches Redis' key patterns (glob.h). After a mismatch only the newest '*' is tried again. */
#include "rendezvousd/store/glob.h"

/* Does the [set] at p (after the bracket) contain c? *p moves behind it. An unclosed set ends with the pattern. */
static bool in_set(const char **p, const char *end, unsigned char c)
{
    bool negated = *p < end && **p == '^', found = false;
    const char *s = *p + negated;
    while (s < end && *s != ']') {
        if (*s == '\\' && s + 1 < end)
            s++;
        unsigned char lo = (unsigned char)*s, hi = lo;
        if (end - s > 2 && s[1] == '-') {
            hi = (unsigned char)s[2];
            s += 2;
        }
        if (lo > hi) {
            unsigned char t = lo;
            lo = hi;
            hi = t;
        }
        found |= lo <= c && c <= hi;
        s++;
    }
    *p = s < end ? s + 1 : s;
    return found != negated;
}

/* Does one element of the pattern (not '*') match c? *p moves behind it. */
static bool one(const char **p, const char *end, char c)
{
    char e = *(*p)++;
    if (e == '?')
        return true;
    if (e == '[')
        return in_set(p, end, (unsigned char)c);
    if (e == '\\' && *p < end)
        e = *(*p)++;
    return e == c;
}

static bool spend(uint64_t n, uint64_t *work)
{
    *work -= n < *work ? n : *work;
    return *work > 0;
}

bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t text_len, uint64_t *work)
{
    const char *p = pattern, *p_end = p + pattern_len, *t = text, *t_end = t + text_len;
    const char *star = NULL, *star_text = NULL;
    while (t < t_end && star != p_end) { /* a star at the pattern's end matches the rest */
        const char *next = p;
        bool is_star = p < p_end && *p == '*', fits = !is_star && p < p_end && one(&next, p_end, *t);
        if (!spend((uint64_t)(next - p) + 1, work)) /* a set may be long */
            return false;
        if (is_star) {
            star = ++p;
            star_text = t;
        } else if (fits) {
            p = next;
            t++;
        } else if (star) {
            p = star;
            t = ++star_text;
        } else {
            return false;
        }
    }
    for (; p < p_end && *p == '*'; p++)
        if (!spend(1, work))
            return false;
    return p == p_end;
}
