/* Whom NCCL's RAS names, in which situations; and that it names nobody in hours of uneven work. By a virtual clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/numbers.h"
#include "launcher/hang/hang.h"
#include "launcher/witness/witness.h"

#define S INT64_C(1000000000)
#define WORLD 8
#define PID 1000 /* of rank 0 */

static struct witness w;
static int64_t now, active, lived[WORLD];
static struct ras_process processes[4 * WORLD];
static struct ras_place places[2] = {{"10.0.0.1", 0}, {"10.0.0.2", WORLD / 2}};
static struct ras_job job;

/* --- answers from a short form: "a: 0=r10,g3 1! 2?; b: ..."; r: all-reduce, g: all-gather. After the counts: i
 * initializes, f finalizes, e has an error. Instead of them: ! not reached, X dead, ? no member any more. @N: of
 * another process than that of the rank */

static void add_status(struct buf *b, char how)
{
    assert_int_equal(buf_printf(b,
                                "\"status\": {\"init_state\": %d, \"async_error\": %d, \"finalize_called\": %s, "
                                "\"destroy_flag\": false, \"abort_flag\": false}",
                                how == 'i' ? 7 : 0, how == 'e' ? 2 : 0, how == 'f' ? "true" : "false"),
                     0);
}

static void add_rank(struct buf *here, struct buf *missing, const char *word)
{
    char *end;
    const long rank = strtol(word, &end, 10), pid = strchr(end, '@') ? atol(strchr(end, '@') + 1) : PID + rank;
    const bool gone = *end != '=';
    struct buf *b = gone ? missing : here;
    buf_printf(b, "%s{\"rank\": %ld, \"host\": \"10.0.0.%d\", \"pid\": %ld, \"cuda_dev\": 0, \"nvml_dev\": 0, ",
               b->len ? "," : "", rank, rank < WORLD / 2 ? 1 : 2, pid);
    if (gone) {
        buf_printf(b, "\"status\": {\"unresponsive\": %s, \"considered_dead\": %s}}", *end == '!' ? "true" : "false",
                   *end == 'X' ? "true" : "false");
        return;
    }
    unsigned long r = 0, g = 0;
    const char *p = end + 1;
    for (; *p == 'r' || *p == 'g'; p += strspn(p, ","))
        *(*p == 'r' ? &r : &g) = strtoul(p + 1, (char **)&p, 10);
    add_status(b, *p);
    buf_printf(b,
               ", \"collective_counts\": {\"Broadcast\": 0, \"Reduce\": 0, \"AllGather\": %lu, \"ReduceScatter\": 0, "
               "\"AllReduce\": %lu}}",
               g, r);
}

static void write_answer(struct buf *out, const char *version, const char *form)
{
    char *copy = strdup(form), *save = NULL;
    buf_printf(out, "{\"nccl_version\": \"%s\", \"communicators_count\": 1, \"communicators\": [", version);
    for (char *comm = strtok_r(copy, ";", &save); comm; comm = strtok_r(NULL, ";", &save)) {
        struct buf here = {0}, missing = {0};
        char *words = NULL, *name = strtok_r(comm, " :", &words);
        int size = 0;
        for (char *word; (word = strtok_r(NULL, " :", &words)); size++)
            add_rank(&here, &missing, word);
        buf_printf(out,
                   "%s{\"hash\": \"0x%s\", \"secondary_hash\": \"0x1:0x2\", \"size\": %d, \"ranks\": [%s], "
                   "\"missing_ranks\": [%s]}",
                   comm == copy ? "" : ",", name, size, here.len ? here.data : "", missing.len ? missing.data : "");
        buf_free(&here);
        buf_free(&missing);
    }
    buf_addstr(out, "], \"ras\": {\"collection_time_sec\": 0.001, \"timeouts_count\": 0}}\n");
    free(copy);
}

