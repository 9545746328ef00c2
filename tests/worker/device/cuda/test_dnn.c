/* cuDNN's plans with no GPU in the machine: choices as text, the cache on disk, the list that a checkpoint keeps, and
 * which engines may be used at all. Small graphs, for an H200 whose properties are given as JSON.
 *
 * usage: test_dnn PROPERTIES.json */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/properties.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/device/cuda/dnn/dnn_impl.h"

enum { MANY = 64 };

static char *props;
static const char *dir; /* scratch, of all cases */
static char logged[4096];

static const struct cudnn_shape halves = {.n = 4,
                                          .c = 16,
                                          .h = 14,
                                          .w = 14,
                                          .k = 32,
                                          .r = 3,
                                          .s = 3,
                                          .stride = {1, 1},
                                          .pad = {1, 1},
                                          .type = DT_F16,
                                          .nhwc = true};

static struct cudnn *open_with(struct cudnn_options o)
{
    struct cudnn *d;
    if (!o.props_json)
        o.props_json = props;
    MUST(cudnn_open(&d, &o, e));
    return d;
}

static int candidates(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, struct cudnn_plan **all)
{
    int n;
    MUST(cudnn_candidates(d, p, s, all, MANY, &n, e));
    return n;
}

static int count_plans(const struct cudnn *d)
{
    int n = 0;
    for (const struct cudnn_plan *p = d->plans; p; p = p->next)
        n++;
    return n;
}

static void same_plan(const struct cudnn_plan *a, const struct cudnn_plan *b)
{
    assert_string_equal(cudnn_plan_choice(a), cudnn_plan_choice(b));
    assert_string_equal(cudnn_plan_name(a), cudnn_plan_name(b));
    assert_int_equal(cudnn_plan_workspace(a), cudnn_plan_workspace(b));
    assert_int_equal(cudnn_plan_pattern(a), cudnn_plan_pattern(b));
}

static struct cudnn_plan *find(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s)
{
    struct cudnn_plan *r;
    MUST(cudnn_find(d, p, s, &r, e));
    return r;
}

static int adopt(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, const char *choice, struct err *e)
{
    cJSON *o = cJSON_Parse(choice);
    const int rc = cudnn_adopt(d, p, s, o, false, 0, e);
    cJSON_Delete(o);
    return rc;
}

static void every_candidate_is_adopted_from_its_text(void **state)
{
    struct cudnn *from = open_with((struct cudnn_options){0}), *to = open_with((struct cudnn_options){0});
    for (int p = 0; p < DNN_GRAPHS; p++) {
        struct cudnn_plan *all[MANY];
        const int n = candidates(from, p, &halves, all);
        for (int i = 0; i < n; i++) {
            MUST(adopt(to, p, &halves, cudnn_plan_choice(all[i]), e));
            same_plan(all[i], find(to, p, &halves));
        }
    }
    cudnn_close(from);
    cudnn_close(to);
    (void)state;
}

/* --- the cache */

static void log_to_buffer(void *arg, const char *line, size_t n)
{
    (void)arg;
    snprintf(logged, sizeof logged, "%.*s", (int)n, line);
}

static int warnings;

static void count_lines(void *arg, const char *line, size_t n)
{
    warnings++;
    log_to_buffer(arg, line, n);
}

/* The last candidate, so that it differs from the heuristics' first, is chosen as the fastest; into the cache. Its
 * text, malloc'ed. */
static char *choose_last(const char *cache)
{
    struct cudnn *d = open_with((struct cudnn_options){.cache_dir = cache});
    struct cudnn_plan *all[MANY];
    const int n = candidates(d, DNN_CONV, &halves, all);
    assert_true(n > 1);
    assert_string_not_equal(cudnn_plan_choice(all[0]), cudnn_plan_choice(all[n - 1]));
    cudnn_choose(d, all[n - 1], 12.5);
    assert_true(cudnn_plan_measured(all[n - 1]));
    char *r = strdup(cudnn_plan_choice(all[n - 1]));
    cudnn_close(d);
    return r;
}

/* The path of the only entry of a folder. */
static void only_entry(char *path, size_t cap)
{
    DIR *f = opendir(path);
    int n = 0;
    const size_t used = strlen(path);
    assert_non_null(f);
    for (struct dirent *x; (x = readdir(f));) {
        if (x->d_name[0] == '.')
            continue;
        snprintf(path + used, cap - used, "/%s", x->d_name);
        n++;
    }
    closedir(f);
    assert_int_equal(1, n);
}

