/* Resolves --opt-level and what goes with it. */
#include "worker/precision/precision.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"

/* In the order of their enums, whose 0 is "not given". */
static const char *const levels[] = {"", "O0", "O1", "O2", "O3"};
static const char *const amps[] = {"", "off", "auto", "bf16", "fp16"};
static const char *const halves[] = {"", "fp16", "bf16"};
static const char *const yes_nos[] = {"", "False", "True"};

#define COUNT(words) ((int)(sizeof(words) / sizeof *(words)))

static int parse_word(const char *text, const char *const *words, int n, const char *expected, void *field,
                      struct err *e)
{
    for (int i = 1; i < n; i++)
        if (!strcmp(text, words[i])) {
            *(int *)field = i;
            return 0;
        }
    return err_set(e, ERR_USAGE, "expected %s", expected);
}

int precision_parse_level(const char *text, void *field, struct err *e)
{
    if ((text[0] == '0' || text[0] == 'o') && isdigit((unsigned char)text[1]) && !text[2])
        return err_set(e, ERR_USAGE, "expected O0, O1, O2 or O3, which begin with the capital letter O");
    return parse_word(text, levels, COUNT(levels), "O0, O1, O2 or O3", field, e);
}

int precision_parse_amp(const char *text, void *field, struct err *e)
{
    return parse_word(text, amps, COUNT(amps), "off, auto, bf16 or fp16", field, e);
}

int precision_parse_half(const char *text, void *field, struct err *e)
{
    return parse_word(text, halves, COUNT(halves), "fp16 or bf16", field, e);
}

int precision_parse_yes_no(const char *text, void *field, struct err *e)
{
    static const char *const lower[] = {"", "false", "true"};
    if (parse_word(text, lower, COUNT(lower), "", field, e) == 0)
        return 0;
    return parse_word(text, yes_nos, COUNT(yes_nos), "True or False", field, e);
}

int precision_parse_scale(const char *text, void *field, struct err *e)
{
    if (!strcmp(text, "dynamic")) {
        *(double *)field = LOSS_SCALE_DYNAMIC;
        return 0;
    }
    if (parse_f64(text, "scale", 0x1p-24, 0x1p40, field, NULL) == 0)
        return 0;
    return err_set(e, ERR_USAGE, "expected 'dynamic' or a number from 2^-24 to 2^40");
}

void precision_print_level(const void *field, char *out, size_t cap)
{
    snprintf(out, cap, "%s", levels[*(const int *)field]);
}

void precision_print_amp(const void *field, char *out, size_t cap)
{
    snprintf(out, cap, "%s", amps[*(const int *)field]);
}

void precision_print_half(const void *field, char *out, size_t cap)
{
    snprintf(out, cap, "%s", halves[*(const int *)field]);
}

void precision_print_yes_no(const void *field, char *out, size_t cap)
{
    snprintf(out, cap, "%s", yes_nos[*(const int *)field]);
}

void precision_print_scale(const void *field, char *out, size_t cap)
{
    const double scale = *(const double *)field;
    char text[ARG_REAL_MAX] = "";
    if (scale != 0 && scale != LOSS_SCALE_DYNAMIC)
        args_real_text(scale, text);
    snprintf(out, cap, "%s", scale == LOSS_SCALE_DYNAMIC ? "dynamic" : text);
}

static int contradiction(struct err *e, const char *a, const char *a_value, const char *b, const char *b_value)
{
    return err_set(e, ERR_USAGE, "--%s%s%s and --%s%s%s contradict each other", a, *a_value ? " " : "", a_value, b,
                   *b_value ? " " : "", b_value);
}

