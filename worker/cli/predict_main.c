/* A checkpoint's manifest says what the model is and how it wants its pictures; a bare file of weights needs --arch and
 * the like. One picture at a time goes through the model. A picture that cannot be used is logged, the others are done,
 * and the exit code says so. */
#include "worker/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/args/args.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "common/job/exitcode.h"
#include "common/json/json.h"
#include "worker/cli/loaded.h"
#include "worker/config/config.h"
#include "worker/config/config_parse.h"
#include "worker/config/exit_code.h"
#include "worker/data/image/picture_name.h"
#include "worker/data/loader/input.h"
#include "worker/manifest/class_names.h"
#include "worker/manifest/manifest_choice.h"
#include "worker/manifest/manifest_model.h"

#define FILE_MAX ((size_t)1 << 30)

struct predict_config {
    const char *checkpoint, *arch, *device, *class_names, *part;
    int64_t topk, image_size, channels, threads, scale;
    int input, interpolation; /* enum input_kind, enum interpolation */
    struct channels mean, std;
    bool json;
};

#define AT(field) offsetof(struct predict_config, field)
static const struct arg_spec specs[] = {
    {.name = "checkpoint",
     .type = ARG_STRING,
     .at = AT(checkpoint),
     .metavar = "PATH",
     .required = true,
     .help = "a checkpoint folder, a step-N folder in one, or a file of weights (.safetensors, .pth)"},
    {.name = "topk",
     .type = ARG_INT,
     .at = AT(topk),
     .def = "5",
     .min = 1,
     .max = 1 << 24,
     .help = "classes shown of each picture"},
    {.name = "json", .type = ARG_FLAG, .at = AT(json), .help = "a JSON object a line instead of text"},
    {.name = "arch",
     .short_name = 'a',
     .type = ARG_STRING,
     .at = AT(arch),
     .def = "resnet50",
     .metavar = "NAME|FILE.net",
     .help = "model of a bare file of weights; a checkpoint knows its own"},
    {.name = "image-size",
     .type = ARG_INT,
     .at = AT(image_size),
     .def = "224",
     .min = 8,
     .max = 4096,
     .help = "pixels square, of a model that takes any size. Not given: as the checkpoint or the model says, if it "
             "does"},
    {.name = "num-channels",
     .type = ARG_INT,
     .at = AT(channels),
     .def = "3",
     .min = 1,
     .max = 3,
     .help = "of a bare file of weights: 3 (RGB) or 1 (grey)"},
    {.name = "input",
     .type = ARG_CHOICE,
     .at = AT(input),
     .choices = CHOICES(INPUTS),
     .def = "torch",
     .help = "how a picture becomes input, as in training; a checkpoint knows its own, unless this is given"},
    {.name = "scale",
     .type = ARG_INT,
     .at = AT(scale),
     .def = "0",
     .min = 0,
     .max = 8192,
     .help = "short side of the picture before the central crop; 0: the checkpoint's, else caffe2 256, torch "
             "image-size * 256 / 224"},
    {.name = "interpolation",
     .type = ARG_CHOICE,
     .at = AT(interpolation),
     .choices = CHOICES(INTERPOLATIONS),
     .def = "bilinear",
     .help = "how a picture is scaled (random: bicubic, as in evaluations); a checkpoint knows its own, unless this is "
             "given"},
    {.name = "mean",
     .type = ARG_CUSTOM,
     .at = AT(mean),
     .parse = config_parse_mean,
     .print = config_print_channels,
     .metavar = "M[,M,M]",
     .help = "subtracted from each channel, in shares of 255; default: the checkpoint's, else that of --input"},
    {.name = "std",
     .type = ARG_CUSTOM,
     .at = AT(std),
     .parse = config_parse_std,
     .print = config_print_channels,
     .metavar = "S[,S,S]",
     .help = "what each channel is then divided by; default: the checkpoint's, else that of --input"},
    {.name = "class-names",
     .type = ARG_STRING,
     .at = AT(class_names),
     .metavar = "FILE",
     .help = "names of the classes, a line each; default: the checkpoint's, else numbers"},
    LOADED_ARGS(struct predict_config),
    ARG_END,
};

