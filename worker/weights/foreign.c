/* A row a tensor, or several that differ in their ends. '#' is a number, '@' a digit, which is one less there than
 * here, '*' one of the row's parts. */
#include "worker/weights/foreign.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define LAYER "encoder.layers.encoder_layer_#."
#define BLOCK "encoder.stages.@.layers.#."

static const struct row {
    const char *ours, *hf, *timm; /* timm NULL: it has no such model */
    const char *prefix;           /* of hf's, where the model has a head */
    const char *parts[FOREIGN_PARTS];
} rows[] = {
    {"class_token", "embeddings.cls_token", "cls_token", "vit."},
    {"encoder.pos_embedding", "embeddings.position_embeddings", "pos_embed", "vit."},
    {"conv_proj.", "embeddings.patch_embeddings.projection.", "patch_embed.proj.", "vit."},
    {LAYER "ln_1.", "encoder.layer.#.layernorm_before.", "blocks.#.norm1.", "vit."},
    {LAYER "self_attention.in_proj_",
     "encoder.layer.#.attention.attention.*.",
     "blocks.#.attn.qkv.",
     "vit.",
     {"query", "key", "value"}},
    {LAYER "self_attention.out_proj.", "encoder.layer.#.attention.output.dense.", "blocks.#.attn.proj.", "vit."},
    {LAYER "ln_2.", "encoder.layer.#.layernorm_after.", "blocks.#.norm2.", "vit."},
    {LAYER "mlp.0.", "encoder.layer.#.intermediate.dense.", "blocks.#.mlp.fc1.", "vit."},
    {LAYER "mlp.3.", "encoder.layer.#.output.dense.", "blocks.#.mlp.fc2.", "vit."},
    {"encoder.ln.", "layernorm.", "norm.", "vit."},
    {"heads.head.", "classifier.", "head.", ""},
    {"model.layers.#.self_attn.qkv_proj.", "layers.#.self_attn.*_proj.", NULL, "model.", {"q", "k", "v"}},
    {"model.", "", NULL, "model."},
    {"transformer.", "", NULL, "transformer."},
    {"conv1.", "embedder.embedder.convolution.", NULL, "resnet."},
    {"bn1.", "embedder.embedder.normalization.", NULL, "resnet."},
    {"layer@.#.conv1.", BLOCK "layer.0.convolution.", NULL, "resnet."},
    {"layer@.#.bn1.", BLOCK "layer.0.normalization.", NULL, "resnet."},
    {"layer@.#.conv2.", BLOCK "layer.1.convolution.", NULL, "resnet."},
    {"layer@.#.bn2.", BLOCK "layer.1.normalization.", NULL, "resnet."},
    {"layer@.#.conv3.", BLOCK "layer.2.convolution.", NULL, "resnet."},
    {"layer@.#.bn3.", BLOCK "layer.2.normalization.", NULL, "resnet."},
    {"layer@.#.downsample.0.", BLOCK "shortcut.convolution.", NULL, "resnet."},
    {"layer@.#.downsample.1.", BLOCK "shortcut.normalization.", NULL, "resnet."},
    {"fc.", "classifier.1.", NULL, ""},
};

struct match {
    const char *number, *rest; /* where its digits are, and what stands behind the pattern */
    char digit;
};

/* Does name begin with the pattern? */
static int begins(const char *name, const char *pattern, struct match *m)
{
    *m = (struct match){.number = ""};
    for (; *pattern; pattern++) {
        if (*pattern == '#' && isdigit((unsigned char)*name)) {
            m->number = name;
            name += strspn(name, "0123456789");
        } else if (*pattern == '@' && *name >= '1' && *name <= '9') {
            m->digit = *name++;
        } else if (*pattern == *name) {
            name++;
        } else {
            return 0;
        }
    }
    m->rest = name;
    return 1;
}

static void compose(const char *prefix, const char *pattern, const char *part, const struct match *m, char *out)
{
    const int digits = (int)strspn(m->number, "0123456789");
    size_t at = (size_t)snprintf(out, FOREIGN_NAME, "%s", prefix);
    for (; *pattern && at < FOREIGN_NAME; pattern++) {
        const char one[] = {(char)(*pattern == '@' ? m->digit - 1 : *pattern), 0};
        at += (size_t)(*pattern == '#' ? snprintf(out + at, FOREIGN_NAME - at, "%.*s", digits, m->number)
                                       : snprintf(out + at, FOREIGN_NAME - at, "%s", *pattern == '*' ? part : one));
    }
    if (at < FOREIGN_NAME)
        snprintf(out + at, FOREIGN_NAME - at, "%s", m->rest);
}

int foreign_names(const char *name, int which, char out[FOREIGN_PARTS][FOREIGN_NAME])
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        const char *pattern = which < 2 ? r->hf : r->timm;
        struct match m;
        const int n = pattern && strchr(pattern, '*') ? FOREIGN_PARTS : 1;
        if (!pattern || !begins(name, r->ours, &m))
            continue;
        for (int k = 0; k < n; k++)
            compose(which == 0 ? r->prefix : "", pattern, r->parts[k], &m, out[k]);
        return n;
    }
    return 0;
}

static int ends(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

int foreign_is_conv1d(const char *name)
{
    return ends(name, ".attn.c_attn.weight") || ends(name, ".attn.c_proj.weight") || ends(name, ".mlp.c_fc.weight") ||
           ends(name, ".mlp.c_proj.weight");
}

int foreign_is_first_conv1d(const char *name)
{
    return ends(name, ".attn.c_attn.weight");
}

const char *foreign_is_made_of(const char *name)
{
    static const struct {
        const char *part, *what;
    } parts[] = {
        {".parametrizations.", "of a parametrization (weight_norm, spectral_norm): "
                               "torch.nn.utils.parametrize.remove_parametrizations() first"},
        {"_mask", "of pruning: torch.nn.utils.prune.remove() first"},
        {"_orig", "of pruning or spectral_norm: torch.nn.utils.prune.remove(), remove_spectral_norm() first"},
        {".weight_g", "of weight_norm: torch.nn.utils.remove_weight_norm() first"},
        {".weight_v", "of weight_norm: torch.nn.utils.remove_weight_norm() first"},
        {".lora_A.", "of an adapter (LoRA): merge_and_unload() first"},
        {"lora_A.weight", "of an adapter (LoRA): merge_and_unload() first"},
        {"._packed_params", "of a quantized model: save the one of floating-point numbers"},
        {".zero_point", "of a quantized model: save the one of floating-point numbers"},
        {".weight_scale", "of a quantized model: save the one of floating-point numbers"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const bool inside = parts[i].part[0] == '.' && parts[i].part[strlen(parts[i].part) - 1] == '.';
        if (inside ? strstr(name, parts[i].part) != NULL : ends(name, parts[i].part))
            return parts[i].what;
    }
    return NULL;
}

int foreign_is_buffer(const char *name)
{
    struct match m;
    if (ends(name, ".num_batches_tracked"))
        return 1;
    if (begins(name, "transformer.h.#.attn.", &m) || begins(name, "h.#.attn.", &m))
        return strcmp(m.rest, "bias") == 0 || strcmp(m.rest, "masked_bias") == 0;
    return ends(name, ".rotary_emb.inv_freq");
}
