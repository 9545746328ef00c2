/* Convolutions in groups of channels, included by kern_body.h; groups.h says how. */

static INLINE VF NAME(ring_load)(const float *p)
{
    VF v;
    memcpy(&v, p, sizeof v);
    return v;
}

static INLINE void NAME(ring_store)(float *p, VF v)
{
    memcpy(p, &v, sizeof v);
}

/* --- the ring */

/* Where the lanes of a vector of written channels find what they read. */
struct NAME(lanes) {
    int k, lanes; /* written channels [k, k + lanes) */
    int first;    /* the first channel of x that any of them reads */
    int window;   /* channels from there that a vector holds, if one holds all of them; else 0 */
    bool one;     /* all lanes belong to one group */
    VI at[1];     /* lane: the first channel that it reads, less `first` */
};

static struct NAME(lanes) NAME(lanes_of)(const struct groups_job *j, int vector)
{
    struct NAME(lanes) s = {.k = vector * L, .lanes = j->k - vector * L < L ? j->k - vector * L : L};
    const int last = (s.k + s.lanes - 1) / j->made;
    s.first = s.k / j->made * j->read;
    s.one = s.k / j->made == last;
    const int all = (last + 1) * j->read - s.first;
    s.window = all <= L ? all : 0;
    for (int l = 0; l < L; l++)
        s.at[0][l] = l < s.lanes ? (s.k + l) / j->made * j->read - s.first : 0;
    return s;
}

static INLINE float NAME(one_value)(const T *p)
{
#if T_BF16
    return f32_from_bf16(*p);
#else
    return *p;
#endif
}

/* The planes of one pixel, which are `plane` floats apart. */
static INLINE void NAME(ring_pixel)(const struct groups_job *j, const struct NAME(lanes) * s, const T *x, float *to,
                                    size_t plane)
{
    if (j->read == 1 && j->made == 1) {
        NAME(ring_store)(to, s->lanes == L ? NAME(load)(x, L) : NAME(load)(x, s->lanes));
    } else if (s->one) {
        for (int i = 0; i < j->read; i++)
            NAME(ring_store)(to + (size_t)i * plane, (VF){0} + NAME(one_value)(x + i));
    } else if (s->window) {
        const VF v = s->window == L ? NAME(load)(x, L) : NAME(load)(x, s->window);
        for (int i = 0; i < j->read; i++)
            NAME(ring_store)(to + (size_t)i * plane, __builtin_shuffle(v, s->at[0] + i));
    } else {
        for (int i = 0; i < j->read; i++) {
            float v[L] = {0};
            for (int l = 0; l < s->lanes; l++)
                v[l] = NAME(one_value)(x + s->at[0][l] + i);
            memcpy(to + (size_t)i * plane, v, sizeof v);
        }
    }
}

/* Row `at` of the window's rows of a sample, spread and padded: false where it has zeros alone. */
static bool NAME(ring_row)(const struct groups_job *j, const struct NAME(lanes) * s, const T *x, int at, float *to)
{
    const int y = at - j->top, width = groups_width(j);
    const size_t plane = (size_t)width * L;
    if (y < 0 || y % j->spread || y / j->spread >= j->h)
        return false;
    x += (size_t)(y / j->spread) * (size_t)j->w * (size_t)j->c + (size_t)s->first;
    for (int i = 0; i < j->read; i++)
        memset(to + (size_t)i * plane, 0, sizeof(float) * (size_t)(j->spread > 1 ? width : j->left) * L);
    int end = 0; /* of the pixels that are there */
    for (int i = 0; i < j->w; i++) {
        const int p = j->left + i * j->spread;
        if (p < 0 || p >= width)
            continue;
        NAME(ring_pixel)(j, s, x + (size_t)i * (size_t)j->c, to + (size_t)p * L, plane);
        end = p + 1;
    }
    for (int i = 0; i < j->read; i++)
        memset(to + (size_t)i * plane + (size_t)end * L, 0, sizeof(float) * (size_t)(width - end) * L);
    return true;
}

/* Rows of the ring that a row of y reads. */
struct NAME(ring) {
    float *floats;
    size_t row; /* floats of a row: all of its planes */
    int next;   /* row to be read next */
    bool *there;
};

