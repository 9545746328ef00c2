/* Settles the model of a run from the command line, the checkpoint and the data set. */
#include "worker/manifest/run_model.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/json/json.h"
#include "worker/ckpt/ckpt.h"
#include "worker/config/config.h"
#include "worker/manifest/class_names.h"
#include "worker/manifest/manifest_choice.h"
#include "worker/manifest/manifest_model.h"
#include "worker/model/hf_config.h"
#include "worker/model/model.h"

/* --- the checkpoint */

static int locate(const struct train_config *c, char dir[PATH_MAX], int64_t *step, struct err *e)
{
    *step = -1;
    if (train_config_resume(c) == RESUME_PATH)
        TRY(ckpt_locate(c->resume, dir, step, e));
    else
        snprintf(dir, PATH_MAX, "%s", c->checkpoint_dir ? c->checkpoint_dir : "");
    return *step < 0 ? ckpt_newest(dir, INT64_MAX, step, e) : 0;
}

/* *ret NULL: there is none. */
static int find_checkpoint(const struct train_config *c, struct ckpt **ret, struct err *e)
{
    char dir[PATH_MAX];
    int64_t step;
    *ret = NULL;
    if (train_config_resume(c) == RESUME_OFF)
        return 0;
    TRY(locate(c, dir, &step, e));
    return step < 0 ? 0 : ckpt_open(ret, dir, step, e);
}

/* A run with data of its own may be one of several ranks, another of which sees the checkpoint. */
static int open_checkpoint(const struct train_config *c, struct ckpt **ret, struct err *e)
{
    const int rc = find_checkpoint(c, ret, e);
    if (c->train_data)
        return 0;
    TRY(rc);
    return *ret || (c->pretrained && c->given.arch)
               ? 0
               : err_set(
                     e, ERR_USAGE,
                     "--evaluate without --train-data takes model and classes from a checkpoint, and --resume leads "
                     "to none; weights of others need --pretrained and --arch");
}

static int take_classes(struct run_model *m, struct train_config *c, const cJSON *meta, struct err *e)
{
    size_t cap = 0;
    for (struct class_names k = class_names_of(meta); class_names_next(&k); m->n_class_names++) {
        TRY(ARRAY_GROW(m->class_names, cap, (size_t)m->n_class_names + 1, "names of classes", e));
        if (!(m->class_names[m->n_class_names] = strndup(k.name, k.length)))
            return err_errno(e, ENOMEM, "names of classes");
    }
    c->class_names = m->class_names;
    c->n_class_names = m->n_class_names;
    return 0;
}

static int check_held(const struct run_model *m, struct ckpt *k, struct err *e)
{
    struct safetensors *f = ckpt_file(k, "model");
    struct meta_shape s;
    int64_t held = 0;
    TRY(meta_shape(ckpt_meta(k), &s, e));
    for (size_t i = 0; i < safetensors_count(f); i++)
        held += ckpt_tensor_reals(safetensors_at(f, i));
    const struct model_options o = {.arch = m->arch,
                                    .text = m->text,
                                    .classes = s.classes,
                                    .input = s.length ? input_tokens(s.length, s.classes)
                                                      : input_pictures(s.channels, s.size, s.size, NULL, NULL)};
    return model_check_held(&o, held, e);
}

/* The model of a checkpoint. One in another style was typed as such. */
static int take_model(struct run_model *m, struct train_config *c, struct ckpt *k, struct err *e)
{
    static const char *const styles[] = {NET_STYLES(CHOICE_NAME)};
    char name[MODEL_NAME_MAX + 1];
    const char *arch;
    const cJSON *meta = ckpt_meta(k);
    TRY(json_str(meta, "arch", &arch, e));
    model_name(arch, name);
    TRY(meta_model_text(meta, &m->text, e));
    if (!(m->arch = strdup(name)))
        return err_errno(e, ENOMEM, "a model's name");
    if (c->net_style == NET_TORCH)
        c->net_style = meta_choice_id(meta, "net_style", styles, sizeof styles / sizeof *styles, NET_TORCH);
    return check_held(m, k, e);
}

/* --- the run */

