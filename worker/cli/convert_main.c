/* `trainer convert`: reads weights of any kind and writes them as a .pth or .safetensors file. */
#include "worker/cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/path.h"
#include "common/base/utf8.h"
#include "common/job/exitcode.h"
#include "worker/cli/hf_layout.h"
#include "worker/config/exit_code.h"
#include "worker/manifest/manifest_model.h"
#include "worker/model/hf_config.h"
#include "worker/weights/torch_zip.h"
#include "worker/weights/weights.h"

struct convert_config {
    bool ema, huggingface;
    const char *part;
};

static const struct arg_spec specs[] = {
    {.name = "ema",
     .type = ARG_FLAG,
     .at = offsetof(struct convert_config, ema),
     .help = "of a checkpoint of a run with --ema: the average of its weights, which evaluations and predict take"},
    {.name = "huggingface",
     .type = ARG_FLAG,
     .at = offsetof(struct convert_config, huggingface),
     .help = "OUT is a folder that transformers' from_pretrained() takes: IN is a checkpoint of a GPT-2 or a Llama; "
             "config.json and model.safetensors are written"},
    {.name = "part",
     .type = ARG_STRING,
     .at = offsetof(struct convert_config, part),
     .metavar = "NAME",
     .help = "of a file with several models: the member of its dict, or else what names begin with, under which the "
             "wanted one lies: state_dict_ema, teacher, module.encoder_q"},
    ARG_END,
};

static const struct arg_program program = {
    .name = "trainer convert",
    .usage = "[--ema] [--huggingface] [--part NAME] IN OUT",
    .summary =
        "Copy the weights of IN (a checkpoint folder, a .safetensors file or an index of several, a .pth file that "
        "torch.save wrote, or llm.c's .bin) to OUT (.safetensors, .pth or .pt). Of a .pth file only tensors are taken "
        "and nothing in it is executed: a state_dict, or the only one inside a dict. What wrappers put before names "
        "('module.', '_orig_mod.') is dropped.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

typedef int write_fn(const char *path, const struct ckpt_tensor *t, size_t n, struct err *e);

static int write_safetensors(const char *path, const struct ckpt_tensor *t, size_t n, struct err *e)
{
    return safetensors_write(path, t, n, NULL, e);
}

static write_fn *writer_for(const char *path)
{
    static const struct {
        const char *suffix;
        write_fn *write;
    } formats[] = {{".safetensors", write_safetensors}, {".pth", torch_zip_write}, {".pt", torch_zip_write}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        size_t n = strlen(path), m = strlen(formats[i].suffix);
        if (n > m && strcmp(path + n - m, formats[i].suffix) == 0)
            return formats[i].write;
    }
    return NULL;
}

static int read_all(struct weights *w, struct ckpt_tensor *t, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        int64_t bytes;
        t[i] = *weights_at(w, i);
        t[i].data = NULL;
        if (ckpt_tensor_bytes(&t[i], &bytes) < 0)
            return err_set(e, ERR_CORRUPT, "tensor '%s' has no possible size", t[i].name);
        void *data = malloc(bytes ? (size_t)bytes : 1);
        if (!data)
            return err_errno(e, ENOMEM, "%lld bytes of tensor '%s'", (long long)bytes, t[i].name);
        t[i].data = data;
        TRY(weights_read(w, i, data, e));
    }
    return 0;
}

/* Written beside and renamed, so that OUT is whole or as it was. */
static int write_whole(write_fn *write, const char *out, const struct ckpt_tensor *t, size_t n, struct err *e)
{
    char tmp[PATH_MAX];
    if (snprintf(tmp, sizeof tmp, "%s.%d.tmp", out, (int)getpid()) >= PATH_MAX)
        return err_set(e, ERR_USAGE, "the path of OUT is too long");
    int rc = write(tmp, t, n, e);
    if (rc < 0 && rc > -1000 && rc != -ENOTSUP && rc != -ENOMEM)
        e->code = rc = ERR_OUTPUT;
    if (rc == 0 && rename(tmp, out) < 0)
        rc = err_set(e, ERR_OUTPUT, "cannot make %s: %s", out, strerror(errno));
    if (rc < 0)
        unlink(tmp);
    return rc;
}

