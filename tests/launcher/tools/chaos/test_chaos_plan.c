/* Plans as text, and the sequence that a seed makes of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "launcher/tools/chaos/chaos_draw.h"
#include "launcher/tools/chaos/chaos_plan.h"
#include "launcher/tools/chaos/chaos_target.h"

static struct chaos_plan plan;
static struct chaos_targets targets;
static struct err e;

static int parse(const char *text)
{
    static char copy[65536];
    snprintf(copy, sizeof copy, "%s", text);
    return chaos_plan_parse(&plan, copy, "plan", &e);
}

/* NULL ends them. */
static void set_targets(const char *const *words)
{
    static char copies[8][256];
    targets.n = 0;
    for (; words[targets.n]; targets.n++) {
        snprintf(copies[targets.n], sizeof copies[0], "%s", words[targets.n]);
        assert_int_equal(chaos_target_parse(&targets.v[targets.n], copies[targets.n], &e), 0);
    }
}

static void a_plan_has_every_part(void **state)
{
    (void)state;
    assert_int_equal(parse("# a comment\n"
                           "for 10m\n"
                           "every 1.2s   # and another\n"
                           "\n"
                           "draw 2 kill worker\n"
                           "draw 1 stop guardian node 1 for 50ms..6s and kill agent\n"
                           "at 30s slow worker rank 3 by 4 for 10s\n"
                           "at 0 clock by -1h for 1\n"
                           "at 1s corrupt step-*/model.safetensors\n"
                           "at 1s stop server for 1s"),
                     0);
    assert_int_equal(plan.for_ms, 600000);
    assert_int_equal(plan.every_ms, 1200);
    assert_int_equal(plan.n, 6);
    assert_int_equal(plan.lines[0].weight, 2);
    assert_int_equal(plan.lines[0].acts[0].role, CHAOS_WORKER);
    assert_int_equal(plan.lines[1].n, 2);
    assert_int_equal(plan.lines[1].acts[0].node, 1);
    assert_int_equal(plan.lines[1].acts[0].lasts.least_ms, 50);
    assert_int_equal(plan.lines[1].acts[0].lasts.most_ms, 6000);
    assert_int_equal(plan.lines[1].acts[1].deed, CHAOS_KILL);
    assert_int_equal(plan.lines[1].acts[1].node, -1);
    assert_int_equal(plan.lines[2].at_ms, 30000);
    assert_int_equal(plan.lines[2].acts[0].rank, 3);
    assert_true(plan.lines[2].acts[0].by == 4);
    assert_true(plan.lines[3].acts[0].by == -3600);
    assert_string_equal(plan.lines[4].acts[0].word, "step-*/model.safetensors");
    assert_int_equal(plan.lines[5].acts[0].role, CHAOS_OTHER);
    assert_string_equal(plan.lines[5].acts[0].word, "server");
}