static void cache_file(char *path, size_t cap, const char *cache)
{
    snprintf(path, cap, "%s", cache);
    only_entry(path, cap);
    only_entry(path, cap);
}

static void subfolder(char *out, size_t cap, const char *name)
{
    snprintf(out, cap, "%s/%s", dir, name);
}

/* Without a GPU there is no handle, which is the last thing that is looked at: until then every call must come as far
 * as the first. */
static void a_plan_is_executed_more_than_once(void **state)
{
    char memory[1];
    void *slot[DNN_SLOTS_MAX];
    int said[3];
    struct cudnn_plan *all[MANY];
    struct cudnn *d = open_with((struct cudnn_options){0});
    (void)candidates(d, DNN_CONV, &halves, all);
    for (int i = 0; i < DNN_SLOTS_MAX; i++)
        slot[i] = memory;
    for (int i = 0; i < 3; i++)
        said[i] = cudnn_execute(all[0], NULL, slot, memory);
    assert_int_not_equal(said[0], CUDNN_STATUS_SUCCESS);
    assert_int_not_equal(said[0], CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED); /* the pack */
    assert_int_equal(said[1], said[0]);
    assert_int_equal(said[2], said[0]);
    cudnn_close(d);
}

static void a_cached_plan_is_taken_as_measured(void **state)
{
    char cache[256];
    subfolder(cache, sizeof cache, "hit");
    char *choice = choose_last(cache);
    struct cudnn *d = open_with((struct cudnn_options){.cache_dir = cache});
    const struct cudnn_plan *p = find(d, DNN_CONV, &halves);
    assert_string_equal(choice, cudnn_plan_choice(p));
    assert_true(cudnn_plan_measured(p));
    assert_int_equal(1, count_plans(d)); /* no candidate was made */
    p = find(d, DNN_DGRAD, &halves);     /* nothing is cached for this one */
    assert_false(cudnn_plan_measured(p));
    free(choice);
    cudnn_close(d);
    (void)state;
}

/* Two of one process try an engine each, a third begins and ends beside them; then the process is gone. */
static void try_and_die(const char *cache)
{
    struct cudnn *d[3];
    struct cudnn_plan *all[MANY];
    for (int i = 0; i < 3; i++)
        d[i] = open_with((struct cudnn_options){.cache_dir = cache});
    for (int i = 0; i < 3; i++) {
        assert_true(candidates(d[i], DNN_CONV, &halves, all) > 2);
        cudnn_trial_begin(d[i], all[i]);
    }
    cudnn_trial_end(d[2]);
    cudnn_close(d[2]);
    _exit(0);
}

static void each_of_two_that_try_at_once_is_barred_when_both_are_gone(void **state)
{
    (void)state;
    char cache[256], file[1024];
    int status;
    struct cudnn_plan *all[MANY];
    struct cudnn *known = open_with((struct cudnn_options){0});
    subfolder(cache, sizeof cache, "tried");
    (void)candidates(known, DNN_CONV, &halves, all);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        try_and_die(cache);
    assert_int_equal(child, waitpid(child, &status, 0));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int run = 0; run < 2; run++) { /* the next process, and one that has it from the cache */
        log_redirect(count_lines, NULL);
        warnings = 0;
        struct cudnn *d = open_with((struct cudnn_options){.cache_dir = cache});
        log_redirect(NULL, NULL);
        assert_int_equal(run == 0 ? 2 : 0, warnings);
        (void)find(d, DNN_CONV, &halves);
        for (int i = 0; i < 3; i++)
            assert_int_equal(i < 2, cudnn_choice_barred(d, DNN_CONV, &halves, cudnn_plan_choice(all[i])));
        cudnn_close(d);
    }
    cache_file(file, sizeof file, cache); /* all that is left */
    assert_non_null(strstr(file, ".json"));
    cudnn_close(known);
}

