/* A row a tensor, or several that differ in their ends. '#' is a number, '*' query, key or value. */
#include "worker/ckpt/foreign.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define LAYER "encoder.layers.encoder_layer_#."

static const struct row {
    const char *ours, *hf, *timm;
} rows[] = {
    {"class_token", "embeddings.cls_token", "cls_token"},
    {"encoder.pos_embedding", "embeddings.position_embeddings", "pos_embed"},
    {"conv_proj.", "embeddings.patch_embeddings.projection.", "patch_embed.proj."},
    {LAYER "ln_1.", "encoder.layer.#.layernorm_before.", "blocks.#.norm1."},
    {LAYER "self_attention.in_proj_", "encoder.layer.#.attention.attention.*.", "blocks.#.attn.qkv."},
    {LAYER "self_attention.out_proj.", "encoder.layer.#.attention.output.dense.", "blocks.#.attn.proj."},
    {LAYER "ln_2.", "encoder.layer.#.layernorm_after.", "blocks.#.norm2."},
    {LAYER "mlp.0.", "encoder.layer.#.intermediate.dense.", "blocks.#.mlp.fc1."},
    {LAYER "mlp.3.", "encoder.layer.#.output.dense.", "blocks.#.mlp.fc2."},
    {"encoder.ln.", "layernorm.", "norm."},
    {"heads.head.", "classifier.", "head."},
};

/* Does name begin with the pattern? Then *number is where its digits are, and *rest what stands behind it. */
static int begins(const char *name, const char *pattern, const char **number, const char **rest)
{
    *number = "";
    for (; *pattern; pattern++) {
        if (*pattern == '#' && isdigit((unsigned char)*name)) {
            *number = name;
            name += strspn(name, "0123456789");
        } else if (*pattern == *name) {
            name++;
        } else {
            return 0;
        }
    }
    *rest = name;
    return 1;
}

static void compose(const char *prefix, const char *pattern, const char *part, const char *number, const char *rest,
                    char *out)
{
    const int digits = (int)strspn(number, "0123456789");
    size_t at = (size_t)snprintf(out, FOREIGN_NAME, "%s", prefix);
    for (; *pattern && at < FOREIGN_NAME; pattern++) {
        const char one[] = {*pattern, 0};
        at += (size_t)(*pattern == '#' ? snprintf(out + at, FOREIGN_NAME - at, "%.*s", digits, number)
                                       : snprintf(out + at, FOREIGN_NAME - at, "%s", *pattern == '*' ? part : one));
    }
    if (at < FOREIGN_NAME)
        snprintf(out + at, FOREIGN_NAME - at, "%s", rest);
}

int foreign_names(const char *name, int which, char out[FOREIGN_PARTS][FOREIGN_NAME])
{
    static const char *const parts[FOREIGN_PARTS] = {"query", "key", "value"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        const char *pattern = which < 2 ? r->hf : r->timm, *number, *rest;
        const int is_head = strcmp(r->ours, "heads.head.") == 0, n = strchr(pattern, '*') ? FOREIGN_PARTS : 1;
        if (!begins(name, r->ours, &number, &rest))
            continue;
        for (int k = 0; k < n; k++)
            compose(which == 0 && !is_head ? "vit." : "", pattern, parts[k], number, rest, out[k]);
        return n;
    }
    return 0;
}
