/* The shipped models, texts from files, and the program that a text makes. */
#include "worker/model/model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/model/hf_config.h"
#include "worker/model/net_read.h"
#include "worker/model/net_texts.h"
#include "worker/program/program.h"

/* Elements of a model, all of them, and of its tensors for one picture: more than any machine has memory for. */
#define PARAMS_MOST 0x1p40
#define TENSORS_MOST 0x1p36

#define SMALL "set stem_kernel=3 stem_stride=1 stem_pad=1 pools=0\n"
/* name, text, lines that follow it */
#define MODELS(X)                                                                                                      \
    X("resnet18", net_resnet_basic, "")                                                                                \
    X("resnet34", net_resnet_basic, "set blocks1=3 blocks2=4 blocks3=6 blocks4=3\n")                                   \
    X("resnet50", net_resnet_bottleneck, "")                                                                           \
    X("resnet101", net_resnet_bottleneck, "set blocks3=23\n")                                                          \
    X("resnet152", net_resnet_bottleneck, "set blocks2=8 blocks3=36\n")                                                \
    X("resnet18_small", net_resnet_basic, SMALL)                                                                       \
    X("resnet34_small", net_resnet_basic, "set blocks1=3 blocks2=4 blocks3=6 blocks4=3\n" SMALL)                       \
    X("resnet50_small", net_resnet_bottleneck, SMALL)                                                                  \
    X("wide_resnet50_2", net_resnet_bottleneck, "set wide=2\n")                                                        \
    X("wide_resnet101_2", net_resnet_bottleneck, "set wide=2 blocks3=23\n")                                            \
    X("resnext50_32x4d", net_resnet_bottleneck, "set wide=2 groups=32\n")                                              \
    X("resnext101_32x8d", net_resnet_bottleneck, "set wide=4 groups=32 blocks3=23\n")                                  \
    X("wrn_28_10", net_wide_resnet, "")                                                                                \
    X("wrn_16_4", net_wide_resnet, "set depth=16 width=4\n")                                                           \
    X("convnext_tiny", net_convnext, "")                                                                               \
    X("convnext_small", net_convnext, "set blocks3=27 stochastic_depth=0.4\n")                                         \
    X("convnext_base", net_convnext, "set width=128 blocks3=27 stochastic_depth=0.5\n")                                \
    X("vit_b_16", net_vit, "")                                                                                         \
    X("vit_l_16", net_vit, "set width=1024 layers=24 heads=16 mlp=4096\n")                                             \
    X("vit_s_16", net_vit, "set width=384 heads=6 mlp=1536\n")                                                         \
    X("deit3_s_16", net_deit3, "")                                                                                     \
    X("convnet", net_convnet, "")                                                                                      \
    X("gpt2", net_gpt2, "")                                                                                            \
    X("gpt2_medium", net_gpt2, "set width=1024 layers=24 heads=16\n")                                                  \
    X("gpt2_large", net_gpt2, "set width=1280 layers=36 heads=20\n")                                                   \
    X("gpt2_xl", net_gpt2, "set width=1600 layers=48 heads=25\n")                                                      \
    X("tinyllama", net_llama, "")

static const struct shipped {
    const char *name, *text, *more;
} models[] = {
#define X(name, text, more) {name, text, more},
    MODELS(X) X("mlp", net_mlp, "")
#undef X
};

const char *model_names(void)
{
#define X(name, text, more) name ", "
    return MODELS(X) "mlp";
#undef X
}

double model_bn_momentum(enum net_style style)
{
    return style == NET_CAFFE2 ? 0.9 : 0.1;
}

/* --- texts */

static bool is_path(const char *arch)
{
    const size_t n = strlen(arch);
    return strchr(arch, '/') || hf_config_is_path(arch) || (n > 4 && strcmp(arch + n - 4, ".net") == 0);
}

void model_name(const char *arch, char out[MODEL_NAME_MAX + 1])
{
    const char *base = strrchr(arch, '/');
    base = base ? base + 1 : arch;
    size_t n = strlen(base);
    if (is_path(arch) && n > 4 && strcmp(base + n - 4, ".net") == 0)
        n -= 4;
    if (strcmp(base, "config.json") == 0 && base > arch + 1) { /* the folder's */
        for (n = 0, base--; base > arch && base[-1] != '/'; base--)
            n++;
    }
    snprintf(out, MODEL_NAME_MAX + 1, "%.*s", (int)(n < MODEL_NAME_MAX ? n : MODEL_NAME_MAX), n ? base : "model");
}

static const struct shipped *find_shipped(const char *arch)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(arch, models[i].name) == 0)
            return &models[i];
    return NULL;
}