static struct ras_answer answer_of(const char *version, const char *form)
{
    struct buf text = {0};
    struct ras_answer a;
    struct err e;
    write_answer(&text, version, form);
    assert_int_equal(ras_answer_read(&text, &job, &a, &e), 0);
    buf_free(&text);
    return a;
}

static void begin(void)
{
    now = active = 0;
    job = (struct ras_job){.processes = processes, .places = places, .n_places = 2};
    for (int r = 0; r < WORLD; r++) {
        processes[job.n_processes++] = (struct ras_process){PID + r, r, r < WORLD / 2 ? 0 : WORLD / 2};
        lived[r] = 0;
    }
    witness_init(&w, WITNESS_QUIET_NS);
    assert_int_equal(witness_begin_round(&w, now, WORLD), 0);
}

static void end(void)
{
    witness_end_round(&w);
}

static enum witness_act hear(const char *form)
{
    struct ras_answer a = answer_of("2.29.7", form);
    return witness_hear(&w, now, &a, lived);
}

/* Nobody has given a sign for a minute: the first answer, and if it is asked for the second one. */
static enum witness_act ask_twice(const char *first, const char *second)
{
    now += 60 * S;
    assert_int_equal(witness_look(&w, now, active, lived), WITNESS_ASK);
    const enum witness_act act = hear(first);
    if (w.state != WITNESS_BETWEEN)
        return act;
    now += 5 * S;
    assert_int_equal(witness_look(&w, now, active, lived), WITNESS_NOTHING);
    now += 5 * S;
    assert_int_equal(witness_look(&w, now, active, lived), WITNESS_ASK);
    return hear(second);
}

/* --- situations */

