/* The daemon around the leader's reign (common/rdzv/leader/rdzv_reign.h), as rendezvousd/jobs is one: messages become
 * its events, a member's news go out with every answer until it has seen them. In memory, or with a directory: then
 * every decision is written before it is told, and a daemon that was killed goes on from them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "tests/sim/sim_impl.h"

enum { KEEP_BYTES = 65536, LATE_MS = 500 };

int64_t sim_host_clock(const struct world *w)
{
    return w->now + w->host_skew;
}

bool sim_is_over(const struct world *w)
{
    return w->reign.leader && leader_is_over(w->reign.leader);
}

/* --- what a step of the machine did */

static void lose(struct world *w, const struct agent *a)
{
    struct account *acc = &w->account;
    int n = 0;
    for (int i = 0; i < acc->order_count; i++)
        if (acc->order[i] != a - w->agents)
            acc->order[n++] = acc->order[i];
    acc->order_count = n;
}

static void refresh_known(struct world *w)
{
    if (rdzv_nodes(w->rdzv) == w->known)
        return;
    w->known = rdzv_nodes(w->rdzv);
    for (int i = 0; i < w->agent_count; i++) {
        struct agent *a = &w->agents[i];
        bool known = rdzv_knows(w->rdzv, a->id);
        if (a->known && !known)
            lose(w, a);
        if (known && !a->known)
            a->joined_as = ++w->account.joins;
        a->known = known;
    }
}

/* Another instance has an account of its own. */
static void notice_instance(struct world *w)
{
    w->rdzv = leader_machine(w->reign.leader);
    if (strcmp(w->instance, leader_instance(w->reign.leader)) == 0)
        return;
    if (w->trace)
        fprintf(stderr, "%6lld instance %s begins\n", (long long)w->now, leader_instance(w->reign.leader));
    snprintf(w->instance, sizeof w->instance, "%s", leader_instance(w->reign.leader));
    w->account = (struct account){.joins = w->account.joins, .core_logged_at = sim_host_clock(w)};
    w->known = 0;
    for (int i = 0; i < w->agent_count; i++)
        w->agents[i].known = false;
    w->stats->instances++;
}

static void trace(const struct world *w, const struct rdzv_event *ev, enum rdzv_state before,
                  const struct rdzv_effects *fx, int rc)
{
    fprintf(stderr, "%6lld %-7s %-8s round %llu: %s -> %s, round %llu, %zu news%s\n", (long long)w->now,
            rdzv_event_name(ev->kind), ev->node, (unsigned long long)ev->round, rdzv_state_name(before),
            rdzv_state_name(rdzv_state(w->rdzv)), (unsigned long long)rdzv_round(w->rdzv), fx->n,
            rc ? ", refused" : "");
}

static void on_step(void *arg, const struct rdzv_event *ev, enum rdzv_state before, uint64_t round_before,
                    const struct rdzv_effects *fx, int rc)
{
    struct world *w = arg;
    struct err e;
    notice_instance(w);
    if (w->brought > 0)
        sim_account_adopted(w, w->brought);
    w->brought = 0;
    w->fx = fx;
    w->stats->steps++;
    w->events++;
    ++(rc ? w->stats->turned_down : w->stats->taken)[before][ev->kind];
    if (w->trace)
        trace(w, ev, before, fx, rc);
    if (rc < 0) {
        w->stats->refused++;
        if (rc != ERR_FENCED && rc != ERR_REFUSED)
            sim_broken(w, "%s failed: %d", rdzv_event_name(ev->kind), rc);
        if (fx->n > 0)
            sim_broken(w, "a refused step told %zu news", fx->n);
    } else {
        if (ev->kind == RDZV_TICK && rdzv_nodes(w->rdzv) < w->known)
            w->stats->fences += (uint64_t)(w->known - rdzv_nodes(w->rdzv));
        refresh_known(w);
        sim_check_step(w, ev, before, round_before);
    }
    if (rdzv_check(w->rdzv, &e) < 0)
        sim_broken(w, "after %s in state %s: %s", rdzv_event_name(ev->kind), rdzv_state_name(before), e.text);
}

