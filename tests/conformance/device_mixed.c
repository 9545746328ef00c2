/* Pictures that are erased and mixed, and labels in pairs, on the device under test: against ref, and where pixels that
 * were mixed by hand must give the same. */
#include "tests/conformance/device_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "worker/model/model.h"

enum { N = 5, OTHERS = 2, SIZE = 14, CLASSES = 7, CHANNELS = 3, BYTES = SIZE * SIZE * CHANNELS };

static struct program *build(void)
{
    static const char text[] = "input\nconv conv1 out=16 kernel=3 pad=1\nrelu relu1\nmaxpool pool kernel=2 stride=2\n"
                               "conv conv2 out=16 kernel=3 pad=1\nrelu relu2\navgpool pool2\nclassifier fc\n";
    static const float mean[] = {0.5F, 0.4F, 0.3F}, std[] = {0.25F, 0.3F, 0.2F};
    const struct model_options o = {
        .arch = "mixed", .text = text, .classes = CLASSES, .input = input_pictures(CHANNELS, SIZE, SIZE, mean, std)};
    struct program *p;
    MUST(model_build(&p, &o, e));
    return p;
}

struct mixed {
    struct batch b;
    uint8_t rows[(N + OTHERS) * BYTES];
    int32_t labels[N + OTHERS];
    float weights[N + OTHERS];
    uint32_t samples[N + OTHERS];
    struct batch_mix mix[N + OTHERS];
};

/* Row 0 has mixup with one behind the batch; 1 has CutMix with row 0; 2 nothing; 3 is erased; 4 does not count. */
static void mixed_make(struct mixed *m)
{
    memset(m, 0, sizeof *m);
    for (int i = 0; i < (N + OTHERS) * BYTES; i++)
        m->rows[i] = (uint8_t)((uint32_t)i * 2654435761u >> 24);
    for (int i = 0; i < N; i++) {
        m->labels[i] = (3 * i + 1) % CLASSES;
        m->weights[i] = i < N - 1;
        m->samples[i] = (uint32_t)i;
    }
    m->mix[0] = (struct batch_mix){.partner = N, .second = 6, .share = 0.3F, .keep = 0.7F, .erase = {1, 2, 6, 9}};
    m->mix[1] =
        (struct batch_mix){.partner = -1, .second = 1, .share = 36.0F / (SIZE * SIZE), .keep = 1, .box = {3, 0, 9, 6}};
    m->mix[3].erase = (struct batch_box){0, 0, SIZE, SIZE / 2};
    m->mix[N].erase = (struct batch_box){4, 4, SIZE, SIZE};
    m->b = (struct batch){
        .rows = m->rows, .labels = m->labels, .weights = m->weights, .samples = m->samples, .mix = m->mix};
}

/* Sums of a step, and the input as numbers. */
static double *step(const char *device, const struct program *p, const struct mode *mode, const struct batch *b,
                    double **ret_input)
{
    struct mode m = *mode;
    struct side s;
    m.mixes = true;
    m.others = OTHERS;
    side_open(&s, device, p, &m, N, true, ret_input != NULL, 2);
    side_initialise(&s, 3);
    side_run(&s, b, 1, false, 1, NULL);
    double *sums = malloc(p->n_reduce * sizeof *sums);
    arena_get(&s, s.reduce, 0, sums, p->n_reduce);
    if (ret_input)
        *ret_input = side_get(&s, program_find_tensor(p, "input"));
    side_close(&s);
    return sums;
}

/* A processor or oneDNN without bf16 convolutions, as on Arm, has the emulated ones alone. */
static const struct mode *half_mode(void)
{
    struct device *d;
    assert_int_equal(0, rig_open(&d, rig_device, &(struct device_options){.threads = 1}, NULL));
    const bool native = d->ops->native(d, DT_BF16, mode_bf16.half);
    d->ops->close(d);
    return native ? &mode_bf16 : &mode_emulated;
}

