/* What the stages of a step do in which order: passes, and what messages take of the thread that computes. Each pass
 * and each part of a message takes a time of its own here, so that a wrong place shows in the end of the step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "worker/config/config.h"
#include "worker/pipeline/pipeline.h"
#include "worker/planner/op_times_impl.h"
#include "worker/planner/rank_step.h"
#include "worker/program/program.h"
#include "worker/session/forecast.h"
#include "worker/session/session.h"

enum { STAGES = 2, PARTS_MAX = 4, MICRO_MAX = 8, WAYS = 2 };

/* Seconds: a message from the end of a pass until it is there; the sender's thread, beside that; the receiver's, which
 * asks before it waits. */
static const double MESSAGE = 0.05, HAND_OVER = 0.1, ASK = 0.01;

struct passes {
    double forward, backward, more; /* of part 0; each part takes so much more, backward twice that */
};

static double seconds_of(const struct passes *p, int part, bool backward)
{
    return backward ? p->backward + 2 * p->more * part : p->forward + p->more * part;
}

/* --- as rank_step() says */

struct predicted {
    const struct passes *passes;
    struct actor actors[STAGES];
};

/* The first operation of a pass takes all of its time. */
static int look(void *ctx, struct session *s, struct err *e)
{
    struct predicted *p = ctx;
    const struct network net = {.local = STAGES,
                                .known = {true},
                                .inside = {[NETWORK_MESSAGE] = {.alpha = MESSAGE},
                                           [NETWORK_HAND_OVER] = {.alpha = HAND_OVER, .cores = 1},
                                           [NETWORK_ASK] = {.alpha = ASK, .cores = 1}}};
    struct plan_options plan;
    struct op_times *t;
    const struct op_load load = rank_step_load(s, &plan);
    const int stage = layout_place(&s->layout, s->rank).stage;
    TRY(op_times_create(&t, e));
    for (int k = 0; k < s->program->nchunks; k++) {
        const struct program_chunk *c = &s->program->chunks[k];
        const int part = pipeline_part(&s->pipeline, stage, k);
        op_times_put_op(t, &load, c->first, seconds_of(p->passes, part, false));
        op_times_put_op(t, &load, c->first_back, seconds_of(p->passes, part, true));
    }
    const int rc = rank_step(&p->actors[stage], s, t, &net, e);
    op_times_destroy(t);
    return rc;
}

/* Strings of *cfg are this function's. */
static void parse(struct train_config *cfg, const struct pipeline *line)
{
    static const char *const kinds[] = {PIPELINE_KINDS(CHOICE_NAME)};
    static char text[400];
    char *argv[40];
    int argc = 0;
    struct arg_result result;
    struct err e;
    snprintf(text, sizeof text,
             "trainer --train-data null --null-images 64 --num-labels 10 --arch convnet --image-size 28 --num-channels "
             "1 --batch-size 16 --device ref --threads 1 --stages 2 --schedule %s --microbatches %d",
             kinds[line->kind], line->micro_batches);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    if (args_parse(&train_program, argc, argv, cfg, &result, &e) < 0 || train_config_check(cfg, &e) < 0)
        fail_msg("%s", e.text);
}

static double predict(const struct pipeline *line, const struct passes *passes)
{
    struct predicted p = {.passes = passes};
    struct train_config cfg = {0};
    struct forecast_base *base;
    struct forecast f;
    struct err e = {0};
    double seconds = 0;
    parse(&cfg, line);
    assert_int_equal(forecast_open(&base, &cfg, STAGES, STAGES, &e), 0);
    if (forecast_on(&f, base, &cfg, &(struct forecast_visit){&p, look}, &e) < 0 ||
        simulate(p.actors, STAGES, 8, &seconds, &e) < 0)
        fail_msg("%s", e.text);
    for (int s = 0; s < STAGES; s++)
        actor_finish(&p.actors[s]);
    forecast_free(&f);
    forecast_close(base);
    return seconds;
}

/* --- as stage.h says, one stage's clock after the other */

struct clocks {
    const struct pipeline *line;
    const struct passes *passes;
    double at[STAGES], there[WAYS][PARTS_MAX][MICRO_MAX]; /* there: a message has come; < 0: not yet */
    int next[STAGES];
};

static void send_on(struct clocks *c, int stage, double *there)
{
    *there = c->at[stage] + MESSAGE;
    c->at[stage] += HAND_OVER;
}