static const struct arg_program program = {
    .name = "trainer predict",
    .usage = "--checkpoint PATH [options] FILE...",
    .summary = "Print the most probable classes of pictures. A folder stands for the pictures in it.",
    .epilog = "Exit codes: 0, 2 wrong command line, 65 a picture or the checkpoint cannot be used, 78 the weights do "
              "not fit.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

struct predictor {
    const struct predict_config *cfg;
    const struct arg_result *args;
    struct loaded loaded;
    struct input_options input;
    char **names;
    int n_names;
    struct plan *plan;
    double *logits;
    int *order;
    uint8_t *pixels;
    int bad;
};

/* --- opening */

static int add_name(struct predictor *p, const char *name, size_t n, struct err *e)
{
    char **more = realloc(p->names, ((size_t)p->n_names + 1) * sizeof *more);
    if (!more || !(more[p->n_names] = strndup(name, n))) {
        p->names = more ? more : p->names;
        return err_errno(e, ENOMEM, "names of classes");
    }
    p->names = more;
    p->n_names++;
    return 0;
}

static int read_file(const char *path, struct buf *b, struct err *e)
{
    const int fd = file_open_regular(path, ERR_DATA, e);
    if (fd < 0)
        return fd;
    buf_clear(b);
    const int rc = file_read_all(fd, b);
    close(fd);
    if (rc == -E2BIG)
        return err_set(e, ERR_DATA, "%s is larger than %zu bytes", path, FILE_MAX);
    return rc < 0 ? err_errno(e, -rc, "read %s", path) : 0;
}

static int names_of_file(struct predictor *p, const char *path, struct err *e)
{
    struct buf b = {.max = FILE_MAX};
    int rc = read_file(path, &b, e);
    for (const char *at = b.data; rc == 0 && at && *at;) {
        size_t n = strcspn(at, "\n");
        rc = add_name(p, at, n, e);
        at += n + (at[n] == '\n');
    }
    buf_free(&b);
    return rc;
}

static bool is_given(const struct predictor *p, const char *option)
{
    return args_source(&program, p->args, option) != ARG_FROM_DEFAULT;
}

static void channels_of(const cJSON *meta, const char *name, float out[4])
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(meta, name);
    for (int i = 0; i < 4 && i < cJSON_GetArraySize(list); i++)
        out[i] = (float)cJSON_GetNumberValue(cJSON_GetArrayItem(list, i));
}

static void set_input(struct predictor *p)
{
    float mean[4], std[4];
    input_normalization(p->input.kind, p->input.channels, mean, std);
    p->loaded.model.input = input_pictures(p->input.channels, p->input.size, p->input.size, mean, std);
}

/* Another size than the checkpoint's, of a model that takes any: the short side follows it. */
static void set_size(struct predictor *p)
{
    const int size = (int)p->cfg->image_size;
    if (p->input.scale > 0)
        p->input.scale = (int)((int64_t)p->input.scale * size / p->input.size);
    p->input.size = p->loaded.model.input.height = p->loaded.model.input.width = size;
}

/* What a checkpoint does not say (older ones) is as torch does it. */
static int from_meta(struct predictor *p, const cJSON *meta, struct err *e)
{
    static const char *const inputs[] = {INPUTS(CHOICE_NAME)}, *const ways[] = {INTERPOLATIONS(CHOICE_NAME)};
    int64_t scale = 0;
    struct meta_shape shape;
    const char *arch;
    TRY(json_str(meta, "arch", &arch, e));
    TRY(meta_shape(meta, &shape, e));
    if (shape.length)
        return err_set(e, ERR_USAGE, "%s reads tokens: trainer generate is for such models", arch);
    TRY(meta_model_text(meta, &p->loaded.text, e));
    TRY(loaded_name(&p->loaded, arch, e));
    json_i64(meta, "scale", &scale, NULL);
    p->loaded.model.classes = shape.classes;
    p->input = (struct input_options){
        .kind = (enum input_kind)meta_choice_id(meta, "input", inputs, sizeof inputs / sizeof *inputs, INPUT_TORCH),
        .size = shape.size,
        .channels = shape.channels,
        .scale = (int)scale,
        .interpolation = (enum interpolation)meta_choice_id(meta, "interpolation", ways, sizeof ways / sizeof *ways,
                                                            INTERPOLATION_BILINEAR)};
    set_input(p);
    channels_of(meta, "mean", p->loaded.model.input.mean);
    channels_of(meta, "std", p->loaded.model.input.std);
    struct model_facts facts;
    TRY(model_facts(arch, p->loaded.text, &facts, e));
    if (facts.size == 0 && is_given(p, "image-size"))
        set_size(p);
    for (struct class_names c = class_names_of(meta); !p->cfg->class_names && class_names_next(&c);)
        TRY(add_name(p, c.name, c.length, e));
    return 0;
}

