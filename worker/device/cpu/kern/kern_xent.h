/* The loss of one row of logits (device/xent_parts.h), included by kern_isa.c with
 *   X       what sums and gradients are made in: float, double
 *   EXP     e^x in it
 *   NAME(x) gives each function its own name. */

/* At most RUN of them. */
static double NAME(exps_of_run)(const float *z, int n, X most, double *logits)
{
    X
    exps = 0, sum = 0;
#pragma omp simd reduction(+ : exps, sum)
    for (int j = 0; j < n; j++) {
        exps += EXP((X)z[j] - most);
        sum += (X)z[j];
    }
    *logits += (double)sum;
    return (double)exps;
}

static void NAME(xent_sums)(const float *z, int n, int first, const X *top, X *sums)
{
    const int label = (int)top[TOP_CLASS] - first;
    double exps = 0, logits = 0, better = 0;
    for (int at = 0; at < n; at += RUN) {
        const int len = n - at < RUN ? n - at : RUN;
        exps += NAME(exps_of_run)(z + at, len, top[TOP_MAX], &logits);
        better += better_of_run(z + at, len, (float)top[TOP_TARGET], label - at);
    }
    sums[SUMS_EXP] = (X)exps;
    sums[SUMS_LOGITS] = (X)logits;
    sums[SUMS_BETTER] = (X)better;
}

static void NAME(xent_gradient)(const float *z, int n, X lse, X shift, X scale, float *dz)
{
#pragma omp simd
    for (int j = 0; j < n; j++)
        dz[j] = (float)((EXP((X)z[j] - lse) - shift) * scale);
}

#undef NAME
#undef EXP
#undef X
