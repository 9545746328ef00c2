/* Matrix products for the tuner: their candidates, and memory to prove them in where their own is not to be touched. */
#include <errno.h>

#include "worker/device/cuda/graph.h"
#include "worker/device/cuda/plan.h"

int product_candidates(struct cuda *c, const struct gpu_dnn *d, struct cudnn_plan **ret, int cap, int *ret_n,
                       struct err *e)
{
    struct dnn_algo all[PRODUCT_ALGOS];
    const struct gpu_gemm m = graph_gemm(d);
    char graph[128];
    int n = 0;
    *ret_n = 0;
    TRY(c->gpu->ops->gemm_algos(c->gpu, &m, PLAN_GEMM_WORKSPACE, cudnn_deterministic(c->dnn), all, PRODUCT_ALGOS, &n,
                                e));
    for (int i = 0; i < n && *ret_n < cap; i++) {
        TRY(cudnn_product_candidate(c->dnn, d->pattern, &d->shape, &all[i], &ret[*ret_n], e));
        *ret_n += ret[*ret_n] != NULL;
    }
    if (*ret_n > 0)
        return 0;
    cudnn_describe(d->pattern, &d->shape, graph, sizeof graph);
    return err_set(e, -ENOTSUP, "none of %d algorithms of cuBLASLt is left for %s", n, graph);
}

/* A tensor of d in memory of its own. */
static int lend(struct cuda *c, struct gpu_dnn *d, enum role r, struct product_memory *ret, struct err *e)
{
    const struct k_product p = graph_product(d);
    const size_t bytes = graph_elements(&p, r) * dtype_size(graph_type(&p, r));
    TRY(cuda_take(c, bytes, &d->slot[graph_slot(d->pattern, r)], e));
    ret->at[ret->n] = d->slot[graph_slot(d->pattern, r)];
    ret->bytes[ret->n++] = bytes;
    return 0;
}

int product_lend(struct cuda *c, const struct step *s, struct gpu_dnn *d, struct product_memory *ret, struct err *e)
{
    *ret = (struct product_memory){.n = 0};
    int rc = s->of_arena ? lend(c, d, ROLE_FILTER, ret, e) : 0;
    if (rc == 0 && s->in_arena)
        rc = lend(c, d, graph_result(d->pattern), ret, e);
    if (rc < 0)
        product_give(c, ret);
    return rc;
}

void product_give(struct cuda *c, struct product_memory *m)
{
    while (m->n > 0) {
        m->n--;
        cuda_give(c, m->at[m->n], m->bytes[m->n]);
    }
}
