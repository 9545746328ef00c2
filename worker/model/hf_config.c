/* Values are read from a table: config.json's name, the name that the text has for it, and what it may be. Written is
 * only what reads back as the same model (model_compare()). */
#include "worker/model/hf_config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/json/json.h"
#include "worker/model/model.h"
#include "worker/model/net_read.h"
#include "worker/model/net_texts.h"

#define CONFIG_MAX ((size_t)1 << 20)
#define HEAD "head lm_head"
#define TIED HEAD " tied=model.embed_tokens"

/* A value that the text has, too. */
struct value {
    const char *json, *text;
    double otherwise; /* if the file has none; 0: it must have one */
};

static const struct value gpt2_values[] = {{"n_embd", "width", 0},
                                           {"n_layer", "layers", 0},
                                           {"n_head", "heads", 0},
                                           {"n_positions", "context", 1024},
                                           {"vocab_size", "vocabulary", 50257},
                                           {NULL, NULL, 0}};
static const struct value llama_values[] = {{"hidden_size", "width", 0},
                                            {"num_hidden_layers", "layers", 0},
                                            {"num_attention_heads", "heads", 0},
                                            {"intermediate_size", "mlp", 0},
                                            {"max_position_embeddings", "context", 2048},
                                            {"vocab_size", "vocabulary", 32000},
                                            {"rms_norm_eps", "eps", 1e-6},
                                            {NULL, NULL, 0}};

/* Members with which the model would be another one, as JSON; if the file has them they must be this. */
static const char *const gpt2_fixed[][2] = {{"activation_function", "\"gelu_new\""},
                                            {"layer_norm_epsilon", "1e-05"},
                                            {"scale_attn_weights", "true"},
                                            {"scale_attn_by_inverse_layer_idx", "false"},
                                            {"add_cross_attention", "false"},
                                            {"tie_word_embeddings", "true"},
                                            {NULL, NULL}};
static const char *const llama_fixed[][2] = {{"hidden_act", "\"silu\""},      {"attention_bias", "false"},
                                             {"mlp_bias", "false"},           {"partial_rotary_factor", "1.0"},
                                             {"quantization_config", "null"}, {NULL, NULL}};
static const char *const rope_fixed[][2] = {
    {"rope_type", "\"default\""}, {"type", "\"default\""}, {"partial_rotary_factor", "1.0"}, {NULL, NULL}};

/* A member that is there and is no number must not be taken for one that is missing. */
static int check_numbers(const cJSON *o, struct err *e)
{
    static const char *const names[] = {"n_embd",
                                        "n_layer",
                                        "n_head",
                                        "n_positions",
                                        "vocab_size",
                                        "n_inner",
                                        "resid_pdrop",
                                        "embd_pdrop",
                                        "attn_pdrop",
                                        "hidden_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "head_dim",
                                        "rope_theta",
                                        "rms_norm_eps",
                                        "intermediate_size",
                                        "num_key_value_heads",
                                        "max_position_embeddings"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *is = cJSON_GetObjectItemCaseSensitive(o, names[i]);
        if (is && !cJSON_IsNumber(is) && !cJSON_IsNull(is))
            return err_set(e, -EINVAL, "%s is no number (expected one, or null)", names[i]);
    }
    return 0;
}

static int check_fixed(const cJSON *o, const char *const fixed[][2], struct err *e)
{
    for (; (*fixed)[0]; fixed++) {
        const cJSON *is = cJSON_GetObjectItemCaseSensitive(o, (*fixed)[0]);
        cJSON *wanted = cJSON_Parse((*fixed)[1]);
        const bool same = !is || cJSON_IsNull(is) || cJSON_Compare(is, wanted, true);
        cJSON_Delete(wanted);
        char *text = same ? NULL : cJSON_PrintUnformatted(is);
        if (!same)
            err_set(e, -EINVAL, "%s is %.80s (expected %s)", (*fixed)[0], text ? text : "?", (*fixed)[1]);
        free(text);
        if (!same)
            return -EINVAL;
    }
    return 0;
}

static int add_values(struct buf *out, const cJSON *o, const struct value *v, struct err *e)
{
    int rc = 0;
    for (; rc == 0 && v->json; v++) {
        const double x = json_f64_or(o, v->json, v->otherwise);
        if (!(x > 0))
            return err_set(e, -EINVAL, "it has no number '%s' above 0", v->json);
        if (x >= 1 && x != floor(x))
            return err_set(e, -EINVAL, "%s is %g (expected a whole number)", v->json, x);
        rc = buf_printf(out, "set %s=%.17g\n", v->text, x);
    }
    return rc;
}

/* One dropout for all places that have one here. */
static int add_dropout(struct buf *out, const cJSON *o, struct err *e)
{
    const double rate = json_f64_or(o, "resid_pdrop", 0.1);
    if (rate < 0 || rate >= 1 || json_f64_or(o, "embd_pdrop", 0.1) != rate)
        return err_set(e, -EINVAL, "resid_pdrop is %g and embd_pdrop %g (expected one number below 1)", rate,
                       json_f64_or(o, "embd_pdrop", 0.1));
    return buf_printf(out, "set dropout=%.17g\n", rate);
}

