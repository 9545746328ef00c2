/* The failure report's view of the agent: its callbacks, and the job's state at a failure (report/failure_report.h). */
#include "launcher/agent/failures.h"

#include <stdio.h>
#include <stdlib.h>

#include "launcher/agent/effects.h"
#include "launcher/agent/member.h"
#include "launcher/agent/round.h"
#include "launcher/agent/run.h"
#include "launcher/agent/signals.h"
#include "launcher/base/program.h"
#include "launcher/config/config.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/procs.h"
#include "launcher/hang/hang_watch.h"
#include "launcher/observe/gauges.h"
#include "launcher/output/logmux.h"
#include "launcher/rendezvous/rdzv_dial.h"
#include "launcher/report/causes.h"
#include "launcher/report/failure_report.h"

static const char *error_path(void *arg, int local)
{
    return group_error_path(((const struct run *)arg)->group, local);
}

static const char *error_text(void *arg, int local)
{
    return group_error_text(((const struct run *)arg)->group, local);
}

static const struct crun_page *page(void *arg, int local)
{
    return group_page(((const struct run *)arg)->group, local);
}

static const char *hang_text(void *arg)
{
    return hang_watch_text(((const struct run *)arg)->hang);
}

static const char *output_text(void *arg, char out[FAILURE_OUTPUT_MAX])
{
    char where[PROC_WAIT_MAX];
    const pid_t pid = logmux_pid(((const struct run *)arg)->mux);
    if (pid)
        snprintf(out, FAILURE_OUTPUT_MAX, "crun's output process (pid %d, state %c%s)", (int)pid, proc_state(pid),
                 proc_wait_text(pid, where));
    else
        snprintf(out, FAILURE_OUTPUT_MAX, "crun's output process (none is there)");
    return out;
}

static struct causes_machine machine(void *arg)
{
    struct gauges_page *p = ((const struct run *)arg)->link->gauges_page;
    struct gauges_faults f;
    struct gauges_link link;
    struct causes_machine m = {0};
    if (gauges_read_faults(p, &f)) {
        m.xid = f.xid;
        m.xid_ms = f.xid_ms;
        snprintf(m.xid_pci, sizeof m.xid_pci, "%s", f.xid_pci);
        snprintf(m.remap_pci, sizeof m.remap_pci, "%s", f.remap_pci);
    }
    if (gauges_read_link(p, &link)) {
        m.link_ms = link.ms;
        m.link_down = link.down;
        snprintf(m.link, sizeof m.link, "%s", link.text);
    }
    return m;
}

const char *failures_down_link(const struct run *r, char out[FAILURES_LINK_MAX])
{
    struct gauges_link link;
    const bool is_down = gauges_read_link(r->link->gauges_page, &link) && link.down;
    snprintf(out, FAILURES_LINK_MAX, "%s%s", is_down ? "; " : "", is_down ? link.text : "");
    return out;
}

static void find_leader(void *arg, const struct rdzv_news *news, struct endpoint *ret)
{
    member_leader_endpoint(arg, news, ret);
}

static int serve(void *arg, const struct rdzv_news *news, struct err *e)
{
    return member_serve(arg, news, e);
}

static int reached(void *arg)
{
    return member_reached(arg);
}

static void publish(void *arg, const char *text)
{
    member_publish_failure(arg, text);
}

/* The error file of crun itself, if it is a worker of torchrun, of another crun, or of a scheduler that sets the
 * variable. */
static const char *own_error_file(void)
{
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    return path && *path ? path : NULL;
}

int failures_open(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    const struct failure_report_options o = {.loop = &r->loop,
                                             .mux = r->mux,
                                             .logs = &r->logs,
                                             .failure_file = c->failure_file,
                                             .error_file = own_error_file(),
                                             .run_id = c->run_id,
                                             .node = r->node,
                                             .host = r->host,
                                             .program = r->program->name,
                                             .program_path = r->program->path,
                                             .max_restarts = (int)c->max_restarts,
                                             .restart_window = c->restart_window,
                                             .oom = &r->oom,
                                             .hurry = signals_hurry(r),
                                             .error_path = error_path,
                                             .error_text = error_text,
                                             .page = page,
                                             .hang_text = hang_text,
                                             .output_text = output_text,
                                             .machine = machine,
                                             .find_leader = find_leader,
                                             .serve = serve,
                                             .reached = reached,
                                             .publish = publish,
                                             .arg = r};
    return failure_report_open(&r->failures, &o, e);
}

static struct failure_scene scene_of(const struct run *r)
{
    return (struct failure_scene){.round = round_news(r),
                                  .end = member_end(r),
                                  .workers = group_workers(r->group),
                                  .n = r->agent.slots,
                                  .live = r->agent.live,
                                  .unstarted = round_is_unstarted(r),
                                  .refused = member_refused(r),
                                  .exit_code = run_exit_code(r)};
}

void failures_send_early(struct run *r)
{
    const struct failure_scene now = scene_of(r);
    failure_report_send_early(r->failures, &now);
}

void failures_finish(struct run *r)
{
    const struct failure_scene now = scene_of(r);
    failure_report_finish(r->failures, &now);
}
