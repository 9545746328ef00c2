/* Receives notices that this node will be taken away, and turns them into events of the agent (notices.h). */
#include "launcher/agent/notices.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

#include "common/base/container_of.h"
#include "common/base/err.h"
#include "launcher/agent/effects.h"
#include "launcher/agent/run.h"
#include "launcher/base/ending.h"
#include "launcher/config/config.h"
#include "launcher/observe/events.h"

struct notices {
    struct run *run;
    uv_timer_t limit, file;
    enum notice first; /* the notice that counts: the first */
};

void notices_came(struct run *r, enum notice n)
{
    struct notices *s = r->notices;
    if (s->first == NOTICE_NONE)
        s->first = n;
    if (run_is_done(r))
        return;
    effects_wish(r);
    if (n != NOTICE_SIGNAL)
        events_notice(r->events, n == NOTICE_FILE ? "preemption-file" : "time-limit");
    run_post(r, &(struct agent_event){.kind = AGENT_PREEMPTED});
}

bool notices_has(const struct run *r)
{
    return r->notices->first != NOTICE_NONE;
}

const char *notices_text(const struct run *r, char out[NOTICES_TEXT_MAX])
{
    const struct stops *s = &r->config->stops;
    char name[32];
    switch (r->notices->first) {
    case NOTICE_NONE:
        return NULL;
    case NOTICE_SIGNAL:
        snprintf(out, NOTICES_TEXT_MAX, "%s, a preemption notice", signal_text(s->preempt, name, sizeof name));
        break;
    case NOTICE_FILE:
        snprintf(out, NOTICES_TEXT_MAX, "the file of --preemption-file, a preemption notice");
        break;
    case NOTICE_TIME:
        snprintf(out, NOTICES_TEXT_MAX, "%.0f s, the time limit", s->time_limit);
        break;
    }
    return out;
}

static void on_limit(uv_timer_t *t)
{
    struct run *r = container_of(t, struct notices, limit)->run;
    notices_came(r, NOTICE_TIME);
    run_pump(r);
}

static void on_file(uv_timer_t *t)
{
    struct run *r = container_of(t, struct notices, file)->run;
    notices_came(r, NOTICE_FILE);
    run_pump(r);
}

void notices_file_found(struct run *r)
{
    uv_timer_start(&r->notices->file, on_file, 0, 0);
}

int notices_open(struct run *r, struct err *e)
{
    const double seconds = r->config->stops.time_limit;
    struct notices *s = calloc(1, sizeof *s);
    if (!s)
        return err_errno(e, ENOMEM, "agent");
    s->run = r;
    uv_timer_init(&r->loop, &s->limit);
    uv_unref((uv_handle_t *)&s->limit);
    uv_timer_init(&r->loop, &s->file);
    uv_update_time(&r->loop);
    if (seconds > 0)
        uv_timer_start(&s->limit, on_limit, (uint64_t)(seconds * 1000), 0);
    r->notices = s;
    return 0;
}

void notices_close(struct run *r)
{
    if (!r->notices)
        return;
    uv_close((uv_handle_t *)&r->notices->limit, NULL);
    uv_close((uv_handle_t *)&r->notices->file, NULL);
}

void notices_free(struct run *r)
{
    free(r->notices);
    r->notices = NULL;
}