static int gpt2_text(struct buf *out, const cJSON *o, struct err *e)
{
    const double inner = json_f64_or(o, "n_inner", 0), width = json_f64_or(o, "n_embd", 0);
    TRY(check_fixed(o, gpt2_fixed, e));
    if (inner != 0 && inner != 4 * width)
        return err_set(e, -EINVAL, "n_inner is %g (expected 4 n_embd, %g)", inner, 4 * width);
    TRY(buf_addstr(out, net_gpt2));
    TRY(add_values(out, o, gpt2_values, e));
    return add_dropout(out, o, e);
}

/* The base of the rotary embedding goes to *base if the object `name` has one. 0 if the file has no such object. */
static int rope_group(const cJSON *o, const char *name, double *base, struct err *e)
{
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(o, name);
    if (!rope || cJSON_IsNull(rope))
        return 0;
    if (!cJSON_IsObject(rope))
        return err_set(e, -EINVAL, "%s is no object (expected one, or null)", name);
    const cJSON *theta = cJSON_GetObjectItemCaseSensitive(rope, "rope_theta");
    if (theta && !cJSON_IsNumber(theta) && !cJSON_IsNull(theta))
        return err_set(e, -EINVAL, "rope_theta of %s is no number (expected one, or null)", name);
    if (check_fixed(rope, rope_fixed, e) < 0)
        return err_wrap(e, "%s", name);
    *base = json_f64_or(rope, "rope_theta", *base);
    return 0;
}

/* The base of the rotary embedding. Newer files have it in rope_parameters or rope_scaling; that one counts first. */
static int rope_base(const cJSON *o, double *ret, struct err *e)
{
    *ret = json_f64_or(o, "rope_theta", 10000);
    TRY(rope_group(o, "rope_scaling", ret, e));
    TRY(rope_group(o, "rope_parameters", ret, e));
    return *ret >= 1 ? 0 : err_set(e, -EINVAL, "rope_theta is %g (expected 1 or more)", *ret);
}

static int llama_text(struct buf *out, const cJSON *o, struct err *e)
{
    const double heads = json_f64_or(o, "num_attention_heads", 0), width = json_f64_or(o, "hidden_size", 0);
    const char *head = strstr(net_llama, HEAD "\n");
    double base = 0;
    TRY(check_fixed(o, llama_fixed, e));
    TRY(rope_base(o, &base, e));
    if (json_f64_or(o, "head_dim", heads > 0 ? width / heads : 0) * heads != width)
        return err_set(e, -EINVAL, "head_dim is %g (expected hidden_size / num_attention_heads)",
                       json_f64_or(o, "head_dim", 0));
    const bool tied = head && cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "tie_word_embeddings"));
    TRY(tied ? buf_add(out, net_llama, (size_t)(head - net_llama)) : buf_addstr(out, net_llama));
    TRY(tied ? buf_addstr(out, TIED "\n") : 0);
    TRY(add_values(out, o, llama_values, e));
    return buf_printf(out, "set kv_heads=%.17g base=%.17g\n", json_f64_or(o, "num_key_value_heads", heads), base);
}

static int text_of(struct buf *out, const cJSON *o, struct err *e)
{
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, "model_type"));
    int rc;
    TRY(check_numbers(o, e));
    if (type && strcmp(type, "gpt2") == 0)
        rc = gpt2_text(out, o, e);
    else if (type && strcmp(type, "llama") == 0)
        rc = llama_text(out, o, e);
    else
        return err_set(e, -EINVAL, "model_type is '%.60s' (expected gpt2 or llama)", type ? type : "missing");
    return rc == -ENOMEM ? err_errno(e, ENOMEM, "a model's text") : rc;
}

bool hf_config_is_path(const char *arch)
{
    const size_t n = strlen(arch);
    return n > 5 && strcmp(arch + n - 5, ".json") == 0;
}

int hf_config_text(struct buf *ret, const char *path, struct err *e)
{
    cJSON *o = NULL;
    int rc = json_read_file(path, CONFIG_MAX, &o, e);
    if (rc == 0 && (rc = text_of(ret, o, e)) < 0)
        err_wrap(e, "%s", path);
    cJSON_Delete(o);
    return rc == ERR_CORRUPT ? -EINVAL : rc;
}

double hf_config_attention_dropout(const char *path)
{
    cJSON *o = NULL;
    struct err ignored;
    double rate = 0;
    if (json_read_file(path, CONFIG_MAX, &o, &ignored) == 0) {
        const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, "model_type"));
        rate = type && strcmp(type, "gpt2") == 0 ? json_f64_or(o, "attn_pdrop", 0.1) : 0;
    }
    cJSON_Delete(o);
    return rate;
}

