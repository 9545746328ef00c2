/* Tokens that a model continues others with. A program has a fixed number of positions: 64, 128 and so on up to the
 * model's. Each token is computed from the whole window again, in the shortest program that holds it; what stands
 * behind the last token is not seen by it, as attention is causal. All programs read the same parameters. */
#include "worker/cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/args/args.h"
#include "common/base/array.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "common/json/json.h"
#include "worker/cli/loaded.h"
#include "worker/config/config_parse.h"
#include "worker/config/exit_code.h"
#include "worker/data/image/rng.h"
#include "worker/manifest/manifest_model.h"

enum { SHORTEST = 64, PROGRAMS_MOST = 24, BYTES = 256 };

struct generate_config {
    const char *checkpoint, *arch, *device, *prompt, *tokens, *part;
    int64_t count, topk, seed, threads;
};

#define AT(field) offsetof(struct generate_config, field)
static const struct arg_spec specs[] = {
    {.name = "checkpoint",
     .type = ARG_STRING,
     .at = AT(checkpoint),
     .metavar = "PATH",
     .required = true,
     .help = "a checkpoint folder, a step-N folder in one, or a file of weights (.safetensors, .pth, llm.c's .bin)"},
    {.name = "prompt",
     .type = ARG_STRING,
     .at = AT(prompt),
     .metavar = "TEXT",
     .help = "what is continued, of a model of bytes (a vocabulary of 256); the continuation is printed as bytes"},
    {.name = "tokens",
     .type = ARG_STRING,
     .at = AT(tokens),
     .metavar = "N,N,...",
     .help = "what is continued, of any model; the continuation is printed as numbers"},
    {.name = "count", .type = ARG_INT, .at = AT(count), .def = "100", .min = 1, .max = 1e9, .help = "tokens to add"},
    {.name = "topk",
     .type = ARG_INT,
     .at = AT(topk),
     .def = "1",
     .min = 1,
     .max = 1 << 24,
     .help = "draw each token among so many of the most probable; 1: the most probable"},
    {.name = "seed", .type = ARG_INT, .at = AT(seed), .def = "0", .min = 0, .max = 0x1p53, .help = "of --topk"},
    {.name = "arch",
     .short_name = 'a',
     .type = ARG_STRING,
     .at = AT(arch),
     .metavar = "NAME|FILE",
     .help = "model of a bare file of weights: gpt2, FILE.net, or its config.json; a checkpoint knows its own"},
    LOADED_ARGS(struct generate_config),
    ARG_END,
};

static const struct arg_program program = {
    .name = "trainer generate",
    .usage = "--checkpoint PATH --prompt TEXT|--tokens N,N,... [options]",
    .summary = "Continue tokens with a language model, and print what it adds.",
    .epilog = "Exit codes: 0, 2 wrong command line, 65 the checkpoint cannot be used, 78 the weights do not fit.",
    .specs = specs,
};

struct length { /* a program of so many positions; NULL: not made yet */
    struct program *program;
    struct plan *plan;
};

struct generator {
    const struct generate_config *cfg;
    struct loaded loaded;
    int most, vocabulary;                 /* positions that the model has, and tokens */
    struct length lengths[PROGRAMS_MOST]; /* of SHORTEST << i positions, or of `most` */
    int32_t *tokens;                      /* all so far */
    size_t n, cap;
    int32_t *row, *labels; /* (most) */
    double *logits;        /* (vocabulary, positions) */
    size_t logits_cap;
    int *order; /* (vocabulary) */
};

/* --- the model */

/* A file of weights does not say of which model it is; a config.json in its folder may. */
static int lacks_model(const char *path, struct err *e)
{
    char config[PATH_MAX];
    struct stat st;
    const char *slash = strrchr(path, '/');
    const bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    const int n = folder ? (int)strlen(path) : slash ? (int)(slash - path) : 1;
    snprintf(config, sizeof config, "%.*s/config.json", n, folder || slash ? path : ".");
    if (access(config, F_OK) == 0)
        return err_set(e, ERR_USAGE, "%s are weights alone: --arch %s says of which model", path, config);
    return err_set(
        e, ERR_USAGE,
        "%s is a bare file of weights, without the config.json that says of which model: give that as --arch, "
        "or a name (gpt2) or FILE.net",
        path);
}