static void a_damaged_file_is_told_of_and_left_alone(void **state)
{
#define OF(shape, choice)                                                                                              \
    "[{\"graph\": \"g7\", \"pattern\": 0, \"state\": \"timed\", \"shape\": " shape ", \"engine\": " choice "}]"
#define GOOD_SHAPE "[4,16,14,14,32,3,3,1,1,1,1,1,1,0]"
    static const char *const damage[] = {
        "",
        "{\"graph\": \"g7\", \"choice\": {\"index\": 3, \"knobs\": [[2",
        "{}",
        "[7]",
        "{\"index\": 0, \"knobs\": []}",
        OF("[8,16,14,14,32,3,3,1,1,1,1,1,1,0]", "{\"index\": 0}"), /* another graph's */
        OF(GOOD_SHAPE, "{\"index\": \"three\"}"),
        OF(GOOD_SHAPE, "{\"index\": 1000000}"),
        OF(GOOD_SHAPE, "{\"index\": -7, \"knobs\": []}"),
        OF(GOOD_SHAPE, "{\"index\": 0, \"knobs\": [[1], 2]}"),
        OF(GOOD_SHAPE, "{\"index\": 0, \"knobs\": [[2, 100000]]}")};
    char cache[256], path[1024];
    subfolder(cache, sizeof cache, "damaged");
    char *choice = choose_last(cache);
    cache_file(path, sizeof path, cache);
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        FILE *f = fopen(path, "w");
        fputs(damage[i], f);
        fclose(f);
        logged[0] = '\0';
        log_redirect(log_to_buffer, NULL);
        struct cudnn *d = open_with((struct cudnn_options){.cache_dir = cache});
        const struct cudnn_plan *p = find(d, DNN_CONV, &halves);
        log_redirect(NULL, NULL);
        if (cudnn_plan_measured(p) || !strcmp(choice, cudnn_plan_choice(p)) || !strstr(logged, "chosen anew"))
            fail_msg("with '%s' in the cache: plan %s, log '%s'", damage[i], cudnn_plan_name(p), logged);
        cudnn_close(d);
    }
    free(choice);
    (void)state;
}

static void a_cache_that_cannot_be_written_is_told_of_once(void **state)
{
    char cache[256];
    subfolder(cache, sizeof cache, "no folder");
    FILE *f = fopen(cache, "w");
    fclose(f);
    log_redirect(count_lines, NULL);
    struct cudnn *d = open_with((struct cudnn_options){.cache_dir = cache});
    struct cudnn_plan *all[MANY];
    candidates(d, DNN_CONV, &halves, all);
    cudnn_choose(d, all[0], 12.5);
    candidates(d, DNN_DGRAD, &halves, all);
    cudnn_choose(d, all[0], 12.5);
    log_redirect(NULL, NULL);
    assert_true(cudnn_plan_measured(find(d, DNN_DGRAD, &halves)));
    assert_int_equal(1, warnings);
    assert_non_null(strstr(logged, cache));
    cudnn_close(d);
    (void)state;
}

/* The properties of another card: only its name differs. */
static char *renamed(void)
{
    char *r = malloc(strlen(props) + 32);
    const char *at = strstr(props, "NVIDIA H200");
    assert_non_null(at);
    sprintf(r, "%.*sNVIDIA H300%s", (int)(at - props), props, at + strlen("NVIDIA H200"));
    return r;
}

static void another_card_cudnn_or_rule_has_another_folder(void **state)
{
    char cache[256], folder[1024], old[1100], *other = renamed();
    subfolder(cache, sizeof cache, "folders");
    char *choice = choose_last(cache);
    struct cudnn *d = open_with((struct cudnn_options){.cache_dir = cache, .props_json = other});
    assert_false(cudnn_plan_measured(find(d, DNN_CONV, &halves)));
    cudnn_close(d);
    d = open_with((struct cudnn_options){.cache_dir = cache, .deterministic = true});
    assert_false(cudnn_plan_measured(find(d, DNN_CONV, &halves)));
    cudnn_close(d);

    snprintf(folder, sizeof folder, "%s", cache);
    only_entry(folder, sizeof folder);
    char version[32];
    snprintf(version, sizeof version, "cuDNN %d", cudnn_version());
    assert_non_null(strstr(folder, "NVIDIA H200"));
    assert_non_null(strstr(folder, version));
    snprintf(old, sizeof old, "%.*scuDNN 90100", (int)(strstr(folder, "cuDNN") - folder), folder);
    assert_int_equal(0, rename(folder, old)); /* as if written by an older cuDNN */
    d = open_with((struct cudnn_options){.cache_dir = cache});
    assert_false(cudnn_plan_measured(find(d, DNN_CONV, &halves)));
    cudnn_close(d);
    free(choice);
    free(other);
    (void)state;
}