/* Whatever was given about the level; LEVEL_UNSET if nothing. */
static int given_level(const struct precision_options *o, enum opt_level *ret, struct err *e)
{
    const enum opt_level level = (enum opt_level)o->level;
    if (o->amp_mode && level && level != LEVEL_O1)
        return contradiction(e, "enable-amp-mode", "", "opt-level", levels[level]);
    if (o->amp == AMP_OFF && o->amp_mode)
        return contradiction(e, "amp", "off", "enable-amp-mode", "");
    if (level && o->amp && (o->amp == AMP_OFF) != (level == LEVEL_O0))
        return contradiction(e, "amp", amps[o->amp], "opt-level", levels[level]);
    *ret = level ? level : o->amp_mode ? LEVEL_O1 : LEVEL_UNSET;
    return 0;
}

static int resolve_half(const struct precision_options *o, struct precision *p, struct err *e)
{
    static const enum dtype types[] = {[HALF_FP16] = DT_F16, [HALF_BF16] = DT_BF16};
    const char *half = o->half == HALF_FP16 ? "fp16" : "bf16";
    const enum dtype by_amp = o->amp == AMP_FP16 ? DT_F16 : DT_BF16;
    if (o->half && (o->amp >= AMP_AUTO) && types[o->half] != by_amp)
        return contradiction(e, "amp", amps[o->amp], "amp-dtype", half);
    if (p->level == LEVEL_O0 && o->half && o->amp != AMP_AUTO)
        return err_set(e, ERR_USAGE, "--amp-dtype %s needs --opt-level O1, O2 or O3: O0 is fp32", half);
    if (p->level == LEVEL_O0)
        p->half = DT_F32;
    else if (o->half)
        p->half = types[o->half];
    else
        p->half = o->amp >= AMP_AUTO ? by_amp : DT_F16;
    return 0;
}

static int resolve_bn(const struct precision_options *o, struct precision *p, struct err *e)
{
    if (o->keep_bn && p->level < LEVEL_O2)
        return err_set(e, ERR_USAGE,
                       "--keep-batchnorm-fp32 and --opt-level %s contradict each other: batch norm is fp32",
                       levels[p->level]);
    p->half_bn = p->level == LEVEL_O3 ? o->keep_bn != YES_NO_YES : o->keep_bn == YES_NO_NO;
    p->half_weights = p->level == LEVEL_O3;
    return 0;
}

static void resolve_scale(const struct precision_options *o, struct precision *p)
{
    const bool small = p->half == DT_F16, dynamic = small && p->level != LEVEL_O3;
    p->scale = dynamic ? loss_scale_dynamic() : loss_scale_fixed(1);
    p->useless_scale = o->loss_scale != 0 && !small && o->loss_scale != 1;
    if (o->loss_scale != 0)
        p->scale = o->loss_scale == LOSS_SCALE_DYNAMIC ? loss_scale_dynamic() : loss_scale_fixed(o->loss_scale);
}

int precision_resolve(const struct precision_options *o, bool native_bf16, struct precision *ret, struct err *e)
{
    struct precision p = {0};
    TRY(given_level(o, &p.level, e));
    if (!p.level) {
        const bool half = o->amp >= AMP_BF16 || (o->amp == AMP_AUTO && native_bf16);
        p.level = half ? LEVEL_O2 : LEVEL_O0;
    }
    TRY(resolve_half(o, &p, e));
    TRY(resolve_bn(o, &p, e));
    resolve_scale(o, &p);
    *ret = p;
    return 0;
}

const char *precision_text(const struct precision *p)
{
    static const char *const fp16[] = {"", "", "fp16 (O1)", "fp16 (O2)", "fp16 (O3)"};
    static const char *const bf16[] = {"", "", "bf16 (O1)", "bf16 (O2)", "bf16 (O3)"};
    if (p->half != DT_F16 && p->half != DT_BF16)
        return "fp32";
    return (p->half == DT_F16 ? fp16 : bf16)[p->level];
}

double precision_grad_scale(const struct precision *p, const struct loss_scale *s, double global_batch)
{
    return p->half == DT_F16 ? s->scale / global_batch : s->scale;
}