static void tell_useless(const struct predictor *p)
{
    const struct predict_config *c = p->cfg;
    if (is_given(p, "arch") && strcmp(c->arch, p->loaded.model.arch) != 0)
        log_warn("predict", "--arch %s is of no use: the checkpoint is of arch %s", c->arch, p->loaded.model.arch);
    if (is_given(p, "image-size") && c->image_size != p->input.size)
        log_warn("predict", "--image-size %d is of no use: %s takes pictures of %d", (int)c->image_size,
                 p->loaded.model.arch, p->input.size);
    if (is_given(p, "num-channels") && c->channels != p->input.channels)
        log_warn("predict", "--num-channels %d is of no use: the checkpoint takes %d", (int)c->channels,
                 p->input.channels);
}

/* As many as the last layer's vector has elements. */
static int count_classes(struct predictor *p, const char *layer, struct err *e)
{
    char name[CKPT_NAME_MAX + 1];
    const char *wanted[] = {name}, *prefix;
    size_t i = 0;
    snprintf(name, sizeof name, "%s.bias", layer);
    if (weights_choose_prefix(p->loaded.weights, wanted, 1, 1, &prefix, e) < 0)
        return err_wrap(e, "%s", p->cfg->checkpoint);
    const struct ckpt_tensor *bias = weights_find(p->loaded.weights, name, &i);
    const char *name_of = NULL, *what = bias ? NULL : weights_made_of(p->loaded.weights, &name_of);
    if (what)
        return err_set(e, ERR_MISMATCH,
                       "%s has no tensor '%s' that tells the number of classes; its '%s' is a tensor %s",
                       p->cfg->checkpoint, name, name_of, what);
    if (!bias || bias->ndim != 1 || bias->shape[0] < 2 || bias->shape[0] > 1 << 24)
        return err_set(e, ERR_MISMATCH, "%s has no tensor '%s' that tells the number of classes", p->cfg->checkpoint,
                       name);
    p->loaded.model.classes = (int)bias->shape[0];
    return 0;
}

/* A bare file. */
static int from_options(struct predictor *p, struct err *e)
{
    const struct predict_config *c = p->cfg;
    struct model_facts facts;
    if (c->channels == 2)
        return err_set(e, ERR_USAGE, "--num-channels 2: must be 1 or 3");
    if (model_text(&p->loaded.text, c->arch, NET_TORCH, false, e) < 0)
        return err_wrap(e, "--arch");
    TRY(model_facts(c->arch, p->loaded.text, &facts, e));
    if (facts.tokens)
        return err_set(e, ERR_USAGE, "%s reads tokens: trainer generate is for such models", c->arch);
    TRY(loaded_name(&p->loaded, c->arch, e));
    TRY(count_classes(p, facts.last, e));
    const bool any_size = facts.size == 0 || is_given(p, "image-size");
    p->input = (struct input_options){.kind = (enum input_kind)c->input,
                                      .size = any_size ? (int)c->image_size : facts.size,
                                      .channels = (int)c->channels};
    set_input(p);
    return 0;
}

/* Options that are given go before what a checkpoint says. */
static int take_input(struct predictor *p, struct err *e)
{
    const struct predict_config *c = p->cfg;
    const int channels = p->input.channels;
    struct input *in = &p->loaded.model.input;
    if (is_given(p, "input") && (enum input_kind)c->input != p->input.kind) {
        p->input.kind = (enum input_kind)c->input;
        p->input.scale = 0;
        set_input(p);
    }
    if ((c->mean.n > 1 && c->mean.n != channels) || (c->std.n > 1 && c->std.n != channels))
        return err_set(e, ERR_USAGE, "--mean and --std take one value or one for each of the %d channels", channels);
    for (int i = 0; i < 4 && c->mean.n > 0; i++)
        in->mean[i] = (float)c->mean.v[i % c->mean.n];
    for (int i = 0; i < 4 && c->std.n > 0; i++)
        in->std[i] = (float)c->std.v[i % c->std.n];
    if (c->scale > 0)
        p->input.scale = (int)c->scale;
    if (is_given(p, "interpolation"))
        p->input.interpolation = (enum interpolation)c->interpolation;
    return 0;
}

