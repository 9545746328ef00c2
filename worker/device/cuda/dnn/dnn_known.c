/* What is known of graphs and their engines: which one is chosen, which are barred, which graphs are left out. */
#include "worker/device/cuda/dnn/dnn_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

static void add_plan(struct cudnn *d, struct cudnn_plan *p)
{
    p->next = d->plans;
    d->plans = p;
}

static bool is_choice(const struct cudnn_plan *p)
{
    return p->state != DNN_CANDIDATE && !(p->state == DNN_BARRED && p->choice);
}

static struct cudnn_plan *chosen(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s)
{
    for (struct cudnn_plan *p = d->plans; p; p = p->next)
        if (is_choice(p) && cudnn_same_graph(p, pattern, s))
            return p;
    return NULL;
}

static void set_chosen(struct cudnn *d, struct cudnn_plan *p, enum cudnn_plan_state state)
{
    struct cudnn_plan *before;
    while ((before = chosen(d, p->pattern, &p->shape)))
        before->state = DNN_CANDIDATE;
    p->state = state;
}

bool cudnn_choice_barred(const struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s,
                         const char *choice)
{
    for (const struct cudnn_plan *p = d->plans; p; p = p->next)
        if (p->state == DNN_BARRED && p->choice && cudnn_same_graph(p, pattern, s) && !strcmp(p->choice, choice))
            return true;
    return false;
}

static int set_why(struct cudnn_plan *p, const char *why, struct err *e)
{
    char *text = strdup(why);
    if (!text)
        return err_set(e, -ENOMEM, "no memory for a plan");
    free(p->why);
    p->why = text;
    return 0;
}

void cudnn_bar_engine(struct cudnn *d, struct cudnn_plan *p, const char *why, bool lasting)
{
    if (set_why(p, why, NULL) < 0)
        return; /* it will be tried again */
    p->state = DNN_BARRED;
    p->fleeting = !lasting;
    if (lasting)
        cudnn_cache_put(d, p);
}

int cudnn_bar(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s, bool slower, const char *why,
              bool lasting, struct err *e)
{
    if (!cudnn_pattern_fused(pattern) && !cudnn_pattern_product(pattern))
        return err_set(e, ERR_CORRUPT, "%s cannot be left out: nothing lies below it", cudnn_pattern_name(pattern));
    struct cudnn_plan *p = cudnn_plan_new(d, pattern, s);
    if (!p || set_why(p, why, NULL) < 0) {
        cudnn_plan_free(p);
        return err_set(e, -ENOMEM, "no memory for a plan");
    }
    snprintf(p->name, sizeof p->name, "none");
    p->fleeting = !lasting;
    add_plan(d, p);
    set_chosen(d, p, slower ? DNN_SLOWER : DNN_BARRED);
    if (lasting)
        cudnn_cache_put(d, p);
    return 0;
}

static int plan_of_choice(struct cudnn_plan *p, const cJSON *choice, struct err *e)
{
    struct cudnn_parts b = {.e = e, .what = p->graph};
    cudnnBackendDescriptor_t graph;
    int rc = cudnn_graph_build(&b, p->pattern, &p->shape, &graph);
    p->parts.e = e;
    if (rc == 0)
        rc = cudnn_choice_config(p->d, &p->parts, graph, choice, &p->config);
    if (rc == 0)
        rc = cudnn_plan_finish(p, e);
    if (rc == 0)
        rc = cudnn_plan_check(p, e);
    cudnn_parts_close(&b);
    return rc;
}

int cudnn_adopt(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s, const cJSON *choice,
                bool measured, double us, struct err *e)
{
    struct cudnn_plan *p = cudnn_plan_new(d, pattern, s);
    if (!p)
        return err_set(e, -ENOMEM, "no memory for a plan");
    int rc = cudnn_pattern_product(pattern) ? cudnn_product_read(p, choice, e) : plan_of_choice(p, choice, e);
    if (rc == 0 && cudnn_choice_barred(d, pattern, s, p->choice))
        rc = err_set(e, -ENOTSUP, "%s is barred for %s", p->name, p->graph);
    if (rc < 0) {
        cudnn_plan_free(p);
        return rc;
    }
    p->us = us;
    p->kept = true;
    add_plan(d, p);
    set_chosen(d, p, measured ? DNN_TIMED : DNN_GUESSED);
    return 0;
}

int cudnn_adopt_barred(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s, const cJSON *choice,
                       const char *why, struct err *e)
{
    char *text = cJSON_PrintUnformatted(choice);
    if (text && cudnn_choice_barred(d, pattern, s, text)) {
        free(text);
        return 0;
    }
    for (struct cudnn_plan *p = d->plans; p && text; p = p->next) /* it may have been made already */
        if (p->choice && cudnn_same_graph(p, pattern, s) && !strcmp(p->choice, text))
            p->state = DNN_CANDIDATE;
    struct cudnn_plan *p = cudnn_plan_new(d, pattern, s);
    if (!p || !text || set_why(p, why, NULL) < 0) {
        cudnn_plan_free(p);
        free(text);
        return err_set(e, -ENOMEM, "no memory for a plan");
    }
    p->choice = text;
    snprintf(p->name, sizeof p->name, "barred");
    p->state = DNN_BARRED;
    add_plan(d, p);
    return 0;
}

void cudnn_choose(struct cudnn *d, struct cudnn_plan *p, double us)
{
    p->us = us;
    set_chosen(d, p, us > 0 ? DNN_TIMED : DNN_GUESSED);
    if (us > 0)
        cudnn_cache_put(d, p);
}

void cudnn_settle(struct cudnn *d, struct cudnn_plan *p)
{
    p->settled = true;
    cudnn_cache_put(d, p);
}

int cudnn_find(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s, struct cudnn_plan **ret,
               struct err *e)
{
    int n;
    struct cudnn_plan *p = chosen(d, pattern, s);
    if (!p) {
        cudnn_cache_get(d, pattern, s);
        p = chosen(d, pattern, s);
    }
    if (!p) {
        TRY(cudnn_candidates(d, pattern, s, &p, 1, &n, e));
        p->state = DNN_GUESSED;
    }
    if (p->state == DNN_SLOWER)
        return err_set(e, -ENOTSUP, "%s: %s", p->graph, p->why);
    if (p->state == DNN_BARRED)
        return err_set(e, -ENOTSUP, "no engine for %s runs on this GPU: %s", p->graph, p->why);
    *ret = p;
    return 0;
}