static void what_is_wrong_is_said_with_its_line(void **state)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"", "plan: no fault is in it: expected lines 'draw WEIGHT FAULT' or 'at TIME FAULT'"},
        {"\nhit it", "plan line 2: 'hit': expected for, every, draw or at"},
        {"at 1s stab worker",
         "plan line 1: 'stab': expected a fault (kill, terminate, stop, slow, cut, fill, corrupt or clock)"},
        {"at 1s", "plan line 1: '': expected a fault (kill, terminate, stop, slow, cut, fill, corrupt or clock)"},
        {"at 1s kill", "plan line 1: 'kill' needs a value behind it"},
        {"at 1s kill worker rank", "plan line 1: 'rank' needs a value behind it"},
        {"at 1s kill agent rank 1", "plan line 1: 'rank' is for workers"},
        {"at 1s kill agent for 1s", "plan line 1: 'for' behind kill: expected node N, or 'and' and another fault"},
        {"at 1s stop agent", "plan line 1: stop: for how long is missing ('for 5s', 'for 50ms..6s')"},
        {"at 1s stop agent for 6s..5s", "plan line 1: for: '6s..5s': expected a time above 0, or LEAST..MOST"},
        {"at 1s stop agent for 0", "plan line 1: for: '0': expected a time above 0, or LEAST..MOST"},
        {"at 1s cut for 8d", "plan line 1: for: '8d' is too long, expected a week (7d) at most"},
        {"at 1s slow worker for 1s", "plan line 1: slow: by how much is missing ('by 4')"},
        {"at 1s slow worker by 1 for 1s", "plan line 1: by: '1': expected more than 1 (2: half as fast)"},
        {"at 1s clock by 0 for 1s",
         "plan line 1: by: '0': expected a time above 0 and of a year at most, '-' in front: back"},
        {"at 1s kill agent and",
         "plan line 1: '': expected a fault (kill, terminate, stop, slow, cut, fill, corrupt or clock)"},
        {"draw 0 kill agent", "plan line 1: draw: 0 is out of range, expected 1 to 1000000"},
        {"draw 1 kill agent\nevery 1s", "plan: faults are drawn, and the line 'for TIME' is missing"},
        {"draw 1 kill agent\nfor 1s", "plan: faults are drawn, and the line 'every TIME' is missing"},
        {"at 1s kill agent\nevery 1s", "plan: 'every' is for faults that are drawn, and there is no line 'draw'"},
        {"for 1s 2s", "plan line 1: '2s' behind 'for 1s' is one word too many"},
        {"for 1s\nfor 2s", "plan line 2: 'for' stands there twice: expected it once"},
        {"every 1s\nevery 2s", "plan line 2: 'every' stands there twice: expected it once"},
        {"at 0 kill worker node 0 node 1", "plan line 1: 'node' stands there twice: expected it once"},
        {"at 0 kill worker rank 0 rank 0", "plan line 1: 'rank' stands there twice: expected it once"},
        {"at 0 slow agent by 2 by 3 for 1s", "plan line 1: 'by' stands there twice: expected it once"},
        {"at 0 stop agent for 1s for 2s", "plan line 1: 'for' stands there twice: expected it once"},
        {"every 0", "plan line 1: every: '0': expected a time of a millisecond or more"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(parse(wrong[i].text), ERR_USAGE);
        assert_string_equal(e.text, wrong[i].says);
    }
}

static void targets_are_checked(void **state)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"", "an empty TARGET: expected a pid of crun, or a file that holds one"},
        {"1,disk", "'disk': expected link=, folder=, clock= or WORD="},
        {"1,link=", "'link=' needs a value"},
        {"1,link=a,link=b", "'link=' stands there twice: expected it once"},
        {"1,folder=a,clock=b,folder=c", "'folder=' stands there twice: expected it once"},
        {"1,agent=2", "'agent=': that word stands for a process of crun: expected another one"},
        {"1,a-b=2", "'a-b': expected link, folder, clock or, for another process, a word of small letters"},
        {"1,server=", "expected a pid, or a file that holds one"},
    };
    struct chaos_target t;
    char text[256];
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, "%s", wrong[i].text);
        assert_int_equal(chaos_target_parse(&t, text, &e), ERR_USAGE);
        assert_string_equal(e.text, wrong[i].says);
    }
    snprintf(text, sizeof text, "/run/a.pid,link=sw:p1,folder=/x,clock=/c,server=12");
    assert_int_equal(chaos_target_parse(&t, text, &e), 0);
    assert_string_equal(t.crun.file, "/run/a.pid");
    assert_string_equal(t.netns, "sw");
    assert_string_equal(t.link, "p1");
    assert_string_equal(t.processes[0].word, "server");
    assert_int_equal(t.processes[0].source.pid, 12);
}

/* The whole sequence as text. */
static void draw(uint64_t seed, char *out, size_t cap)
{
    struct chaos_sequence s;
    char text[CHAOS_TEXT_MAX];
    size_t n = 0;
    assert_int_equal(chaos_sequence_draw(&s, &plan, seed, &targets, "plan", &e), 0);
    for (size_t i = 0; i < s.n; i++)
        n += (size_t)snprintf(out + n, cap - n, "%lld %s %llu\n", (long long)s.v[i].at_ms,
                              chaos_fault_text(&s.v[i], text), (unsigned long long)s.v[i].parts[0].pick);
    chaos_sequence_free(&s);
}

