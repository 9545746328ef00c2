#include "launcher/agent/agent_http.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/http/http_auth.h"
#include "common/http/http_server.h"
#include "common/include/crun.h"
#include "launcher/agent/run.h"
#include "launcher/config/config.h"
#include "launcher/output/logmux.h"
#include "launcher/rendezvous/rendezvous.h"

/* What this state waits for. */
static const char *waits(const struct run *r, char *text, size_t cap)
{
    switch (r->agent.state) {
    case AGENT_IDLE:
    case AGENT_JOINING:
        return r->waits_for[0] ? r->waits_for : "the rendezvous has not answered yet";
    case AGENT_RUNNING:
        return "the workers are being started";
    case AGENT_STOPPING:
        snprintf(text, cap, "%d of %d workers have yet to end", r->agent.live, r->agent.slots);
        return text;
    case AGENT_CLEARING:
        return "all workers exited with 0; what they left behind is ended";
    case AGENT_FINISHING:
        return "the workers of this node are done; other nodes still run";
    case AGENT_PARTING:
        return "this node leaves the job";
    default:
        snprintf(text, cap, "exit code %d%s", r->exit_code,
                 rendezvous_hosts(r->rendezvous) ? "; other nodes have yet to hear of the end" : "");
        return text;
    }
}

bool agent_readiness(const struct run *r, char *out, size_t cap)
{
    char text[128];
    const bool ready = r->agent.state == AGENT_RUNNING && r->timeline.spawned;
    if (ready)
        snprintf(out, cap, "ready");
    else
        snprintf(out, cap, "%s: %s", agent_state_name(r->agent.state), waits(r, text, sizeof text));
    return ready;
}

static int health(void *arg, struct http_answer *a)
{
    return buf_addstr(&a->body, "ok\n");
}

static int readiness(void *arg, struct http_answer *a)
{
    char text[512];
    a->status = agent_readiness(arg, text, sizeof text) ? 200 : 503;
    return buf_printf(&a->body, "%s\n", text);
}

static int metrics(void *arg, struct http_answer *a)
{
    a->type = HTTP_PROMETHEUS;
    return agent_metrics(arg, &a->body);
}

static const struct http_page pages[] = {
    {"/healthz", health, true},
    {"/readyz", readiness, true},
    {"/metrics", metrics, false},
};

int agent_http_open(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    const struct http_server_options o = {.name = "crun",
                                          .bind = c->http_bind,
                                          .port = (int)c->http_port,
                                          .token_file = c->http_token_file,
                                          .any_host = c->http_insecure,
                                          .pages = pages,
                                          .n_pages = sizeof pages / sizeof *pages,
                                          .arg = r};
    char url[96];
    int port;
    if (c->http_port < 0)
        return 0;
    int rc = http_server_open(&r->http, &r->loop, &o, &port, e);
    if (rc == -EADDRINUSE)
        return err_set(e, rc, "--http-port %d: another process listens there; --http-port 0 takes a free port",
                       (int)c->http_port);
    if (rc < 0)
        return err_wrap(e, "--http-port");
    if (c->http_port == 0)
        logmux_say(r->mux, "health and metrics on %s", http_auth_url(c->http_bind, port, url, sizeof url));
    return 0;
}

void agent_http_close(struct run *r)
{
    http_server_close(r->http);
    r->http = NULL;
}