static const struct situation {
    const char *what, *first, *second; /* NULL: the same */
    enum witness_act act;
    const char *late, *text;
} situations[] = {
    {"a late rank", "ae94: 0=r10 1=r10 2=r9 3=r10", NULL, WITNESS_NAME, "2",
     "rank 2 has not launched all-reduce 10 of communicator ae94; 3 ranks wait in it"},
    {"the words of the guide", "27a0: 0=r6650 1=r6650 5=r6649", NULL, WITNESS_NAME, "5",
     "rank 5 has not launched all-reduce 6,650 of communicator 27a0; 2 ranks wait in it"},
    {"two late ranks", "a: 0=r10 1=r10 2=r9 3=r9", NULL, WITNESS_NAME, "2-3",
     "ranks 2-3 have not launched all-reduce 10 of communicator a; 2 ranks wait in it"},
    {"one that runs ahead, and one between", "a: 0=r12 1=r10 2=r9 3=r12", NULL, WITNESS_NAME, "2",
     "rank 2 has not launched all-reduce 10 of communicator a; 3 ranks wait in it"},
    {"a rank late by two types", "a: 0=r10,g5 1=r8,g4", NULL, WITNESS_NAME, "1",
     "rank 1 has not launched all-gather 5 and all-reduce 9 of communicator a; 1 rank waits in it"},
    {"a stopped rank", "a: 0=r10 1=r10 2!", NULL, WITNESS_NAME, "2", "NCCL's RAS does not reach the process of rank 2"},
    {"a dead rank", "a: 0=r10 1X 2=r10", NULL, WITNESS_NAME, "1", "NCCL's RAS does not reach the process of rank 1"},
    {"a stopped rank, and one that is late for it", "a: 0=r10 1=r9 2!", NULL, WITNESS_NAME, "2",
     "NCCL's RAS does not reach the process of rank 2"},
    {"tensor groups within data groups", "a: 0=g8 1=g8; b: 2=g8 3=g7; c: 0=r5 2=r4; d: 1=r5 3=r4", NULL, WITNESS_NAME,
     "3", "rank 3 has not launched all-gather 8 of communicator b; 1 rank waits in it"},
    {"two communicators of the same ranks", "a: 0=r5 1=r5 2=r5; b: 0=r7 1=r7 2=r6", NULL, WITNESS_NAME, "2",
     "rank 2 has not launched all-reduce 7 of communicator b; 2 ranks wait in it"},
    {"a group of some ranks", "a: 4=r3 6=r2; b: 0=r1 1=r1 2=r1 3=r1 4=r1 5=r1 6=r1 7=r1", NULL, WITNESS_NAME, "6",
     "rank 6 has not launched all-reduce 3 of communicator a; 1 rank waits in it"},
    {"a call of another type", "a: 0=r10,g4 1=r9,g5 2=r10,g4", NULL, WITNESS_NAME, "1",
     "rank 1 launched all-gather 5 of communicator a where 2 ranks launched all-reduce 10"},
    {"of two, different types", "a: 0=r10,g4 1=r9,g5", NULL, WITNESS_NAME, "1",
     "rank 1 launched all-gather 5 of communicator a where 1 rank launched all-reduce 10"},
    {"each waits in another communicator", "a: 0=r10 1=r9; b: 0=r4 1=r5", NULL, WITNESS_NAME, "0-1",
     "ranks 0-1 wait for each other, each in another communicator"},
    {"one that forms beside one that stands", "a: 0=r10 1=r9; b: 2=r1i 3=r0", NULL, WITNESS_NAME, "1",
     "rank 1 has not launched all-reduce 10 of communicator a; 1 rank waits in it"},
    {"all alike, as with sizes that differ", "a: 0=r10 1=r10 2=r10", NULL, WITNESS_NOTHING, "",
     "NCCL's RAS cannot tell: all ranks have launched the same collectives"},
    {"nothing was ever launched: CUDA graphs, sends", "a: 0=r0 1=r0", NULL, WITNESS_NOTHING, "",
     "NCCL's RAS cannot tell: all ranks have launched the same collectives"},
    {"it moves", "a: 0=r10 1=r9", "a: 0=r11 1=r10", WITNESS_NOTHING, "", NULL},
    {"another communicator moves", "a: 0=r10 1=r9; b: 2=r5 3=r5", "a: 0=r10 1=r9; b: 2=r6 3=r5", WITNESS_NOTHING, "",
     NULL},
    {"a communicator is made meanwhile", "a: 0=r10 1=r9", "a: 0=r10 1=r9; b: 0=r0 1=r0", WITNESS_NOTHING, "", NULL},
    {"initializing", "a: 0=r1 1=r0i", NULL, WITNESS_NOTHING, "", "NCCL's RAS knows of no communicator that is whole"},
    {"tearing down", "a: 0=r10f 1=r9", NULL, WITNESS_NOTHING, "", "NCCL's RAS knows of no communicator that is whole"},
    {"torn down by one", "a: 0=r10 1?", NULL, WITNESS_NOTHING, "", "NCCL's RAS knows of no communicator that is whole"},
    {"one has an error", "a: 0=r10 1=r9e", NULL, WITNESS_NOTHING, "",
     "NCCL's RAS knows of no communicator that is whole"},
    {"a process that is none of the job's", "a: 0=r10 1=r9@77", NULL, WITNESS_NOTHING, "",
     "NCCL's RAS knows of no communicator that is whole"},
    {"no communicator", "", NULL, WITNESS_NOTHING, "", "NCCL's RAS knows of no communicator that is whole"},
};

static void list_named(char out[64])
{
    struct ranges r = {.out = out, .cap = 64};
    out[0] = '\0';
    for (int i = 0; i < WORLD; i++)
        if (witness_names(&w, i))
            ranges_add(&r, i);
}

static void each_situation_has_its_culprit(void **state)
{
    for (size_t i = 0; i < sizeof situations / sizeof *situations; i++) {
        const struct situation *s = &situations[i];
        char late[64];
        begin();
        const enum witness_act act = ask_twice(s->first, s->second ? s->second : s->first);
        list_named(late);
        if (act != s->act || strcmp(late, s->late) != 0 || (s->text && strcmp(w.verdict.text, s->text) != 0))
            fail_msg("%s: act %d, named '%s', text '%s'", s->what, act, late, w.verdict.text);
        assert_true(now <= 70 * S);
        end();
    }
}

