#!/usr/bin/env python3
"""Sow one fault at a time into the programs: a fast test must see each. usage: mutants.py [--only NAME,...] OUT | mutants.py --check BUILD

OUT has a copy of the tree and a build of it, both kept for the next time. The tests that are asked must pass there first. Then each mutant is built, and
its tests are run until one fails. The last line is the sum. The exit code is 1 if a mutant was missed.

--check: every text stands in its file exactly once, and the tests that are asked exist in this build. Nothing is built.

Faults of the rendezvous are sown by tests/sim/mutants.py, and seen by the simulator."""
import argparse
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 600  # seconds of one run of tests: a mutant may loop
PATIENCE = 8  # times meson's 30 s for a C program

# name: (file, what stands there, what stands there instead, tests: names of meson's, or pytest's below tests/e2e)
MUTANTS = {
    "release_erases_what_is_owed": (
        "common/rdzv/client/election.c", '        x->grace_ms = x->view.hold_ms - election_fence_ms(&x->o, 0);', '        x->grace_ms = 0;',
        ["election"]),
    "refusal_without_an_acknowledgement": (
        "common/rdzv/client/election.c", '    x->refused = ev->refused && x->acked[0] && strcmp(x->acked, x->dialled) == 0;', '    x->refused = ev->refused;',
        ["election"]),
    "refused_leader_owes_nothing": (
        "common/rdzv/client/election.c", '        x->grace_ms = by_any_clock(x->o.valid_ms);', '        x->grace_ms = 0;',
        ["election"]),
    "claims_above_without_a_hold": (
        "common/rdzv/client/election.c", 'ev->hold || x->above ||', 'ev->hold ||',
        ["election"]),
    "d_counts_from_the_answer": (
        "common/rdzv/client/election.c", '        x->until = ev->sent + x->o.valid_ms;', '        x->until = now + x->o.valid_ms;',
        ["election"]),
    "acknowledges_after_its_release": (
        "common/rdzv/client/election.c", 'static void release(struct election *x, int64_t now)\n{\n    resign(x);', 'static void release(struct election *x, int64_t now)\n{',
        ["election"]),
    "lost_decisions_not_waited_for": (
        "common/rdzv/client/election.c", '    if (ev->hold || x->above ||', '    if (x->above ||',
        ["election"]),
    "few_nodes_will_do": (
        "common/rdzv/client/election.c", '    if (now - x->few_since < ELECTION_FEW_MS)', '    if (now - x->few_since < NEVER)',
        ["election"]),
    "few_while_it_can_take_nobody": (
        "common/rdzv/client/election.c", 'ev->enough || now < x->few_from ||', 'ev->enough ||',
        ["election"]),
    "waits_of_leaders_count": (
        "common/rdzv/client/client_talk.c", 'const bool counts = !c->o.elected || c->o.listed;', 'const bool counts = true;',
        ["client"]),
    "a_hold_ends_with_the_next_event": (
        "common/rdzv/leader/leader.c", '    if (l->held)\n        return l->hold_until;', '    if (l->held && l->hold_until == 0)\n        return l->hold_until;',
        ["leader"]),
    "newcomers_wait_where_they_are": (
        "common/rdzv/client/hosts.c", 'if (working || h->heard ||', 'if (!working || h->heard ||',
        ["hosts"]),
    "decisions_outlive_their_term": (
        "common/rdzv/leader/keeper.c", ' && c->term == k->term', '',
        ["keeper"]),
    "older_number_stands_for_all_jobs": (
        "rendezvousd/state/state_shared.c", 'h->base.stands = number > h->base.stands ? number : h->base.stands;', 'h->base.stands = h->base.asked;',
        ["rendezvousd_state_shared"]),
    "acknowledges_after_its_hand_over": (
        "rendezvousd/jobs/jobs_term.c", '    struct job *job;\n    j->term.until = 0;\n    DL_FOREACH (j->all, job) {', '    struct job *job;\n    DL_FOREACH (j->all, job) {',
        ["rendezvousd_state_shared"]),
    "emptied_home_holds_nothing": (
        "common/rdzv/client/election.c", 'x->above || (x->was_member && ev->rc == 0))', 'x->above)',
        ["election"]),
    "a_look_that_fails_costs_a_turn": (
        "common/rdzv/client/election.c", '        x->has_view = false;\n        return;', '        x->has_view = false;\n        x->claim_at = 0;\n        return;',
        ["election"]),
    "claims_on_new_connections_are_unheard": (
        "rendezvousd/jobs/jobs_verbs.c", "    if (!leader_is_over(job->reign.leader))\n        TRY(heard(p, e));", "    if (leader_is_over(job->reign.leader))\n        TRY(heard(p, e));",
        ["rendezvousd_jobs"]),
    "what_an_instance_goes_on_from_is_in_no_log": (
        "common/rdzv/leader/leader_log.c", "    if (l->former[0])\n", "    if (l->former[0] && !out)\n", ["leader"]),
    "claims_after_half_of_d": (
        "common/rdzv/client/election.c", "now - x->since >= by_any_clock(ms);", "now - x->since >= by_any_clock(ms) / 2;",
        ["election"]),
    "strangers_do_not_wait": (
        "common/rdzv/client/election.c", "    return !x->view.away_ms || ", "    return true || !x->view.away_ms || ", ["election"]),
    "lately_is_ever": (
        "common/rdzv/client/election.c", "now - x->acked_at < election_lately_ms(&x->o));", "now > 0);", ["election"]),
    "a_renewal_without_ends_nothing": (
        "common/rdzv/client/election.c", "    if (x->away_ms > x->own.away_ms) {", "    if (x->away_ms > x->own.away_ms && !x) {", ["election"]),
    "goes_on_without_whom_it_acknowledged": (
        "rendezvousd/jobs/jobs_term.c", "now - p->bound_ms >= j->term.valid_ms)", "now - p->bound_ms >= j->term.valid_ms && !p)", ["rendezvousd_jobs"]),
    "the_lost_are_forgotten": (
        "rendezvousd/jobs/jobs_term.c", "    if (sent_ms >= j->term.loose_until)", "    if (sent_ms > 0)", ["rendezvousd_jobs"]),
    "an_outage_of_the_home_counts": (
        "common/rdzv/client/election.c", "        x->since = 0;\n        x->has_view = false;\n        return;", "        return;",
        ["election"]),
    "waits_by_the_same_clock": (
        "common/rdzv/client/election.c", "    return ms + (ms + 99) / 100;", "    return ms;",
        ["election"]),
    "a_release_hands_on_no_hold": (
        "common/rdzv/client/election.c", "    int64_t hold_ms = x->handed_ms;", "    int64_t hold_ms = 0;",
        ["election"]),
    "a_claim_above_that_failed_is_forgotten": (
        "common/rdzv/client/election.c", "    x->hold_until = 0;\n}", "    x->hold_until = 0;\n    x->above = false;\n}",
        ["election"]),
    "a_hold_ends_without_the_kill": (
        "common/rdzv/leader/leader.c", ".grace_ms = until_ms - now_ms};", ".grace_ms = until_ms - now_ms - l->config.kill_ms};",
        ["leader"]),
    "a_lower_epoch_is_taken": (
        "rendezvousd/jobs/jobs_term.c", "    if (strcmp(epoch, t->epoch) != 0)", "    if (!epoch)",
        ["rendezvousd_jobs"]),
    "a_higher_epoch_is_not_heard": (
        "rendezvousd/jobs/jobs_term.c", "    if (rdzv_epoch_is_foreign(seen, t->epoch)) {", "    if (!seen) {",
        ["rendezvousd_jobs"]),
    "rounds_of_no_log_are_taken": (
        "rendezvousd/jobs/jobs_term.c", "    TRY(check_round(j, run, round, e));\n    p->in_term", "    if (!run)\n        TRY(check_round(j, run, round, e));\n    p->in_term",
        ["rendezvousd_jobs"]),
    "renewals_are_no_news": (
        "common/rdzv/homes/rdzv_claim.c", 'strcmp(a->epoch, b->epoch) == 0 && a->n == b->n && a->released == b->released;', 'strcmp(a->epoch, b->epoch) == 0 && a->released == b->released;',
        ["election"]),
    "renewals_repeat_a_number": (
        "common/rdzv/homes/rdzv_log_etcd.c", "        next.n = ++h->n;", "        next.n = own->n + 1;", ["rdzv_etcd"]),
    "renewals_of_a_lease_repeat_a_number": (
        "common/rdzv/homes/rdzv_log_kube.c", "        next.n = ++h->n;", "        next.n = own->n + 1;", ["rdzv_kube"]),
    "an_answer_that_was_lost_is_an_append": (
        "common/rdzv/homes/rdzv_log_kube.c", "        if (h->now.seq >= h->seq) {", "        if (h->now.seq > h->seq) {", ["rdzv_kube"]),
    "maps_that_nobody_names_stay": (
        "common/rdzv/homes/rdzv_log_kube.c", "    sweep(h, h->api.name, false);\n", "", ["rdzv_kube"]),
    "late_sweeps_take_all": (
        "common/rdzv/homes/rdzv_log_kube.c", "rdzv_epoch_number(name + n) < rdzv_epoch_number(h->epoch)", "rdzv_epoch_number(name + n) > 0", ["rdzv_kube"]),
    "a_lost_append_is_a_lost_answer": (
        "common/rdzv/homes/rdzv_log_etcd.c", "rc = stands ? 1 : AGAIN;", "rc = stands || once ? 1 : AGAIN;", ["rdzv_etcd"]),
    "old_news_are_news": (
        "common/rdzv/homes/rdzv_log_etcd.c", "if (rc < 0 || revision <= h->revision)", "if (rc < 0)", ["rdzv_etcd"]),
    "any_etcd_is_the_leaders": (
        "common/rdzv/homes/rdzv_log_etcd.c", "    return rc < 0 || strcmp(h->identity, h->api.answered) == 0 ? rc : 0;", "    return rc;", ["rdzv_etcd"]),
    "lease_by_the_same_clock": (
        "common/rdzv/client/lease.c", 'return silence_ms - (silence_ms + kill_ms) / 100;', 'return silence_ms + 0 * kill_ms;',
        ["lease"]),
    "warm_up_begins_a_step_late": (
        "worker/optim/schedule.c", "return m + (1 - m) * (double)(step + 1) / w;", "return m + (1 - m) * (double)step / w;", ["schedule"]),
    "clean_steps_counted_over_an_overflow": (
        "worker/precision/loss_scale.c", "        s->scale /= 2;\n        s->clean = 0;", "        s->scale /= 2;", ["loss_scale"]),
    "who_was_told_to_stop_is_a_culprit": (
        "launcher/report/failure.c", "(w->ended && !w->told_to_stop && ending_code(w->ending) != 0)", "(w->ended && ending_code(w->ending) != 0)",
        ["launcher_failure"]),
    "a_late_rank_that_computes_is_named": (
        "launcher/witness/witness.c", "    if (needs_silence(f) && now - last_sign(w, lived) < w->quiet_ns)", "    if (needs_silence(f) && last_sign(w, lived) > now)",
        ["launcher_witness"]),
    "counts_that_move_are_taken_for_a_hang": (
        "launcher/witness/witness.c", "    if (!still || !differs(f))", "    if (!differs(f))", ["launcher_witness"]),
    "an_old_nccl_is_asked_again": (
        "launcher/witness/witness.c", "    if (a->version < RAS_LEAST_VERSION) {", "    if (a->version < 0) {", ["launcher_witness"]),
    "who_waits_elsewhere_is_named": (
        "launcher/witness/ras_judge.c", "        late[r] = late[r] && !waits[r];", "        late[r] = late[r] || waits[r];", ["launcher_witness"]),
    "a_communicator_that_forms_is_judged": (
        "launcher/witness/ras_answer.c", 'return counted && json_int_or(status, "init_state", -1) == 0 &&', 'return counted && json_int_or(status, "init_state", -1) >= 0 &&', ["launcher_witness"]),
    "a_process_id_is_that_of_any_node": (
        "launcher/witness/ras_answer.c", "        if (runs(r, host, v[i].node)) {", "        if (host && rank < 0) {", ["launcher_witness"]),
    "removed_deadlines_only_sink": (
        "rendezvousd/store/expiry.c", "    place_at(h, i, last);\n    settle(h, last);", "    place_at(h, i, last);\n    sink(h, i);", ["rendezvousd_expiry"]),
    "parts_of_a_proof_run_together": (
        "common/auth/auth.c", "size_t len = strlen(parts[i]) + 1;", "size_t len = strlen(parts[i]);", ["auth"]),
    "name_of_a_checkpoint_not_on_disk": (
        "worker/ckpt/save.c", "        folder_remove(tmp, NULL);\n        return rc;\n    }\n    return folder_sync(dir, e);",
        "        folder_remove(tmp, NULL);\n        return rc;\n    }\n    return 0;",
        ["trainer/test_checkpoints.py::test_what_a_checkpoint_is_made_of_is_on_disk_before_its_name_and_that_before_anything_else"]),
    "decision_numbered_before_it_is_on_disk": (
        "common/rdzv/homes/rdzv_log_file.c", "TRY(file_write(h, draft, O_EXCL, true,", "TRY(file_write(h, draft, O_EXCL, false,",
        ["elastic/test_homes.py::test_a_decision_in_a_folder_is_on_disk_before_it_has_its_number_and_that_before_anything_else"]),
    "number_of_a_decision_not_on_disk": (
        "common/rdzv/homes/rdzv_log_file.c", "synced = rc == 1 ? sync_log(h) : 0;", "synced = 0;",
        ["elastic/test_homes.py::test_a_decision_in_a_folder_is_on_disk_before_it_has_its_number_and_that_before_anything_else"]),
    "log_of_a_job_not_on_disk": (
        "rendezvousd/state/state_writer.c", "if (rc == 0 && fdatasync(fd) < 0)", "if (rc > 0)",
        ["rendezvousd/test_service.py::test_logs_of_jobs_are_on_disk_before_their_names_and_with_each_decision"]),
    "news_do_not_wait_for_a_log_that_is_written_anew": (
        "rendezvousd/state/state_home.c", "    if (anew)\n        base->stands = base->asked - 1;\n", "", ["rendezvousd_state_dir"]),
    "only_the_first_lost_log_comes_back": (
        "rendezvousd/state/state_home.c", "        if (wants_room(other))\n            other->base.rewrite(other->base.arg);", "        (void)other;",
        ["rendezvousd_state_dir"]),
    "a_lost_log_is_not_written_at_the_end": (
        "rendezvousd/jobs/jobs_log.c", "    else if (home->unlogged)\n", "    else if (!home)\n", ["rendezvousd_state_dir"]),
    "a_page_of_addresses_begins_a_node_late": (
        "rendezvousd/jobs/jobs_party.c", "more = to < news.group_world ? to : 0;", "more = to < news.group_world ? to + 1 : 0;", ["rendezvousd_jobs"]),
    "any_version_of_a_log_is_read": (
        "rendezvousd/state/state_log.c", "if (version < LEADER_FORMAT_OLDEST || version > LEADER_FORMAT)", "if (version < 0)", ["rendezvousd_state_dir"]),
    "a_question_is_taken_for_an_answer": (
        "rendezvousd/jobs/jobs_verbs.c", "    job_confirmed_(job, m, p->answered_ms);\n    party_bound_", "    job_confirmed_(job, m, p->jobs->o.now());\n    party_bound_",
        ["rendezvousd_jobs"]),
    "lease_of_a_host_for_one_node_less": (
        "rendezvousd/jobs/jobs_lease.c", "c->min_nodes - 1 - job->departed;", "c->min_nodes - 2 - job->departed;", ["rendezvousd_jobs"]),
    "the_dead_have_left_in_good_order": (
        "rendezvousd/jobs/jobs_lease.c", "job->departed += !m->known && m->member_round", "job->departed += m->member_round", ["rendezvousd_jobs"]),
    "heard_by_coming": (
        "rendezvousd/jobs/jobs_seats.c", '    seats_confirm(j->seats, p->seat, p->sent);', '    seats_confirm(j->seats, p->seat, seats_answer(j->seats, j->o.now()));', ["rendezvousd_jobs_seats"]),
    "heard_by_questions": (
        "rendezvousd/jobs/jobs_seats.c", '    const struct job *job = job_find_(j, "", run);\n    *ret', '    const struct job *job = job_find_(j, "", run);\n    if (seats_of(j->seats, node) >= 0)\n        seats_confirm(j->seats, seats_of(j->seats, node), seats_answer(j->seats, j->o.now()));\n    *ret', ["rendezvousd_jobs_seats"]),
    "lapsed_host_remembers": (
        "rendezvousd/jobs/jobs_seats.c", '    if (!j->seats || seats_may_answer(j->seats, j->o.now()))\n        return;', '    if (j)\n        return;', ["rendezvousd_jobs_seats"]),
    "hosts_wait_for_one_silence": (
        "common/rdzv/leader/seats.c", 'wait_ms = 2 * s->silence_ms + s->kill_ms,', 'wait_ms = s->silence_ms + s->kill_ms,', ["seats"]),
    "all_are_here_unasked": (
        "common/rdzv/leader/seats.c", ' || s->v[i].confirmed.order <= newest)', ')', ["seats"]),
    "workers_of_others_acknowledged": (
        "rendezvousd/jobs/jobs_seats.c", '    if (seat < 0 || (!has_round(job) && (', '    if (seat < 0 || (!job && (', ["rendezvousd_jobs_seats"]),
    "higher_rounds_ignored": (
        "rendezvousd/jobs/jobs_seats.c", '    if (join->round > rdzv_round(', '    if (!join && join->round > rdzv_round(', ["rendezvousd_jobs_seats"]),
    "who_was_at_another_host_is_told_a_round": (
        "rendezvousd/jobs/jobs_seats.c", '    else if (has_been_elsewhere(job, join))', '    else if (!job && has_been_elsewhere(job, join))', ["rendezvousd_jobs_seats"]),
    "news_numbered_as_those_of_the_job_before": (
        "rendezvousd/jobs/jobs.c", ".number_after = j->numbered,", ".number_after = 0 * j->numbered,", ["rendezvousd_jobs_seats"]),
    "new_connections_have_joined": (
        "common/rdzv/leader/seats.c", '    x->joined = (struct seats_sent){0};\n    snprintf', '    snprintf', ["seats"]),
    "hold_of_a_new_host_left_out": (
        "common/rdzv/machine/rdzv.c", "    if (!to.joined) /* a repeated one has held already */\n", "    if (!n)\n", ["rdzv_scenarios"]),
    "keys_lie_behind_all_queries": (
        "worker/program/split.c", "        p->params[i].shard_at[0] = (int64_t)heads * d + ", "        p->params[i].shard_at[0] = (int64_t)kv_heads * d + ", ["worker/model/net"]),
    "a_part_drops_as_if_it_were_the_whole": (
        "worker/model/net_words.c", "false, (int)part.first, op->cut.channels);", "false, 0, op->cut.channels);", ["exact"]),
    "uneven_heads_cut_stages_unevenly": (
        "worker/program/stages.c", "    return (double)x->whole * x->ranks / (x->whole == x->c ? 1 : p->group);", "    return (double)x->c * x->ranks;", ["worker/program/stages"]),
    "a_part_of_a_vocabulary_begins_at_0": (
        "worker/program/split.c", "    op->in[1] = labels;\n    op->first = (int)part.first;\n", "    op->in[1] = labels;\n", ["exact"]),
    "each_rank_takes_its_own_largest_logit": (
        "worker/device/cpu/head.c", "    if (g->max(g->ctx, h->top, (size_t)n * TOP_N, DT_F32, NULL, e) < 0)", "    if (!g->max)",
        ["trainer/test_tokens.py::test_what_a_shared_vocabulary_sends_is_as_planned"]),
    "tied_stages_are_trained_apart": ("worker/run/step.c", "    TRY(ddp_tie(t->ddp, e));\n", "", ["exact"]),
    "a_tied_table_counts_twice": (
        "worker/optim/norm.c", "OWNERSHIP_GRADIENTS, s->own->copy.end, n,", "OWNERSHIP_GRADIENTS, copy, n,", ["exact"]),
    "second_owner_on_the_other_side": (
        "worker/parallel/ddp_reduce.c", "bytes, (c->rank + p->distance) % c->world,", "bytes, (c->rank + c->world - p->distance) % c->world,", ["zero"]),
    "the_rest_of_a_batch_is_nobodys": (
        "worker/data/loader/sampler.c", "return (batch + (size_t)world - 1) / (size_t)world;", "return batch / (size_t)world;", ["data_sampler"]),
    "guardian_acts_before_the_agent": (
        "launcher/guard/lease.c", "until + s->late_ms - clock_ms();", "until - clock_ms();", ["launcher_guardian"]),
    "beginning_of_two_uuids_is_taken": (
        "launcher/place/gpus.c", "            if (found >= 0)\n                return -1; /* the beginning of two */\n", "", ["launcher_cores"]),
    "bytes_overflow": (
        "common/args/args_value.c", 'parse_i64(digits, "", 0, INT64_MAX >> shift, &v, NULL)', 'parse_i64(digits, "", 0, INT64_MAX, &v, NULL)', ["args"]),
    "several_nodes_as_patient_as_one": (
        "launcher/hang/hang.c", "if (h->o.several_nodes || l->n < TAIL_STEPS * workers)", "if (l->n < TAIL_STEPS * workers)", ["launcher_hang"]),
    "a_missing_key_compares_equal": (
        "rendezvousd/tcpstore/tcpstore_execute.c", "memcmp(v, expected->p, n) != 0 : expected->n > 0)", "memcmp(v, expected->p, n) != 0 : false)",
        ["rendezvousd_tcpstore"]),
    "a_hung_worker_counts_from_its_kill": (
        "launcher/workers/group.c", "    if (!w->hung[0]) {\n", "    if (w) {\n",
        ["launcher/test_hang.py::test_of_two_that_hang_the_report_has_when_they_were_found_and_not_when_they_were_killed"]),
    "the_same_callback_twice": (
        "python/crun/_stops.py", "if callback not in self.all:", "if True:",
        ["packages/test_module.py::test_a_callback_that_is_given_again_is_called_once"]),
    "interleaved_warm_up_too_short": (
        "worker/pipeline/pipeline.c", "min_int(2 * behind + (p->chunks - 1) * p->stages, all)", "at_most(behind + (p->chunks - 1) * p->stages, all)",
        ["pipeline"]),
    "unit_that_does_not_restart": (
        "rendezvousd/daemon/rendezvousd.service.in", "Restart=on-failure\n", "",
        ["rendezvousd/test_service.py::test_the_unit_starts_restarts_and_confines_the_daemon"]),
    "channels_of_a_cache_not_compared": (
        "worker/data/loader/decoded_cache.c", " || h.channels != (uint64_t)channels)", ")", ["data_decoded_cache"]),
    "tilde_unquoted": ("launcher/base/shell_word.c", '"_-./:=,+@%"', '"_-./:=,+@%~"', ["launcher_shell_word"]),
    "steps_of_slurm_are_one_job": (
        "launcher/config/home_scheduler.c", 'snprintf(s->job, sizeof s->job, step ? "%.60s.%.60s" : "%.60s", job, step ? step : "");',
        'snprintf(s->job, sizeof s->job, "%.60s", job);', ["launcher_home"]),
    "crop_never_at_the_last_column": (
        "worker/data/image/image.c", "c.x = (int)rng_below(r, (uint64_t)(w - c.w + 1));", "c.x = (int)rng_below(r, (uint64_t)(w - c.w + 1)) - (c.w < w);",
        ["data_image"]),
    "top_5_sums_top_1": (
        "worker/run/eval.c", "to->top5 += r->top5;", "to->top5 += r->top1;", ["trainer/test_evaluate.py::test_the_best_five_of_four_classes_are_all"]),
    "more_workers_than_the_node_has": (
        "launcher/agent/machine/agent.c", '    a->live = a->slots;\n', '    a->live = a->slots + 1;\n',
        ["launcher_agent"]),
    "workers_that_ended_still_live": (
        "launcher/agent/machine/agent.c", '    a->live = 0; /* some may never have been started */\n', '',
        ["launcher_agent"]),
    "nobody_ends_a_stop_without_workers": (
        "launcher/agent/machine/agent.c", '    f->typed = typed;\n    if (a->live == 0)\n        agent_clear(a, fx);\n', '    f->typed = typed;\n',
        ["launcher_agent"]),
    "nobody_ends_a_hold_of_nobody": (
        "launcher/agent/machine/agent.c", '        agent_break_round(a, ev, fx);\n        agent_check_held(a, fx);\n', '        agent_break_round(a, ev, fx);\n',
        ["launcher_agent"]),
    "kept_without_a_clearing": (
        "launcher/agent/machine/agent.c", "    a->clearing = a->keeping = false;\n    a->sent", "    a->clearing = false;\n    a->sent",
        ["launcher_agent"]),
    "gone_in_a_running_round": (
        "launcher/agent/machine/agent.c", '    if (a->state != AGENT_CLEARING && a->state != AGENT_STOPPING)\n        return;\n', '    if (a->state == AGENT_RUNNING)\n        a->live = 0;\n    if (a->state != AGENT_CLEARING && a->state != AGENT_STOPPING)\n        return;\n',
        ["launcher_agent"]),
    "a_leaving_node_gets_another_round": (
        "launcher/agent/machine/agent.c", '    if (a->signo || a->ended)\n        agent_part(', '    if (a->ended)\n        agent_part(',
        ["launcher_agent"]),
    "a_node_whose_job_is_over_gets_another_round": (
        "launcher/agent/machine/agent.c", '    if (a->signo || a->ended)\n        agent_part(', '    if (a->signo)\n        agent_part(',
        ["launcher_agent"]),
    "an_end_before_the_start_releases": (
        "launcher/agent/machine/agent.c", '    if (a->state == AGENT_IDLE)\n        return;\n    a->released = true;\n', '    a->released = true;\n',
        ["launcher_agent"]),
    "a_released_node_waits_for_its_release": (
        "launcher/agent/machine/agent.c", '    if (a->released) {\n        agent_leave_for_good(a, code, fx);\n        return;\n    }\n', '',
        ["launcher_agent"]),
    "finishing_without_done": (
        "launcher/agent/machine/agent.c", '    a->done = true;\n', '',
        ["launcher_agent"]),
    "done_in_the_next_round": (
        "launcher/agent/machine/agent.c", '    a->done = false;\n', '',
        ["launcher_agent"]),
    "effects_after_the_exit": (
        "launcher/agent/machine/agent.c", '    agent_add_effect(fx, AGENT_DO_EXIT)->code = code;\n', '    agent_add_effect(fx, AGENT_DO_EXIT)->code = code;\n    agent_add_effect(fx, AGENT_DO_LEAVE);\n',
        ["launcher_agent"]),
    "an_exit_that_is_not_the_end": (
        "launcher/agent/machine/agent.c", '    a->state = AGENT_OVER;\n', '',
        ["launcher_agent"]),
    "a_worker_is_not_counted": (
        "launcher/agent/machine/agent.c", '    a->live = a->slots;\n', '    a->live = a->slots > 1 ? a->slots - 1 : 1;\n',
        ["launcher_agent"]),
    "waits_for_its_release_without_parting": (
        "launcher/agent/machine/agent.c", '    a->state = AGENT_PARTING;\n', '    a->state = a->done ? AGENT_FINISHING : AGENT_PARTING;\n',
        ["launcher_agent"]),
    "a_failure_is_told_of_the_next_round": (
        "common/rdzv/client/client_talk.c", '    c->failing = false; /* whatever failed was of a round that is over */\n', '',
        ["client"]),
    "dialling_goes_on_beside_the_connection": (
        "common/rdzv/client/client.c", '    c->dialling = c->stranger = false;\n', '    c->stranger = false;\n',
        ["client"]),
    "proved_after_it_was_lost": (
        "common/rdzv/client/client.c", '        c->up = c->connected;\n', '        c->up = true;\n',
        ["client"]),
    "requests_outlive_their_connection": (
        "common/rdzv/client/client.c", '    c->asked_first = c->asked_last = 0;\n', '',
        ["client"]),
    "an_answered_next_stays_open": (
        "common/rdzv/client/client_talk.c", '    if (a.what == ASK_NEXT)\n        c->next_open = false;\n', '',
        ["client"]),
    "any_number_of_requests": (
        "common/rdzv/client/client_talk.c", '    if (c->asked_last - c->asked_first == CLIENT_ASKED_MAX) {\n', '    if (c->asked_last - c->asked_first == CLIENT_ASKED_MAX + 1) {\n',
        ["client"]),
    "no_pause_and_no_dial_after_a_loss": (
        "common/rdzv/client/client.c", '    cannot_reach(c, text, now);\n    client_again_(c, now);\n', '    cannot_reach(c, text, now);\n',
        ["client"]),
    "nothing_is_asked_after_news": (
        "common/rdzv/client/client_talk.c", '    if (a.what == ASK_NEXT && c->up)\n        go_on(c, now);\n', '',
        ["client"]),
    "asks_for_the_grace_of_a_fenced_round": (
        "common/rdzv/client/client.c", '    c->failing = false;\n    client_alive_(c, false);\n', '    c->failing = false;\n',
        ["client"]),
    "a_fenced_round_fails_again": (
        "common/rdzv/client/client.c", '    c->failing = false;\n    client_alive_(c, false);\n', '    client_alive_(c, false);\n',
        ["client"]),
    "a_round_before_its_join": (
        "common/rdzv/client/client_talk.c", '    if (c->mode != CLIENT_JOINING || !a->joining || !c->joined)\n', '    if (c->mode != CLIENT_JOINING || !a->joining)\n',
        ["client"]),
    "dials_after_the_end": (
        "common/rdzv/client/client_talk.c", '    client_alive_(c, false);\n    c->retry_at = INT64_MAX;\n', '    client_alive_(c, false);\n',
        ["client"]),
    "news_numbered_above_the_newest": (
        "common/rdzv/leader/leader_member.c", '    m->seq = m->news.seq;\n', '',
        ["leader"]),
    "a_forgotten_node_keeps_its_round": (
        "common/rdzv/leader/leader_member.c", '    if (m->has_news && m->news.kind != RDZV_NEWS_END)\n        m->has_news = false;\n    if (!m->elder)', '    if (!m->elder)',
        ["leader"]),
    "news_without_their_instance": (
        "common/rdzv/leader/leader_member.c", '    m->told = false;\n    memcpy(m->instance, l->instance, sizeof m->instance);\n', '    m->told = false;\n',
        ["leader"]),
    "forgotten_nodes_stay_known": (
        "common/rdzv/leader/leader.c", '    for (m = l->members; m; m = m->hh.next)\n        leader_set_known_(', '    for (m = NULL; m; m = m->hh.next)\n        leader_set_known_(',
        ["leader"]),
    "who_joins_stays_an_elder": (
        "common/rdzv/leader/leader_ask.c", '    leader_elder_(l, m, false); /* its workers are gone, it says */\n', '',
        ["leader"]),
    "a_forgotten_node_is_heard": (
        "common/rdzv/leader/leader_member.c", '        m->heard_ms = now;\n    leader_list_(l, m, LEADER_LIST_ENDED);\n', '        m->heard_ms = now;\n',
        ["leader"]),
    "a_silent_node_is_dropped": (
        "common/rdzv/leader/leader.c", '    leader_list_(l, m, LEADER_LIST_SILENT);\n    step_node(', '    leader_list_(l, m, LEADER_LIST_ENDED);\n    step_node(',
        ["leader"]),
    "one_list_for_all": (
        "common/rdzv/leader/leader_member.c", '        DL_APPEND(l->lists[list], m);\n', '        DL_APPEND(l->lists[LEADER_LIST_HEARD], m);\n',
        ["leader"]),
    "who_is_heard_last_comes_first": (
        "common/rdzv/leader/leader_member.c", '        DL_APPEND(l->lists[list], m);\n', '        DL_PREPEND(l->lists[list], m);\n',
        ["leader"]),
    "fresh_for_ever": (
        "common/rdzv/leader/leader_member.c", '    DL_DELETE2(l->fresh, m, fresh_prev, fresh_next);\n    m->fresh = false;\n', '    DL_DELETE2(l->fresh, m, fresh_prev, fresh_next);\n',
        ["leader"]),
    "a_final_machine_is_not_over": (
        "common/rdzv/leader/leader.c", '        l->over = true;\n', '',
        ["leader"]),
    "any_end_is_that_of_the_job": (
        "common/rdzv/leader/leader_member.c", '        if (news->kind == RDZV_NEWS_END && leader_is_final_(l))\n', '        if (news->kind == RDZV_NEWS_END)\n',
        ["leader"]),
    "elders_are_counted_once_and_for_all": (
        "common/rdzv/leader/leader.c", '    l->elders -= !is && m->elder;\n', '',
        ["leader"]),
    "a_successor_forgets_who_has_seen_all": (
        "common/rdzv/leader/leader_replay.c", '    if (!m)\n        TRY(leader_add_(r->l, n->node, &m, NULL));\n', '    if (!m)\n        return 0;\n',
        ["leader"]),
    "fewer_than_none_are_held": (
        "launcher/agent/machine/agent.c", 'ev->was_held && a->held > 0;', 'ev->was_held && a->held >= 0;',
        ["launcher_agent"]),
}