static int type_model(struct run_model *m, const struct train_config *c, struct err *e)
{
    char name[MODEL_NAME_MAX + 1];
    const int rc = model_text(&m->text, c->arch, (enum net_style)c->net_style, c->zero_init_residual, e);
    if (rc < 0) {
        err_wrap(e, "--arch");
        if (e && rc != -ENOMEM)
            e->code = ERR_USAGE;
        return rc == -ENOMEM ? rc : ERR_USAGE;
    }
    if (hf_config_is_path(c->arch))
        m->attention_dropout = hf_config_attention_dropout(c->arch);
    model_name(c->arch, name);
    m->arch = strdup(name);
    return m->arch ? 0 : err_errno(e, ENOMEM, "a model's name");
}

static int choose_tokens(struct train_config *c, const struct meta_shape *was, const struct model_facts *facts,
                         struct err *e)
{
    c->length = c->sequence_length ? (int)c->sequence_length : was->length ? was->length : facts->length;
    c->vocabulary = facts->vocabulary ? facts->vocabulary : c->num_labels ? (int)c->num_labels : was->classes;
    if (c->vocabulary == 1)
        return err_set(e, ERR_USAGE, "--arch %s: a vocabulary of 1 (expected at least 2 tokens)", c->arch);
    if (!c->length || c->vocabulary < 2)
        return err_set(e, ERR_USAGE, "%s takes any %s: --%s says which it is", c->arch,
                       c->length ? "vocabulary" : "length", c->length ? "num-labels" : "sequence-length");
    if (c->num_labels && c->num_labels != c->vocabulary)
        return err_set(e, ERR_USAGE, "--num-labels %d: the vocabulary of %s is %d", (int)c->num_labels, c->arch,
                       c->vocabulary);
    c->num_labels = c->vocabulary;
    return 0;
}

/* What is typed counts most, then the checkpoint, then what the model takes, if it does not take any. */
static int choose_input(struct train_config *c, const cJSON *meta, const struct model_facts *facts, struct err *e)
{
    struct meta_shape was = {.size = facts->size, .channels = facts->channels};
    const char *other = facts->tokens ? c->given.of_pictures : c->given.of_tokens;
    if (other)
        return err_set(e, ERR_USAGE, "--%s is of no use with %s, which reads %s", other, c->arch,
                       facts->tokens ? "tokens" : "pictures");
    if (meta)
        TRY(meta_shape(meta, &was, e));
    if (facts->tokens)
        return choose_tokens(c, &was, facts, e);
    if (!c->given.image_size && was.size)
        c->image_size = was.size;
    if (!c->given.num_channels && was.channels)
        c->num_channels = was.channels;
    if (!c->train_data && !c->num_labels)
        c->num_labels = was.classes;
    return train_config_check_channels(c, e);
}

static int choose(struct run_model *m, struct train_config *c, struct ckpt *k, struct err *e)
{
    const cJSON *meta = k ? ckpt_meta(k) : NULL;
    struct model_facts facts;
    TRY(k && !c->given.arch ? take_model(m, c, k, e) : type_model(m, c, e));
    c->arch = m->arch;
    c->model = m->text;
    TRY(model_facts(m->arch, m->text, &facts, e));
    TRY(choose_input(c, meta, &facts, e));
    return c->train_data || !meta ? 0 : take_classes(m, c, meta, e); /* weights of others: those of the test set */
}

int run_model_choose(struct run_model *ret, struct train_config *c, struct err *e)
{
    struct ckpt *k = NULL;
    *ret = (struct run_model){0};
    const bool all_given = c->given.arch && c->given.image_size && c->given.num_channels && c->train_data;
    int rc = all_given ? 0 : open_checkpoint(c, &k, e);
    if (rc == 0 && (rc = choose(ret, c, k, e)) < 0 && k && rc != ERR_USAGE)
        err_wrap(e, "the checkpoint to go on from");
    ckpt_close(k);
    if (rc < 0)
        run_model_free(ret);
    return rc;
}

void run_model_tell(const struct run_model *m)
{
    if (m->attention_dropout > 0)
        log_warn("model", "attn_pdrop is %g: dropout on attention probabilities is not done here",
                 m->attention_dropout);
}

void run_model_free(struct run_model *m)
{
    for (int i = 0; i < m->n_class_names; i++)
        free(m->class_names[i]);
    free(m->class_names);
    free(m->arch);
    free(m->text);
    *m = (struct run_model){0};
}
