/* Makes the lines of the event log (event_log.h). */
#include "launcher/observe/event_log.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/utf8.h"

#define LINE_MAX_BYTES (40u << 10) /* of one message to the output process */

struct event_log {
    struct event_log_options o;
    struct buf line;
    struct json_write w;
};

int event_log_create(struct event_log **ret, const struct event_log_options *o, struct err *e)
{
    struct event_log *l = calloc(1, sizeof *l);
    if (!l)
        return err_errno(e, ENOMEM, "event log");
    l->o = *o;
    buf_init(&l->line, LINE_MAX_BYTES);
    *ret = l;
    return 0;
}

struct json_write *event_log_begin(struct event_log *l, const char *kind)
{
    char now[CLOCK_ISO_LEN];
    if (!l)
        return NULL;
    buf_clear(&l->line);
    l->w = (struct json_write){.out = &l->line};
    json_begin(&l->w, NULL, '{');
    json_text(&l->w, "time", clock_iso(now, sizeof now));
    json_int(&l->w, "mono_ns", clock_ns());
    json_text(&l->w, "event", kind);
    json_text(&l->w, "run_id", l->o.run_id);
    json_text(&l->w, "node", l->o.node);
    return &l->w;
}

void event_log_end(struct event_log *l)
{
    if (!l)
        return;
    json_end(&l->w, '}');
    if (l->w.rc == 0)
        l->w.rc = buf_addstr(&l->line, "\n");
    if (l->w.rc == 0)
        utf8_clean(l->line.data);
    l->o.write(l->o.arg, l->w.rc == 0 ? l->line.data : NULL, l->w.rc == 0 ? l->line.len : 0);
}

void event_log_destroy(struct event_log *l)
{
    if (!l)
        return;
    buf_free(&l->line);
    free(l);
}