def node(test):
    """Its name for pytest; None if it is one of meson's."""
    return f"tests/e2e/{test}" if ".py" in test else None


def need_pytest(tests):
    """Asked before anything is built."""
    needs = next(filter(node, tests), None)
    if needs and importlib.util.find_spec("pytest") is None:
        raise SystemExit(f"mutants: {sys.executable} has no pytest, which {needs} needs: start this with a python3 that has it, as /usr/bin/python3 after ./dev setup")


def text_once(name, tree):
    path, old = tree / MUTANTS[name][0], MUTANTS[name][1]
    text = path.read_text()
    if text.count(old) != 1:
        raise SystemExit(f"mutant {name}: {MUTANTS[name][0]} has {text.count(old)} times: {old}")
    return path, text


def introspect(build, what):
    return json.loads(subprocess.run(["meson", "introspect", build, f"--{what}"], capture_output=True, check=True).stdout)


def check(build):
    there = {t["name"] for t in introspect(build, "tests")}
    for name, (_, _, _, tests) in MUTANTS.items():
        text_once(name, ROOT)
        for test in tests:
            path, _, function = (node(test) or "").partition("::")
            if not (f"def {function}(" in (ROOT / path).read_text() if function else test in there):
                raise SystemExit(f"mutant {name}: there is no test {test}")