static int unknown(const char *arch, struct err *e)
{
    return err_set(e, -EINVAL, "unknown architecture '%.60s' (expected one of %s, or a file FILE.net)", arch,
                   model_names());
}

static int read_all(const char *path, int fd, struct buf *text, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(e, -EINVAL, "%s is no regular file: a model is text", path);
    const int rc = file_read_all(fd, text);
    if (rc == -E2BIG)
        return err_set(e, -EINVAL, "%s has more than %d bytes, the most that a model may have", path, MODEL_TEXT_MAX);
    if (rc < 0)
        return err_errno(e, -rc, "read %s", path);
    if (text->len > 0 && strlen(text->data) != text->len)
        return err_set(e, -EINVAL, "%s has a byte 0: a model is text", path);
    return text->len > 0 ? 0 : err_set(e, -EINVAL, "%s is empty: a model is text", path);
}

static int read_file(const char *path, struct buf *text, struct err *e)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_errno(e, errno, "open %s", path);
    const int rc = read_all(path, fd, text, e);
    close(fd);
    return rc;
}

/* A line more, if the text, without those added so far, has such a value. */
static int set(struct buf *text, const char *body, const char *name, const char *value)
{
    return net_has_value(body, name) ? buf_printf(text, "set %s=%s\n", name, value) : 0;
}

static int add_settings(struct buf *text, const char *body, enum net_style style, bool zero_init_residual)
{
    if (zero_init_residual)
        TRY(set(text, body, "residual_gamma", "zeros"));
    if (style != NET_CAFFE2)
        return 0;
    TRY(set(text, body, "bn_eps", "1e-3"));
    TRY(set(text, body, "pool_pad", "0"));
    TRY(set(text, body, "fc_init", "uniform:sqrt(3/fan_in)"));
    return set(text, body, "fc_bias_init", "zeros");
}

static int compose(char **ret, const char *body, const char *more, enum net_style style, bool zero_init_residual,
                   struct err *e)
{
    struct buf text = {0};
    const size_t n = strlen(body);
    int rc = buf_printf(&text, "%s%s%s", body, n == 0 || body[n - 1] == '\n' ? "" : "\n", more);
    if (rc == 0)
        rc = add_settings(&text, body, style, zero_init_residual);
    if (rc < 0) {
        buf_free(&text);
        return err_errno(e, ENOMEM, "a model's text");
    }
    *ret = text.data;
    return 0;
}

static int shipped_text(char **ret, const char *arch, enum net_style style, bool zero_init_residual, struct err *e)
{
    const struct shipped *m = find_shipped(arch);
    return m ? compose(ret, m->text, m->more, style, zero_init_residual, e) : unknown(arch, e);
}

int model_text(char **ret, const char *arch, enum net_style style, bool zero_init_residual, struct err *e)
{
    struct model_facts ignored;
    struct buf body = {.max = MODEL_TEXT_MAX};
    if (!is_path(arch))
        return shipped_text(ret, arch, style, zero_init_residual, e);
    int rc = hf_config_is_path(arch) ? hf_config_text(&body, arch, e) : read_file(arch, &body, e);
    if (rc == 0)
        rc = model_facts(arch, body.data, &ignored, e);
    if (rc == 0)
        rc = compose(ret, body.data, "", style, zero_init_residual, e);
    buf_free(&body);
    return rc;
}

int model_facts(const char *what, const char *text, struct model_facts *ret, struct err *e)
{
    struct net n;
    const int rc = net_read(&n, what, text, e);
    if (rc == 0) {
        const double *v = n.ops[0].v;
        *ret = (struct model_facts){.tokens = n.ops[0].word->kind == OP_TOKENS,
                                    .size = (int)v[KEY_SIZE],
                                    .channels = (int)v[KEY_CHANNELS],
                                    .length = (int)v[KEY_LENGTH],
                                    .vocabulary = (int)v[KEY_VOCABULARY]};
        snprintf(ret->last, sizeof ret->last, "%s", n.ops[n.n - 1].name);
    }
    net_free(&n);
    return rc;
}

/* --- two texts */

static int print_op(const struct net *n, int i, struct buf *out, struct err *e)
{
    buf_clear(out);
    const int rc = i < n->n ? net_print(n, i, out) : buf_addstr(out, "nothing");
    return rc < 0 ? err_errno(e, ENOMEM, "a model's text") : 0;
}

static int compare(const struct net *theirs, const struct net *ours, struct buf *a, struct buf *b, struct err *e)
{
    for (int i = 0; i < theirs->n || i < ours->n; i++) {
        TRY(print_op(theirs, i, a, e));
        TRY(print_op(ours, i, b, e));
        if (strcmp(a->data, b->data) != 0)
            return err_set(e, ERR_MISMATCH, "'%.160s' is '%.160s' here", a->data, b->data);
    }
    return 0;
}

