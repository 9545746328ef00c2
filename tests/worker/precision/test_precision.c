#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "common/base/err.h"
#include "worker/precision/precision.h"

static struct precision resolve(struct precision_options o)
{
    struct precision p;
    struct err e = {0};
    if (precision_resolve(&o, true, &p, &e) < 0)
        fail_msg("%s", e.text);
    return p;
}

static void refused(struct precision_options o, const char *one, const char *other)
{
    struct precision p;
    struct err e = {0};
    assert_int_equal(precision_resolve(&o, true, &p, &e), ERR_USAGE);
    if (!strstr(e.text, one) || !strstr(e.text, other))
        fail_msg("'%s' does not name '%s' and '%s'", e.text, one, other);
}

static void the_levels_are_those_of_apex(void **state)
{
    (void)state;
    const struct {
        int level;
        enum dtype half;
        bool half_bn, half_weights, dynamic;
    } v[] = {{LEVEL_O0, DT_F32, false, false, false},
             {LEVEL_O1, DT_F16, false, false, true},
             {LEVEL_O2, DT_F16, false, false, true},
             {LEVEL_O3, DT_F16, true, true, false}};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        const struct precision p = resolve((struct precision_options){.level = v[i].level});
        assert_int_equal(p.level, v[i].level);
        assert_int_equal(p.half, v[i].half);
        assert_int_equal(p.half_bn, v[i].half_bn);
        assert_int_equal(p.half_weights, v[i].half_weights);
        assert_int_equal(p.scale.dynamic, v[i].dynamic);
        assert_true(p.scale.scale == (v[i].dynamic ? 65536 : 1));
    }
    assert_int_equal(resolve((struct precision_options){0}).level, LEVEL_O0);
}

static void amp_and_amp_mode_are_other_names_of_levels(void **state)
{
    (void)state;
    struct precision p = resolve((struct precision_options){.amp = AMP_BF16});
    assert_true(p.level == LEVEL_O2 && p.half == DT_BF16 && !p.scale.dynamic && p.scale.scale == 1);
    p = resolve((struct precision_options){.amp = AMP_FP16, .level = LEVEL_O1});
    assert_true(p.level == LEVEL_O1 && p.half == DT_F16 && p.scale.dynamic);
    p = resolve((struct precision_options){.amp_mode = true});
    assert_true(p.level == LEVEL_O1 && p.half == DT_F16 && p.scale.dynamic);
    assert_int_equal(resolve((struct precision_options){.amp = AMP_AUTO}).half, DT_BF16);
    assert_int_equal(precision_resolve(&(struct precision_options){.amp = AMP_AUTO}, false, &p, NULL), 0);
    assert_int_equal(p.level, LEVEL_O0);
    p = resolve((struct precision_options){.amp_mode = true, .half = HALF_BF16});
    assert_true(p.half == DT_BF16 && !p.scale.dynamic);
}

static void contradictory_options_are_refused_by_name(void **state)
{
    (void)state;
    refused((struct precision_options){.amp = AMP_OFF, .level = LEVEL_O2}, "--amp off", "--opt-level O2");
    refused((struct precision_options){.amp = AMP_BF16, .level = LEVEL_O0}, "--amp bf16", "--opt-level O0");
    refused((struct precision_options){.amp_mode = true, .level = LEVEL_O3}, "--enable-amp-mode", "--opt-level O3");
    refused((struct precision_options){.amp_mode = true, .amp = AMP_OFF}, "--enable-amp-mode", "--amp off");
    refused((struct precision_options){.amp = AMP_FP16, .half = HALF_BF16}, "--amp fp16", "--amp-dtype bf16");
    refused((struct precision_options){.half = HALF_BF16}, "--amp-dtype bf16", "O0");
    refused((struct precision_options){.keep_bn = YES_NO_YES}, "--keep-batchnorm-fp32", "O0");
}

static void batch_norm_can_be_kept_in_fp32_at_O2_and_O3_only(void **state)
{
    (void)state;
    refused((struct precision_options){.level = LEVEL_O1, .keep_bn = YES_NO_YES}, "--keep-batchnorm-fp32", "O1");
    assert_true(resolve((struct precision_options){.level = LEVEL_O2, .keep_bn = YES_NO_NO}).half_bn);
    assert_false(resolve((struct precision_options){.level = LEVEL_O2, .keep_bn = YES_NO_YES}).half_bn);
    const struct precision p = resolve((struct precision_options){.level = LEVEL_O3, .keep_bn = YES_NO_YES});
    assert_true(!p.half_bn && p.half_weights);
}

static void a_loss_scale_overrides_the_level(void **state)
{
    (void)state;
    struct precision p = resolve((struct precision_options){.level = LEVEL_O2, .loss_scale = 128});
    assert_true(p.scale.scale == 128 && !p.scale.dynamic && !p.useless_scale);
    p = resolve((struct precision_options){.level = LEVEL_O3, .loss_scale = LOSS_SCALE_DYNAMIC});
    assert_true(p.scale.scale == 65536 && p.scale.dynamic);
    p = resolve((struct precision_options){.level = LEVEL_O0, .loss_scale = 128});
    assert_true(p.scale.scale == 128 && p.useless_scale); /* told */
}

static void a_zero_in_place_of_the_letter_O_is_explained(void **state)
{
    (void)state;
    int level = 0;
    struct err e = {0};
    const char *const wrong[] = {"00", "01", "02", "03", "o1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(precision_parse_level(wrong[i], &level, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, "letter O"));
    }
    assert_int_equal(precision_parse_level("O4", &level, &e), ERR_USAGE);
    assert_int_equal(precision_parse_level("O2", &level, &e), 0);
    assert_int_equal(level, LEVEL_O2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_levels_are_those_of_apex),
        cmocka_unit_test(amp_and_amp_mode_are_other_names_of_levels),
        cmocka_unit_test(contradictory_options_are_refused_by_name),
        cmocka_unit_test(batch_norm_can_be_kept_in_fp32_at_O2_and_O3_only),
        cmocka_unit_test(a_loss_scale_overrides_the_level),
        cmocka_unit_test(a_zero_in_place_of_the_letter_O_is_explained),
    };
    return cmocka_run_group_tests_name("precision", tests, NULL, NULL);
}