static void a_seed_is_a_sequence(void **state)
{
    static char one[1 << 20], same[1 << 20], other[1 << 20];
    static const char *const words[] = {"1", "2", "3,link=p3", NULL};
    (void)state;
    set_targets(words);
    assert_int_equal(parse("for 1h\nevery 1s\ndraw 3 kill worker\ndraw 1 cut for 1s..2s\nat 5s kill worker node 1"), 0);
    draw(7, one, sizeof one);
    draw(7, same, sizeof same);
    draw(8, other, sizeof other);
    assert_string_equal(one, same);
    assert_string_not_equal(one, other);
    int n = 0, cuts = 0;
    long long at, before = 0;
    char *rest = NULL;
    for (char *line = strtok_r(one, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), n++) {
        assert_int_equal(sscanf(line, "%lld", &at), 1);
        assert_true(before <= at && at < 3600000);
        before = at;
        cuts += strstr(line, "cut node 2 for 1.") || strstr(line, "cut node 2 for 2.000"); /* who has a link */
        assert_true(!strstr(line, "cut") || strstr(line, "cut node 2"));
    }
    assert_in_range(n, 3300, 3900);                  /* five sigma of 3,600 pauses, uniform in 0..2 s: 173 */
    assert_in_range(cuts, n / 4 - 130, n / 4 + 130); /* five sigma of a quarter */
}

/* Numbers that stay: a plan and a seed from long ago do today what they did then, on every machine. */
static void a_sequence_that_is_known(void **state)
{
    static char got[4096];
    static const char *const words[] = {"1", "2", NULL};
    (void)state;
    set_targets(words);
    assert_int_equal(parse("for 3s\nevery 1s\ndraw 1 stop agent for 1s..2s\ndraw 1 kill guardian and kill agent"), 0);
    draw(1, got, sizeof got);
    assert_string_equal(got, "1682 kill guardian node 0 and kill agent node 0 8196980753821780235\n"
                             "2798 stop agent node 1 for 1.518 11168034603498703870\n");
}

static void what_no_target_has_is_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"at 1s kill worker node 2", "plan line 1: node 2: expected 0 to 1, as many as there are TARGETs"},
        {"at 1s kill server",
         "plan line 1: 'server' is neither a process of crun nor a word of a TARGET there (server=PID): "
         "expected one of guardian, agent, deputy, output, gauges, worker, spare, node"},
        {"at 1s fill node 0 for 1s", "plan line 1: no TARGET there has what 'fill' needs (folder=)"},
        {"at 1s cut for 1s", "plan line 1: no TARGET there has what 'cut' needs (link=)"},
        {"at 1s clock by 1 for 1s", "plan line 1: no TARGET there has what 'clock' needs (clock=)"},
        {"at 1s kill worker node 1", "plan line 1: no TARGET there has what 'kill worker' needs (a crun's pid)"},
        {"draw 1 kill worker\nfor 7d\nevery 1ms", "plan: expected 250000 faults at most: 'every' is too short"},
    };
    static const char *const words[] = {"1", "folder=/tmp", NULL};
    struct chaos_sequence s;
    (void)state;
    set_targets(words);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(parse(wrong[i].text), 0);
        assert_int_equal(chaos_sequence_draw(&s, &plan, 1, &targets, "plan", &e), ERR_USAGE);
        assert_string_equal(e.text, wrong[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_has_every_part),    cmocka_unit_test(what_is_wrong_is_said_with_its_line),
        cmocka_unit_test(targets_are_checked),      cmocka_unit_test(a_seed_is_a_sequence),
        cmocka_unit_test(a_sequence_that_is_known), cmocka_unit_test(what_no_target_has_is_refused),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
