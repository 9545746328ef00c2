/* Matches names of parameters with patterns of the shell. */
#include "worker/program/patterns.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "worker/program/program.h"

#define FACTOR_MOST 1000.0

enum { PATTERN_MAX = 127 }; /* bytes */

struct one {
    char pattern[PATTERN_MAX + 1], factor[32];
    size_t length; /* of the pattern */
};

/* The pattern at *at, which goes to the one behind it, and what stands behind its '='. False: there is none. */
static bool next(const char **at, struct one *ret)
{
    if (!*at)
        return false;
    const size_t n = strcspn(*at, ","), length = strcspn(*at, ",=");
    ret->length = length;
    snprintf(ret->pattern, sizeof ret->pattern, "%.*s", length > PATTERN_MAX ? PATTERN_MAX : (int)length, *at);
    snprintf(ret->factor, sizeof ret->factor, "%.*s", length < n ? (int)(n - length - 1) : 0,
             length < n ? *at + length + 1 : "");
    *at = (*at)[n] ? *at + n + 1 : NULL;
    return true;
}

static bool fits(const struct one *p, const char *name)
{
    return fnmatch(p->pattern, name, 0) == 0;
}

bool patterns_fit(const char *list, const char *name)
{
    bool any = false;
    for (struct one p; next(&list, &p);)
        any |= fits(&p, name);
    return any;
}

double patterns_factor(const char *list, const char *name)
{
    double factor = 1;
    for (struct one p; next(&list, &p);)
        if (fits(&p, name))
            parse_f64(p.factor, "factor", 0, FACTOR_MOST, &factor, NULL);
    return factor;
}

int patterns_check(const char *option, const char *list, bool factors, struct err *e)
{
    double factor = 1;
    for (struct one p; next(&list, &p);) {
        if (p.length == 0 || p.length > PATTERN_MAX)
            return err_set(e, ERR_USAGE, "--%s: a pattern of %zu bytes (expected 1 to %d)", option, p.length,
                           PATTERN_MAX);
        if (!factors && p.factor[0])
            return err_set(e, ERR_USAGE, "--%s: '%s=%s' (expected patterns of names, with commas between them)", option,
                           p.pattern, p.factor);
        if (factors && (parse_f64(p.factor, "factor", 0, FACTOR_MOST, &factor, NULL) < 0))
            return err_set(e, ERR_USAGE, "--%s: '%s=%s' (expected PATTERN=FACTOR, a number from 0 to %g)", option,
                           p.pattern, p.factor, FACTOR_MOST);
    }
    return 0;
}

int patterns_check_model(const char *option, const char *list, const struct program *p, struct err *e)
{
    for (struct one one; next(&list, &one);) {
        bool any = false;
        for (int i = 0; i < p->nparams; i++)
            any |= p->params[i].role == PARAM_TRAIN && fits(&one, p->params[i].name);
        if (!any)
            return err_set(e, ERR_USAGE, "--%s: '%s' is the name of no parameter of %s (expected names as '%s')",
                           option, one.pattern, p->arch, p->nparams > 0 ? p->params[0].name : "");
    }
    return 0;
}