/* --- decisions, then news */

static void decide(struct world *w, bool whole)
{
    struct err e;
    if (!whole && !leader_undecided(w->reign.leader))
        return;
    if (rdzv_reign_decide(&w->reign, whole, sim_host_clock(w), &e) != 1)
        sim_broken(w, "%s", e.text);
}

static struct told told_of(struct world *w, const struct agent *a)
{
    const struct leader_member *m = leader_find(w->reign.leader, a->id);
    struct told t = {0};
    if (!m)
        return t;
    if (m->has_news && rdzv_reign_stands(&w->reign, m->stamp)) {
        t = (struct told){.seq = m->news.seq,
                          .round = m->news.round,
                          .kind = m->news.kind,
                          .spare = m->news.spare,
                          .restarts = m->news.restart_count};
        leader_step(w->reign.leader, &(struct leader_event){.kind = LEADER_TOLD, .node = a->id}, 0, NULL);
    }
    snprintf(t.instance, sizeof t.instance, "%s", m->instance);
    return t;
}

/* A blocked RDZV.NEXT is answered at once. */
static void tell_one(struct world *w, struct agent *a, const struct leader_member *m)
{
    const bool same = strcmp(m->instance, a->told_instance) == 0;
    if (m->has_news && same && m->news.seq > a->told_seq)
        w->stats->told++;
    else if (m->has_news && same && m->news.seq < a->told_seq)
        sim_broken(w, "news %llu of %s follows news %llu", (unsigned long long)m->news.seq, a->id,
                   (unsigned long long)a->told_seq);
    a->told_seq = m->news.seq;
    snprintf(a->told_instance, sizeof a->told_instance, "%s", m->instance);
    if (a->connected && m->has_news)
        sim_send(w, (struct message){.agent = (int)(a - w->agents),
                                     .to_agent = true,
                                     .ask = ASK_HEARTBEAT,
                                     .news = told_of(w, a),
                                     .acked_send = a->taken_sent});
}

/* News whose decision stands; the others when it does. */
static void tell(struct world *w)
{
    struct leader_member *m;
    while ((m = leader_next_fresh(w->reign.leader))) {
        m->stamp = rdzv_reign_newest(&w->reign);
        sim_by_id(w, m->node)->to_tell = true;
    }
    for (struct agent *a = w->agents; a < w->agents + w->agent_count; a++) {
        m = a->to_tell ? leader_find(w->reign.leader, a->id) : NULL;
        if (m && !rdzv_reign_stands(&w->reign, m->stamp))
            continue;
        a->to_tell = false;
        if (m)
            tell_one(w, a, m);
    }
}

static void on_landed(void *arg)
{
    struct world *w = arg;
    if (w->reign.leader)
        tell(w);
}

static void arm(struct world *w)
{
    w->armed = w->reign.leader ? leader_deadline(w->reign.leader) : NEVER;
}

/* The run id is free again. */
static void forget(struct world *w)
{
    leader_destroy(w->reign.leader);
    w->reign.leader = NULL;
    w->rdzv = NULL;
    w->instance[0] = 0;
    w->disk.home.ops->forget(&w->disk.home);
    arm(w);
}

static void forget_if_empty(struct world *w)
{
    for (int i = 0; i < w->agent_count; i++)
        if (w->agents[i].connected)
            return;
    if (leader_is_empty(w->reign.leader))
        forget(w);
}

static int create(struct world *w, struct err *e)
{
    const struct leader_options o = {.run = "sim", .stepped = on_step, .arg = w};
    sim_disk_open(w, on_landed);
    w->reign = (struct rdzv_reign){.home = &w->disk.home, .holder = "sim", .keep_bytes = KEEP_BYTES};
    TRY(leader_create(&w->reign.leader, &o, e));
    return w->reign.home->ops->identity(w->reign.home, w->reign.identity, e);
}