static void input_and_sums_are_those_of_ref(void **state)
{
    const struct mode *const modes[] = {&mode_f32, &mode_nhwc, &mode_nchw, half_mode()};
    struct program *p = build();
    struct mixed m;
    (void)state;
    mixed_make(&m);
    double *want_input, *want = step("ref", p, &mode_f64, &m.b, &want_input);
    const size_t at = p->n_train + p->n_stats;
    for (size_t k = 0; k < sizeof modes / sizeof *modes; k++) {
        const double bound = modes[k]->compute == DT_F32 ? 2e-6 : 0x1p-7,
                     sums = modes[k]->compute == DT_F32 ? 1e-5 : 0.03;
        double *input, *got = step(rig_device, p, modes[k], &m.b, &input);
        const double of_input = relative_distance(input, want_input, (size_t)N * BYTES),
                     of_sums = relative_distance(got, want, p->n_train),
                     of_loss = relative_distance(got + at, want + at, 1);
        print_message("# %s: input differs by %.2g (bound %.2g), gradients by %.2g, the loss by %.2g (bound %.2g)\n",
                      modes[k]->name, of_input, bound, of_sums, of_loss, sums);
        assert_true(of_input <= bound && of_sums <= sums && of_loss <= sums);
        assert_true(got[at + METRIC_COUNT] == N - 1);
        free(input);
        free(got);
    }
    free(want_input);
    free(want);
    program_destroy(p);
}

/* CutMix of bytes, and a label for each part of the loss: the same as two runs of pictures that were cut by hand. */
static void a_loss_of_two_labels_is_the_sum_of_two_losses(void **state)
{
    struct program *p = build();
    struct mixed m;
    double loss[3];
    (void)state;
    mixed_make(&m);
    const size_t at = p->n_train + p->n_stats;
    const double share = 0.25;
    for (int i = 1; i < N; i++)
        m.weights[i] = 0;
    memset(m.mix, 0, sizeof m.mix);
    m.mix[0] = (struct batch_mix){.partner = N, .second = 6, .share = (float)share, .keep = 1, .box = {0, 0, 7, 7}};
    double *both = step(rig_device, p, &mode_f32, &m.b, NULL);
    for (int y = 0; y < 7; y++)
        memcpy(m.rows + (size_t)y * SIZE * CHANNELS, m.rows + (size_t)N * BYTES + (size_t)y * SIZE * CHANNELS,
               7 * CHANNELS);
    m.b.mix = NULL;
    double *first = step(rig_device, p, &mode_f32, &m.b, NULL);
    m.labels[0] = 6;
    double *second = step(rig_device, p, &mode_f32, &m.b, NULL);
    loss[0] = both[at + METRIC_LOSS];
    loss[1] = first[at + METRIC_LOSS];
    loss[2] = second[at + METRIC_LOSS];
    for (size_t i = 0; i < p->n_train; i++)
        first[i] = (1 - share) * first[i] + share * second[i];
    print_message("# loss %.9g of %.9g and %.9g; gradients differ by %.2g\n", loss[0], loss[1], loss[2],
                  relative_distance(both, first, p->n_train));
    assert_true(relative_distance(&loss[0], &(double){(1 - share) * loss[1] + share * loss[2]}, 1) < 1e-6);
    assert_true(relative_distance(both, first, p->n_train) < 1e-5);
    assert_true(loss[1] != loss[2]);
    free(both);
    free(first);
    free(second);
    program_destroy(p);
}

static void refuse(const struct program *p, struct mixed *m, struct batch_mix bad, const char *word)
{
    struct mode mode = mode_f32;
    struct side s;
    struct err e = {0};
    mode.mixes = true;
    mode.others = OTHERS;
    m->mix[2] = bad;
    side_open(&s, rig_device, p, &mode, N, true, false, 1);
    side_initialise(&s, 3);
    const struct run_args a = {.batch = m->b, .grad_scale = 1, .params_version = 1};
    assert_int_equal(s.d->ops->run(s.plan, &a, &e), -EINVAL);
    if (!strstr(e.text, word))
        fail_msg("'%s' lacks '%s'", e.text, word);
    side_close(&s);
}

static void what_lies_beyond_the_batch_is_refused(void **state)
{
    struct program *p = build();
    struct mixed m;
    (void)state;
    mixed_make(&m);
    refuse(p, &m, (struct batch_mix){.partner = N, .keep = 1}, "row 7 of 7");
    refuse(p, &m, (struct batch_mix){.partner = -3, .keep = 1}, "row -1 of 7");
    refuse(p, &m, (struct batch_mix){.partner = 1, .keep = 1, .share = 0.1F, .second = CLASSES}, "label 7");
    refuse(p, &m, (struct batch_mix){.partner = 1, .keep = 1.5F}, "keeps 1.5");
    refuse(p, &m, (struct batch_mix){.erase = {0, 0, SIZE + 1, 1}}, "14 x 14");
    program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(input_and_sums_are_those_of_ref),
        cmocka_unit_test(a_loss_of_two_labels_is_the_sum_of_two_losses),
        cmocka_unit_test(what_lies_beyond_the_batch_is_refused),
    };
    return cmocka_run_group_tests_name("mixed pictures", tests, NULL, NULL);
}
