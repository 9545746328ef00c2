/* Element by element, included by kern_body.h. */

static INLINE void NAME(add_piece)(const T *a, const T *b, T *y, bool relu, int lanes)
{
    VF r = NAME(load)(a, lanes);
    if (b)
        r = NAME(rounded)(r + NAME(load)(b, lanes));
    NAME(store)(y, relu ? NAME(relu)(r) : r, lanes);
}

static void NAME(add)(const T *a, const T *b, T *y, bool relu, size_t n, int threads)
{
    int64_t whole = (int64_t)(n / L);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < whole; i++)
        NAME(add_piece)(a + i * L, b ? b + i * L : NULL, y + i * L, relu, L);
    size_t at = (size_t)whole * L;
    if (at < n)
        NAME(add_piece)(a + at, b ? b + at : NULL, y + at, relu, (int)(n - at));
}

static INLINE void NAME(relu_bwd_piece)(const T *y, const T *dy, T *dx, int lanes)
{
    NAME(store)(dx, NAME(where_positive)(NAME(load)(y, lanes), NAME(load)(dy, lanes)), lanes);
}

static void NAME(relu_bwd)(const T *y, const T *dy, T *dx, size_t n, int threads)
{
    int64_t whole = (int64_t)(n / L);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < whole; i++)
        NAME(relu_bwd_piece)(y + i * L, dy + i * L, dx + i * L, L);
    size_t at = (size_t)whole * L;
    if (at < n)
        NAME(relu_bwd_piece)(y + at, dy + at, dx + at, (int)(n - at));
}

static void NAME(give)(const float *from, T *to, size_t n, bool past, int threads)
{
    int64_t whole = (int64_t)(n / L);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < whole; i++)
        NAME(put)(to + i * L, NAME(loadf)(from + i * L, L), past, L);
    size_t at = (size_t)whole * L;
    if (at < n)
        NAME(store)(to + at, NAME(loadf)(from + at, (int)(n - at)), (int)(n - at));
}