static void note_end(struct world *w)
{
    const struct leader *l = w->reign.leader;
    const char *last = w->ended[(w->ended_count + ENDED_MAX - 1) % ENDED_MAX];
    if (leader_is_over(l) && strcmp(last, leader_instance(l)) != 0)
        memcpy(w->ended[w->ended_count++ % ENDED_MAX], leader_instance(l), sizeof w->ended[0]);
}

static int step(struct world *w, const struct leader_event *ev)
{
    struct err e;
    int rc = leader_step(w->reign.leader, ev, sim_host_clock(w), &e);
    struct err broken;
    if (leader_check(w->reign.leader, &broken) < 0)
        sim_broken(w, "after event %d: %s", (int)ev->kind, broken.text);
    if (rc < 0)
        return rc;
    decide(w, false);
    tell(w);
    arm(w);
    note_end(w);
    return 0;
}

static int step_node(struct world *w, enum leader_event_kind kind, const struct agent *a, uint64_t seq)
{
    return step(w, &(struct leader_event){.kind = kind, .node = a->id, .seq = seq});
}

/* We did not run: that is nobody's silence. */
static void notice_pause(struct world *w)
{
    if (w->armed < sim_host_clock(w) - LATE_MS)
        leader_awake(w->reign.leader, sim_host_clock(w));
}

/* Its connection broke, and nothing is proved. */
void sim_host_lost(struct world *w, struct agent *a)
{
    if (!w->up || !w->reign.leader || !a->connected)
        return;
    a->connected = false;
    notice_pause(w);
    step_node(w, LEADER_LOST, a, 0);
    forget_if_empty(w);
}

void sim_host_drain(struct world *w)
{
    const struct rdzv_event drain = {.kind = RDZV_DRAIN, .cause.rank = -1};
    if (w->up && w->reign.leader)
        step(w, &(struct leader_event){.kind = LEADER_DRAIN, .ask = &drain});
}

/* --- its life */

void sim_host_open(struct world *w)
{
    w->host_skew = sim_between(w, 0, 1000000000);
    w->born = sim_host_clock(w);
    w->up = true;
    w->armed = NEVER;
}

void sim_host_close(struct world *w)
{
    leader_destroy(w->reign.leader);
    sim_disk_close(w);
}

static int describe(void *arg, const struct rdzv_member *m)
{
    return buf_printf(arg, "%s %d %d %d %d%d%d%d%d %s %s\n", m->node, m->slots, m->group_rank, m->rank_base, m->member,
                      m->ready, m->done, m->silent, m->leaving, m->role, m->addr);
}

/* All that can be seen of the machine but its times. */
static void look(struct rdzv *r, struct buf *ret)
{
    buf_printf(ret, "%s round %llu restarts %d\n", rdzv_state_name(rdzv_state(r)), (unsigned long long)rdzv_round(r),
               rdzv_restarts(r));
    rdzv_members(r, describe, ret);
}

static void check_log(struct world *w)
{
    struct buf before = {0}, after = {0};
    struct leader *successor = NULL;
    struct err e = {0};
    look(w->rdzv, &before);
    if (leader_create(&successor, &(struct leader_options){.run = "sim"}, &e) < 0 ||
        leader_replay(successor, w->disk.log.data, w->disk.log.len, 0, &e) < 0)
        sim_broken(w, "%s", e.text);
    else {
        look(leader_machine(successor), &after);
        if (strcmp(before.data, after.data) != 0)
            sim_broken(w, "the log says '%s', but the machine was '%s'", after.data, before.data);
    }
    buf_free(&before);
    buf_free(&after);
    leader_destroy(successor);
}

void sim_host_kill(struct world *w, int64_t down_ms)
{
    if (w->trace)
        fprintf(stderr, "%6lld daemon killed\n", (long long)w->now);
    if (w->durable && w->rdzv && !w->disk.landings)
        check_log(w);
    if (w->durable)
        sim_disk_go_back(w);
    w->life += w->blank;
    w->former[0] = 0;
    if (w->blank)
        w->instance[0] = 0;
    w->ended_count = 0;
    leader_destroy(w->reign.leader);
    w->reign.leader = NULL;
    w->rdzv = NULL;
    w->up = false;
    w->host_up_at = w->now + down_ms;
    for (int i = 0; i < w->agent_count; i++) {
        w->agents[i].connected = w->agents[i].to_tell = false;
        w->agents[i].greets = true;
        w->agents[i].known &= w->durable;
    }
    w->stats->daemon_restarts++;
}

