/* Keeps the findings of crun doctor, their names and their remedies (findings.h). */
#include "launcher/tools/doctor/findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/array.h"

static const struct {
    const char *name, *remedy;
} table[] = {
#define X(id, name, remedy) {name, remedy},
    FINDINGS(X)
#undef X
};

void findings_add(struct findings *f, enum finding_id id, const char *host, const char *fmt, ...)
{
    char *what, *text;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&what, fmt, ap) < 0 || asprintf(&text, "%s: %s", host, what) < 0 ||
        ARRAY_RESERVE(f->v, f->cap, f->n + 1) < 0)
        abort();
    va_end(ap);
    free(what);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?'; /* a foreign text must not control the terminal */
    f->v[f->n++] = (struct finding){id, text};
}

const char *finding_name(enum finding_id id)
{
    return table[id].name;
}

const char *finding_remedy(enum finding_id id)
{
    return table[id].remedy;
}

void findings_free(struct findings *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->v[i].text);
    free(f->v);
    *f = (struct findings){0};
}