static int choose_model(struct generator *g, struct meta_shape *was, struct err *e)
{
    struct loaded *l = &g->loaded;
    const cJSON *meta = weights_meta(l->weights);
    const char *arch = g->cfg->arch;
    *was = (struct meta_shape){0};
    if (!meta && !arch)
        return lacks_model(g->cfg->checkpoint, e);
    if (meta) {
        TRY(json_str(meta, "arch", &arch, e));
        TRY(meta_shape(meta, was, e));
        TRY(meta_model_text(meta, &l->text, e));
    } else if (model_text(&l->text, arch, NET_TORCH, false, e) < 0) {
        return err_wrap(e, "--arch");
    }
    return loaded_name(l, arch, e);
}

static int open_model(struct generator *g, struct err *e)
{
    struct loaded *l = &g->loaded;
    struct meta_shape was;
    struct model_facts facts;
    TRY(choose_model(g, &was, e));
    TRY(model_facts(l->arch, l->text, &facts, e));
    if (!facts.tokens)
        return err_set(e, ERR_USAGE, "%s reads pictures: trainer predict is for such models", l->arch);
    g->most = was.length ? was.length : facts.length ? facts.length : 1024;
    g->vocabulary = facts.vocabulary ? facts.vocabulary : was.classes;
    l->model.classes = g->vocabulary;
    l->model.input = input_tokens(g->most, g->vocabulary);
    return 0;
}

/* The program for n positions. */
static int length_for(struct generator *g, size_t n, struct length **ret, int *ret_positions, struct err *e)
{
    int i = 0, positions = SHORTEST;
    while ((size_t)positions < n && positions < g->most) {
        positions *= 2;
        i++;
    }
    *ret_positions = positions < g->most ? positions : g->most;
    struct length *l = *ret = &g->lengths[i];
    if (l->plan)
        return 0;
    struct model_options model = g->loaded.model;
    model.input.length = *ret_positions;
    model.whole_logits = true;
    if (!l->program)
        TRY(model_build(&l->program, &model, e));
    return loaded_plan(&g->loaded, l->program, &l->plan, e);
}

/* --- tokens */

static int add_token(struct generator *g, int64_t token, struct err *e)
{
    if (token < 0 || token >= g->vocabulary)
        return err_set(e, ERR_USAGE, "--tokens: %lld (expected 0 to %d, the vocabulary of %s)", (long long)token,
                       g->vocabulary - 1, g->loaded.arch);
    TRY(ARRAY_GROW(g->tokens, g->cap, g->n + 1, "tokens", e));
    g->tokens[g->n++] = (int32_t)token;
    return 0;
}

/* Numbers with a comma, blanks or both between them. */
static int read_numbers(struct generator *g, const char *at, struct err *e)
{
    static const char blanks[] = " \t\n";
    char *end;
    for (at += strspn(at, blanks); *at; at = end) {
        const long long token = strtoll(at, &end, 10);
        if (end == at || (*end && !strchr(", \t\n", *end)))
            return err_set(e, ERR_USAGE, "--tokens: '%.20s': expected a number, as in 1,2,3", at);
        TRY(add_token(g, token, e));
        end += strspn(end, blanks);
        if (*end == ',') {
            end += 1 + strspn(end + 1, blanks);
            if (!*end)
                return err_set(e, ERR_USAGE, "--tokens: expected a number behind the last comma");
        }
    }
    return 0;
}

static int read_prompt(struct generator *g, struct err *e)
{
    const char *prompt = g->cfg->prompt;
    if (!prompt == !g->cfg->tokens)
        return err_set(e, ERR_USAGE, "either --prompt TEXT or --tokens N,N,... says what is continued");
    if (prompt && g->vocabulary != BYTES)
        return err_set(e, ERR_USAGE, "--prompt: %s has a vocabulary of %d and not of bytes; --tokens takes numbers",
                       g->loaded.arch, g->vocabulary);
    for (; prompt && *prompt; prompt++)
        TRY(add_token(g, (unsigned char)*prompt, e));
    TRY(g->cfg->tokens ? read_numbers(g, g->cfg->tokens, e) : 0);
    return g->n > 0 ? 0 : err_set(e, ERR_USAGE, "there is no token to continue");
}