static void receive_by(struct clocks *c, int stage, double there)
{
    c->at[stage] = fmax(c->at[stage] + ASK, there);
}

/* A stage's next action, if what it needs is known. */
static bool advance(struct clocks *c, int stage)
{
    if (c->next[stage] == pipeline_actions(c->line))
        return false;
    const struct pipeline_action a = pipeline_action(c->line, stage, c->next[stage]);
    const int part = pipeline_part(c->line, stage, a.chunk);
    const double there = a.from < 0 ? 0 : c->there[a.backward][part + (a.backward ? 1 : -1)][a.micro_batch];
    if (there < 0)
        return false;
    c->next[stage]++;
    if (a.from >= 0)
        receive_by(c, stage, there);
    c->at[stage] += seconds_of(c->passes, part, a.backward);
    if (a.to >= 0)
        send_on(c, stage, &c->there[a.backward][part][a.micro_batch]);
    return true;
}

static double by_clocks(const struct pipeline *line, const struct passes *passes)
{
    struct clocks c = {.line = line, .passes = passes};
    double labels;
    memset(c.next, 0, sizeof c.next);
    for (int w = 0; w < WAYS; w++)
        for (int p = 0; p < PARTS_MAX; p++)
            for (int m = 0; m < MICRO_MAX; m++)
                c.there[w][p][m] = -1;
    send_on(&c, 0, &labels);
    receive_by(&c, 1, labels);
    while (advance(&c, 0) | advance(&c, 1))
        ;
    return fmax(c.at[0], c.at[1]);
}

/* --- cases */

static void near(double a, double b)
{
    if (fabs(a - b) > 1e-9)
        fail_msg("%.9g is not %.9g", a, b);
}

/* Stage 0: F0 F1 B0 B1; stage 1: F0 B0 F1 B1. Labels are handed over, then each waits for messages of the other. */
static void a_step_of_1f1b_ends_when_its_messages_say(void **state)
{
    const struct passes equal = {1, 2, 0};
    const struct pipeline line = {PIPELINE_1F1B, STAGES, 2, 1};
    (void)state;
    /* labels | F0 of 0 | F0, B0 of 1 | hands over, asks, F1, B1 of 1 | B1 of 0 */
    const double first = HAND_OVER + 1 + MESSAGE, second = first + 3 + HAND_OVER + ASK + 3 + MESSAGE;
    near(predict(&line, &equal), second + 2);
    near(by_clocks(&line, &equal), second + 2);
}

/* Stage 0 has parts 0 and 2 and goes forward four times; stage 1 has 1 and 3, and the step waits for it: from its first
 * pass on it hands over and asks, and the input of each later pass has come before. Then stage 0 does backward 1 of
 * part 0. */
static void a_step_of_interleaved_chunks_ends_when_its_messages_say(void **state)
{
    const struct passes equal = {1, 2, 0};
    const struct pipeline line = {PIPELINE_INTERLEAVED, STAGES, 2, 2};
    (void)state;
    /* labels | forward 0 of 0 | F0 F1 of 1 | F0 B0 F1 B1 of 3 | B0 B1 of 1 | backward 1 of 0 */
    const double first = HAND_OVER + 1 + MESSAGE, ones = first + 2 + 2 * HAND_OVER + ASK,
                 threes = ones + 6 + 2 * HAND_OVER + 2 * ASK, back = threes + 4 + HAND_OVER + 2 * ASK + MESSAGE;
    near(predict(&line, &equal), back + 2);
    near(by_clocks(&line, &equal), back + 2);
}

static void all_schedules_do(void **state)
{
    const struct passes growing = {1, 2, 0.25}; /* of each part another time: who waits for whom differs */
    (void)state;
    for (int kind = PIPELINE_GPIPE; kind <= PIPELINE_INTERLEAVED; kind++)
        for (int m = 2; m <= MICRO_MAX; m *= 2) {
            const struct pipeline line = {(enum pipeline_kind)kind, STAGES, m, kind == PIPELINE_INTERLEAVED ? 2 : 1};
            near(predict(&line, &growing), by_clocks(&line, &growing));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_of_1f1b_ends_when_its_messages_say),
        cmocka_unit_test(a_step_of_interleaved_chunks_ends_when_its_messages_say),
        cmocka_unit_test(all_schedules_do),
    };
    return cmocka_run_group_tests_name("steps of a rank", tests, NULL, NULL);
}