static int choose_weights(struct weights *w, const char *in, bool ema, struct err *e)
{
    const char *first;
    const size_t members = weights_passed_over(w, &first);
    if (members)
        log_warn("convert", "%zu members of the file are no tensors that can be taken: %s", members, first);
    if (weights_another(w)[0])
        log_warn("convert", "the file has several models: %s (--part NAME takes the other)", weights_another(w));
    if (ema && !weights_has_averages(w))
        return err_set(e, ERR_USAGE, "--ema needs a checkpoint of a run with --ema; %s keeps no average", in);
    if (ema)
        weights_take_averages(w);
    else if (weights_has_averages(w))
        log_warn("convert", "the checkpoint keeps an average of its weights, which --ema takes; these are the weights "
                            "themselves");
    return 0;
}

/* config.json, and the name of the file for the weights. */
static int write_config(const struct weights *w, const char *dir, char path[PATH_MAX], struct err *e)
{
    cJSON *o = NULL;
    char *text = NULL;
    TRY(meta_model_text(weights_meta(w), &text, e));
    int rc = hf_config_make(&o, text, e);
    free(text);
    if (rc == -ENOTSUP)
        e->code = ERR_USAGE;
    if (rc < 0)
        return err_wrap(e, "--huggingface");
    text = cJSON_Print(o);
    cJSON_Delete(o);
    if (!text || snprintf(path, PATH_MAX, "%s/config.json", dir) > PATH_MAX - 32)
        rc = err_set(e, ERR_USAGE, "the path of OUT is too long");
    if (rc == 0)
        rc = path_make_dirs(dir, e);
    FILE *f = rc == 0 ? fopen(path, "wbe") : NULL;
    if (rc == 0 && (!f || fprintf(f, "%s\n", text) < 0))
        rc = err_set(e, ERR_OUTPUT, "cannot write %s: %s", path, strerror(errno));
    if (f && fclose(f) != 0 && rc == 0)
        rc = err_set(e, ERR_OUTPUT, "cannot write %s: %s", path, strerror(errno));
    free(text);
    snprintf(path, PATH_MAX, "%.*s/model.safetensors", PATH_MAX - 32, dir);
    return rc;
}

static int convert(const char *in, const char *out, const struct convert_config *c, size_t *ret_n, struct err *e)
{
    struct weights *w;
    char path[PATH_MAX];
    write_fn *write = c->huggingface ? write_safetensors : writer_for(out);
    if (!write)
        return err_set(e, ERR_USAGE, "'%s' ends neither in .safetensors nor in .pth or .pt", out);
    TRY(weights_open(&w, in, c->part, e));
    int rc = weights_drop_wrappers(w, e);
    size_t n = weights_count(w);
    struct ckpt_tensor *t = calloc(n ? n : 1, sizeof *t);
    if (rc == 0)
        rc = t ? choose_weights(w, in, c->ema, e) : err_errno(e, ENOMEM, "list of %zu tensors", n);
    if (rc == 0 && c->huggingface && !weights_meta(w))
        rc = err_set(e, ERR_USAGE, "--huggingface needs a checkpoint, which knows its model; %s is a file of weights",
                     in);
    if (rc == 0)
        rc = read_all(w, t, n, e);
    if (rc == 0 && c->huggingface) {
        rc = write_config(w, out, path, e);
        rc = rc == 0 ? hf_layout(&t, &n, e) : rc;
        out = path;
    }
    *ret_n = n;
    if (rc == 0)
        rc = write_whole(write, out, t, n, e);
    for (size_t i = 0; t && i < n; i++)
        free((void *)(uintptr_t)t[i].data);
    free(t);
    weights_close(w);
    return rc;
}

int convert_main(int argc, char **argv)
{
    struct convert_config c = {0};
    struct arg_result r = {0};
    struct err e;
    size_t n = 0;
    log_init(LOG_WARN, "");
    int rc = args_parse(&program, argc, argv, &c, &r, &e);
    if (rc == 0 && args_answer(&program, "trainer " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    if (rc == 0 && r.first_operand != argc - 2)
        rc = err_set(&e, ERR_USAGE, "exactly IN and OUT are needed: trainer convert [options] IN OUT");
    if (rc == 0)
        rc = convert(argv[r.first_operand], argv[r.first_operand + 1], &c, &n, &e);
    if (rc < 0) {
        fprintf(stderr, "trainer convert: %s\n", e.text);
        return exit_code_of(rc);
    }
    printable_line(stdout, "%s: %zu tensors", argv[r.first_operand + 1], n);
    return EXIT_OK;
}