/* --- export and import */

static void the_list_of_a_checkpoint_gives_the_same_plans(void **state)
{
    struct cudnn *from = open_with((struct cudnn_options){0}), *to = open_with((struct cudnn_options){0});
    struct cudnn_shape single = halves;
    single.type = DT_F32;
    single.nhwc = false;
    const struct cudnn_shape *shapes[] = {&halves, &single};
    char *text;
    for (int i = 0; i < 2; i++) {
        for (int p = 0; p < 3; p++) {
            static const enum cudnn_pattern plain[] = {DNN_CONV, DNN_DGRAD, DNN_WGRAD};
            struct cudnn_plan *all[MANY];
            const int n = candidates(from, plain[p], shapes[i], all);
            cudnn_choose(from, all[n - 1], i == 0 ? 3.5 : 0); /* the halves are measured */
        }
    }
    MUST(cudnn_export(from, &text, e));
    MUST(cudnn_import(to, text, e));
    assert_int_equal(6, count_plans(to));
    for (const struct cudnn_plan *p = to->plans; p; p = p->next) {
        same_plan(find(from, p->pattern, &p->shape), p);
        assert_ptr_equal(p, find(to, p->pattern, &p->shape));
        assert_int_equal(p->shape.type == DT_F16, cudnn_plan_measured(p));
    }
    free(text);
    cudnn_close(from);
    cudnn_close(to);
    (void)state;
}

static void a_damaged_list_is_an_error(void **state)
{
#define GRAPH(shape, choice) OF(shape, choice)
#define GOOD_PRODUCT "[4,16,1,1,32,1,1,1,1,0,0,1,1,0,1,0]"
#define PRODUCT(shape, choice)                                                                                         \
    "[{\"graph\": \"g7\", \"pattern\": 7, \"shape\": " shape ", \"engine\": " choice ", \"state\": \"timed\"}]"
#define ZEROS_16 "0000000000000000"
#define ZEROS ZEROS_16 ZEROS_16 ZEROS_16 ZEROS_16 ZEROS_16 ZEROS_16 ZEROS_16 ZEROS_16
    static const struct {
        const char *text, *want;
    } damage[] = {
        {"", "JSON"},
        {"{}", "array"},
        {"[1]", "graph"},
        {"[{\"graph\": \"g7\"}]", "pattern"},
        {"[{\"graph\": \"g7\", \"pattern\": 13, \"shape\": " GOOD_SHAPE "}]", "pattern is 13"},
        {"[{\"graph\": \"g7\", \"pattern\": 10, \"shape\": " GOOD_SHAPE "}]", "14 numbers (expected 16)"},
        {GRAPH("[4,16,14,14,32,3,3,1,1,1,1,1,1,0,5]", "{\"index\": 0}"), "no convolution"}, /* 5 groups */
        {GRAPH("[4, 16]", "{}"), "2 numbers"},
        {GRAPH("7", "{}"), "0 numbers"},
        {GRAPH("[4,16,14,14,32,3,3,0,1,1,1,1,1,0]", "{\"index\": 0}"), "no convolution"},  /* stride 0 */
        {GRAPH("[4,16,14,14,32,3,3,1,1,1,1,99,1,0]", "{\"index\": 0}"), "no convolution"}, /* type 99 */
        {GRAPH("[4,16,14,14,32,30,3,1,1,1,1,1,1,0]", "{\"index\": 0}"), "no convolution"},
        {GRAPH("[4,16,14,\"x\",32,3,3,1,1,1,1,1,1,0]", "{\"index\": 0}"), "no convolution"},
        {GRAPH(GOOD_SHAPE, "7"), "index"},
        {GRAPH(GOOD_SHAPE, "{\"index\": 1000000, \"knobs\": []}"), "g7"},
        {"[{\"graph\": \"g7\", \"pattern\": 0, \"shape\": " GOOD_SHAPE ", \"state\": \"barred\"}]",
         "nothing lies below"},
        {"[{\"graph\": \"g7\", \"pattern\": 1, \"shape\": " GOOD_SHAPE ", \"state\": \"sulking\"}]", "'sulking'"},
        {"[{\"graph\": \"g7\", \"pattern\": 0, \"shape\": " GOOD_SHAPE "}]", "state"},
        {PRODUCT(GOOD_SHAPE, "{}"), "14 numbers"},
        {PRODUCT("[4,16,1,1,32,1,1,1,1,0,0,1,1,0,99,0]", "{}"), "no product"}, /* type 99 */
        {PRODUCT("[4,16,3,3,32,3,3,1,1,0,0,1,1,0,1,0]", "{}"), "no product"},  /* 3 x 3 */
        {PRODUCT(GOOD_PRODUCT, "{}"), "cublaslt"},
        {PRODUCT(GOOD_PRODUCT, "{\"cublaslt\": 1, \"workspace\": 0, \"algo\": \"12\", \"name\": \"lt0\"}"),
         "128 digits"},
        {PRODUCT(GOOD_PRODUCT, "{\"cublaslt\": 1, \"workspace\": -1, \"algo\": \"" ZEROS "\", \"name\": \"lt0\"}"),
         "workspace"},
        {PRODUCT(GOOD_PRODUCT, "{\"cublaslt\": 1, \"workspace\": 0, \"algo\": \"" ZEROS "\", \"name\": \"lt0\"}"),
         "with cuBLASLt 1"},
        {GRAPH(GOOD_SHAPE, "{\"index\": 0, \"knobs\": [7]}"), "g7"}};
    struct cudnn *d = open_with((struct cudnn_options){0});
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        struct err e = {0};
        const int rc = cudnn_import(d, damage[i].text, &e);
        if (rc >= 0 || !strstr(e.text, damage[i].want))
            fail_msg("%s: %d '%s', expected an error with '%s'", damage[i].text, rc, e.text, damage[i].want);
    }
    assert_int_equal(0, count_plans(d));
    cudnn_close(d);
    (void)state;
}