int model_compare(const char *theirs, const char *ours, struct err *e)
{
    struct net a, b = {0};
    struct buf line_a = {0}, line_b = {0};
    int rc = net_read(&a, "a model", theirs, e);
    if (rc == 0)
        rc = net_read(&b, "a model", ours, e);
    if (rc == 0)
        rc = compare(&a, &b, &line_a, &line_b, e);
    net_free(&a);
    net_free(&b);
    buf_free(&line_a);
    buf_free(&line_b);
    return rc;
}

/* --- programs */

static int check(const struct model_options *o, struct err *e)
{
    if (o->input.rows == INPUT_TOKENS)
        return 0;
    if (o->classes < 2)
        return err_set(e, -EINVAL, "%d classes (expected at least 2)", o->classes);
    if (o->input.channels != 1 && o->input.channels != 3)
        return err_set(e, -EINVAL, "images of %d channels (expected 1 or 3)", o->input.channels);
    if (o->input.height < 1 || o->input.height != o->input.width)
        return err_set(e, -EINVAL, "image size %d (expected at least 1)", o->input.height);
    return 0;
}

/* What the text says of tokens and the data do, together. */
static int settle_tokens(const struct net_op *tokens, struct model_options *o, struct err *e)
{
    const int length = (int)tokens->v[KEY_LENGTH], vocabulary = (int)tokens->v[KEY_VOCABULARY];
    struct input *in = &o->input;
    if (length && in->length > length)
        return err_set(e, -EINVAL, "sequences of %d tokens (expected at most %d, which %s takes)", in->length, length,
                       o->arch);
    if (vocabulary && in->vocabulary && in->vocabulary != vocabulary)
        return err_set(e, -EINVAL, "a vocabulary of %d (expected %d, that of %s)", in->vocabulary, vocabulary, o->arch);
    in->vocabulary = vocabulary ? vocabulary : in->vocabulary;
    o->positions = length;
    return 0;
}

static int check_input(const struct net_op *input, struct model_options *o, struct err *e)
{
    static const char *const names[] = {"pictures", "tokens"};
    const bool tokens = input->word->kind == OP_TOKENS;
    if (tokens != (o->input.rows == INPUT_TOKENS))
        return err_set(e, -EINVAL, "%s reads %s, and the data are %s", o->arch, names[tokens], names[!tokens]);
    if (tokens)
        return settle_tokens(input, o, e);
    const int size = (int)input->v[KEY_SIZE], channels = (int)input->v[KEY_CHANNELS];
    if (size && size != o->input.height)
        return err_set(e, -EINVAL, "image size %d (expected %d, the only one that %s takes)", o->input.height, size,
                       o->arch);
    if (channels && channels != o->input.channels)
        return err_set(e, -EINVAL, "images of %d channels (expected %d, as many as %s takes)", o->input.channels,
                       channels, o->arch);
    return 0;
}

/* Part i of a list with commas, as a parameter's name. */
static int rename_param(struct program *p, struct param *q, const char *list, int i, struct err *e)
{
    for (; i > 0 && list; i--)
        list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL;
    if (!list)
        return 0;
    const int n = (int)strcspn(list, ",");
    char name[sizeof q->name];
    if (snprintf(name, sizeof name, "%.*s", n, list) >= (int)sizeof name)
        return err_set(e, -EINVAL, "the name '%.*s' is longer than %zu bytes", n, list, sizeof name - 1);
    const int other = program_find_param(p, name);
    if (other >= 0 && &p->params[other] != q)
        return err_set(e, -EINVAL, "two parameters are called '%s'", name);
    strcpy(q->name, name);
    return 0;
}

static int check_table(const struct param *q, const struct net_op *op, struct err *e)
{
    if (q->init != INIT_SINCOS2D)
        return 0;
    if (op->word->kind != OP_POSITION || q->ndim != 3 || q->grid.h == 0)
        return err_set(e, -EINVAL, "sincos2d are initial values of '%s' (expected of a 'position' of pictures alone)",
                       q->name);
    if (q->shape[2] % 4)
        return err_set(e, -EINVAL, "sincos2d of %lld channels (expected a multiple of 4)", (long long)q->shape[2]);
    return 0;
}