static int64_t reign_clock(const struct rdzv_reign *r)
{
    return sim_host_clock(container_of(r, struct world, reign));
}

/* What the newest instance in the log goes on from. */
static void read_former(struct world *w)
{
    const char *at = w->disk.log.data, *line = NULL;
    for (; at && (at = strstr(at, "@job ")); at++)
        line = at;
    if (!line || rdzv_field_find(line + 5, strcspn(line, "\n") - 5, "former", w->former, sizeof w->former) < 0)
        w->former[0] = 0;
}

/* Another process, perhaps after a boot: its clock begins anywhere. All nodes are silent until they are heard. */
static void restart(struct world *w)
{
    struct err e;
    w->host_skew = sim_between(w, 1, 1000000000) - w->now;
    w->born = sim_host_clock(w);
    w->up = true;
    if (w->trace)
        fprintf(stderr, "%6lld daemon restarted\n", (long long)w->now);
    if (w->disk.log.len == 0)
        return;
    sim_account_restarted(w);
    read_former(w);
    if (create(w, &e) < 0 || rdzv_reign_take_over(&w->reign, reign_clock, 0, &e) < 0) {
        sim_broken(w, "%s", e.text);
        return;
    }
    w->rdzv = leader_machine(w->reign.leader);
    decide(w, true);
    while (leader_next_fresh(w->reign.leader)) /* nobody asks yet */
        ;
    arm(w);
}

void sim_host_compact(struct world *w)
{
    if (w->up && w->reign.leader)
        decide(w, true);
}

/* --- messages and time */

static struct rdzv_event event_of(const struct world *w, const struct agent *a, const struct message *m)
{
    static const enum rdzv_event_kind kinds[] = {
        [ASK_JOIN] = RDZV_JOIN, [ASK_FAIL] = RDZV_FAIL, [ASK_DONE] = RDZV_DONE, [ASK_LEAVE] = RDZV_LEAVE};
    struct rdzv_event ev = {.kind = kinds[m->ask],
                            .round = m->round,
                            .restarts = m->restarts,
                            .slots = a->slots,
                            .node_rank = a->node_rank,
                            .waits = a->slots % 2,
                            .port = 1000 + (int)(a - w->agents),
                            .cause = {.exit_code = m->ask == ASK_LEAVE ? a->leaving_code : 9, .rank = 0}};
    memcpy(ev.node, a->id, sizeof ev.node);
    memcpy(ev.addr, a->id, sizeof ev.addr);
    memcpy(ev.role, a->role, sizeof a->role);
    return ev;
}

/* A job that runs, but nobody is heard of: its nodes may all be dead, and their restarts are none of a new node's. */
static bool is_deserted(const struct world *w)
{
    if (!w->rdzv || rdzv_round(w->rdzv) == 0 || sim_is_over(w))
        return false;
    for (int i = 0; i < w->agent_count; i++)
        if (w->agents[i].known && w->agents[i].connected)
            return false;
    return true;
}

static void check_company(struct world *w, const struct agent *a, const struct message *m, const char *before)
{
    const bool stranger =
        m->round == 0 || (strcmp(m->news.instance, w->instance) != 0 && strcmp(m->news.instance, w->former) != 0);
    if (stranger && strcmp(before, w->instance) == 0 && rdzv_knows(w->rdzv, a->id))
        sim_broken(w, "%s is taken into a job that nobody is heard of", a->id);
}

