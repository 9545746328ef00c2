/* Leading a decision log: claiming it when nobody does, and the thread that runs the machine for all. See
 * rdzv_log_client.h. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/job/exitcode.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/rendezvous/rdzv_log_client.h"

#define JITTER_MS 20 /* before claiming what nobody leads */

long long log_client_pulse_number(const struct log_client *l, const char *key)
{
    return rdzv_field_number(l->pulse.data, l->pulse.len, key, 0);
}

static void *lead(void *arg)
{
    struct log_client *l = arg;
    struct log_leader *d = &l->leader;
    d->rc = rdzv_host_lead(d->home, &d->o, d->seen, &d->e);
    atomic_store(&d->over, true);
    rdzv_home_interrupt(l->home);
    return NULL;
}

static void set_home(struct log_client *l, struct rdzv_home *home)
{
    pthread_mutex_lock(&l->mutex);
    l->leader.home = home;
    pthread_mutex_unlock(&l->mutex);
}

static void close_home(struct log_client *l)
{
    struct rdzv_home *home = l->leader.home;
    set_home(l, NULL);
    home->ops->close(home);
}

static void start_leading(struct log_client *l)
{
    struct log_leader *d = &l->leader;
    atomic_store(&d->stop, false);
    atomic_store(&d->over, false);
    d->e = (struct err){0};
    d->o = (struct rdzv_host_options){.job = l->o.job,
                                      .node = l->o.node,
                                      .heartbeat_ms = l->o.heartbeat_ms,
                                      .was_member = l->knew_reign,
                                      .random = log_client_draw,
                                      .stop = &d->stop};
    memcpy(d->seen, l->view.epoch, sizeof d->seen);
    struct rdzv_home *home;
    if (log_client_open_home(l, &home, &d->e) < 0)
        return;
    set_home(l, home);
    d->running = log_client_start(&d->thread, lead, l) == 0;
    if (!d->running)
        close_home(l);
}

/* The home takes our beats but not our decisions (a full disk, a right that is missing): without a leader nobody would
 * ever be answered. */
static void cannot_lead(struct log_client *l, const char *why)
{
    int64_t now = clock_ms();
    l->leaderless = l->leaderless ? l->leaderless : now;
    log_client_post_trouble(l, now, why, l->seat.works ? 0 : l->leaderless + l->o.connect_ms - now);
    if (!l->seat.works && !l->ended && now - l->leaderless >= l->o.connect_ms)
        log_client_fail_in_time(l, why);
}

void log_client_end_leading(struct log_client *l, bool now)
{
    struct log_leader *d = &l->leader;
    if (!d->running || (!now && !atomic_load(&d->over)))
        return;
    atomic_store(&d->stop, true);
    rdzv_home_interrupt(d->home);
    pthread_join(d->thread, NULL);
    close_home(l);
    d->running = false;
    l->claim_at = clock_ms() + l->o.heartbeat_ms / 4;
    if (d->rc >= 0)
        return;
    l->pulse_moved = 0; /* nobody leads: claim again soon */
    if (!now && d->rc == ERR_REFUSED && !l->answered) {
        log_client_fail(l, EXIT_USAGE_ERROR, d->e.text); /* the home will not do: nobody could lead there */
        return;
    }
    log_client_post_text(l, ITEM_LOG, 0, d->e.text); /* loggers are the loop's */
    if (!now)
        cannot_lead(l, d->e.text);
}

/* Does nobody lead? A little chance decides who asks first. */
void log_client_watch_leader(struct log_client *l, int64_t now)
{
    bool none = !l->view.epoch[0] || log_client_pulse_number(l, "free") > 0;
    l->knew_reign |= l->view.epoch[0] != 0;
    int64_t patience = l->o.job.silence_ms + (int64_t)(log_client_draw(NULL) % (uint64_t)(l->o.heartbeat_ms / 2 + 1));
    log_client_end_leading(l, false);
    if (l->view.pulse.len != l->pulse.len ||
        (l->pulse.len && memcmp(l->view.pulse.data, l->pulse.data, l->pulse.len) != 0)) {
        buf_clear(&l->pulse);
        buf_add(&l->pulse, l->view.pulse.data ? l->view.pulse.data : "", l->view.pulse.len);
        l->pulse_moved = now;
        l->leaderless = log_client_pulse_number(l, "n") > 0 ? 0 : l->leaderless;
        none = !l->view.epoch[0] || log_client_pulse_number(l, "free") > 0;
    }
    if (l->leader.running || l->ended || (!none && now - l->pulse_moved < patience)) {
        l->claim_at = none ? l->claim_at : 0;
        return;
    }
    if (!l->claim_at)
        l->claim_at = now + (int64_t)(log_client_draw(NULL) % (uint64_t)(JITTER_MS + l->o.job.max_nodes / 5));
    else if (now >= l->claim_at)
        start_leading(l);
}