static void NAME(ring_turn)(const struct groups_job *j, const struct NAME(lanes) * s, const T *x, int oy,
                            struct NAME(ring) * r)
{
    const int first = oy * j->step;
    for (int at = r->next > first ? r->next : first; at < first + j->kh; at++)
        r->there[at % j->kh] = NAME(ring_row)(j, s, x, at, r->floats + (size_t)(at % j->kh) * r->row);
    r->next = first + j->kh;
}

/* --- weights, a vector of channels after another: (kh, read, kw) vectors */

static void NAME(pack)(const struct groups_job *j, int vector)
{
    const int window = j->kh * j->kw;
    float *to = j->weights + (size_t)vector * (size_t)(window * j->read) * L;
    for (int l = 0; l < L; l++) {
        const int k = vector * L + l;
        for (int i = 0; i < j->read; i++)
            for (int y = 0; y < j->kh; y++)
                for (int x = 0; x < j->kw; x++) {
                    const size_t o = j->turned ? (size_t)(k / j->made * j->read + i) : (size_t)k;
                    const size_t c = j->turned ? (size_t)(k % j->made) : (size_t)i;
                    const size_t each = j->turned ? (size_t)j->made : (size_t)j->read;
                    const int at = j->turned ? window - 1 - (y * j->kw + x) : y * j->kw + x;
                    const float v = k < j->k ? j->from[(o * each + c) * (size_t)window + (size_t)at] : 0;
                    to[(size_t)((y * j->read + i) * j->kw + x) * L + (size_t)l] = store_value(j->rounds, v);
                }
    }
}

/* --- forward, and by data */

static INLINE void NAME(block)(const struct groups_job *j, const float *weights, const struct NAME(ring) * r, int oy,
                               int ox, VF bias, int step, T *y, int lanes)
{
    VF sum[GROUPS_BLOCK];
    const size_t plane = (size_t)groups_width(j) * L;
    const int kw = j->kw, read = j->read;
    for (int i = 0; i < GROUPS_BLOCK; i++)
        sum[i] = bias;
    for (int ky = 0; ky < j->kh; ky++) {
        const int slot = (oy * j->step + ky) % j->kh;
        const float *w = weights + (size_t)(ky * read * kw) * L, *row = r->floats + (size_t)slot * r->row;
        if (!r->there[slot])
            continue;
        for (int c = 0; c < read; c++) {
            const float *at = row + (size_t)c * plane + (size_t)(ox * step) * L;
            for (int kx = 0; kx < kw; kx++, w += L, at += L) {
                const VF by = NAME(ring_load)(w);
                for (int i = 0; i < GROUPS_BLOCK; i++)
                    sum[i] += by * NAME(ring_load)(at + (size_t)(i * step) * L);
            }
        }
    }
    for (int i = 0; i < GROUPS_BLOCK && ox + i < j->ow; i++)
        NAME(store)(y + (size_t)(ox + i) * (size_t)j->k, sum[i], lanes);
}

static void NAME(row)(const struct groups_job *j, const struct NAME(lanes) * s, const float *weights,
                      const struct NAME(ring) * r, int oy, VF bias, T *y)
{
    for (int ox = 0; ox < j->ow; ox += GROUPS_BLOCK) {
        if (j->step == 1 && s->lanes == L)
            NAME(block)(j, weights, r, oy, ox, bias, 1, y, L);
        else
            NAME(block)(j, weights, r, oy, ox, bias, j->step, y, s->lanes);
    }
}

/* Rows of y that are made at a time: what they read fits into a part of a core's cache, and all threads have work. */
static int NAME(bands)(const struct groups_job *j, int vectors, int threads)
{
    enum { CACHE = 512 << 10 };
    const size_t line = (size_t)j->w * (size_t)j->c * sizeof(T) / (size_t)j->spread;
    int bands = (int)((size_t)(j->oh * j->step) * line / CACHE) + 1;
    while (bands < j->oh && j->n * vectors * bands < 4 * threads)
        bands++;
    return bands;
}