/* One of the most probable; v: (vocabulary) logits. */
static int draw(struct generator *g, const double *v, uint64_t number)
{
    const int n = g->vocabulary, k = g->cfg->topk < n ? (int)g->cfg->topk : n;
    struct rng r = rng_stream((uint64_t)g->cfg->seed, RNG_GENERATE, number, 0);
    double sum = 0;
    loaded_order(v, n, g->order);
    for (int i = 0; i < k; i++)
        sum += exp(v[g->order[i]] - v[g->order[0]]);
    double left = rng_unit(&r) * sum;
    int i = 0;
    while (i < k - 1 && (left -= exp(v[g->order[i]] - v[g->order[0]])) >= 0)
        i++;
    return g->order[i];
}

/* The token behind those so far, from the last `most` of them. */
static int next_token(struct generator *g, int *ret, struct err *e)
{
    const size_t n = g->n < (size_t)g->most ? g->n : (size_t)g->most, v = (size_t)g->vocabulary;
    const struct device_ops *ops = g->loaded.device->ops;
    const float weight = 1;
    struct length *l;
    int positions;
    TRY(length_for(g, n, &l, &positions, e));
    TRY(ARRAY_GROW(g->logits, g->logits_cap, v * ((size_t)positions + 1), "logits", e));
    memset(g->row, 0, (size_t)positions * sizeof *g->row);
    memcpy(g->row, g->tokens + g->n - n, n * sizeof *g->row);
    const struct run_args run = {.batch = {.rows = g->row, .labels = g->labels, .weights = &weight},
                                 .grad_scale = 1,
                                 .params_version = g->loaded.state.version};
    TRY(ops->run(l->plan, &run, e));
    TRY(ops->get(l->plan, l->program->logits, g->logits, e));
    double *last = g->logits + v * (size_t)positions;
    for (size_t i = 0; i < v; i++)
        last[i] = g->logits[i * (size_t)positions + n - 1];
    *ret = draw(g, last, (uint64_t)g->n);
    return 0;
}

static int generate(struct generator *g, struct err *e)
{
    for (int64_t i = 0; i < g->cfg->count; i++) {
        int token;
        TRY(next_token(g, &token, e));
        TRY(add_token(g, token, e));
        if (g->cfg->prompt)
            putchar(token);
        else
            printf(i ? " %d" : "%d", token);
        fflush(stdout);
    }
    putchar('\n');
    return 0;
}

static int generator_open(struct generator *g, struct err *e)
{
    TRY(loaded_open(&g->loaded, g->cfg->checkpoint, g->cfg->part, e));
    TRY(open_model(g, e));
    TRY(read_prompt(g, e));
    TRY(loaded_build(&g->loaded, g->cfg->device, g->cfg->threads, e));
    g->row = calloc((size_t)g->most, sizeof *g->row);
    g->labels = malloc((size_t)g->most * sizeof *g->labels);
    g->order = calloc((size_t)g->vocabulary, sizeof *g->order);
    for (int i = 0; g->labels && i < g->most; i++)
        g->labels[i] = -1; /* no loss */
    return g->row && g->labels && g->order ? 0 : err_errno(e, ENOMEM, "a window of %d tokens", g->most);
}

static void generator_close(struct generator *g)
{
    for (int i = 0; i < PROGRAMS_MOST; i++) {
        if (g->lengths[i].plan)
            g->loaded.device->ops->plan_close(g->lengths[i].plan);
        program_destroy(g->lengths[i].program);
    }
    loaded_close(&g->loaded);
    free(g->tokens);
    free(g->row);
    free(g->labels);
    free(g->logits);
    free(g->order);
}

int generate_main(int argc, char **argv)
{
    struct generate_config c = {0};
    struct arg_result r = {0};
    struct err e;
    struct generator g = {.cfg = &c};
    log_init(LOG_WARN, "");
    int rc = args_parse(&program, argc, argv, &c, &r, &e);
    if (rc == 0 && args_answer(&program, "trainer " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    if (rc == 0)
        rc = generator_open(&g, &e);
    if (rc == 0)
        rc = generate(&g, &e);
    generator_close(&g);
    if (rc < 0) {
        fprintf(stderr, "trainer generate: %s\n", e.text);
        return exit_code_of(rc);
    }
    return EXIT_OK;
}