/* A bare file does not say what it is of. */
static int build(struct predictor *p, struct err *e)
{
    struct err why;
    const int rc = loaded_build(&p->loaded, p->cfg->device, p->cfg->threads, &why);
    if (rc == ERR_MISMATCH && !weights_meta(p->loaded.weights) && !is_given(p, "arch"))
        return err_set(e, rc, "%.300s; it is taken as %s unless --arch says what it is of", why.text, p->cfg->arch);
    return rc < 0 ? err_set(e, rc, "%s", why.text) : 0;
}

static int predictor_open(struct predictor *p, struct err *e)
{
    TRY(loaded_open(&p->loaded, p->cfg->checkpoint, p->cfg->part, e));
    const cJSON *meta = weights_meta(p->loaded.weights);
    TRY(meta ? from_meta(p, meta, e) : from_options(p, e));
    if (meta)
        tell_useless(p);
    TRY(take_input(p, e));
    if (p->cfg->class_names)
        TRY(names_of_file(p, p->cfg->class_names, e));
    if (p->cfg->class_names && p->n_names != p->loaded.model.classes)
        return err_set(e, ERR_USAGE, "--class-names %s has %d names, the model %d classes", p->cfg->class_names,
                       p->n_names, p->loaded.model.classes);
    TRY(input_check(&p->input, e));
    TRY(build(p, e));
    TRY(loaded_plan(&p->loaded, p->loaded.program, &p->plan, e));
    const size_t classes = (size_t)p->loaded.model.classes, side = (size_t)p->input.size;
    p->logits = calloc(classes, sizeof *p->logits);
    p->order = calloc(classes, sizeof *p->order);
    p->pixels = calloc(side * side, (size_t)p->input.channels);
    return p->logits && p->order && p->pixels ? 0 : err_errno(e, ENOMEM, "%zu classes", classes);
}

static void predictor_close(struct predictor *p)
{
    if (p->plan)
        p->loaded.device->ops->plan_close(p->plan);
    loaded_close(&p->loaded);
    for (int i = 0; i < p->n_names; i++)
        free(p->names[i]);
    free(p->names);
    free(p->logits);
    free(p->order);
    free(p->pixels);
}

/* --- one picture */

static int run_model(struct predictor *p, const char *path, struct err *e)
{
    const int32_t label = 0;
    const float weight = 1;
    struct buf file = {.max = FILE_MAX};
    struct input_scratch *scratch = input_scratch_create();
    int rc = scratch ? read_file(path, &file, e) : err_errno(e, ENOMEM, "memory for a picture");
    if (rc == 0)
        rc = input_load(&p->input, scratch, file.data, file.len, (struct showing){0}, p->pixels, e);
    input_scratch_destroy(scratch);
    buf_free(&file);
    TRY(rc);
    const struct run_args run = {.batch = {.rows = p->pixels, .labels = &label, .weights = &weight},
                                 .grad_scale = 1,
                                 .params_version = p->loaded.state.version};
    const struct loaded *l = &p->loaded;
    TRY(l->device->ops->run(p->plan, &run, e));
    TRY(l->device->ops->get(p->plan, l->program->logits, p->logits, e));
    for (int i = 0; i < l->model.classes; i++)
        if (!isfinite(p->logits[i]))
            return err_set(e, ERR_DIVERGED,
                           "the model's answer for class %d is %s: weights of %s are not finite, or sums of them "
                           "overflow",
                           i, isnan(p->logits[i]) ? "nan" : "inf", p->cfg->checkpoint);
    return 0;
}

static void softmax(double *v, int n)
{
    double most = v[0], sum = 0;
    for (int i = 1; i < n; i++)
        most = v[i] > most ? v[i] : most;
    for (int i = 0; i < n; i++)
        sum += v[i] = exp(v[i] - most);
    for (int i = 0; i < n; i++)
        v[i] /= sum;
}