/* What op says of its parameters, which are those from `first` on. */
static int settle_params(struct program *p, const struct net_op *op, int first, struct err *e)
{
    double fan_in = 1, fan_out = 1;
    for (int d = 0; first < p->nparams && d < p->params[first].ndim; d++) {
        const double size = (double)param_whole_size(&p->params[first], d);
        fan_in *= d == 0 ? 1 : size;
        fan_out *= d == 1 ? 1 : size;
    }
    for (int i = first; i < p->nparams; i++) {
        struct param *q = &p->params[i];
        if (i < first + 2)
            TRY(net_draw(op->text[i == first ? KEY_INIT : KEY_BIAS_INIT], fan_in, fan_out, q, e));
        TRY(check_table(q, op, e));
        q->decay = q->decay && op->v[KEY_DECAY] != 0;
        q->frozen = q->role == PARAM_TRAIN && op->v[KEY_TRAIN] == 0;
        TRY(rename_param(p, q, op->text[KEY_NAMES], i - first, e));
    }
    return 0;
}

struct sizes {
    double params, tensors;
    int nparams, ntensors; /* counted so far */
};

static int count(struct sizes *s, const struct program *p, struct err *e)
{
    for (; s->nparams < p->nparams; s->nparams++)
        s->params += (double)p->params[s->nparams].count;
    for (; s->ntensors < p->ntensors; s->ntensors++) {
        const struct tensor *t = &p->tensors[s->ntensors];
        s->tensors += (double)t->c * t->h * t->w;
    }
    if (s->params > PARAMS_MOST)
        return err_set(e, -EINVAL, "%.3g parameters so far (expected at most %.3g)", s->params, PARAMS_MOST);
    if (s->tensors > TENSORS_MOST)
        return err_set(e, -EINVAL, "%.3g numbers for one sample so far (expected at most %.3g)", s->tensors,
                       TENSORS_MOST);
    return 0;
}

static int build_op(struct program *p, const struct net *n, int i, int *ids, const struct model_options *o,
                    struct sizes *sizes, struct err *e)
{
    const struct net_op *op = &n->ops[i];
    const int in[2] = {op->in[0] < 0 ? -1 : ids[op->in[0]], op->in[1] < 0 ? -1 : ids[op->in[1]]}, first = p->nparams;
    ids[i] = op->word->build(p, op, in, o);
    if (ids[i] < 0)
        return program_differentiate(p, e); /* says what the matter is */
    TRY(settle_params(p, op, first, e));
    return count(sizes, p, e);
}

/* "model NAME of ...", for errors. */
static const char *model_what(const struct model_options *o, char out[96])
{
    if (o->input.rows == INPUT_TOKENS)
        snprintf(out, 96, "model %.40s of %d tokens", o->arch, o->input.length);
    else
        snprintf(out, 96, "model %.40s of %d x %d images", o->arch, o->input.height, o->input.width);
    return out;
}

static int build_ops(struct program *p, const struct net *n, const struct model_options *o, struct err *e)
{
    struct sizes sizes = {0};
    char what[96];
    int rc = 0, *ids = calloc((size_t)n->n, sizeof *ids);
    if (!ids)
        return err_errno(e, ENOMEM, "a model");
    for (int i = 0; rc == 0 && i < n->n; i++)
        if ((rc = build_op(p, n, i, ids, o, &sizes, e)) < 0)
            err_wrap(e, "%s, line %d", model_what(o, what), n->ops[i].line);
    free(ids);
    program_freeze(p, o->factors);
    if (rc == 0 && (rc = program_differentiate(p, e)) < 0)
        err_wrap(e, "%s", model_what(o, what));
    return rc;
}

static int build(struct program **ret, struct net *n, const struct model_options *options, struct err *e)
{
    struct model_options own = *options, *o = &own;
    const int pairs = o->split.ranks > 1 ? net_cut(n, o->split.ranks) : 0;
    TRY(check_input(&n->ops[0], o, e));
    if (o->split.ranks > 1 && o->split.kind == SPLIT_NONE && pairs == 0)
        return err_set(e, -EINVAL, "%s has no blocks that %d ranks could share", o->arch, o->split.ranks);
    struct program *p = program_create(o->arch, o->input);
    if (!p)
        return err_set(e, -ENOMEM, "no memory for a model");
    if (o->align)
        program_align(p, o->align);
    if (o->split.ranks > 1)
        program_set_group(p, o->split.ranks);
    const int rc = build_ops(p, n, o, e);
    if (rc < 0)
        program_destroy(p);
    else
        *ret = p;
    return rc;
}

int model_build(struct program **ret, const struct model_options *o, struct err *e)
{
    char *shipped = NULL;
    struct net n = {0};
    int rc = o->text ? 0 : shipped_text(&shipped, o->arch, NET_TORCH, false, e);
    if (rc == 0)
        rc = check(o, e);
    if (rc == 0)
        rc = net_read(&n, o->arch, o->text ? o->text : shipped, e);
    if (rc == 0)
        rc = build(ret, &n, o, e);
    net_free(&n);
    free(shipped);
    return rc;
}