/* A node is taken that names a round of another instance. over: the instance that was over before it came, or NULL. */
static void check_past(struct world *w, const struct agent *a, const struct message *m, const char *over)
{
    if (m->round == 0 || !m->news.instance[0] || strcmp(m->news.instance, w->instance) == 0 ||
        !rdzv_knows(w->rdzv, a->id))
        return; /* or it hears of an end alone */
    if (w->config.restart_window_ms == 0 && m->restarts > w->config.max_restarts)
        sim_broken(w, "%s is taken with %d of %d restarts used up", a->id, m->restarts, w->config.max_restarts);
    if (over && strcmp(over, w->instance) != 0 && strcmp(m->news.instance, w->former) == 0)
        sim_broken(w, "%s begins the job %s anew, which is over", a->id, over);
}

/* As rendezvousd/jobs. */
static int64_t blank_ms(const struct world *w)
{
    const int64_t until = w->born + w->config.silence_ms + w->config.kill_ms, now = sim_host_clock(w);
    return w->blank && until > now ? until - now : 0;
}

static bool has_ended(const struct world *w, const char *instance)
{
    for (unsigned i = 0; i < ENDED_MAX && i < w->ended_count; i++)
        if (strcmp(w->ended[i], instance) == 0)
            return strcmp(leader_instance(w->reign.leader), instance) != 0;
    return false;
}

static int take_join(struct world *w, struct agent *a, const struct message *m, uint64_t *ret_seq)
{
    const struct rdzv_event ev = event_of(w, a, m);
    struct err e;
    if (!w->reign.leader && create(w, &e) < 0)
        return sim_broken(w, "%s", e.text), ERR_REFUSED;
    const struct leader_member *known = leader_find(w->reign.leader, a->id);
    if (!known || !known->known)
        a->told_seq = 0; /* a member like any new one: its JOIN says what its news begin with */
    const bool deserted = !a->known && is_deserted(w);
    char before[sizeof w->instance];
    memcpy(before, w->instance, sizeof before);
    struct rdzv_config settings = w->config;
    settings.blank_ms = blank_ms(w);
    const struct leader_event ask = {.kind = LEADER_ASK,
                                     .ask = &ev,
                                     .settings = &settings,
                                     .instance = m->round > 0 ? m->news.instance : NULL,
                                     .draw = sim_random(w)};
    if (has_ended(w, m->news.instance))
        return ERR_MISMATCH;
    const bool past = m->round > 0 && m->news.instance[0] && strcmp(m->news.instance, w->instance) != 0;
    const bool over = sim_is_over(w);
    const bool first = !w->rdzv || rdzv_round(w->rdzv) == 0;
    w->brought = past ? m->restarts : 0;
    w->stats->adopted += past && leader_is_foreign(w->reign.leader, &ask);
    int rc = step(w, &ask);
    w->brought = 0;
    if (rc == ERR_REFUSED && past && w->config.restart_window_ms == 0 && m->restarts > w->config.max_restarts)
        return ERR_MISMATCH; /* for good */
    if (rc == 0)
        check_past(w, a, m, over ? before : NULL);
    if (strcmp(before, w->instance) != 0)
        w->former[0] = 0;
    const bool adopts = strcmp(before, w->instance) != 0 || (first && !over); /* else it hears of an end alone */
    if (rc == 0 && past && rdzv_knows(w->rdzv, a->id) && !w->former[0] && adopts)
        memcpy(w->former, m->news.instance, sizeof w->former);
    if (rc == 0)
        a->named_round = m->round;
    if (rc == 0 && deserted)
        check_company(w, a, m, before);
    const struct leader_member *member = leader_find(w->reign.leader, a->id);
    *ret_seq = member ? member->joined_seq : 0;
    return rc;
}

static int take_next(struct world *w, const struct agent *a, const struct message *m)
{
    step_node(w, LEADER_HEARD, a, 0);
    step_node(w, LEADER_SEEN, a, m->seen_seq);
    const struct leader_member *member = leader_find(w->reign.leader, a->id);
    return !member || ((!member->known || leader_is_over(w->reign.leader)) && !member->has_news) ? ERR_REFUSED : 0;
}

static int take_claim(struct world *w, const struct agent *a, const struct message *m)
{
    const struct rdzv_event ev = event_of(w, a, m);
    if (!leader_is_over(w->reign.leader))
        step_node(w, LEADER_HEARD, a, 0);
    return step(w, &(struct leader_event){.kind = LEADER_ASK, .ask = &ev});
}