static const char *class_name(const struct predictor *p, int i, char out[16])
{
    snprintf(out, 16, "%d", i);
    return i < p->n_names ? p->names[i] : out;
}

static void print_text(const struct predictor *p, const char *path, int k)
{
    char number[16];
    printable_line(stdout, "%s", path);
    for (int i = 0; i < k; i++)
        printable_line(stdout, "  %6.2f %%  %s", 100 * p->logits[p->order[i]], class_name(p, p->order[i], number));
}

static void print_json(cJSON *o)
{
    char *text = json_clean(o, NULL) == 0 ? cJSON_PrintUnformatted(o) : NULL;
    puts(text ? text : "{}");
    free(text);
    cJSON_Delete(o);
}

static cJSON *top_as_json(const struct predictor *p, const char *path, int k)
{
    char number[16];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "file", path);
    cJSON *top = cJSON_AddArrayToObject(o, "top");
    for (int i = 0; i < k; i++) {
        cJSON *c = cJSON_CreateObject();
        cJSON_AddStringToObject(c, "class", class_name(p, p->order[i], number));
        cJSON_AddNumberToObject(c, "index", p->order[i]);
        cJSON_AddNumberToObject(c, "probability", p->logits[p->order[i]]);
        cJSON_AddItemToArray(top, c);
    }
    return o;
}

static void predict_one(struct predictor *p, const char *path)
{
    struct err e;
    const int n = p->loaded.model.classes, k = p->cfg->topk < n ? (int)p->cfg->topk : n;
    if (run_model(p, path, &e) < 0) {
        p->bad++;
        printable_line(stderr, "trainer predict: '%s' cannot be used: %s", path, e.text);
        return;
    }
    softmax(p->logits, n);
    loaded_order(p->logits, n, p->order);
    if (p->cfg->json)
        print_json(top_as_json(p, path, k));
    else
        print_text(p, path, k);
}

/* --- all of them */

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* Of what lies in a folder, as in a training set: also those that cannot be read, so that they are reported. */
static bool is_picture(const FTSENT *f)
{
    return picture_readable(f->fts_name) &&
           (f->fts_info == FTS_F || f->fts_info == FTS_SLNONE || f->fts_info == FTS_NS);
}

/* A file is taken as it is; of a folder the pictures. */
static void predict_path(struct predictor *p, char *path)
{
    char *const paths[] = {path, NULL};
    char text[PICTURES_LEFT_OUT_TEXT];
    struct pictures_left_out left_out = {0};
    FTS *walk = fts_open(paths, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    bool found = false;
    for (FTSENT *f; walk && (f = fts_read(walk));) {
        bool file = f->fts_info != FTS_D && f->fts_info != FTS_DP;
        if (f->fts_level > 0 && picture_hidden(f->fts_name)) {
            fts_set(walk, f, FTS_SKIP);
        } else if (file && (f->fts_level == 0 || is_picture(f))) {
            found = true;
            predict_one(p, f->fts_path);
        } else if (f->fts_info == FTS_F) {
            pictures_left_out_count(&left_out, f->fts_name);
        }
    }
    if (left_out.all > 0)
        printable_line(stderr, "trainer predict: '%s': %s", path, pictures_left_out_text(&left_out, text));
    if (!found) {
        p->bad++;
        printable_line(stderr, "trainer predict: '%s' holds no picture", path);
    }
    if (walk)
        fts_close(walk);
}

int predict_main(int argc, char **argv)
{
    struct predict_config c = {0};
    struct arg_result r = {0};
    struct err e;
    struct predictor p = {.cfg = &c, .args = &r};
    log_init(LOG_WARN, "");
    int rc = args_parse(&program, argc, argv, &c, &r, &e);
    if (rc == 0 && args_answer(&program, "trainer " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    if (rc == 0 && r.first_operand >= argc)
        rc = err_set(&e, ERR_USAGE, "which pictures? trainer predict --checkpoint PATH FILE...");
    if (rc == 0)
        rc = predictor_open(&p, &e);
    for (int i = r.first_operand; rc == 0 && i < argc; i++)
        predict_path(&p, argv[i]);
    predictor_close(&p);
    if (rc < 0) {
        fprintf(stderr, "trainer predict: %s\n", e.text);
        return exit_code_of(rc);
    }
    return p.bad > 0 ? EXIT_DATA : EXIT_OK;
}
