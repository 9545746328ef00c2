/* See glob.h. Only the last '*' seen is ever gone back to. */
#include "rendezvousd/glob.h"

/* [set] at p (after the bracket): whether it holds c; *p moves behind it. An unclosed set ends with the pattern. */
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

/* Whether one element of the pattern (not '*') takes c; *p moves behind it. */
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

bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t text_len)
{
    const char *p = pattern, *p_end = p + pattern_len, *t = text, *t_end = t + text_len;
    const char *star = NULL, *star_text = NULL;
    while (t < t_end) {
        const char *next = p;
        if (p < p_end && *p == '*') {
            star = ++p;
            star_text = t;
        } else if (p < p_end && one(&next, p_end, *t)) {
            p = next;
            t++;
        } else if (star) {
            p = star;
            t = ++star_text;
        } else {
            return false;
        }
    }
    while (p < p_end && *p == '*')
        p++;
    return p == p_end;
}