/* --- which engines may be used */

static void workspace_stays_within_its_limit(void **state)
{
    struct cudnn *d = open_with((struct cudnn_options){0});
    struct cudnn_shape s = halves;
    struct cudnn_plan *all[MANY];
    size_t most = 0;
    const char *greedy = NULL;
    s.k = s.c = 64;
    const int n = candidates(d, DNN_WGRAD, &s, all);
    for (int i = 0; i < n; i++) {
        if (cudnn_plan_workspace(all[i]) > most) {
            most = cudnn_plan_workspace(all[i]);
            greedy = cudnn_plan_choice(all[i]);
        }
    }
    assert_true(most > 0);
    struct cudnn *limited = open_with((struct cudnn_options){.workspace_limit = most - 1});
    const int fewer = candidates(limited, DNN_WGRAD, &s, all);
    for (int i = 0; i < fewer; i++)
        assert_true(cudnn_plan_workspace(all[i]) < most);
    struct err e = {0};
    assert_int_equal(-ENOTSUP, adopt(limited, DNN_WGRAD, &s, greedy, &e));
    assert_non_null(strstr(e.text, "workspace"));
    cudnn_close(limited);
    cudnn_close(d);
    (void)state;
}

static bool noted(const struct cudnn_plan *p, cudnnBackendNumericalNote_t note)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine;
    int64_t n = 0;
    bool r = false;
    assert_int_equal(0, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    assert_int_equal(0, cudnnBackendGetAttribute(p->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                                 1, &n, &engine));
    assert_int_equal(0, cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                                 CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes));
    for (int64_t i = 0; i < n; i++)
        r = r || notes[i] == note;
    cudnnBackendDestroyDescriptor(engine);
    return r;
}

/* How many candidates of this device have the note; one of them, if any. */
static int count_noted(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s,
                       cudnnBackendNumericalNote_t note, const char **ret_choice)
{
    struct cudnn_plan *all[MANY];
    const int n = candidates(d, p, s, all);
    int r = 0;
    for (int i = 0; i < n; i++) {
        if (noted(all[i], note)) {
            *ret_choice = cudnn_plan_choice(all[i]);
            r++;
        }
    }
    return r;
}

