/* What all nodes of the job must agree on. */
#include "common/rdzv/machine/rdzv.h"
#include "launcher/config/config.h"

#define BACKOFF_MAX_MS 30000
#define BACKOFF_RESET_MS 10000
#define KILL_MS 1000

int64_t config_join_timeout_ms(const struct config *c)
{
    const int64_t margin_ms = 60000;
    const int64_t stopping_ms = stops_longest_ms(&c->stops) + margin_ms;
    if (c->conf.join_timeout_typed || stopping_ms <= c->conf.join_timeout_ms)
        return c->conf.join_timeout_ms;
    return stopping_ms;
}

bool config_holds(const struct config *c)
{
    return c->recovery == CONFIG_RECOVERY_INPROCESS && (c->max_restarts > 0 || c->nnodes.max > c->nnodes.min);
}

int config_spares(const struct config *c)
{
    return config_holds(c) ? (int)c->warm_spares : 0;
}

static enum rdzv_order order(const struct config *c)
{
    switch (c->rank_order) {
    case CONFIG_ORDER_HOST:
        return RDZV_ORDER_HOST;
    case CONFIG_ORDER_JOIN:
        return RDZV_ORDER_JOIN;
    case CONFIG_ORDER_NODE_RANK:
        return RDZV_ORDER_NODE_RANK;
    default:
        return c->home.node_rank >= 0 ? RDZV_ORDER_NODE_RANK : RDZV_ORDER_HOST;
    }
}

void config_job(const struct config *c, struct rdzv_config *ret)
{
    *ret = (struct rdzv_config){
        .min_nodes = c->nnodes.min,
        .max_nodes = c->nnodes.max,
        .max_restarts = (int)c->max_restarts,
        .max_node_failures = (int)c->max_node_failures,
        .restart_window_ms = (int64_t)(c->restart_window * 1000),
        .backoff_ms = (int64_t)(c->restart_backoff * 1000),
        .backoff_max_ms = BACKOFF_MAX_MS,
        .backoff_reset_ms = BACKOFF_RESET_MS,
        .order = order(c),
        .join_timeout_ms = config_join_timeout_ms(c),
        .last_call_ms = c->conf.last_call_timeout_ms,
        .silence_ms = c->conf.keep_alive_interval_ms * c->conf.keep_alive_max_attempt,
        .kill_ms = KILL_MS,
        .first_round = 1,
    };
}
