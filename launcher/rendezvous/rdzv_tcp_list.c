/* Which of several addresses the client of a rendezvous dials, and whether they share one state. See rdzv_tcp.h.
 *
 * One of them leads: the others say STANDBY and name it. Who accepts and does not answer (it is stopped, or a port that
 * somebody else holds for it) comes last for a while, whoever names it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/config/home.h"
#include "launcher/rendezvous/host_question.h"
#include "launcher/rendezvous/rdzv_tcp.h"

#define UNHEARD_MS 2000 /* a claim is valid about as long: by then another one leads */
#define STATES_MS 5000  /* daemons whose folder was emptied name the new state by then */

/* --- whose turn it is */

static bool is_unheard(const struct tcp *t, int i)
{
    return t->list.unheard[i] && clock_ms() - t->list.unheard[i] < UNHEARD_MS;
}

/* The next one that may answer; if no other one may, the same again, unless it does not answer either. */
static void turn_to_next(struct tcp *t)
{
    const int at = t->at;
    t->to[at].turn++;
    t->at = is_unheard(t, at) ? (at + 1) % t->to_count : at;
    for (int i = 1; i < t->to_count; i++)
        if (!is_unheard(t, (at + i) % t->to_count)) {
            t->at = (at + i) % t->to_count;
            return;
        }
}

void tcp_list_unheard(struct tcp *t)
{
    t->list.unheard[t->at] = clock_ms();
    turn_to_next(t);
}

/* All of the list, asked twice, name a leader that is not in it: an address of a name that is in it would have been
 * dialled by then. */
static const char *say_outsider(struct tcp *t, const char *leader, const char *text)
{
    struct tcp_list *l = &t->list;
    if (!strchr(leader, ':') || ++l->outside <= 2 * t->to_count)
        return text;
    snprintf(l->outsider, sizeof l->outsider,
             "STANDBY %.270s leads, and --rdzv-endpoint %.300s does not name it: add it there, or start it with the "
             "--advertise by which it is named",
             leader, t->o.endpoint);
    return l->outsider;
}

/* "STANDBY this rendezvousd stands by: HOST:PORT leads": that one is dialled next if it is in the list, else the one
 * after this. What nobody typed is never dialled: no address is trusted that a stranger might name, and certificates
 * are for the names that were typed. */
const char *tcp_list_turn(struct tcp *t, const char *text)
{
    char where[HOME_HOST_MAX + 16], named[HOME_HOST_MAX + 16] = "";
    const char *colon = strstr(text, "stands by: ");
    if (colon)
        sscanf(colon + strlen("stands by: "), "%270s", named);
    bool listed = false;
    for (int i = 0; i < t->to_count; i++) {
        const bool is = strcmp(home_join(t->to[i].host, atoi(t->to[i].port), where, sizeof where), named) == 0;
        listed = listed || is;
        if (is && i != t->at && !is_unheard(t, i)) {
            t->at = i;
            return text;
        }
    }
    turn_to_next(t);
    return listed ? text : say_outsider(t, named, text);
}

/* --- whether they share one state */

void tcp_list_close(struct tcp *t)
{
    for (int i = 0; i < t->to_count; i++) {
        host_question_close(t->list.asks[i]);
        t->list.asks[i] = NULL;
    }
}

static bool asks_any(const struct tcp *t)
{
    for (int i = 0; i < t->to_count; i++)
        if (t->list.asks[i])
            return true;
    return false;
}

/* Returns which one it was. */
static int answered(struct tcp *t, const struct host_question *q)
{
    int i = 0;
    while (t->list.asks[i] != q)
        i++;
    t->list.asks[i] = NULL;
    return i;
}

/* Neither of the two knows what the other has decided. */
static void refuse(struct tcp *t, int other, const char *state)
{
    char by[HOME_HOST_MAX + 16], where[HOME_HOST_MAX + 16], why[900];
    home_join(t->to[t->list.met_by].host, atoi(t->to[t->list.met_by].port), by, sizeof by);
    home_join(t->to[other].host, atoi(t->to[other].port), where, sizeof where);
    snprintf(why, sizeof why,
             "the daemons of the list %.300s do not share one state: %.200s keeps %.32s, %.200s %.32s; start them with "
             "the same --state",
             t->o.endpoint, by, t->list.met[0] ? t->list.met : "a state of its own", where,
             state && state[0] ? state : "a state of its own");
    tcp_step(t, (struct client_event){.kind = CLIENT_TROUBLE, .text = why, .error = EXIT_USAGE_ERROR});
}

static void settle(struct tcp *t)
{
    if (asks_any(t))
        return;
    log_info("rendezvous", "the daemons of the list %s keep state %s now, no longer %s", t->o.endpoint, t->list.met,
             t->list.state);
    snprintf(t->list.state, sizeof t->list.state, "%s", t->list.met);
    t->list.met_at = 0;
}

static void on_no_daemon(void *arg, struct host_question *q, enum hosts_answer answer, int seats, uint64_t round,
                         const char *why)
{
    struct tcp *t = arg;
    (void)answer, (void)seats, (void)round, (void)why;
    answered(t, q);
    settle(t);
}

static void on_daemon(void *arg, struct host_question *q, const char *state)
{
    struct tcp *t = arg;
    const int i = answered(t, q);
    if ((state && !state[0]) || (state && strcmp(state, t->list.met) == 0)) {
        settle(t);
        return;
    }
    tcp_list_close(t);
    if (clock_ms() - t->list.met_at >= STATES_MS)
        refuse(t, i, state);
}

static void ask_others(struct tcp *t)
{
    for (int i = 0; i < t->to_count; i++)
        if (i != t->list.met_by)
            t->list.asks[i] = host_question_ask(
                t->loop, &(struct host_question_options){.to = &t->to[i],
                                                         .run = t->o.run_id,
                                                         .node = t->o.node,
                                                         .token = t->tokens.n ? &t->tokens.v[0] : NULL,
                                                         .insecure = t->o.insecure,
                                                         .tls = t->tls,
                                                         .answered = on_no_daemon,
                                                         .daemon = on_daemon,
                                                         .arg = t});
    settle(t);
}

bool tcp_list_is_other_state(struct tcp *t, const redisReply *r)
{
    static const char other[] = "it keeps another state than the daemon before it";
    struct tcp_list *l = &t->list;
    char state[sizeof l->state];
    if (t->to_count < 2 || r->type != REDIS_REPLY_STRING ||
        rdzv_field_find(r->str, r->len, "state_id", state, sizeof state) != 1)
        return false;
    if (!l->state[0] || strcmp(l->state, state) == 0) {
        snprintf(l->state, sizeof l->state, "%s", state);
        l->met_at = 0;
        return false;
    }
    const bool new = !l->met_at || strcmp(l->met, state) != 0;
    if (new || !asks_any(t)) {
        l->met_at = new ? clock_ms() : l->met_at;
        l->met_by = t->at;
        snprintf(l->met, sizeof l->met, "%s", state);
        tcp_list_close(t);
        ask_others(t);
    }
    tcp_step(t, (struct client_event){.kind = CLIENT_LOST, .how = RDZV_LOST, .text = other});
    return true;
}