static void fp32_without_tf32_uses_no_tensor_cores(void **state)
{
    struct cudnn *d = open_with((struct cudnn_options){0});
    struct cudnn_shape s = halves;
    const char *choice = NULL, *none;
    s.type = DT_F32;
    for (int p = DNN_CONV; p < DNN_GRAPHS; p++) {
        if (p != DNN_CONV && p != DNN_DGRAD && p != DNN_WGRAD)
            continue;
        s.tf32 = true;
        assert_true(count_noted(d, p, &s, CUDNN_NUMERICAL_NOTE_TENSOR_CORE, &choice) > 0);
        s.tf32 = false;
        assert_int_equal(0, count_noted(d, p, &s, CUDNN_NUMERICAL_NOTE_TENSOR_CORE, &none));
        assert_int_equal(0, count_noted(d, p, &s, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, &none));
        assert_int_equal(-ENOTSUP, adopt(d, p, &s, choice, NULL)); /* nor one from a file */
    }
    cudnn_close(d);
    (void)state;
}

static void deterministic_leaves_out_engines_that_are_not(void **state)
{
    struct cudnn *d = open_with((struct cudnn_options){0}),
                 *strict = open_with((struct cudnn_options){.deterministic = true});
    struct err e = {0};
    const char *choice = NULL, *none;
    int loose = 0;
    enum cudnn_pattern of = DNN_CONV;
    struct cudnn_shape shapes[] = {halves, halves}, *with = NULL;
    shapes[1].type = DT_F32;
    shapes[1].nhwc = false;
    for (int i = 0; i < 2; i++) {
        for (int p = DNN_DGRAD; p <= DNN_WGRAD; p++) {
            const int n = count_noted(d, p, &shapes[i], CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, &choice);
            of = n ? (enum cudnn_pattern)p : of;
            with = n ? &shapes[i] : with;
            loose += n;
            assert_int_equal(0, count_noted(strict, p, &shapes[i], CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, &none));
        }
    }
    assert_true(loose > 0);
    assert_int_equal(-ENOTSUP, adopt(strict, of, with, choice, &e));
    assert_non_null(strstr(e.text, "not deterministic"));
    cudnn_close(strict);
    cudnn_close(d);
    (void)state;
}

static int set_up(void **state)
{
    int rc = scratch_make(state);
    dir = *state;
    return rc;
}

/* A convolution's factors, read back as what they are computed with. Given in another type they are taken all the same,
 * and are others: doubles computed zeros on a card. */
static int expect_factors(const struct cudnn_parts *b, cudnnBackendAttributeName_t alpha,
                          cudnnBackendAttributeName_t beta)
{
    int convolutions = 0;
    for (int i = 0; i < b->n; i++) {
        float x = -1, y = -1;
        int64_t n = 0;
        if (cudnnBackendGetAttribute(b->all[i], alpha, CUDNN_TYPE_FLOAT, 1, &n, &x) != CUDNN_STATUS_SUCCESS || n != 1)
            continue;
        assert_int_equal(CUDNN_STATUS_SUCCESS, cudnnBackendGetAttribute(b->all[i], beta, CUDNN_TYPE_FLOAT, 1, &n, &y));
        assert_true(x == 1 && y == 0);
        convolutions++;
    }
    return convolutions;
}