/* --- back */

/* The first operation of its kind; NULL: there is none. */
static const struct net_op *first_of(const struct net *n, enum op_kind kind)
{
    for (int i = 0; i < n->n; i++)
        if (n->ops[i].word->kind == kind)
            return &n->ops[i];
    return NULL;
}

static const struct net_op *named(const struct net *n, const char *end)
{
    for (int i = 0; i < n->n; i++) {
        const size_t length = strlen(n->ops[i].name), m = strlen(end);
        if (length >= m && strcmp(n->ops[i].name + length - m, end) == 0)
            return &n->ops[i];
    }
    return NULL;
}

static double key(const struct net_op *op, enum net_key k)
{
    return op ? op->v[k] : 0;
}

static double layers_of(const struct net *n)
{
    double layers = 0;
    for (int i = 0; i < n->n; i++)
        layers += n->ops[i].word->kind == OP_ATTENTION;
    return layers;
}

static void describe_gpt2(cJSON *o, const struct net *n)
{
    const double rate = key(first_of(n, OP_DROP), KEY_RATE);
    cJSON_AddStringToObject(o, "model_type", "gpt2");
    cJSON_AddItemToObject(o, "architectures", cJSON_CreateStringArray(&(const char *){"GPT2LMHeadModel"}, 1));
    cJSON_AddNumberToObject(o, "n_embd", key(first_of(n, OP_EMBED), KEY_OUT));
    cJSON_AddNumberToObject(o, "n_layer", layers_of(n));
    cJSON_AddNumberToObject(o, "n_head", key(first_of(n, OP_ATTENTION), KEY_HEADS));
    cJSON_AddNumberToObject(o, "n_positions", n->ops[0].v[KEY_LENGTH]);
    cJSON_AddNumberToObject(o, "resid_pdrop", rate);
    cJSON_AddNumberToObject(o, "embd_pdrop", rate);
    cJSON_AddNumberToObject(o, "attn_pdrop", 0);
}

static void describe_llama(cJSON *o, const struct net *n)
{
    const struct net_op *attention = first_of(n, OP_ATTENTION);
    const double base = key(first_of(n, OP_ROPE), KEY_BASE);
    cJSON_AddStringToObject(o, "model_type", "llama");
    cJSON_AddItemToObject(o, "architectures", cJSON_CreateStringArray(&(const char *){"LlamaForCausalLM"}, 1));
    cJSON_AddNumberToObject(o, "hidden_size", key(first_of(n, OP_EMBED), KEY_OUT));
    cJSON_AddNumberToObject(o, "intermediate_size", key(named(n, "mlp.up_proj"), KEY_OUT));
    cJSON_AddNumberToObject(o, "num_hidden_layers", layers_of(n));
    cJSON_AddNumberToObject(o, "num_attention_heads", key(attention, KEY_HEADS));
    cJSON_AddNumberToObject(o, "num_key_value_heads", key(attention, KEY_KV_HEADS));
    cJSON_AddNumberToObject(o, "max_position_embeddings", n->ops[0].v[KEY_LENGTH]);
    cJSON_AddNumberToObject(o, "rms_norm_eps", key(first_of(n, OP_NORM), KEY_EPS));
    cJSON_AddBoolToObject(o, "tie_word_embeddings", n->ops[n->n - 1].in[1] >= 0);
    cJSON_AddNumberToObject(o, "rope_theta", base);
    cJSON *rope = cJSON_AddObjectToObject(o, "rope_parameters");
    cJSON_AddNumberToObject(rope, "rope_theta", base);
    cJSON_AddStringToObject(rope, "rope_type", "default");
}

/* Does it read back as the same model? */
static int check_back(const cJSON *o, const char *text, struct err *e)
{
    struct buf back = {0};
    struct err why = {0};
    int rc = text_of(&back, o, &why);
    if (rc == 0)
        rc = model_compare(back.data, text, &why);
    buf_free(&back);
    return rc == 0
               ? 0
               : err_set(e, -ENOTSUP, "the model is neither a GPT-2 nor a Llama of Hugging Face's: %.160s", why.text);
}

int hf_config_make(cJSON **ret, const char *text, struct err *e)
{
    struct net n;
    cJSON *o = cJSON_CreateObject();
    int rc = net_read(&n, "the model", text, e);
    if (rc == 0) {
        (first_of(&n, OP_ROPE) ? describe_llama : describe_gpt2)(o, &n);
        cJSON_AddNumberToObject(o, "vocab_size", n.ops[0].v[KEY_VOCABULARY]);
        cJSON_AddNullToObject(o, "bos_token_id"); /* the tokenizer's */
        cJSON_AddNullToObject(o, "eos_token_id");
        rc = check_back(o, text, e);
    }
    net_free(&n);
    if (rc < 0)
        cJSON_Delete(o);
    else
        *ret = o;
    return rc;
}
