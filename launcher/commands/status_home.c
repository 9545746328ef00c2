/* See status_home.h. */
#include "launcher/commands/status_home.h"

#include <cjson/cJSON.h>
#include <errno.h>

#include "common/base/err.h"
#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/leader/rdzv_host.h"
#include "common/rdzv/machine/rdzv.h"

#define KEEP_MS 3600000

static const char *condition(const struct rdzv_member *m)
{
    return m->silent ? "silent" : m->done ? "done" : m->leaving ? "leaving" : m->ready ? "ready" : "running";
}

static int add_node(void *arg, const struct rdzv_member *m)
{
    cJSON *o = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(arg, o)) {
        cJSON_Delete(o);
        return -ENOMEM;
    }
    cJSON_AddStringToObject(o, "id", m->node);
    cJSON_AddStringToObject(o, "addr", m->addr);
    cJSON_AddNumberToObject(o, "slots", m->slots);
    cJSON_AddBoolToObject(o, "member", m->member);
    cJSON_AddNumberToObject(o, "rank_base", m->rank_base);
    cJSON_AddStringToObject(o, "state", condition(m));
    return 0;
}

static int to_json(const struct rdzv *machine, const char *run, char **ret, struct err *e)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "run", run);
    cJSON_AddStringToObject(o, "state", rdzv_state_name(rdzv_state(machine)));
    cJSON_AddNumberToObject(o, "round", (double)rdzv_round(machine));
    cJSON_AddNumberToObject(o, "restart_count", rdzv_restarts(machine));
    cJSON *nodes = cJSON_AddArrayToObject(o, "nodes");
    int rc = nodes ? rdzv_members(machine, add_node, nodes) : -ENOMEM;
    *ret = rc == 0 ? cJSON_PrintUnformatted(o) : NULL;
    cJSON_Delete(o);
    return *ret ? 0 : err_set(e, -ENOMEM, "no memory for the status of a job");
}

int status_read_home(const char *url, const char *run, int64_t timeout_ms, char **ret, struct err *e)
{
    struct rdzv_home *home;
    struct rdzv *machine;
    TRY(rdzv_home_open(&home, url,
                       &(struct rdzv_home_options){.run_id = run, .io_timeout_ms = timeout_ms, .keep_ms = KEEP_MS}, e));
    int rc = rdzv_host_read(home, &machine, e);
    if (rc == 0) {
        rc = to_json(machine, run, ret, e);
        rdzv_destroy(machine);
    }
    home->ops->close(home);
    return rc < 0 ? err_wrap(e, "run '%s'", run) : 0;
}