static void a_convolution_is_scaled_by_1_and_added_to_nothing(void **state)
{
    static const struct {
        cudnnBackendAttributeName_t alpha, beta;
    } ways[] = {{CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
                {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
                {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
    (void)state;
    for (int p = 0; p < DNN_GRAPHS; p++) {
        struct err e;
        struct cudnn_parts b = {.what = cudnn_pattern_name(p), .e = &e};
        cudnnBackendDescriptor_t graph;
        int convolutions = 0;
        assert_int_equal(0, cudnn_graph_build(&b, p, &halves, &graph));
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
            convolutions += expect_factors(&b, ways[i].alpha, ways[i].beta);
        assert_int_equal(1, convolutions);
        cudnn_parts_close(&b);
    }
}

/* Plans of these can be finalised where there is a driver alone; the heuristics answer anywhere. */
static void attention_is_offered_engines(void **state)
{
    static const struct {
        int heads, kv_heads, t, d;
        bool causal;
    } all[] = {{12, 12, 197, 64, false}, {6, 6, 197, 64, false}, {12, 12, 1024, 64, true}, {8, 2, 256, 128, true}};
    struct cudnn *d = open_with((struct cudnn_options){0});
    (void)state;
    for (int p = DNN_SDPA; p <= DNN_SDPA_BWD_FAST; p++)
        for (size_t i = 0; i < 2 * sizeof all / sizeof *all; i++) {
            const enum dtype type = i % 2 ? DT_BF16 : DT_F16;
            struct cudnn_shape s = {.n = 4,
                                    .c = all[i / 2].d,
                                    .h = all[i / 2].t,
                                    .w = 1,
                                    .k = all[i / 2].heads,
                                    .r = 1,
                                    .s = 1,
                                    .stride = {1, 1},
                                    .type = type,
                                    .nhwc = true,
                                    .groups = all[i / 2].kv_heads,
                                    .causal = all[i / 2].causal};
            char text[128];
            int n;
            cudnn_describe(p, &s, text, sizeof text);
            MUST(cudnn_offers(d, p, &s, &n, e));
            print_message("# %s: %d configurations\n", text, n);
            if (n < 1)
                fail_msg("%s has none", text);
            s.type = DT_F32;
            MUST(cudnn_offers(d, p, &s, &n, e));
            assert_int_equal(0, n);
        }
    cudnn_close(d);
}

static void convolutions_in_groups_are_planned(void **state)
{
    struct cudnn *d = open_with((struct cudnn_options){0});
    struct cudnn_shape s = halves;
    (void)state;
    s.c = s.k = 64;
    s.groups = 4;
    for (int p = DNN_CONV; p <= DNN_WGRAD; p++)
        if (p == DNN_CONV || p == DNN_DGRAD || p == DNN_WGRAD)
            assert_non_null(strstr(find(d, p, &s)->graph, " g4 "));
    cudnn_close(d);
}

/* Shapes of groups and of attention keep what is theirs alone, in the list of a checkpoint too. */
static void a_list_tells_groups_and_masks_apart(void **state)
{
    struct cudnn *from = open_with((struct cudnn_options){0}), *to = open_with((struct cudnn_options){0});
    struct cudnn_shape s = {.n = 4,
                            .c = 64,
                            .h = 197,
                            .w = 1,
                            .k = 12,
                            .r = 1,
                            .s = 1,
                            .stride = {1, 1},
                            .type = DT_F16,
                            .nhwc = true,
                            .groups = 4,
                            .causal = true};
    struct cudnn_plan *p;
    struct err why = {0};
    char *text;
    (void)state;
    MUST(cudnn_bar(from, DNN_SDPA, &s, false, "as the test wants it", false, e));
    MUST(cudnn_export(from, &text, e));
    MUST(cudnn_import(to, text, e));
    assert_int_equal(-ENOTSUP, cudnn_find(to, DNN_SDPA, &s, &p, &why));
    assert_non_null(strstr(why.text, "as the test wants it"));
    s.causal = false;
    assert_true(cudnn_find(to, DNN_SDPA, &s, &p, &why) == 0 || !strstr(why.text, "as the test wants it"));
    free(text);
    cudnn_close(from);
    cudnn_close(to);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_convolution_is_scaled_by_1_and_added_to_nothing),
        cmocka_unit_test(attention_is_offered_engines),
        cmocka_unit_test(convolutions_in_groups_are_planned),
        cmocka_unit_test(a_list_tells_groups_and_masks_apart),
        cmocka_unit_test(every_candidate_is_adopted_from_its_text),
        cmocka_unit_test(a_plan_is_executed_more_than_once),
        cmocka_unit_test(a_cached_plan_is_taken_as_measured),
        cmocka_unit_test(a_cache_that_cannot_be_written_is_told_of_once),
        cmocka_unit_test(each_of_two_that_try_at_once_is_barred_when_both_are_gone),
        cmocka_unit_test(a_damaged_file_is_told_of_and_left_alone),
        cmocka_unit_test(another_card_cudnn_or_rule_has_another_folder),
        cmocka_unit_test(the_list_of_a_checkpoint_gives_the_same_plans),
        cmocka_unit_test(a_damaged_list_is_an_error),
        cmocka_unit_test(workspace_stays_within_its_limit),
        cmocka_unit_test(fp32_without_tf32_uses_no_tensor_cores),
        cmocka_unit_test(deterministic_leaves_out_engines_that_are_not),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: test_dnn PROPERTIES.json\n");
        return 2;
    }
    props = properties_read(argv[1]);
    const int rc = cmocka_run_group_tests_name("cuDNN's plans", tests, set_up, scratch_drop);
    free(props);
    return rc;
}