/* --- when it is asked */

static void it_is_asked_only_after_a_minute_without_a_byte_or_a_key(void **state)
{
    begin();
    for (int i = 0; i < 600; i++) {
        now += S;
        active = i % 59 == 0 ? now : active;
        assert_int_equal(witness_look(&w, now, active, lived), WITNESS_NOTHING);
    }
    end();
}

static void a_byte_between_the_questions_ends_them(void **state)
{
    begin();
    now = 60 * S;
    assert_int_equal(witness_look(&w, now, active, lived), WITNESS_ASK);
    assert_int_equal(hear("a: 0=r10 1=r9"), WITNESS_NOTHING);
    active = now += 5 * S;
    assert_int_equal(witness_look(&w, now, active, lived), WITNESS_NOTHING);
    now += 55 * S;
    assert_int_equal(witness_look(&w, now, active, lived), WITNESS_NOTHING);
    assert_int_equal(w.state, WITNESS_WATCHING);
    now += 5 * S;
    assert_int_equal(witness_look(&w, now, active, lived), WITNESS_ASK);
    end();
}

static void a_late_rank_that_computes_is_not_named(void **state)
{
    begin();
    lived[1] = 40 * S;
    assert_int_equal(ask_twice("a: 0=r10 1=r9", "a: 0=r10 1=r9"), WITNESS_BUSY);
    assert_false(witness_names(&w, 1));
    assert_int_equal(ask_twice("a: 0=r10 1=r9", "a: 0=r10 1=r9"), WITNESS_NAME);
    assert_true(witness_names(&w, 1) && !witness_names(&w, 0));
    end();
}

static void a_call_of_another_type_is_named_although_all_poll(void **state)
{
    begin();
    lived[0] = lived[1] = 65 * S;
    assert_int_equal(ask_twice("a: 0=r10,g4 1=r9,g5", "a: 0=r10,g4 1=r9,g5"), WITNESS_NAME);
    end();
}

static void a_sign_of_the_named_rank_alone_frees_it(void **state)
{
    begin();
    assert_int_equal(ask_twice("a: 0=r10 1=r9", "a: 0=r10 1=r9"), WITNESS_NAME);
    lived[0] = active = now += S; /* it polls, and prints */
    assert_int_equal(witness_look(&w, now, active, lived), WITNESS_NOTHING);
    assert_true(witness_names(&w, 1));
    lived[1] = now += S;
    assert_int_equal(witness_look(&w, now, active, lived), WITNESS_FREE);
    assert_false(witness_names(&w, 1));
    end();
}

static void where_it_cannot_tell_it_is_asked_ever_less(void **state)
{
    int questions = 0;
    begin();
    for (int i = 0; i < 12 * 60 * 12; i++) { /* half a day of looks */
        now += 5 * S;
        if (witness_look(&w, now, active, lived) == WITNESS_ASK) {
            questions++;
            assert_int_equal(hear("a: 0=r0 1=r0"), WITNESS_NOTHING);
        }
    }
    assert_in_range(questions, 12 * 6, 12 * 6 + 6);
    active = now; /* a byte: after a minute it is asked again */
    assert_int_equal(witness_look(&w, now, active, lived), WITNESS_NOTHING);
    now += 60 * S;
    assert_int_equal(witness_look(&w, now, active, lived), WITNESS_ASK);
    end();
}

static void no_answer_is_asked_for_again_after_a_minute(void **state)
{
    begin();
    now = 60 * S;
    assert_int_equal(witness_look(&w, now, active, lived), WITNESS_ASK);
    witness_miss(&w, now += 15 * S, false);
    assert_int_equal(witness_look(&w, now += 59 * S, active, lived), WITNESS_NOTHING);
    assert_int_equal(witness_look(&w, now += S, active, lived), WITNESS_ASK);
    end();
}