static void NAME(groups)(const struct groups_job *j, int threads)
{
    enum { KERNEL_MOST = 1024 };
    const int vectors = groups_vectors(j, L), bands = NAME(bands)(j, vectors, threads), items = j->n * bands * vectors;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int v = 0; v < vectors; v++)
        NAME(pack)(j, v);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < items; item++) {
        const int vector = item % vectors, band = item / vectors % bands, n = item / vectors / bands;
        const struct NAME(lanes) s = NAME(lanes_of)(j, vector);
        const float *weights = j->weights + (size_t)vector * (size_t)(j->kh * j->kw * j->read) * L;
        const T *x = (const T *)j->x + (size_t)n * (size_t)(j->h * j->w) * (size_t)j->c;
        bool there[KERNEL_MOST];
        struct NAME(ring) r = {.floats = j->scratch + (size_t)omp_get_thread_num() * groups_ring(j, L),
                               .row = (size_t)groups_width(j) * (size_t)j->read * L,
                               .there = there};
        const VF bias = j->bias ? NAME(loadf)(j->bias + s.k, s.lanes) : (VF){0};
        for (int oy = share(j->oh, band, bands); oy < share(j->oh, band + 1, bands); oy++) {
            T *y = (T *)j->y + ((size_t)(n * j->oh + oy) * (size_t)j->ow) * (size_t)j->k + (size_t)s.k;
            NAME(ring_turn)(j, &s, x, oy, &r);
            NAME(row)(j, &s, weights, &r, oy, bias, y);
        }
    }
}

/* --- by weights */

/* A row of dy as floats; beyond its end there are zeros. */
static void NAME(line)(const struct groups_job *j, const struct NAME(lanes) * s, const T *dy, float *to, VF *bias)
{
    for (int i = 0; i < j->ow; i++) {
        const VF v = s->lanes == L ? NAME(load)(dy + (size_t)i * (size_t)j->k, L)
                                   : NAME(load)(dy + (size_t)i * (size_t)j->k, s->lanes);
        NAME(ring_store)(to + (size_t)i * L, v);
        *bias += v;
    }
}

/* sums (rows, cols) += over pixels of line * what each of rows x cols places of the window sees; rows of the ring begin
 * at `row`, rows of sums are `apart` floats apart. */
static INLINE void NAME(window_sums)(const struct groups_job *j, const float *line, const float *const *row, int rows,
                                     int cols, int step, float *sums, size_t apart)
{
    VF sum[10];
    for (int i = 0; i < rows * cols; i++)
        sum[i] = NAME(ring_load)(sums + (size_t)(i / cols) * apart + (size_t)(i % cols) * L);
    for (int ox = 0; ox < j->ow; ox++) {
        const VF d = NAME(ring_load)(line + (size_t)ox * L);
        for (int i = 0; i < rows * cols; i++)
            sum[i] += d * NAME(ring_load)(row[i / cols] + (size_t)(ox * step + i % cols) * L);
    }
    for (int i = 0; i < rows * cols; i++)
        NAME(ring_store)(sums + (size_t)(i / cols) * apart + (size_t)(i % cols) * L, sum[i]);
}

/* For one place of the window, and so that sums do not wait for one another. */
static INLINE void NAME(place_sums)(const struct groups_job *j, const float *line, const float *row, int step,
                                    float *sums)
{
    VF a = NAME(ring_load)(sums), b = {0}, c = {0}, d = {0};
    for (int ox = 0; ox < j->ow; ox += 4) { /* the line ends in zeros, and so does the row */
        a += NAME(ring_load)(line + (size_t)ox * L) * NAME(ring_load)(row + (size_t)(ox * step) * L);
        b += NAME(ring_load)(line + (size_t)(ox + 1) * L) * NAME(ring_load)(row + (size_t)((ox + 1) * step) * L);
        c += NAME(ring_load)(line + (size_t)(ox + 2) * L) * NAME(ring_load)(row + (size_t)((ox + 2) * step) * L);
        d += NAME(ring_load)(line + (size_t)(ox + 3) * L) * NAME(ring_load)(row + (size_t)((ox + 3) * step) * L);
    }
    NAME(ring_store)(sums, (a + b) + (c + d));
}

#define WINDOW_SUMS(rows, cols)                                                                                        \
    do {                                                                                                               \
        if (j->step == 1)                                                                                              \
            NAME(window_sums)(j, line, at, rows, cols, 1, to, apart);                                                  \
        else                                                                                                           \
            NAME(window_sums)(j, line, at, rows, cols, j->step, to, apart);                                            \
    } while (0)