/* Asked before what was read already, and in another instance, or to begin another: a connection is read in order, and
 * not after the next (jobs_party.is_void). Within an instance such requests are taken, to be hard on the machine. */
static bool is_void(const struct world *w, const struct agent *a, const struct message *m)
{
    const struct leader *l = w->reign.leader;
    return l && m->sent <= a->heard_sent &&
           (strcmp(m->news.instance, leader_instance(l)) != 0 || (m->ask == ASK_JOIN && leader_is_over(l)));
}

static int take(struct world *w, struct agent *a, const struct message *m, uint64_t *ret_seq)
{
    if (is_void(w, a, m))
        return ERR_FENCED;
    if (m->ask == ASK_JOIN)
        return take_join(w, a, m, ret_seq);
    if (!w->reign.leader || !leader_find(w->reign.leader, a->id))
        return ERR_REFUSED;
    return m->ask == ASK_HEARTBEAT ? take_next(w, a, m) : take_claim(w, a, m);
}

static void take_end(struct world *w, struct agent *a, const struct message *m)
{
    if (m->ask == TELL_LOST) {
        sim_host_lost(w, a);
        return;
    }
    a->gone = true;
    if (!a->connected) /* that connection ended before */
        return;
    a->connected = false;
    if (!w->reign.leader) /* its connection outlived the job, by a request that was refused */
        return;
    step_node(w, LEADER_GONE, a, 0);
    forget_if_empty(w);
}

void sim_host_receive(struct world *w, const struct message *m)
{
    struct agent *a = &w->agents[m->agent];
    uint64_t seq = 0;
    if (a->gone)
        return;
    if (w->reign.leader)
        notice_pause(w);
    if (m->ask >= TELL_GONE) {
        take_end(w, a, m);
        return;
    }
    a->connected = true;
    int rc = take(w, a, m, &seq);
    a->heard_sent = m->sent > a->heard_sent ? m->sent : a->heard_sent;
    if (rc == 0 && m->sent > a->taken_sent)
        a->taken_sent = m->sent;
    sim_send(w, (struct message){.agent = m->agent,
                                 .to_agent = true,
                                 .ask = m->ask,
                                 .round = m->round,
                                 .seen_seq = seq,
                                 .answer = rc == 0              ? ANSWER_OK
                                           : rc == ERR_FENCED   ? ANSWER_FENCED
                                           : rc == ERR_MISMATCH ? ANSWER_DIFFERS
                                                                : ANSWER_REFUSED,
                                 .acked_send = m->sent,
                                 .news = w->reign.leader && rc != ERR_MISMATCH && rc != ERR_FENCED
                                             ? told_of(w, a)
                                             : (struct told){0}}); /* these say nothing of a job */
}

int64_t sim_host_wake(const struct world *w)
{
    if (!w->up)
        return w->host_up_at;
    int64_t at = w->reign.leader ? leader_deadline(w->reign.leader) : NEVER;
    if (at != NEVER)
        at -= w->host_skew;
    if (w->disk.landings && w->disk.landings->at < at)
        at = w->disk.landings->at;
    return at < w->host_paused_until ? w->host_paused_until : at;
}

static void tick(struct world *w)
{
    const int64_t now = sim_host_clock(w);
    notice_pause(w);
    if (leader_is_over(w->reign.leader) && leader_over_since(w->reign.leader) + LEADER_LINGER_MS <= now) {
        forget(w);
        return;
    }
    step(w, &(struct leader_event){.kind = LEADER_TICK});
    forget_if_empty(w);
    if (w->reign.leader && leader_deadline(w->reign.leader) <= now)
        sim_broken(w, "a tick leaves its deadline behind");
}

void sim_host_tick(struct world *w)
{
    if (w->up)
        sim_disk_land(w);
    if (!w->up)
        restart(w);
    else if (w->reign.leader && leader_deadline(w->reign.leader) <= sim_host_clock(w))
        tick(w);
}