static void an_old_nccl_is_asked_once(void **state)
{
    const char *const versions[] = {"2.28.7", "2.28.9+cuda13.0", "2.29.1"};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        begin();
        now = 60 * S;
        assert_int_equal(witness_look(&w, now, active, lived), WITNESS_ASK);
        struct ras_answer a = answer_of(versions[i], "a: 0=r10 1=r9");
        assert_int_equal(witness_hear(&w, now, &a, lived), WITNESS_NOTHING);
        assert_int_equal(w.state, WITNESS_MUTE);
        assert_int_equal(witness_look(&w, now += 6000 * S, active, lived), WITNESS_NOTHING);
        assert_int_equal(witness_begin_round(&w, now, WORLD), 0);
        assert_int_equal(w.state, WITNESS_WATCHING);
        end();
    }
    struct ras_answer a = answer_of("2.29.2", "");
    assert_int_equal(a.version, RAS_LEAST_VERSION);
    ras_answer_free(&a);
    a = answer_of("2.30.7+cuda13.2", "");
    assert_int_equal(a.version, 23007);
    assert_string_equal(a.version_text, "2.30.7");
    ras_answer_free(&a);
}

/* --- answers */

static void a_process_id_of_two_nodes_is_told_apart_by_its_host(void **state)
{
    static const int ranks[] = {0, 1, 4, 5};
    begin();
    for (int r = 0; r < WORLD; r++) /* as in containers, where all nodes have the same */
        processes[r].pid = PID + r % (WORLD / 2);
    struct ras_answer a = answer_of("2.29.7", "a: 0=r1@1000 1=r1@1001 4=r1@1000 5=r1@1001");
    assert_true(a.comms[0].settled);
    assert_int_equal(a.ours, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(a.comms[0].ranks[i].rank, ranks[i]);
    ras_answer_free(&a);
    job.n_places = 0; /* nothing tells which host is which node */
    a = answer_of("2.29.7", "a: 1=r1@1001 5=r1@1001");
    assert_false(a.comms[0].settled);
    assert_int_equal(a.strangers, 2);
    ras_answer_free(&a);
    end();
}

static void a_place_that_is_listed_twice_counts_once(void **state)
{
    begin();
    struct ras_answer a = answer_of("2.29.7", "a: 0=r5 0=r5 1=r5");
    assert_int_equal(a.comms[0].n, 2);
    assert_false(a.comms[0].settled); /* it has three */
    ras_answer_free(&a);
    a = answer_of("2.29.7", "a: 0! 0=r5 1=r5@1000"); /* two places of one process */
    assert_int_equal(a.comms[0].n, 2);
    assert_int_equal(a.comms[0].ranks[1].rank, 0);
    assert_false(a.comms[0].ranks[0].missing);
    ras_answer_free(&a);
    end();
}

static void a_count_that_is_none_settles_nothing(void **state)
{
    static const char *const counts[] = {"-1", "1e300", "9007199254740994", "\"7\"", "null", "9007199254740992"};
    const int last = sizeof counts / sizeof *counts - 1;
    begin();
    for (int i = 0; i <= last; i++) {
        struct buf text = {0};
        struct ras_answer a;
        struct err e;
        buf_printf(&text,
                   "{\"nccl_version\": \"2.29.7\", \"communicators\": [{\"hash\": \"0xa\", \"size\": 1, \"ranks\": "
                   "[{\"rank\": 0, \"host\": \"10.0.0.1\", \"pid\": %d, \"status\": {\"init_state\": 0}, "
                   "\"collective_counts\": {\"AllReduce\": %s}}]}]}",
                   PID, counts[i]);
        assert_int_equal(ras_answer_read(&text, &job, &a, &e), 0);
        if (a.comms[0].settled != (i == last))
            fail_msg("%s", counts[i]);
        ras_answer_free(&a);
        buf_free(&text);
    }
    end();
}

static void what_is_no_answer_is_refused(void **state)
{
    const char *const bad[] = {"",
                               "Job summary\n===\n",
                               "{}",
                               "[]",
                               "{\"nccl_version\": 3}",
                               "{\"nccl_version\": \"2.29.7\"}",
                               "{\"nccl_version\": \"x\", \"communicators\": []}",
                               "{\"nccl_version\": \"2.29.7\", \"communicators\": [{}]}",
                               "{\"nccl_version\": \"2.29.7\", \"communicators\": [{\"hash\": \"0x\\u001b[31m\"}]}",
                               "{\"nccl_version\": \"2.29.7\", \"communicators\": [",
                               NULL};
    begin();
    for (const char *const *p = bad; *p; p++) {
        struct buf text = {0};
        struct ras_answer a;
        struct err e;
        buf_addstr(&text, *p);
        assert_int_equal(ras_answer_read(&text, &job, &a, &e), ERR_CORRUPT);
        buf_free(&text);
    }
    end();
}

static void an_answer_cut_anywhere_is_refused(void **state)
{
    struct buf text = {0};
    struct ras_answer a;
    struct err e;
    begin();
    write_answer(&text, "2.29.7", "a: 0=r10,g3 1! 2?; b: 3=r1i");
    for (size_t n = text.len - 2; n > 0; n--) { /* without its newline and the last brace at least */
        text.len = n;
        text.data[n] = '\0';
        assert_int_equal(ras_answer_read(&text, &job, &a, &e), ERR_CORRUPT);
    }
    buf_free(&text);
    end();
}

/* --- hours of work */

static uint32_t dice;

static int draw(int below)
{
    dice = dice * 1664525u + 1013904223u;
    return (int)((uint64_t)(dice >> 8) * (uint64_t)below >> 24);
}

enum work { STEPS, SAVES, EVALUATES, COMPILES, GRAPHS, SENDS, WORKS };

/* A job whose ranks wait for rank `slow` in this piece of work; the others poll. */
struct piece {
    enum work work;
    int64_t end_ns;
    int slow;
};

static uint64_t launched[WORLD];

static void make_piece(struct piece *p)
{
    const int64_t longest[] = {
        [STEPS] = 900, [SAVES] = 1200, [EVALUATES] = 1200, [COMPILES] = 600, [GRAPHS] = 3600, [SENDS] = 1800};
    p->work = draw(2) ? STEPS : (enum work)draw(WORKS);
    p->end_ns = now + (1 + draw((int)longest[p->work])) * S;
    p->slow = p->work == COMPILES ? draw(WORLD) : 0;
    for (int r = 0; r < WORLD; r++) /* the others come to the next all-reduce, and run ahead a little */
        launched[r] += p->work == STEPS || r == p->slow ? 0 : 1 + (uint64_t)draw(3);
    if (p->work == GRAPHS || p->work == SENDS) /* nothing that is counted, after what is open is done */
        for (int r = 0; r < WORLD; r++)
            launched[r] = launched[0] = launched[0] > launched[r] ? launched[0] : launched[r];
}

static void work(const struct piece *p)
{
    uint64_t most = 0;
    for (int r = 0; r < WORLD; r++) {
        const bool computes = r != p->slow || p->work == EVALUATES || p->work == COMPILES ? draw(10) > 0 : draw(2) > 0;
        lived[r] = computes ? now : lived[r];
        most = launched[r] > most ? launched[r] : most;
    }
    if (p->work == SAVES)
        active = lived[0] = now;
    if (p->work == STEPS) {
        if (draw(60) == 0) /* a line, each five minutes */
            active = now;
        if (draw(8) > 0) /* else the data of one are late */
            for (int r = 0; r < WORLD; r++)
                launched[r] = most + 3 + (uint64_t)draw(3);
    }
}

static enum witness_act look_and_hear(int *questions)
{
    struct buf form = {0};
    enum witness_act act = witness_look(&w, now, active, lived);
    if (act != WITNESS_ASK)
        return act;
    buf_addstr(&form, "a:");
    for (int r = 0; r < WORLD; r++)
        buf_printf(&form, " %d=r%llu", r, (unsigned long long)launched[r]);
    ++*questions;
    act = hear(form.data);
    buf_free(&form);
    return act;
}

static void hours_of_uneven_work_name_nobody(void **state)
{
    int questions = 0, hangs = 0;
    for (dice = 1; dice < 6; dice++) {
        const uint32_t seed = dice;
        struct piece p = {.work = STEPS};
        begin();
        memset(launched, 0, sizeof launched);
        for (int64_t end_ns = 20 * 3600 * S; now < end_ns;) {
            now += 5 * S;
            if (now >= p.end_ns)
                make_piece(&p);
            work(&p);
            const enum witness_act act = look_and_hear(&questions);
            if (act == WITNESS_NAME || act == WITNESS_FREE)
                fail_msg("seed %u, %.0f s, work %d: %s", seed, (double)now / 1e9, p.work, w.verdict.text);
        }
        const int64_t hung = now; /* rank 3 stops in the middle of its work; the others poll */
        enum witness_act act = WITNESS_NOTHING;
        for (int r = 0; r < WORLD; r++)
            launched[r] += r == 3 ? 0 : 10;
        lived[3] = now;
        while (act != WITNESS_NAME && now - hung < 900 * S) {
            now += 5 * S;
            for (int r = 0; r < WORLD; r++)
                lived[r] = r == 3 ? lived[r] : now;
            act = look_and_hear(&questions);
        }
        hangs += act == WITNESS_NAME && w.verdict.n_late == 1 && witness_names(&w, 3);
        end();
        dice = seed;
    }
    print_message("# 100 hours, %d questions, none named; %d of 5 hangs found\n", questions, hangs);
    assert_int_equal(hangs, 5);
}

static void the_option_takes_a_time(void **state)
{
    const struct {
        const char *text;
        int64_t ns; /* -1: refused */
    } cases[] = {{"off", 0},         {"ras", 60 * S}, {"ras:5", 5 * S}, {"ras:2m", 120 * S}, {"ras:0.5", -1},
                 {"ras:100000", -1}, {"ras:", -1},    {"ras:x", -1},    {"on", -1},          {"", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t ns = -1;
        struct err e;
        assert_int_equal(hang_parse_witness(cases[i].text, &ns, &e), cases[i].ns < 0 ? ERR_USAGE : 0);
        assert_int_equal(ns, cases[i].ns);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_situation_has_its_culprit),
        cmocka_unit_test(it_is_asked_only_after_a_minute_without_a_byte_or_a_key),
        cmocka_unit_test(a_byte_between_the_questions_ends_them),
        cmocka_unit_test(a_late_rank_that_computes_is_not_named),
        cmocka_unit_test(a_call_of_another_type_is_named_although_all_poll),
        cmocka_unit_test(a_sign_of_the_named_rank_alone_frees_it),
        cmocka_unit_test(where_it_cannot_tell_it_is_asked_ever_less),
        cmocka_unit_test(no_answer_is_asked_for_again_after_a_minute),
        cmocka_unit_test(an_old_nccl_is_asked_once),
        cmocka_unit_test(a_process_id_of_two_nodes_is_told_apart_by_its_host),
        cmocka_unit_test(a_place_that_is_listed_twice_counts_once),
        cmocka_unit_test(a_count_that_is_none_settles_nothing),
        cmocka_unit_test(what_is_no_answer_is_refused),
        cmocka_unit_test(an_answer_cut_anywhere_is_refused),
        cmocka_unit_test(the_option_takes_a_time),
        cmocka_unit_test(hours_of_uneven_work_name_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