# --- a tree of its own ------------------------------------------------------------------------------------------------


def copy_tree(tree):
    """What git has here; files that are the same keep their times, so that little is built again. The build is in it: where
    ccache has heard of this tree, it is a matter of a minute."""
    p = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    names = {n for n in os.fsdecode(p.stdout).split("\0") if n and os.path.lexists(ROOT / n)}
    for folder, folders, files in os.walk(tree):
        if pathlib.Path(folder) == tree and "build" in folders:
            folders.remove("build")
        for file in files:
            path = pathlib.Path(folder, file)
            if str(path.relative_to(tree)) not in names:
                path.unlink()
    for name in names:
        here, there = ROOT / name, tree / name
        if here.is_symlink() or not there.exists() or here.read_bytes() != there.read_bytes():
            there.parent.mkdir(parents=True, exist_ok=True)
            there.unlink(missing_ok=True)
            shutil.copy2(here, there, follow_symlinks=False)
            if not here.is_symlink():
                os.utime(there)


class Copy:
    def __init__(self, out):
        self.tree, self.build, self.log = out / "tree", out / "tree" / "build", open(out / "mutants.log", "w", encoding="utf-8")
        copy_tree(self.tree)
        if not (self.build / "build.ninja").exists():
            self.run("meson", "setup", self.build, self.tree, "-Dtests=auto", "-Dcuda=disabled") or self.give_up("meson setup")
        self.programs = [os.path.relpath(f, self.build) for t in introspect(self.build, "targets") if t["type"] in ("executable", "shared library")
                         and not pathlib.Path(t["defined_in"]).is_relative_to(self.tree / "tests") for f in t["filename"]]

    def give_up(self, what):
        raise SystemExit(f"mutants: {what} of the tree as it is failed: {self.log.name}")

    def run(self, *command):
        """Whether it succeeded."""
        self.log.write(f"--- {' '.join(map(str, command))}\n")
        self.log.flush()
        with subprocess.Popen([str(c) for c in command], cwd=self.tree, env={**os.environ, "CRUN_BUILD": str(self.build)}, stdin=subprocess.DEVNULL,
                              stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True) as p:
            try:
                return p.wait(LIMIT if command[0] != "ninja" else None) == 0
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                self.log.write("--- out of time\n")
                self.log.flush()
                return False

    def passes(self, test):
        if node(test):
            return self.run(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", node(test))
        return self.run("meson", "test", "-C", self.build, "--no-rebuild", "--timeout-multiplier", PATIENCE, test)

    def make(self, tests):
        """What these tests run. meson test would build it, too, but takes a failed build for a failed test."""
        of = {t["name"]: t["cmd"][0] for t in introspect(self.build, "tests")}
        return self.run("ninja", "-C", self.build, *(self.programs if any(map(node, tests)) else ()), *(os.path.relpath(of[t], self.build) for t in tests if t in of))

    def verdict(self, name):
        path, text = text_once(name, self.tree)
        _, old, new, tests = MUTANTS[name]
        try:
            path.write_text(text.replace(old, new))
            if not self.make(tests):
                return "does not build"
            self.log.flush()
            before = os.path.getsize(self.log.name)
            by = next((t for t in tests if not self.passes(t)), None)
            hung = by and re.search(rb"\bTIMEOUT\b|^--- out of time$", pathlib.Path(self.log.name).read_bytes()[before:], re.M)
            return f"caught by {by}{', which did not end' if hung else ''}" if by else "missed"
        finally:
            path.write_text(text)


def main():
    p = argparse.ArgumentParser(prog="mutants.py", usage="%(prog)s [--only NAME,...] OUT | %(prog)s --check BUILD")
    p.add_argument("--only", metavar="NAME,...", help=", ".join(MUTANTS))
    p.add_argument("--check", metavar="BUILD")
    p.add_argument("out", nargs="?")
    args = p.parse_args()
    if args.check:
        check(args.check)
        return 0
    names = args.only.split(",") if args.only else list(MUTANTS)
    if not args.out or set(names) - set(MUTANTS):
        p.error(f"expected a folder, and names of {', '.join(MUTANTS)}")
    out = pathlib.Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    tests = sorted({t for n in names for t in MUTANTS[n][3]})
    need_pytest(tests)
    copy = Copy(out)
    copy.make(tests) or copy.give_up("the build")
    for test in tests:
        if not copy.passes(test):
            copy.give_up(test)
    caught = 0
    for name in names:
        begun = time.monotonic()
        said = copy.verdict(name)
        caught += said.startswith("caught")
        print(f"{name}: {said}, {time.monotonic() - begun:.1f} s", flush=True)
    print(f"{caught} of {len(names)} mutants caught, {len(names) - caught} missed")
    return int(caught < len(names))


if __name__ == "__main__":
    sys.exit(main())
