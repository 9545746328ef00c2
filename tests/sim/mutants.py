#!/usr/bin/env python3
"""Sow one fault into the rendezvous: the simulator must see each.

    mutants.py NAME FOLDER SOURCE...

writes FOLDER/NAME_<file> for each SOURCE with the edits of that mutant. Every edit names a text that stands in its file
exactly once, so that a mutant cannot lose its fault unnoticed."""
import pathlib
import sys

# {mutant: {file: [(what stands there, what stands there instead)]}}
MUTANTS = {
    # the machine
    "budget_of_one_more": {"rdzv_round.c": [("rdzv_used_up_(s->r, s->now) >= s->r->config.max_restarts)", "rdzv_used_up_(s->r, s->now) > s->r->config.max_restarts)")]},
    "room_for_one_more": {"rdzv_round.c": [("(int)ready < r->config.max_nodes ? (int)ready : r->config.max_nodes;",
                                            "(int)ready <= r->config.max_nodes ? (int)ready : r->config.max_nodes + 1;")]},
    "next_round_while_workers_stop": {"rdzv.c": [("if (t.stopping > 0)", "if (t.stopping > 0 && !r)")]},
    "last_call_below_the_minimum": {"rdzv.c": [("        if (t.ready < c->min_nodes)\n            rdzv_set_state_", "        if (t.ready < c->min_nodes && !r)\n            rdzv_set_state_")]},
    "delayed_join_believed": {"rdzv.c": [("if (n->is.member && !n->is.joined && s->ev->round < s->r->m.round)", "if (n->is.member && !n->is.joined && s->ev->round > s->r->m.round)")]},
    "done_before_the_last": {"rdzv.c": [("if (++s->r->m.done_count >= s->r->m.group_world)", "if (++s->r->m.done_count >= s->r->m.group_world - 1)")]},
    "fence_without_the_kill": {"rdzv.c": [("s->r->config.silence_ms + s->r->config.kill_ms;", "s->r->config.silence_ms;")]},
    "resumed_spare_forgotten": {"rdzv.c": [("if (was && s->r->m.state == RDZV_RUNNING && !s->n->is.member)", "if (was && !s->r)")]},
    "older_claim_believed": {"rdzv.c": [("if (named < current)", "if (named < current && !r)")]},
    "restarts_never_forgotten": {"rdzv_budget.c": [("now - r->restart_times[n] > r->config.restart_window_ms)", "now - r->restart_times[n] > INT64_MAX - 1)")]},
    "backoff_never_doubled": {"rdzv_budget.c": [("i < r->m.row && wait < c->backoff_max_ms;", "i < r->m.row && wait < 0;")]},
    "members_after_newcomers": {"rdzv_round.c": [("if (a->is.member != b->is.member)", "if (a->is.member != b->is.member && !a)")]},
    "news_not_in_the_log": {"rdzv_nodes.c": [("    rdzv_touch_(s->r, n);\n    fx->news.kind = kind;", "    fx->news.kind = kind;")]},
    "roles_counted_together": {"rdzv_round.c": [("if (i > 0 && strcmp(r->order[i]->role, r->order[i - 1]->role) != 0)", "if (i < 0)")]},
    "failing_node_keeps_its_seat": {"rdzv_round.c": [("most > 0 && n->failures >= most;", "most < 0;")]},
    # the leader
    "silence_without_its_date": {"leader.c": [("m->node, heard);", "m->node, heard - l->config.kill_ms);"),
                                              ("leader_last_heard_(l, m) + l->config.silence_ms <= now", "leader_last_heard_(l, m) + l->config.silence_ms / 4 <= now")]},
    "no_elders": {"leader_ask.c": [("if (m && n->member && !n->ready && !n->done && !m->gone)", "if (!m)")]},
    "the_silent_are_joined": {"leader_ask.c": [("!is_anybody_heard(l) && is_stranger(l, ev);", "!is_anybody_heard(l) && !ev;")]},
    "elders_for_silence_alone": {"leader.c": [("int64_t bound = l->config.silence_ms + l->config.kill_ms;", "int64_t bound = l->config.silence_ms / 4;")]},
    "news_of_the_forgotten_kept": {"leader_member.c": [("        m->has_news = false;\n    if (!m->elder)", "        m->has_news = true;\n    if (!m->elder)")]},
    # what nodes bring of a leader that lost its memory
    "restarts_of_a_lost_job_forgotten": {"leader_ask.c": [("ev->ask->round, ev->ask->restarts, now, e);", "ev->ask->round, 0, now, e);")]},
    "rounds_of_a_lost_job_forgotten": {"leader_ask.c": [("rdzv_raise(l->machine, ev->ask->round, ev->ask->restarts", "rdzv_raise(l->machine, 0, ev->ask->restarts")],
                                       "rdzv.c": [("    if (ev->round > s->r->m.round_floor)", "    if (ev->round > s->r->m.round_floor && !n)")]},
    "spent_budget_taken": {"leader_ask.c": [("ev->ask->restarts <= c->max_restarts)", "ev->ask->restarts <= c->max_restarts + 1)")]},
    "lost_job_begun_again": {"leader_ask.c": [("        snprintf(l->former, sizeof", "        snprintf(l->former, 0 * sizeof")]},
    "survivor_taken_for_a_member": {"leader_ask.c": [("return !has_heard_of(l, ev->instance) && !rdzv_knows(", "return ev->ask->round == 0 && !has_heard_of(l, ev->instance) && !rdzv_knows(")]},
    "blank_host_knows_everything": {"rdzv.c": [("latest(s->now + call_ms, s->r->blank_until);", "latest(s->now + call_ms, 0);")]},
    # who leads, and whom a leader acknowledges until when; more of it in tests/mutants.py
    "acknowledges_without_its_claim": {"jobs_term.c": [("    if (!jobs_leads_(j))", "    if (!jobs_leads_(j) && !j->term.until)")]},
    "claims_after_an_eighth_of_d": {"election.c": [("now - x->since >= by_any_clock(ms);", "now - x->since >= by_any_clock(ms) / 8;")]},
    "standby_claim_not_looked_at": {"jobs_term.c": [("|| now < t->until || (", "|| t->until || (")]},
    "standby_owes_nothing": {"jobs_log.c": [("job_clock_, job->jobs->taken.grace_ms, e)", "job_clock_, -4000, e)")]},
    "standby_told_before_it_stands": {"state_shared.c": [("    base->asked = s->asked;\n", "    base->asked = base->stands = s->asked;\n")]},
    "forgotten_nodes_are_heard": {"jobs_term.c": [("m->known && m->connected &&", "m->connected &&")]},
    "acknowledges_after_its_release": {"election.c": [("static void release(struct election *x, int64_t now)\n{\n    resign(x);", "static void release(struct election *x, int64_t now)\n{")]},
    "claims_above_without_a_hold": {"election.c": [("ev->hold || x->above ||", "ev->hold ||")]},
    # a leader that goes on without its home
    "goes_on_whoever_is_bound": {"jobs_term.c": [("now - p->bound_ms >= j->term.valid_ms)", "now - p->bound_ms >= j->term.valid_ms && !p)")]},
    # an etcd as home
    "claims_what_was_renewed": {"rdzv_log_etcd.c": [("    if (!rdzv_claim_is(seen, &h->seen))", "    if (!seen)")]},
    "parts_are_believed": {"rdzv_log_etcd.c": [("    if (k < 0)\n        return 0;", "    if (k < 0) {\n        buf_add(r->out, r->parts.data + before, r->parts.len - before);\n        return 0;\n    }")]},
    "removed_decisions_come_back": {"rdzv_log_etcd.c": [("    if (k % 2 == 1)\n", "    if (k < 0)\n"), ("(r->lacks && k % 2 == 0)", "r->lacks")]},
    "appends_are_not_fenced": {"rdzv_log_etcd.c": [("    if (strcmp(h->epoch, epoch) != 0)\n        return 0;", "    if (once) {\n        cJSON *now;\n        etcd_api_start(&h->api);\n        ETCD_PUT(&h->api, \"{\\\"key\\\":\\\"%s\\\"}\", KEY(h, \"claim\"));\n        TRY(etcd_api_call(&h->api, \"kv/range\", &now, e));\n        h->own_mod = (uint64_t)etcd_api_number(cJSON_GetArrayItem(etcd_api_in(now, \"kvs\"), 0), \"mod_revision\");\n        cJSON_Delete(now);\n    }")]},
    # a Kubernetes
    "a_lease_is_taken_that_was_renewed": {"rdzv_log_kube.c": [("    if (!rdzv_claim_is(seen, &h->now.claim))", "    if (!seen || read_lease(h, e) < 0)")]},
    "a_lease_of_another_is_put": {"rdzv_log_kube.c": [("    return strcmp(h->epoch, epoch) == 0 && strcmp(h->now.claim.epoch, epoch) == 0 && !h->now.claim.released &&\n           h->now.seq + 1 >= h->seq;", "    return strcmp(h->epoch, epoch) == 0;")]},
    # a list of hosts
    "one_seat_less_is_enough": {"seats.c": [("return seats_heard(s, NULL, now) >= s->min;", "return seats_heard(s, NULL, now) >= s->min - 1;")]},
    "few_do_not_matter": {"seats.c": [("return seats_heard(s, NULL, now) >= s->min;", "return seats_heard(s, NULL, now) >= 0;")]},
    "hosts_do_not_wait": {"seats.c": [("wait_ms = 2 * s->silence_ms + s->kill_ms,", "wait_ms = 0,")]},
    "first_host_of_the_list": {"hosts.c": [("    const bool acks_a = acknowledges(h, a), acks_b = acknowledges(h, b);", "    if (a >= 0)\n        return a < b;\n    const bool acks_a = acknowledges(h, a), acks_b = acknowledges(h, b);")]},
    # its reign
    "told_before_it_stands": {"rdzv_reign.c": [("return number <= r->home->stands;", "return number <= r->home->stands || r;")]},
}


def sow(name, folder, sources):
    edits = MUTANTS[name]
    if {s.name for s in sources} != set(edits):
        raise SystemExit(f"mutant {name} is in {', '.join(sorted(edits))}")
    for source in sources:
        text = source.read_text()
        for old, new in edits[source.name]:
            if text.count(old) != 1:
                raise SystemExit(f"mutant {name}: {source} has {text.count(old)} times: {old}")
            text = text.replace(old, new)
        (folder / f"{name}_{source.name}").write_text(text)


sow(sys.argv[1], pathlib.Path(sys.argv[2]), [pathlib.Path(s) for s in sys.argv[3:]])