static void NAME(row_sums)(const struct groups_job *j, const struct NAME(ring) * r, int oy, const float *line,
                           float *sums)
{
    const size_t plane = (size_t)groups_width(j) * L, apart = (size_t)(j->read * j->kw) * L;
    for (int c = 0; c < j->read; c++)
        for (int ky = 0, rows; ky < j->kh; ky += rows) {
            const float *at[3];
            const int most = j->kw == 3 ? 3 : j->kw == 5 ? 2 : 1;
            float *to = sums + (size_t)ky * apart + (size_t)(c * j->kw) * L;
            for (rows = 0; rows < most && ky + rows < j->kh; rows++) {
                const int slot = (oy * j->step + ky + rows) % j->kh;
                if (!r->there[slot])
                    break;
                at[rows] = r->floats + (size_t)slot * r->row + (size_t)c * plane;
            }
            if (rows == 3)
                WINDOW_SUMS(3, 3);
            else if (rows == 2 && j->kw == 5)
                WINDOW_SUMS(2, 5);
            else if (rows == 2)
                WINDOW_SUMS(2, 3);
            else if (rows == 1 && j->kw == 7)
                WINDOW_SUMS(1, 7);
            else if (rows == 1)
                for (int kx = 0; kx < j->kw; kx++)
                    NAME(place_sums)(j, line, at[0] + (size_t)kx * L, j->step, to + (size_t)kx * L);
            else
                rows = 1; /* of zeros */
        }
}

static void NAME(sums_of)(const struct groups_param_job *p, int vector, int part, int parts, double *to)
{
    enum { KERNEL_MOST = 1024 };
    const struct groups_job *j = &p->of;
    const struct NAME(lanes) s = NAME(lanes_of)(j, vector);
    const size_t n_sums = groups_sums(j, L);
    const int thread = omp_get_thread_num();
    bool there[KERNEL_MOST];
    float *room = j->scratch + (size_t)thread * (groups_ring(j, L) + n_sums + groups_line(j, L));
    float *sums = room + groups_ring(j, L), *line = sums + n_sums;
    memset(to, 0, sizeof(double) * n_sums);
    memset(line, 0, sizeof(float) * groups_line(j, L));
    for (int n = share(j->n, part, parts); n < share(j->n, part + 1, parts); n++) {
        const T *x = (const T *)j->x + (size_t)n * (size_t)(j->h * j->w) * (size_t)j->c;
        const T *dy = (const T *)p->dy + (size_t)n * (size_t)(j->oh * j->ow) * (size_t)j->k + (size_t)s.k;
        struct NAME(ring) r = {.floats = room, .row = (size_t)groups_width(j) * (size_t)j->read * L, .there = there};
        VF bias = {0};
        memset(sums, 0, sizeof(float) * n_sums);
        for (int oy = 0; oy < j->oh; oy++) {
            NAME(ring_turn)(j, &s, x, oy, &r);
            NAME(line)(j, &s, dy + (size_t)(oy * j->ow) * (size_t)j->k, line, &bias);
            NAME(row_sums)(j, &r, oy, line, sums);
        }
        NAME(ring_store)(sums + n_sums - L, bias);
        for (size_t i = 0; i < n_sums; i++)
            to[i] += (double)sums[i];
    }
}

/* Sums of all parts, to their places. */
static void NAME(unpack)(const struct groups_param_job *p, int vector, int vectors, int parts)
{
    const struct groups_job *j = &p->of;
    const size_t n_sums = groups_sums(j, L), window = (size_t)(j->kh * j->kw);
    for (int l = 0; l < L && vector * L + l < j->k; l++) {
        const int k = vector * L + l;
        for (size_t i = 0; i * L < n_sums; i++) {
            double sum = 0;
            for (int part = 0; part < parts; part++)
                sum += p->partial[((size_t)part * (size_t)vectors + (size_t)vector) * n_sums + i * L + (size_t)l];
            const bool bias = (i + 1) * L == n_sums;
            const size_t kw = (size_t)j->kw, read = (size_t)j->read, x = i % kw, c = i / kw % read, y = i / kw / read;
            float *to = bias ? p->db + k : p->dw + ((size_t)k * read + c) * window + y * kw + x;
            if (!bias || p->db)
                *to = store_value(p->round_sums, (float)sum) + (p->add ? *to : 0);
        }
    }
}

static void NAME(groups_param)(const struct groups_param_job *p, int threads)
{
    const struct groups_job *j = &p->of;
    const int vectors = groups_vectors(j, L), parts = groups_parts(j, L, threads);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < vectors * parts; item++)
        NAME(sums_of)
    (p, item % vectors, item / vectors, parts,
     p->partial + ((size_t)(item / vectors) * (size_t)vectors + (size_t)(item % vectors)) * groups_sums(j, L));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int v = 0; v < vectors; v++)
        NAME(unpack)(p, v, vectors, parts);
}

#undef WINDOW_SUMS
